package devpg

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user who runs the server. Postgres refuses to run as root.
type account struct {
	other    bool // not this process's user
	uid, gid int
}

// serverAccount returns this process's user or, for root, an unprivileged account.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return &account{uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.Atoi(u.Uid)
		gid, gidErr := strconv.Atoi(u.Gid)
		if uidErr == nil && gidErr == nil {
			return &account{other: true, uid: uid, gid: gid}, nil
		}
	}
	return nil, errors.New("root cannot run Postgres, and there is no account postgres or nobody: run as another user")
}

// attributes make a process run as the account, detached from the terminal: Ctrl-C
// stops this process, which then stops the server cleanly.
func (a *account) attributes() *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Setpgid: true}
	if a.other {
		attributes.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attributes
}

// home returns the folder for the server's files: dir or, if the account cannot
// reach dir, a folder for temporary files.
func (a *account) home(dir string) (string, error) {
	if !a.other {
		return dir, os.Chmod(dir, 0o700)
	}
	if !a.canReach(dir) {
		h := fnv.New64a()
		h.Write([]byte(dir)) // never fails
		dir = filepath.Join("/var/tmp", fmt.Sprintf("weir-postgres-%x", h.Sum64()))
		if !exists(filepath.Dir(dir)) {
			dir = filepath.Join(os.TempDir(), filepath.Base(dir))
		}
	}
	return dir, a.makeFolder(dir)
}

// canReach reports whether every user may pass through the folders above dir.
func (a *account) canReach(dir string) bool {
	for above := filepath.Dir(dir); ; above = filepath.Dir(above) {
		info, err := os.Stat(above)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if above == filepath.Dir(above) {
			return true
		}
	}
}

// makeFolder makes a folder that only the account can enter. It refuses a folder
// that belongs to another user.
func (a *account) makeFolder(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !os.IsExist(err) {
		return fmt.Errorf("make the folder of Postgres: %w", err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("make the folder of Postgres: %w", err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || !ok || (int(owner.Uid) != a.uid && int(owner.Uid) != os.Geteuid()) {
		return fmt.Errorf("the folder %s belongs to another user: remove it, or set WEIR_HOME to another folder", path)
	}
	if err := os.Chown(path, a.uid, a.gid); err != nil {
		return fmt.Errorf("make the folder of Postgres: %w", err)
	}
	return os.Chmod(path, 0o700)
}

// write writes a file that only the account can read.
func (a *account) write(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write a file for Postgres: %w", err)
	}
	return os.Chown(path, a.uid, a.gid)
}
