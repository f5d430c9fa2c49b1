package schema_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// chained returns a commit, named by its revision, that follows prev. If prev is empty, it is the
// first commit.
func chained(did, rev, prev string) schema.ChainedCommit {
	c := schema.ChainedCommit{DID: did, Rev: rev, Data: []byte("tree " + rev)}
	if prev != "" {
		c.Prev = []byte("tree " + prev)
	}
	return c
}

// broken stores commits, and returns the accounts that lack a commit, each with a revision.
func broken(t *testing.T, pool *pgxpool.Pool, commits ...schema.ChainedCommit) []string {
	t.Helper()
	_, err := pool.Exec(t.Context(), `DELETE FROM resyncs`)
	require.NoError(t, err)
	b := schema.Batch{Chained: commits}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := b.Apply(t.Context(), tx, schema.Lease{})
		return err
	}))
	found, err := schema.All(t.Context(), pool, "read", pgx.RowTo[string], `SELECT did || ' ' || wanted FROM resyncs ORDER BY did`)
	require.NoError(t, err)
	require.Len(t, b.Resyncs, len(found))
	return found
}

func watching(t *testing.T, pool *pgxpool.Pool, dids ...string) {
	t.Helper()
	for _, did := range dids {
		_, err := pool.Exec(t.Context(), `
			WITH w AS (INSERT INTO watches (target, kind) VALUES ($1, 'account') RETURNING id) INSERT INTO watch_members (watch_id, did)
			SELECT id, $1 FROM w`, did)
		require.NoError(t, err)
	}
}

// TestCommitThatFollowsNoKnownOne shows that such a commit desynchronizes its account, in one batch
// or in several. Repeated commits do not.
func TestCommitThatFollowsNoKnownOne(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2, 3, 100} {
		pool := schematest.New(t)
		watching(t, pool, "a", "b", "c")
		all := []schema.ChainedCommit{
			// a and c from the first commit, b from a later one
			chained("a", "2", ""), chained("b", "3", "2"), chained("a", "4", "2"), chained("c", "2", ""), chained("c", "3", "2"),
			chained("a", "2", ""), chained("a", "4", "2"), chained("b", "3", "2"), // repeated
			chained("a", "6", "5"),                         // 5 is missing
			chained("a", "7", "6"), chained("b", "4", "3"), // later commits are not reported again
			chained("c", "5", ""), // the commit does not name the one before it
		}
		found := map[string]bool{}
		for at := 0; at < len(all); at += size {
			for _, b := range broken(t, pool, all[at:min(len(all), at+size)]...) {
				found[b] = true
			}
		}
		require.Equal(t, map[string]bool{"a 6": true, "c 5": true}, found, size)
		heads, err := schema.All(t.Context(), pool, "read", pgx.RowTo[string], `
			SELECT did || ' ' || rev || ' ' || convert_from(data, 'UTF8') FROM chains ORDER BY did`)
		require.NoError(t, err)
		require.Equal(t, []string{"a 7 tree 7", "b 4 tree 4", "c 5 tree 5"}, heads)
	}
}

// TestChainsAreOfFollowedAccounts shows that only followed accounts have chains, so that their
// table is bounded, and that chains are unknown after a gap.
func TestChainsAreOfFollowedAccounts(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	watching(t, pool, "a")
	require.Empty(t, broken(t, pool, chained("a", "2", ""), chained("stranger", "2", "")))
	require.Empty(t, broken(t, pool, chained("stranger", "5", "4")), "a stranger has no chain")
	rows := func() int {
		t.Helper()
		n, err := schema.One(t.Context(), pool, "count", pgx.RowTo[int], `SELECT count(*) FROM chains`)
		require.NoError(t, err)
		return n
	}
	expire := func() int {
		t.Helper()
		n, err := schema.ExpireChains(t.Context(), pool, time.Now(), 10)
		require.NoError(t, err)
		return n
	}
	require.Equal(t, 1, rows())
	require.Zero(t, expire())
	_, err := pool.Exec(t.Context(), `DELETE FROM watches`)
	require.NoError(t, err)
	require.Equal(t, 1, expire())
	require.Zero(t, rows())
}

// TestResyncGoesOnWithTheChain shows that commits that a resync includes do not count as missing.
func TestResyncGoesOnWithTheChain(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	watching(t, pool, "a")
	require.Empty(t, broken(t, pool, chained("a", "2", "")))
	marks(t, pool, lost("a", "4"))
	end := func(rev string, data []byte) {
		t.Helper()
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := schema.EndResync(t.Context(), tx, "a", schema.ResyncResult{Rev: rev, Data: data, Useful: time.Minute, Useless: time.Hour})
			return err
		}))
	}
	end("5", []byte("tree 5"))
	require.Empty(t, broken(t, pool, chained("a", "4", "3"), chained("a", "6", "5")))
	end("5", []byte("tree 5"))
	require.Empty(t, broken(t, pool, chained("a", "7", "6")), "an older copy must not move the chain back")
	end("8", nil)
	require.Equal(t, []string{"a 9"}, broken(t, pool, chained("a", "9", "8")), "the tree was not read")
}

// TestOldCommitThatWritesIsDoubted covers an old commit of an account that was compared since, so
// the record that it writes was deleted. An old commit that writes nothing, and a later commit, are
// accepted.
func TestOldCommitThatWritesIsDoubted(t *testing.T) {
	t.Parallel()
	for _, more := range []int{0, 100} { // few are inserted, many are copied
		pool := schematest.New(t)
		watching(t, pool, "a", "b")
		post := func(did, rkey, rev string) schema.Write {
			return schema.Write{
				Key: schema.Key{Collection: schema.PostCollection, DID: did, Rkey: rkey}, Rev: rev, CID: "c", CreatedAt: time.Now(),
				Record: []byte(`{}`),
			}
		}
		reads := func(writes ...schema.Write) []string {
			t.Helper()
			b := schema.Batch{Chained: []schema.ChainedCommit{chained("a", "2", "")}, Writes: writes}
			for i := range more {
				b.Writes = append(b.Writes, post("z", fmt.Sprintf("3n2wmidgr%04d", i), writes[0].Rev))
			}
			require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := b.Apply(t.Context(), tx, schema.Lease{})
				return err
			}))
			var dids []string
			for _, r := range b.Resyncs {
				dids = append(dids, r.DID)
			}
			return dids
		}
		require.Empty(t, reads(post("a", "3n2wmidgrvz2a", "2"), post("b", "3n2wmidgrvz2a", "2")))
		marks(t, pool, lost("a", "4"))
		require.Zero(t, endResync(t, pool, "a", "5"))
		if more == 0 { // a batch with a stored record cannot be copied
			require.Empty(t, reads(post("a", "3n2wmidgrvz2a", "2")), "a commit that writes nothing must not be doubted")
		} else {
			_, err := pool.Exec(t.Context(), `DELETE FROM records WHERE did = 'z'`)
			require.NoError(t, err)
		}
		require.Equal(t, []string{"a"}, reads(post("a", "3n2wmidgrvz2b", "3"), post("b", "3n2wmidgrvz2b", "3")))
		_, err := pool.Exec(t.Context(), `
			WITH ended AS (UPDATE resyncs SET desynchronized_at = NULL, wanted = '') DELETE FROM records WHERE did = 'z'`)
		require.NoError(t, err)
		require.Empty(t, reads(post("a", "3n2wmidgrvz2c", "6")), "a later commit must not be doubted")
	}
}

// TestAccountThatIsMarkedTwiceNeedsOneJob covers a batch in which a commit of the account was
// refused, and a later one shows that another is missing.
func TestAccountThatIsMarkedTwiceNeedsOneJob(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	watching(t, pool, "a", "b")
	require.Empty(t, broken(t, pool, chained("a", "2", ""), chained("b", "2", "")))
	b := schema.Batch{
		Chained:        []schema.ChainedCommit{chained("a", "5", "4"), chained("b", "5", "4")},
		Desynchronized: []schema.Desynchronized{lost("a", "3"), lost("c", "3")},
	}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := b.Apply(t.Context(), tx, schema.Lease{})
		return err
	}))
	var dids []string
	for _, r := range b.Resyncs {
		dids = append(dids, r.DID)
	}
	require.ElementsMatch(t, []string{"a", "b", "c"}, dids)
	wanted, err := schema.All(t.Context(), pool, "read", pgx.RowTo[string], `SELECT did || ' ' || wanted FROM resyncs ORDER BY did`)
	require.NoError(t, err)
	require.Equal(t, []string{"a 5", "b 5", "c 3"}, wanted)
}
