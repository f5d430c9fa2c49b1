package links

import (
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// TestAuditComparesTheLedger covers posts that expire after a day and shares that expire after a
// week. Shares of posts that the account has deleted since are deleted; the others are kept.
func TestAuditComparesTheLedger(t *testing.T) {
	t.Parallel()
	now := time.Now()
	listed, deleted, older, before := tid(now.Add(-3*day), 1), tid(now.Add(-4*day), 2), tid(now.Add(-108*time.Hour),
		3), tid(now.Add(-6*day), 4)
	r := rigOfPDS(t, func(w http.ResponseWriter, r *http.Request) {
		rkey, next := listed, `"cursor": "next", `
		if r.URL.Query().Get("cursor") != "" {
			rkey, next = older, ""
		}
		fmt.Fprintf(w, `{%s"records": [{"uri": %q, "cid": "bafyreidfayvfuwqa7qlnopdjiqrxzs6blmoeu4rujcjtnci5beludirz2a",`+
			` "value": {"text": "x"}}]}`, next, uri(alice, rkey))
	})
	require.NoError(t, ranking.EnsureDays(t.Context(), r.pool, now, 7*day))
	r.execute(`UPDATE accounts SET read_since = now() - interval '5 days'`)
	for _, rkey := range []string{listed, deleted, older, before, "no-tid"} {
		key := postKey(alice, rkey)
		require.NoError(t, setShares(t.Context(), r.pool, key, []ranking.Share{{
			Key: key, Link: link.Link{Identity: rkey, URL: rkey}, How: "post", SharedAt: now,
		}}, now))
	}
	a := workers.Auditor{Shared: workers.Shared{Pool: r.pool, Bluesky: r.api, Projections: registered(t, r.pool),
		Logger: slog.New(slog.DiscardHandler), Collections: collection.Of(collection.Entry{Pattern: schema.PostCollection, Retention: day})},
		Window: day}
	for _, repair := range []bool{false, true, true} {
		a.Repair = repair
		sum, faults, err := a.Audit(t.Context())
		require.NoError(t, err)
		require.Zero(t, sum.Failures)
		require.Zero(t, sum.Missing, "an expired post must not count as missing")
		if r.count(`SELECT count(*) FROM tombstones`) == 0 {
			require.Equal(t, 1, sum.Extra)
			require.Equal(t, deleted, faults[0].Rkey)
			require.Equal(t, 5, r.count(`SELECT count(*) FROM shares`))
			continue
		}
		require.Equal(t, 1, r.count(`SELECT count(*) FROM tombstones WHERE rkey = $1`, deleted))
		require.Zero(t, r.count(`SELECT count(*) FROM shares WHERE rkey = $1`, deleted))
		require.Equal(t, 4, r.count(`SELECT count(*) FROM shares`), "shares before the compared time, and shares without a time, must be kept")
	}
}

// TestAuditComparesProjectedSubjects shows that the row of a post that was stored once is deleted
// if the post was deleted since. The row of a post that was requested or fetched is kept although
// its followed author does not list it: it says nothing about what is stored.
func TestAuditComparesProjectedSubjects(t *testing.T) {
	t.Parallel()
	r := rigOfPDS(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"records": []}`) })
	now := time.Now()
	stored, asked, fetched, hidden := tid(now.Add(-2*time.Hour), 1), tid(now.Add(-3*time.Hour), 2), tid(now.Add(-4*time.Hour),
		3), tid(now.Add(-5*time.Hour), 4)
	own := postKey(alice, stored)
	require.NoError(t, setShares(t.Context(), r.pool, own, []ranking.Share{{
		Key: own, Link: link.Link{Identity: "https://a.example/", URL: "https://a.example/"}, How: "post", SharedAt: now,
	}}, now))
	_, due, err := ranking.FindSubjects(t.Context(), r.pool, []schema.Key{
		own, postKey(alice, asked), postKey(alice, fetched), postKey(alice, hidden),
	})
	require.NoError(t, err)
	require.True(t, due)
	r.execute(`DELETE FROM shares`) // the subject is needed only by the shares through it
	r.execute(`UPDATE subjects SET fetched_at = now(), fetch_at = now() + interval '15 minutes', links = '{1}' WHERE rkey = $1`, fetched)
	r.execute(`UPDATE subjects SET fetched_at = now(), fetch_at = NULL, shown = false WHERE rkey = $1`, hidden)
	a := workers.Auditor{
		Shared: workers.Shared{Pool: r.pool, Bluesky: r.api, Projections: registered(t, r.pool), Logger: slog.New(slog.DiscardHandler)},
		Window: day,
		Repair: true,
	}
	sum, faults, err := a.Audit(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, sum.Extra, "%v", faults)
	require.Equal(t, stored, faults[0].Rkey)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM tombstones`))
	require.Equal(t, 3, r.count(`SELECT count(*) FROM subjects WHERE rkey <> $1`, stored))
	require.Equal(t, 3, r.count(`SELECT count(*) FROM subjects`))
	sum, faults, err = a.Audit(t.Context())
	require.NoError(t, err)
	require.Empty(t, faults)
	require.Zero(t, sum.Extra)
}

// TestClosedGapRemovesSharesOfDeletedPosts covers posts that have expired too.
func TestClosedGapRemovesSharesOfDeletedPosts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	did, _ := r.busiest()
	r.follows(did)
	r.idle()
	posts := r.posts(did)
	gone, stays := posts[1].Rkey, posts[2].Rkey
	for _, rkey := range []string{gone, stays} {
		key := postKey(did, rkey)
		require.NoError(t, setShares(t.Context(), r.pool, key, []ranking.Share{{
			Key: key, Link: link.Link{Identity: "https://" + rkey + ".example/", URL: "https://" + rkey + ".example/"},
			How: "post", SharedAt: time.Now(),
		}}, time.Now()))
	}
	r.execute(`DELETE FROM posts WHERE did = $1 AND rkey = $2`, did, gone) // as if the post had expired
	require.NoError(t, r.net.DeleteRecord(uri(did, gone)))
	r.execute(addGap)
	r.becomes(1, `SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL AND checked = 1`)
	require.Zero(t, r.count(`SELECT count(*) FROM shares WHERE rkey = $1`, gone))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM tombstones WHERE rkey = $1`, gone))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM shares WHERE rkey = $1`, stays))
}
