package doctor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestLocksOfAConfiguration checks that the partitions of every retention fit into
// the default settings of Postgres, and that 720 partitions do not.
func TestLocksOfAConfiguration(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	defaults := map[string]int{"max_locks_per_transaction": 64, "max_connections": 100}
	tree := func(posts int) schema.RecordTree {
		return schema.RecordTree{Tables: posts + 5, Indexes: 2 * (posts + 5), PerTable: 2}
	}
	for _, keep := range []time.Duration{day, 10 * day, 30 * day, 365 * day, 3650 * day, 0} {
		f := checkLocks(Needs{Keep: keep, Projected: 52, Transactions: 25}, tree(10), defaults)
		require.Equal(t, OK, f.Level, "%s: %+v", keep, f)
	}
	f := checkLocks(Needs{Keep: 180 * day, Projected: 52, Transactions: 16}, tree(720), defaults)
	require.Equal(t, Fail, f.Level, "%+v", f)
	require.Contains(t, f.Message,
		"6400 locks available; a transaction that uses every partition of posts takes up to 2257, and 16 at once take 36112")
	require.Contains(t, f.Do, "max_locks_per_transaction = 512")
	defaults["max_locks_per_transaction"] = 512
	require.Equal(t, OK, checkLocks(Needs{Keep: 180 * day, Projected: 52, Transactions: 16}, tree(720), defaults).Level,
		"the recommended value is enough")
	defaults["max_locks_per_transaction"] = 256
	require.Equal(t, Warn, checkLocks(Needs{Keep: 180 * day, Projected: 52, Transactions: 16}, tree(720), defaults).Level)
}

func TestPartitionsAreCreatedAhead(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	found := func() []Finding {
		found, err := Database{Migrated: schematest.Check, Needs: Needs{Keep: 24 * time.Hour, Transactions: 16}}.partitions(t.Context(), pool)
		require.NoError(t, err)
		return found
	}
	require.Contains(t, found()[0].Message, "none yet")
	require.Equal(t, OK, found()[1].Level)
	for _, c := range []struct {
		created time.Duration
		want    Level
		says    string
	}{{-3 * 24 * time.Hour, Warn, "new posts are stored"}, {-36 * time.Hour, Warn, "should exist by now"}, {0, OK, "reach to"}} {
		require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, time.Now().Add(c.created), 24*time.Hour))
		f := found()
		require.Equal(t, c.want, f[0].Level, "%+v", f[0])
		require.Contains(t, f[0].Message, c.says)
		require.Equal(t, OK, f[1].Level)
	}
}
