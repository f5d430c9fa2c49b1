package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
)

// releaseCommand builds the release's binary.
const releaseCommand = `go build -buildvcs=true -ldflags='-s -w' -o `

// heaviest returns the bytes that the release's script allows for the binary.
func heaviest(t *testing.T) int {
	t.Helper()
	bytes, err := strconv.Atoi(regexp.MustCompile(`\nheaviest=(\d+)`).FindStringSubmatch(read(t, "scripts/release.sh"))[1])
	require.NoError(t, err)
	return bytes
}

// TestBinaryIsLightEnough compares the binary of the tests, which is built like the release's, with what the release allows.
func TestBinaryIsLightEnough(t *testing.T) {
	t.Parallel()
	script := read(t, "scripts/release.sh")
	require.Contains(t, script, releaseCommand)
	require.Contains(t, script, "export CGO_ENABLED=0 GOFLAGS=-trimpath ")
	file, err := os.Stat(binary)
	require.NoError(t, err)
	require.Less(t, file.Size(), int64(heaviest(t)))
}

// TestReleaseIsReproducible builds the release's binary in two folders. Both are equal, small enough, and print the
// version and the commit.
func TestReleaseIsReproducible(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	run := func(command string, arguments ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", append([]string{"-euo", "pipefail", "-c", command, "bash"}, arguments...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath", "GIT_CONFIG_GLOBAL=/dev/null")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	first, second := t.TempDir(), filepath.Join(t.TempDir(), "another", "folder")
	run(`cd "$1" && git ls-files --cached --others --exclude-standard | while IFS= read -r file; do [ ! -e "$file" ] || echo "$file"; done |
		tar -cf - -T - | tar -xf - -C "$2" && cd "$2" &&
		git init --quiet && git add . && git -c user.name=t -c user.email=t commit --quiet --message "A release" &&
		git tag v0.9.8 && git clone --quiet . "$3"`, project, first, second)
	var binaries []string
	for _, folder := range []string{first, second} {
		run(`cd "$1" && `+releaseCommand+`"$1/bin/weir" ./cmd/weir`, folder)
		built, err := os.ReadFile(filepath.Join(folder, "bin/weir"))
		require.NoError(t, err)
		binaries = append(binaries, string(built))
	}
	require.True(t, binaries[0] == binaries[1], "the build depends on its folder")
	require.Less(t, len(binaries[0]), heaviest(t))
	commit := strings.TrimSpace(run(`git -C "$1" rev-parse HEAD`, first))
	require.Regexp(t, `^weir v0\.9\.8\ncommit `+commit+` of 2\d{3}-\S+Z\ngo1\.\d+\S*\nschema `, run(`"$1/bin/weir" version`, second))
}

// TestPackageHasItsFiles shows that what the Debian package installs exists.
func TestPackageHasItsFiles(t *testing.T) {
	t.Parallel()
	files := regexp.MustCompile(`(?m)(?:src: |install: |remove: )([^,\s]+)`).FindAllStringSubmatch(read(t, "deploy/debian/nfpm.yaml"), -1)
	require.Greater(t, len(files), 10)
	for _, file := range files {
		if !slices.Contains([]string{"weir", "licences", "weir.env.example"}, file[1]) { // the script adds these
			_, err := os.Stat(filepath.Join(project, file[1]))
			require.NoError(t, err)
		}
	}
}
