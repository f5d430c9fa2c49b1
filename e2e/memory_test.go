package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestCatchingUpTakesLittleMemory measures memory while a server sends plain
// frames much faster than they can be stored.
func TestCatchingUpTakesLittleMemory(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n, err := simnet.New(simnet.Config{Seed: 9, Accounts: 2000, History: 130_000})
	require.NoError(t, err)
	require.NoError(t, n.Start("127.0.0.1:0"))
	t.Cleanup(n.Stop)
	url := schematest.NewURL(t)
	pool := open(t, url)
	consume := start(t, append(reads(n, url), "WEIR_COMPRESS=false"), "consume")
	eventually.True(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM records`) >= 40_000
	}, 20*time.Millisecond)
	require.Less(t, peakMemory(t, consume.cmd.Process.Pid), 150.0, "MB")
}

// peakMemory is the peak resident memory of a process, in MB.
func peakMemory(t *testing.T, pid int) (megabytes float64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, after, found := strings.Cut(string(text), "VmHWM:")
	require.True(t, found)
	_, err = fmt.Sscan(after, &megabytes)
	require.NoError(t, err)
	return megabytes / 1024
}
