package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPrioritiesAreOnlyForTheJournal shows that log lines have priorities only
// if stderr is the journal's socket. JOURNAL_STREAM alone does not show that:
// child processes inherit it.
func TestPrioritiesAreOnlyForTheJournal(t *testing.T) {
	t.Parallel()
	for begins, inode := range map[string]uint64{"<3>weir: DATABASE_URL": 0, "weir: DATABASE_URL": 1} {
		stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
		require.NoError(t, err)
		defer stderr.Close()
		var s syscall.Stat_t
		require.NoError(t, syscall.Fstat(int(stderr.Fd()), &s))
		cmd := exec.Command(binary, "work")
		cmd.Env = []string{"WEIR_HOME=" + t.TempDir(), fmt.Sprintf("JOURNAL_STREAM=%d:%d", s.Dev, s.Ino+inode)}
		cmd.Stderr = stderr
		require.Error(t, cmd.Run())
		wrote, err := os.ReadFile(stderr.Name())
		require.NoError(t, err)
		require.Regexp(t, "^"+begins, string(wrote))
	}
}
