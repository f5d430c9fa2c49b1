package ranking

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestSQLSaysWhatTheAPISays shows that, after a random history, trending() returns the ranking, and
// that link_shares and the summaries of the links agree with LinkShares on each share.
func TestSQLSaysWhatTheAPISays(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 7))
	h := &history{pool: schematest.New(t)}
	h.clock.Store(time.Now().UnixMicro())
	_, err := h.pool.Exec(t.Context(), `INSERT INTO links (identity, url, site, first_seen) SELECT n, n, 'site.example', now()
		FROM generate_series(1, $1) AS n`, historyLinks)
	require.NoError(t, err)
	counted, reasonsSeen := 0, map[Reason]int{}
	for round := range 6 {
		turns := make(chan struct{}, 60)
		for range cap(turns) {
			turns <- struct{}{}
		}
		close(turns)
		require.NoError(t, h.write(t.Context(), r, round%2, turns))
		merges := make(chan struct{}, 20)
		give(merges, cap(merges))
		close(merges)
		require.NoError(t, h.merge(t.Context(), r, merges))
		if round == 1 { // without watches, the declaration counts
			_, err = h.pool.Exec(t.Context(), `DELETE FROM watches`)
			require.NoError(t, err)
			_, err = h.pool.Exec(t.Context(), `INSERT INTO accounts (did, not_recommended) SELECT DISTINCT did, true FROM shares
				WHERE hashtext(did) % 5 = 0
ON CONFLICT (did) DO UPDATE SET not_recommended = true`)
			require.NoError(t, err)
		}
		if round == 2 || round == 4 { // later writes may have removed them
			_, err = h.pool.Exec(t.Context(), `INSERT INTO watches (target) VALUES ('target0.example'), ('target1.example') ON CONFLICT DO NOTHING`)
			require.NoError(t, err)
		}
		if round == 4 {
			_, err = h.pool.Exec(t.Context(), `INSERT INTO watch_members (did, watch_id) SELECT DISTINCT did, (SELECT min(id) FROM watches)
				FROM shares WHERE did > 'did:plc:05' ON CONFLICT DO NOTHING`)
			require.NoError(t, err)
		}
		_, err = h.pool.Exec(t.Context(), `
WITH made AS (
    INSERT INTO copies (did, collection, rkey, of_did, of_collection, of_rkey)
    SELECT DISTINCT ON (c.did, c.collection, c.rkey) c.did, c.collection, c.rkey, o.did, o.collection, o.rkey
    FROM shares AS c JOIN shares AS o ON o.link_id = c.link_id AND o.did > c.did
    WHERE hashtext(c.rkey) % 4 = 0 -- of accounts that are followed too
    ORDER BY c.did, c.collection, c.rkey, o.did, o.rkey
    ON CONFLICT DO NOTHING
    RETURNING did, collection, rkey
)
UPDATE shares AS s SET copied = true FROM made AS c WHERE (s.did, s.collection, s.rkey) = (c.did, c.collection, c.rkey)`)
		require.NoError(t, err)
		n := h.compareSQL(t, reasonsSeen)
		counted += n
	}
	require.Greater(t, counted, 200)
	_, err = h.pool.Exec(t.Context(), `SELECT FROM trending('1h', network => 'fediverse')`)
	require.ErrorContains(t, err, "the network is 'fediverse': expected bluesky, nostr, or NULL for both")
	require.Positive(t, h.merged)
	for _, reason := range append([]Reason{Counts}, Reasons()...) {
		require.Positive(t, reasonsSeen[reason], "no share was %q", reason)
	}
}

// compareSQL compares the links in SQL with the API. It returns how many it compared.
func (h *history) compareSQL(t *testing.T, seen map[Reason]int) (links int) {
	t.Helper()
	tx, err := h.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) // it only reads
	now, err := schema.One(t.Context(), tx, "read the time", pgx.RowTo[time.Time], `SELECT now()`)
	require.NoError(t, err)
	targets, err := schema.WatchTargets(t.Context(), tx, 10)
	require.NoError(t, err)
	for _, w := range Windows() {
		for _, target := range append([]string{""}, targets...) { // the spellings in SQL are those of the last count
			for _, network := range []Network{BothNetworks, Bluesky, Nostr} {
				page, err := Trending(t.Context(), within{tx}, Query{At: now, Window: w.Length, Limit: 1000, Watch: target, Network: network})
				require.NoError(t, err)
				want := []string{}
				for _, l := range page.Links {
					want = append(want, fmt.Sprintf("%d %d %d", l.ID, l.Sharers, l.LastShared.UnixMicro()))
				}
				const sql = `SELECT concat_ws(' ', link_id, sharers, (extract(epoch FROM last_shared) * 1000000)::bigint)
					FROM trending($1::text::interval, nullif($2, ''), nullif($3, '')) LIMIT 1000`
				got, err := schema.All(t.Context(), tx, "rank in SQL", pgx.RowTo[string], sql, w.Name, target, string(network))
				require.NoError(t, err)
				require.Equal(t, want, got, "%s of %q on %q", w.Name, target, network)
				links += len(got)
			}
		}
	}
	of, err := schema.All(t.Context(), tx, "list the links", pgx.RowTo[int64], `SELECT id FROM links ORDER BY id LIMIT 25`)
	require.NoError(t, err)
	for _, id := range of {
		q := LinkQuery{ID: id, At: now, Window: LongestWindow}
		var want []string
		summary, err := ReadLink(t.Context(), within{tx}, q)
		if merged, ok := errors.AsType[*MergedError](err); ok {
			h.merged++
			into, err := ReadLink(t.Context(), within{tx}, LinkQuery{ID: merged.Into, At: now, Window: LongestWindow})
			require.NoError(t, err)
			require.True(t, slices.ContainsFunc(into.Merged, func(m MergedLink) bool { return m.ID == id }))
			continue
		}
		require.NoError(t, err)
		why := map[Reason]int{}
		for after := Cursor(""); ; {
			page, err := LinkShares(t.Context(), within{tx}, q, 7, after)
			require.NoError(t, err)
			for _, s := range page.Shares {
				want = append(want, fmt.Sprintf("%s %s %s %t", s.URI, s.Subject, s.Why, s.Counts))
				why[s.Why]++
				seen[s.Why]++
			}
			if after = page.Next; after == "" {
				break
			}
		}
		const sql = `SELECT uri || ' ' || coalesce(subject, '') || ' ' || coalesce(why, '') || ' ' || counts FROM link_shares WHERE link_id = $1
			ORDER BY shared_at DESC, did DESC, uri DESC`
		got, err := schema.All(t.Context(), tx, "read the shares in SQL", pgx.RowTo[string], sql, id)
		require.NoError(t, err)
		require.ElementsMatch(t, want, got)
		require.Equal(t, len(want), summary.Shares)
		require.Equal(t, why[Counts], summary.Sharers)
		delete(why, Counts)
		require.Equal(t, why, summary.NotCounted)
	}
	return links
}
