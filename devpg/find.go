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

// oldest is the first version of Postgres that serves.
const oldest = 15

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// places are the folders besides PATH in which PostgreSQL's server binaries are
// usually found; within a pattern, the newest version first.
func places() []string {
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
			continue // only a malformed pattern
		}
		slices.SortStableFunc(found, func(a, b string) int { return number(b) - number(a) })
		all = append(all, found...)
	}
	return all
}

// number is the version in a folder's path; 0 where there is none.
func number(path string) int {
	digits := regexp.MustCompile(`\d+`).FindString(path)
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// Find answers the folder that holds initdb and postgres, and their major
// version: from PATH, else from the usual places, the newest first. The error
// says what to install.
func Find() (bin string, version int, err error) {
	var folders []string
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			folders = append(folders, filepath.Dir(real))
		}
	}
	tooOld := 0
	for _, folder := range append(folders, places()...) {
		folder, err := filepath.Abs(folder)
		if err != nil {
			continue
		}
		v, ok := versionIn(folder)
		switch {
		case ok && v >= oldest:
			return folder, v, nil
		case ok:
			tooOld = max(tooOld, v)
		}
	}
	if tooOld > 0 {
		return "", 0, fmt.Errorf("PostgreSQL %d is installed, %d or newer is needed: `make postgres` installs one", tooOld, oldest)
	}
	return "", 0, fmt.Errorf("PostgreSQL's server binaries (initdb, postgres) were not found: `make postgres` installs them, or install PostgreSQL %d or newer", oldest)
}

// versionIn is the major version of the server in folder. It needs both binaries.
func versionIn(folder string) (int, bool) {
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
