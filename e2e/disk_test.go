package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
)

// disk is a tmpfs that can be shrunk to its contents.
type disk struct {
	t   *testing.T
	dir string
}

// roomy is the disk's normal size in bytes. The disk uses memory only for its
// contents.
const roomy = 4 << 30

// newDisk mounts a disk. The error says why it cannot: mounting needs
// privileges.
func newDisk(t *testing.T) (*disk, error) {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir-disk-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })  // a temporary folder
	require.NoError(t, os.Chmod(dir, 0o755)) // the server's account needs access
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d,mode=755", roomy), "weir-disk",
		dir).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mount a small disk: %w: %.200s", err, out)
	}
	t.Cleanup(func() { exec.Command("umount", "-l", dir).Run() }) // it is no longer used
	return &disk{t, dir}, nil
}

// fill shrinks the disk until almost no space is left.
func (d *disk) fill() {
	d.t.Helper()
	var err error
	eventually.True(d.t, func() bool { // the contents may grow meanwhile
		var s syscall.Statfs_t
		require.NoError(d.t, syscall.Statfs(d.dir, &s))
		used := int64(s.Blocks-s.Bfree) * int64(s.Bsize)
		err = d.resize(used + 64<<10)
		return err == nil
	}, time.Millisecond, "%v", &err)
}

// free restores the normal size.
func (d *disk) free() {
	d.t.Helper()
	require.NoError(d.t, d.resize(roomy))
}

func (d *disk) resize(size int64) error {
	out, err := exec.Command("mount", "-o", fmt.Sprintf("remount,size=%d", size), d.dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("resize the disk: %w: %.200s", err, out)
	}
	return nil
}
