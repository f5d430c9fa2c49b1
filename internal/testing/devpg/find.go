package devpg

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// minVersion is the oldest supported version of Postgres.
const minVersion = 15

// howToInstall ends an error.
const howToInstall = "`apt install postgresql` (Debian), `dnf install postgresql-server` (Fedora), " +
	"`brew install postgresql@17` (macOS) or, in a checkout, `make postgres`"

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// usualFolders returns the usual folders of PostgreSQL's server binaries; within
// each pattern, the newest version is first.
func usualFolders() []string {
	patterns := []string{
		"/usr/lib/postgresql/*/bin",                                          // Debian and Ubuntu
		"/usr/pgsql-*/bin",                                                   // PGDG on Fedora and RHEL
		"/opt/homebrew/opt/postgresql@*/bin",                                 // Homebrew on Apple silicon
		"/usr/local/opt/postgresql@*/bin",                                    // Homebrew on Intel
		"/Applications/Postgres.app/Contents/Versions/*/bin",                 // Postgres.app
		filepath.Join(".weir", "pgsql", "*", "bin"), "/opt/weir/pgsql/*/bin", // scripts/postgres.sh
	}
	var all []string
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil {
			continue // a malformed pattern is the only error
		}
		slices.SortStableFunc(found, func(a, b string) int { return versionInPath(b) - versionInPath(a) })
		all = append(all, found...)
	}
	return all
}

// versionInPath returns the version in a folder's path, or 0.
func versionInPath(path string) int {
	digits := regexp.MustCompile(`\d+`).FindString(path)
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// Find returns the folder of initdb and postgres, and their major version. It
// searches PATH first, then the usual folders, the newest version first. The error
// says what to install.
func Find() (bin string, version int, err error) {
	var folders []string
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			folders = append(folders, filepath.Dir(real))
		}
	}
	tooOld := 0
	for _, folder := range append(folders, usualFolders()...) {
		folder, err := filepath.Abs(folder)
		if err != nil {
			continue
		}
		v, ok := versionIn(folder)
		switch {
		case ok && v >= minVersion:
			return folder, v, nil
		case ok:
			tooOld = max(tooOld, v)
		}
	}
	if tooOld > 0 {
		return "", 0, fmt.Errorf("PostgreSQL %d is installed, but Weir needs %d or newer: "+howToInstall, tooOld, minVersion)
	}
	return "", 0, fmt.Errorf("PostgreSQL's server binaries (initdb, postgres) were not found; Weir needs version %d or newer: "+howToInstall,
		minVersion)
}

// versionIn returns the major version of the server in folder. ok is false unless
// the folder holds both binaries.
func versionIn(folder string) (version int, ok bool) {
	if _, err := os.Stat(filepath.Join(folder, "initdb")); err != nil {
		return 0, false
	}
	out, err := exec.Command(filepath.Join(folder, "postgres"), "--version").Output()
	if err != nil {
		return 0, false
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return 0, false
	}
	v, err := strconv.Atoi(string(m[1]))
	return v, err == nil
}
