package e2e

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestImageArchives runs the binary as the image's user in a root that it cannot write, with the
// folders of the Dockerfile, of which Compose mounts volumes on some. It seals and stores segments,
// and reads lexicons.
func TestImageArchives(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	made := regexp.MustCompile(`RUN mkdir -p .*`).FindString(read(t, "Dockerfile"))
	for _, folder := range regexp.MustCompile(`/folders/(\w+)`).FindAllStringSubmatch(made, -1) {
		require.NoError(t, os.Mkdir(filepath.Join(root, folder[1]), 0o755))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "usr/local/bin"), 0o755))
	within := []string{"unshare", "--map-user=65532", "--map-group=65532", "--root=" + root, "--wd=/"}
	owner := os.Getuid()
	if owner == 0 {
		within, owner = []string{"chroot", "--userspec=65532:65532", root}, 65532
	}
	services, err := compose(t, secrets())
	require.NoError(t, err)
	for _, volume := range services.Services["serve"].Volumes {
		folder := filepath.Join(root, volume.Target)
		require.DirExists(t, folder, "a volume on a folder that the image does not have belongs to root")
		if !volume.ReadOnly {
			require.NoError(t, os.Chown(folder, owner, owner))
			continue
		}
		const schema = `{"lexicon":1,"id":"a.b.note","defs":{"main":{"type":"record","key":"any","record":{"type":"object"}}}}`
		require.NoError(t, os.WriteFile(filepath.Join(folder, "note.json"), []byte(schema), 0o644)) // another user reads it
	}
	copyFile(t, binary, filepath.Join(root, "usr/local/bin/weir"))
	for _, folder := range []string{root, filepath.Join(root, "usr/local/bin")} {
		require.NoError(t, os.Chmod(folder, 0o555)) // the image's user must not write it
	}
	t.Cleanup(func() { os.Chmod(root, 0o755) }) // the folder can then be removed
	weir := append(within, "/usr/local/bin/weir")
	if out, err := exec.Command(weir[0], append(weir[1:], "version")...).CombinedOutput(); err != nil { // the test's own
		require.NotZero(t, os.Getuid(), string(out))
		t.Logf("this machine has no namespaces for users: only the folders are checked: %s", out)
		return
	}

	n := network(t, 300)
	url := schematest.NewURL(t)
	pool := open(t, url)
	env := append(reads(n, url), "TMPDIR=", "WEIR_ARCHIVE=dir:/archive", "WEIR_ARCHIVE_INTERVAL=1s", "WEIR_LEXICONS=/lexicons")
	serve := startProgram(t, weir[0], env, append(weir[1:], "serve")...)
	eventually.True(t, func() bool {
		stored, err := tryCount(pool, `SELECT count(*) FROM segments WHERE synced_at IS NOT NULL`)
		return err == nil && stored > 0
	}, 20*time.Millisecond, "%s", &serve.stderr)
	require.NotContains(t, serve.stderr.String(), "read-only")
	require.NotContains(t, serve.stderr.String(), "permission denied")
	env = append(env, "WEIR_LEXICONS=", "WEIR_ARCHIVE=dir:"+filepath.Join(root, "archive"))
	require.NotEmpty(t, strings.TrimSpace(succeed(t, env, "archive", "export")))
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	require.NoError(t, err)
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o755) // another user runs it
	require.NoError(t, err)
	_, err = io.Copy(out, in)
	require.NoError(t, err)
	require.NoError(t, out.Close())
}
