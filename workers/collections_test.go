package workers

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// The collections of these tests: one by name, kept for a day; one by prefix, kept
// for ever.
const (
	document = "site.standard.document"
	note     = "pub.layers.annotation.note"
	persona  = "pub.layers.persona"
)

func stored() collection.Registry {
	return collection.Of(
		collection.Entry{Pattern: schema.PostCollection, Retention: day}, collection.Entry{Pattern: document, Retention: day},
		collection.Entry{Pattern: "pub.layers.*"},
	)
}

// storing returns a rig with a small network that stores these collections.
func storing(t *testing.T) *rig {
	t.Helper()
	return newRigOn(t, simnet.Config{Seed: 21, Accounts: 10, History: 100, HistorySpan: 3 * time.Hour},
		func(c *Config) { c.Collections = stored() })
}

// puts writes a record of an account, and returns its rkey.
func (r *rig) puts(did, collection, rkey, text string) string {
	r.t.Helper()
	e, err := r.net.PutRecord(did, collection, rkey, fmt.Appendf(nil, `{"$type": %q, "text": %q}`, collection, text))
	require.NoError(r.t, err)
	return e.Rkey
}

// records returns an account's stored records except posts, in order, each as
// collection, rkey and text.
func (r *rig) records(did string) []string {
	r.t.Helper()
	rows, err := r.pool.Query(r.t.Context(),
		`SELECT collection || ' ' || rkey || ' ' || (record ->> 'text') FROM records_other WHERE did = $1 ORDER BY 1`, did)
	require.NoError(r.t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(r.t, err)
	return lines
}

// tidBefore returns the rkey of a record written some time ago.
func tidBefore(ago time.Duration) string { return tidAt(time.Now().Add(-ago)) }

// TestBackfillBringsEveryStoredCollection reads collections by name and by
// prefix, back to the requested time. Records whose rkeys are no TIDs are all
// stored.
func TestBackfillBringsEveryStoredCollection(t *testing.T) {
	t.Parallel()
	r := storing(t)
	did, posts := r.busiest()
	recent, old := tidBefore(time.Hour), tidBefore(72*time.Hour)
	for _, rkey := range []string{recent, old, "self", "0-first"} {
		r.puts(did, document, rkey, "d")
		r.puts(did, persona, rkey, "p")
	}
	r.puts(did, note, recent, "n")
	r.puts(did, "pub.layersx.note", "self", "under no prefix")
	r.puts(did, "com.example.else", "self", "not stored")
	r.follows(did)
	want := []string{
		note + " " + recent + " n",
		persona + " 0-first p", persona + " " + recent + " p", persona + " self p",
		document + " 0-first d", document + " " + recent + " d", document + " self d",
	}
	require.Equal(t, want, r.records(did))
	require.GreaterOrEqual(t, r.count(`SELECT count(*) FROM posts WHERE did = $1`, did), posts/2, "the backfill must still store posts")
	require.Zero(t, r.count(`SELECT count(*) FROM records_other WHERE rev = $1`, schema.ListedRev),
		"records from a repository must have its revision")

	_, err := schema.RequestBackfill(t.Context(), r.pool, did, 100*time.Hour)
	require.NoError(t, err)
	r.becomes(1, `SELECT count(*) FROM records WHERE collection = $1 AND rkey = $2`, persona, old)
	r.becomes(0, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state <> 'completed'`)
	require.Zero(t, r.count(`SELECT count(*) FROM records WHERE collection = $1 AND rkey = $2`, document, old),
		"a record older than its collection's retention must not be stored")
}

// TestGapIsRepairedInEveryCollection repairs records that were written, edited
// and deleted in a gap, whatever their rkeys. A later revision from the stream
// is kept.
func TestGapIsRepairedInEveryCollection(t *testing.T) {
	t.Parallel()
	r := storing(t)
	did, _ := r.busiest()
	for _, name := range []string{document, persona} {
		r.puts(did, name, "self", "before")
		r.puts(did, name, "gone", "before")
	}
	lost := r.puts(did, note, "", "before")
	r.follows(did)
	require.Len(t, r.records(did), 5)
	for _, name := range []string{document, persona} {
		r.puts(did, name, "self", "edited in the gap")
		require.NoError(t, r.net.DeleteRecord("at://"+did+"/"+name+"/gone"))
	}
	// the last record of its collection: the repository no longer names the collection
	require.NoError(t, r.net.DeleteRecord("at://"+did+"/"+note+"/"+lost))
	newest := r.puts(did, document, "", "written in the gap")
	r.execute(`
		INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
		VALUES ($1, $2, 'later', '3zzzzzzzzzzzz', 'c', now(), '{"text": "by the stream"}')`, persona, did)
	r.execute(addGap)
	r.becomes(1, `SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL AND checked = 1`)
	require.Equal(t, []string{
		persona + " later by the stream", persona + " self edited in the gap",
		document + " " + newest + " written in the gap", document + " self edited in the gap",
	}, r.records(did))
	require.Equal(t, 3,
		r.count(`SELECT count(*) FROM tombstones WHERE did = $1 AND rkey IN ('gone', $2) AND collection <> $3`, did, lost, schema.PostCollection))
}

// TestInterruptedComparisonContinues shows that a comparison continues at its
// page and collection. Records before the window are not read if all rkeys are
// TIDs.
func TestInterruptedComparisonContinues(t *testing.T) {
	t.Parallel()
	r := storing(t)
	did, _ := r.busiest()
	middle := ""
	for i := range 3*repositoryPage + 10 {
		rkey := r.puts(did, document, tidBefore(time.Hour-time.Duration(i)*time.Second), "d")
		if i == 3*repositoryPage/2 { // on the second page from the top
			middle = rkey
		}
	}
	for i := range 2 * repositoryPage {
		r.puts(did, document, tidBefore(90*time.Hour-time.Duration(i)*time.Second), "old")
		r.puts(did, note, tidBefore(90*time.Hour-time.Duration(i)*time.Second), "old")
	}
	r.puts(did, note, "0-first", "below all TIDs")
	r.puts(did, persona, "self", "p")
	awaited, release := r.holding(func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(),
			`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record) VALUES ($1, $2, $3, '1', 'c', now(), '{}')`, document, did,
			middle)
		return err
	})
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
	awaited()
	require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.TooMany, Endpoint: "com.atproto.repo.listRecords", Count: 1}))
	release()
	r.becomes(1, `SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL`)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM records_other WHERE did = $1 AND rkey = '0-first'`, did))
	require.Equal(t, 3*repositoryPage+12, r.count(`SELECT count(*) FROM records_other WHERE did = $1`, did))
	first, pages, refused := 0, 0, 0
	for _, c := range r.net.Calls("com.atproto.repo.listRecords") {
		switch {
		case c.Status != http.StatusOK:
			refused++
		case c.Cursor == "":
			first++
		default:
			pages++
		}
	}
	require.Equal(t, 1, refused)
	require.Equal(t, 5, first, "the first page of each collection, and the lowest rkeys of two")
	require.Equal(t, 7, pages, "all three pages of notes and an empty one, three of documents, and an empty one")
}

// TestAuditComparesEveryCollection shows that an audit compares and repairs
// every collection. A record whose rkey is no TID may have expired, unless its
// collection is kept for ever.
func TestAuditComparesEveryCollection(t *testing.T) {
	t.Parallel()
	r := storing(t)
	did, _ := r.busiest()
	dated := tidBefore(time.Hour)
	for _, name := range []string{document, persona} {
		for _, rkey := range []string{dated, "self", "other"} {
			r.puts(did, name, rkey, "x")
		}
	}
	r.follows(did)
	want := r.records(did)
	require.Len(t, want, 6)
	audit := func(repair bool) schema.Audit {
		a := Auditor{
			Shared: Shared{Pool: r.pool, Bluesky: r.api, Projections: registered(t, r.pool), Logger: slog.New(slog.DiscardHandler),
				Collections: stored()},
			Client: r.client.Client, Window: day,
			Repair: repair,
		}
		sum, _, err := a.Audit(t.Context())
		require.NoError(t, err)
		return sum
	}
	sum := audit(false)
	require.Zero(t, sum.Missing+sum.Extra+sum.Stale+sum.Failures)
	r.execute(`DELETE FROM records_other WHERE rkey IN ($1, 'other')`, dated)
	r.execute(`UPDATE records_other SET cid = 'another', record = '{"text": "another"}' WHERE rkey = 'self'`)
	r.execute(`
		INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
		VALUES ('pub.layers.forged', $1, 'x', '222', 'c', now(), '{}')`, did)
	for _, repair := range []bool{false, true} {
		sum = audit(repair)
		require.Equal(t, []int{3, 1, 2}, []int{sum.Missing, sum.Extra, sum.Stale},
			"the document named other may have expired and must not count as missing")
	}
	require.Equal(t, 3, r.count(`
		SELECT count(*) FROM audit_faults AS f JOIN audits AS a ON a.id = f.audit_id
		WHERE a.repaired AND f.collection LIKE 'pub.layers.%' AND f.fault <> 'extra'`))
	sum = audit(false)
	require.Zero(t, sum.Missing+sum.Extra+sum.Stale)
	require.Len(t, r.records(did), 5)
	require.NotContains(t, strings.Join(r.records(did), "\n"), document+" other")
}

// TestHostileRepositoriesAreBounded covers a prefix that matches more
// collections than the comparison's limit.
func TestHostileRepositoriesAreBounded(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	r := storing(t)
	did, _ := r.busiest()
	for i := range mostCollections + 5 {
		r.puts(did, fmt.Sprintf("pub.layers.n%03d", i), "self", "x")
	}
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
	r.becomes(1, `
		SELECT count(*) FROM accounts WHERE did = $1
		    AND feed_problem = 'more than 100 collections under a prefix: the first ones were compared'`, did)
	require.Equal(t, mostCollections, r.count(`SELECT count(*) FROM records_other WHERE did = $1`, did))
}

// TestUnreachableServerDelaysNoPosts shows that posts are stored and that the
// other collections are compared later.
func TestUnreachableServerDelaysNoPosts(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	r := storing(t)
	did, _ := r.busiest()
	r.puts(did, persona, "self", "x")
	require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.Forbidden, Endpoint: "com.atproto.repo.describeRepo"}))
	r.follows(did)
	require.Positive(t, r.count(`SELECT count(*) FROM posts WHERE did = $1`, did))
	require.Empty(t, r.records(did))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM accounts WHERE did = $1 AND reread_since IS NOT NULL`, did))
	r.net.ClearCallFaults()
	r.execute(`UPDATE accounts SET reread_at = now()`)
	require.NoError(t, schema.SyncWatches(t.Context(), r.pool))
	r.becomes(1, `SELECT count(*) FROM records_other WHERE did = $1`, did)
	r.becomes(0, `SELECT count(*) FROM accounts WHERE reread_since IS NOT NULL`)
}

// TestEachCollectionExpiresUnderItsRetention shows that records expire by the
// time at which they were stored. The rkey and createdAt, which the author
// chooses, do not matter.
func TestEachCollectionExpiresUnderItsRetention(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	registry := collection.Of(
		collection.Entry{Pattern: schema.PostCollection, Retention: day}, collection.Entry{Pattern: document, Retention: 2 * day},
		collection.Entry{Pattern: "pub.layers.*"}, collection.Entry{Pattern: persona, Retention: 3 * day},
	)
	w, err := NewExpire(NewBundle(Config{Shared: Shared{Pool: pool, Logger: slog.New(slog.DiscardHandler),
		Collections: registry}}), Retention{})
	require.NoError(t, err)
	now := time.Now()
	claims := map[string]time.Time{
		syntax.NewTID(now.AddDate(3, 0, 0).UnixMicro(), 0).String(): now.AddDate(3, 0, 0), "22222222222zz": time.Unix(0, 0), "self": now,
	}
	names := []string{schema.PostCollection, document, note, persona, "com.example.removed"}
	for _, name := range names {
		for rkey, claimed := range claims {
			_, err := pool.Exec(t.Context(), `
				INSERT INTO records (collection, did, rkey, rev, cid, created_at, indexed_at, record)
				VALUES ($1, 'did:plc:a', $2, '1', 'c', $3, $4, '{}')`, name, rkey, claimed, now)
			require.NoError(t, err)
		}
	}
	left := func(after time.Duration) (left []string) {
		require.NoError(t, w.Run(t.Context(), now.Add(after)))
		for _, name := range names {
			var n int
			require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM records WHERE collection = $1`, name).Scan(&n))
			require.Contains(t, []int{0, len(claims)}, n, "all of %s or nothing", name)
			if n > 0 {
				left = append(left, name)
			}
		}
		return left
	}
	require.Equal(t, names, left(day-time.Second))
	require.Equal(t, names[1:], left(day+time.Second))
	require.Equal(t, names[1:], left(2*day-time.Second))
	require.Equal(t, names[2:], left(2*day+time.Second))
	require.Equal(t, []string{note, "com.example.removed"}, left(3*day+time.Second))
	require.Equal(t, []string{note, "com.example.removed"}, left(1000*day),
		"one collection is kept for ever, the other no longer has an entry")
}

// TestPositionMovesFromCollectionToCollection shows that posts come first, and
// that the position moves past a collection that is gone.
func TestPositionMovesFromCollectionToCollection(t *testing.T) {
	t.Parallel()
	var at repositoryPlace
	require.True(t, at.next([]string{schema.PostCollection, "a.b.c", "a.b.e"}))
	require.Equal(t, schema.PostCollection, at.Collection)
	at.Cursor, at.Last, at.Listed, at.Undated, at.End, at.Pages = "c", "l", 7, true, true, 7
	require.True(t, at.next([]string{schema.PostCollection, "a.b.c", "a.b.e"}))
	require.Equal(t, repositoryPlace{Collection: "a.b.c", Pages: 7}, at)
	require.True(t, at.next([]string{"a.b.d", "a.b.e"}))
	require.Equal(t, "a.b.d", at.Collection)
	require.False(t, at.next([]string{"a.b.c"}))
	require.False(t, at.next(nil))
}
