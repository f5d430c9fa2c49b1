package ranking

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/words"
	"github.com/weir-social/weir/schema"
)

// history is a random history: writers that change everything that counts, a clock that is set
// forward and back, and a counter that is sometimes killed.
type history struct {
	pool  *pgxpool.Pool
	clock atomic.Int64 // microseconds
	steps atomic.Int64

	// bridging is locked for writing while copies are made, so that no originals are written
	// meanwhile. Otherwise the copies would count until RecountCopies.
	bridging sync.RWMutex

	compared int // the number of comparisons
	moved    int // rankings of another time than requested
	merged   int // links that were merged in a snapshot
	walled   int // snapshots with titles of walls
}

const historyAccounts, historyLinks, historyTargets = 40, 120, 2

func (h *history) now() time.Time { return time.UnixMicro(h.clock.Load()) }

// step queues one random change, or sets the clock.
func (h *history) step(q *pgx.Batch, r *rand.Rand, writer int, bridges bool) {
	h.steps.Add(1)
	did := func() string { x := r.Float64(); return historyDID(int(historyAccounts * x * x)) }
	link := func() int64 { x := r.Float64(); return int64(historyLinks*x*x*x) + 1 } // most links have one sharer or two
	at := func() time.Time {
		x := r.Float64()
		return h.now().Add(time.Minute - time.Duration(x*x*x*float64(8*24*time.Hour))).Truncate([]time.Duration{
			time.Second, time.Hour,
		}[r.IntN(2)])
	}
	rkey := func() string { return fmt.Sprintf("%d-%03d", writer, r.IntN(300)) } // a writer's own rkeys: writers do not wait for each other
	way := func() string { return Ways()[r.IntN(3)] }
	// No two accounts share at the same time, so that the latest sharer is unique.
	dated := `$5::timestamptz + right($1, 2)::int * interval '1 microsecond'`
	add := `
INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, claim_id, words, copied)
SELECT $1, $8, $2, l.counts_as, l.id, $4, ` + dated + `, CASE WHEN $4 = 'post' THEN 10 * l.id + $6 END, $7::tsvector,
       EXISTS (SELECT FROM copies AS c WHERE c.did = $1 AND c.collection = $8 AND c.rkey = $2) FROM links AS l WHERE l.id = ANY ($3)
ON CONFLICT (did, collection, rkey, named_id) DO UPDATE
SET how = excluded.how, shared_at = excluded.shared_at, claim_id = excluded.claim_id, words = excluded.words, copied = excluded.copied`
	store := `
		INSERT INTO records (collection, did, rkey, rev, cid, created_at, record) VALUES ($3, $1, $2, '1', '', now(), '{}')
		ON CONFLICT DO NOTHING`
	through := `
INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, subject_did, subject_rkey)
SELECT $1, 'app.bsky.feed.post', $2, l.counts_as, l.id, $4, ` + dated + `, $6, $7 FROM links AS l WHERE l.id = ANY ($3)
ON CONFLICT (did, collection, rkey, named_id) DO UPDATE SET how = excluded.how, shared_at = excluded.shared_at,
subject_did = excluded.subject_did, subject_rkey = excluded.subject_rkey`
	subject := func() string { return fmt.Sprint("s", r.IntN(2)) }
	k := r.IntN(71)
	if writer == 0 { // the writer that changes what all use: with several, they would wait for each other's deadlocks
		k = 71 + r.IntN(29)
	}
	switch {
	case k < 15: // a share through a post, perhaps of another account
		q.Queue(through, did(), rkey(), []int64{link(), link()}[:1+r.IntN(2)], Ways()[1+r.IntN(2)], at(), did(), subject())
	case k < 45:
		author, name := did(), rkey()
		collection := historyCollection(author)
		q.Queue(store, author, name, collection)
		if bridges && copyOf(q, r, schema.Key{Collection: collection, DID: author, Rkey: name}, did(), rkey()) {
			return
		}
		q.Queue(add, author, name, []int64{link(), link()}[:1+r.IntN(2)], way(), at(), r.IntN(10), words.Vector(randomText(r)), collection)
	case k < 55:
		q.Queue(`
			UPDATE shares SET how = $2, shared_at = $3::timestamptz + right(did, 2)::int * interval '1 microsecond',
			    claim_id = CASE WHEN $2 = 'post' THEN 10 * named_id + $4 END WHERE rkey = $1`, rkey(), way(), at(), r.IntN(10))
	case k < 60:
		q.Queue(`
			UPDATE shares SET named_id = l.id, link_id = l.counts_as, claim_id = 10 * l.id + claim_id % 10 FROM links AS l
			WHERE rkey = $1 AND did = $3 AND l.id = $2`, rkey(), link(), did())
	case k < 65:
		q.Queue(`DELETE FROM shares WHERE rkey = $1`, rkey())
	case k < 70:
		q.Queue(`DELETE FROM records WHERE rkey = $1`, rkey()) // the record expires
	case k < 71:
		q.Queue(`DELETE FROM shares WHERE rkey LIKE $1 AND did = $2`, fmt.Sprintf("%d-%%", writer), did())
	case k < 79:
		q.Queue(`INSERT INTO accounts (did, status) VALUES ($1, $2) ON CONFLICT (did) DO UPDATE SET status = excluded.status`,
			did(), []string{"active", "active", "takendown", "hidden"}[r.IntN(4)])
	case k < 80:
		q.Queue(`DELETE FROM accounts WHERE did = $1`, did())
	case k < 86:
		q.Queue(`INSERT INTO watch_members (did, watch_id) SELECT $1, id FROM watches WHERE target = $2 ON CONFLICT DO NOTHING`, did(), target(r))
	case k < 89:
		q.Queue(`DELETE FROM watch_members WHERE did = $1 AND watch_id IN (SELECT id FROM watches WHERE target = $2)`, did(), target(r))
	case k < 90 && r.IntN(6) == 0:
		q.Queue(`INSERT INTO watches (target, kind) VALUES ($1, $2) ON CONFLICT DO NOTHING`, target(r),
			[]string{"follows", "second-degree"}[r.IntN(2)])
	case k < 91 && r.IntN(4) == 0:
		q.Queue(`DELETE FROM watches WHERE target = $1`, target(r))
	case k < 98:
		h.changeLink(q, r, k, link(), did(), subject())
	default:
		h.clock.Add(h.tick(r).Microseconds())
	}
}

// changeLink queues a change of a link, or of what a record that others refer to shares.
func (h *history) changeLink(q *pgx.Batch, r *rand.Rand, k int, link int64, did, subject string) {
	switch {
	case k < 92:
		q.Queue(`DELETE FROM shares WHERE link_id = $1`, link)
		q.Queue(`DELETE FROM links WHERE id = $1 AND merged_into IS NULL`, link)
	case k < 94:
		q.Queue(`
			INSERT INTO links (id, identity, url, site, first_seen) OVERRIDING SYSTEM VALUE VALUES ($1, $2, $2, $3, $4) ON CONFLICT DO NOTHING`,
			link, fmt.Sprintf("host%d.example/%d", r.IntN(3), r.Uint64()), fmt.Sprintf("site%d.example", r.IntN(3)), h.now())
		q.Queue(historyClaims, link)
	case k < 95 && r.IntN(20) == 0:
		q.Queue(`INSERT INTO pending_counts (link_id) VALUES ($1)`, link)
	case k < 97:
		q.Queue(`INSERT INTO subjects (did, collection, rkey, links)
		SELECT $1, 'app.bsky.feed.post', $2, ARRAY(SELECT l FROM generate_series(1, $3::bigint) AS l WHERE random() < 0.7)
ON CONFLICT (did, collection, rkey) DO UPDATE SET links = excluded.links`, did, subject, historyLinks)
	case k < 98:
		q.Queue(`DELETE FROM subjects WHERE did = $1`, did)
	}
}

func target(r *rand.Rand) string { return fmt.Sprintf("target%d.example", r.IntN(historyTargets)) }

// tick returns how far the clock moves: mostly a little, sometimes back, sometimes far.
func (h *history) tick(r *rand.Rand) time.Duration {
	switch k := r.IntN(600); {
	case k < 1:
		return 26 * time.Hour
	case k < 2:
		return -25 * time.Hour
	case k < 5:
		return -3 * time.Hour
	case k < 40:
		return -time.Duration(r.IntN(int(20 * time.Minute)))
	case k < 60:
		return time.Duration(r.IntN(int(2 * time.Hour)))
	}
	return time.Duration(r.IntN(int(time.Minute)))
}

// write makes changes in transactions of random size, one per turn. Some are rolled back.
func (h *history) write(ctx context.Context, r *rand.Rand, writer int, turns <-chan struct{}) error {
	rolled := errors.New("rolled back")
	most := 40
	if writer == 0 {
		most = 2
	}
	for range turns {
		lock, unlock := h.bridging.RLock, h.bridging.RUnlock
		bridges := writer > 0 && r.IntN(3) == 0
		if bridges {
			lock, unlock = h.bridging.Lock, h.bridging.Unlock
		}
		lock()
		err := pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
			q := &pgx.Batch{}
			for range most - r.IntN(most) {
				h.step(q, r, writer, bridges)
			}
			if err := tx.SendBatch(ctx, q).Close(); err != nil || r.IntN(15) > 0 {
				return err
			}
			return rolled
		})
		unlock()
		var pgErr *pgconn.PgError
		expected := errors.Is(err, rolled) || errors.As(err, &pgErr) && slices.Contains([]string{"40P01", "23503", "23505"}, pgErr.Code)
		if err != nil && !expected { // a deadlock, a link that another writer deletes, a move onto another share
			return err
		}
	}
	return nil
}

// count runs the counter until ctx ends. Sometimes it kills the counter after a short time.
func (h *history) count(ctx context.Context, r *rand.Rand, turn <-chan struct{}) error {
	for range turn {
		for range r.IntN(4) {
			killed, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(20))*time.Millisecond)
			if r.IntN(3) > 0 {
				cancel()
				killed, cancel = context.WithCancel(ctx)
			}
			_, err := Count(killed, h.pool, h.now())
			cancel()
			if err != nil && killed.Err() == nil && schema.Classify(err) != schema.Transient {
				return err
			}
		}
	}
	return nil
}

// compare compares some rankings of one snapshot with a fold in Go, and the counter's tables with
// the story. It returns how many rankings it read from the counts, how many it recounted, and
// whether anything was pending.
func (h *history) compare(t *testing.T, queries []Query) (counted, recounted int, pending bool) {
	t.Helper()
	tx, err := h.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	require.NoError(t, err)
	defer tx.Rollback(context.Background()) // it only reads
	l := readLedger(t, tx)
	h.walled += min(1, len(l.walled))
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pending_counts)`).Scan(&pending))
	h.compared++
	for i, q := range queries {
		if _, ok := l.members[q.Watch]; q.Watch != "" && !ok {
			_, err := Trending(t.Context(), within{tx}, q)
			require.ErrorIs(t, err, ErrWatch)
			continue
		}
		got, again, at := pages(t, within{tx}, q, limits{
			pending: []int{5000, 30}[i%2], crossings: []int{5000, 1}[(i/2+h.compared)%2], few: []int{2000, 2}[i/2%2],
			many: []int{usualLimits().many, 4, 1}[(i+h.compared)%3],
		})
		if !at.Equal(q.At) {
			require.Equal(t, l.asOf, at)
			h.moved, q.At = h.moved+1, at
		}
		require.Equal(t, l.fold(q), got, "%+v, pending %t, recounted %t", q, pending, again)
		h.compareReached(t, tx, l, q,
			limits{pending: []int{5000, 30}[i%2], crossings: 5000, few: []int{2000, 2}[h.compared%2], many: []int{usualLimits().many, 4, 1}[i/2%3]})
		if again {
			recounted++
		} else {
			counted++
		}
	}
	return counted, recounted, pending
}

// TestCountsEqualAFoldAfterAnyHistory reads snapshots while the writers and the counter run.
func TestCountsEqualAFoldAfterAnyHistory(t *testing.T) {
	t.Parallel()
	const writers = 3
	least := int64(10_000)
	if testing.Short() {
		least = 1_000
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	source := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, n)) }
	h := &history{pool: schematest.New(t)}
	h.clock.Store(time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC).UnixMicro())
	_, err := h.pool.Exec(t.Context(), `
		INSERT INTO links (identity, url, site, first_seen)
		SELECT 'host' || n % 3 || '.example/' || n, n::text, 'site' || n % 3 || '.example', now() FROM generate_series(1, $1::int) AS n`,
		historyLinks)
	require.NoError(t, err)
	_, err = h.pool.Exec(t.Context(), historyClaims, nil)
	require.NoError(t, err)

	var all sync.WaitGroup
	failed := make(chan error, writers+2)
	turns, counts, merges := make(chan struct{}, 20), make(chan struct{}, 1), make(chan struct{}, 5)
	for n := range writers {
		all.Go(func() { failed <- h.write(t.Context(), source(uint64(n)), n, turns) })
	}
	all.Go(func() { failed <- h.count(t.Context(), source(100), counts) })
	all.Go(func() { failed <- h.merge(t.Context(), source(101), merges) })

	r := source(200)
	const enough = 5
	rounds, merged, split := map[string]int{}, 0, 0
	for h.steps.Load() < least || min(rounds["counted"], rounds["recounted"], rounds["corrected"], merged, split, h.walled) <= enough {
		give(turns, cap(turns))
		give(counts, r.IntN(4))
		give(merges, cap(merges))
		queries := []Query{randomQuery(r, h.now()), randomQuery(r, h.now()), randomQuery(r, h.now())}
		counted, recounted, pending := h.compare(t, queries)
		rounds["counted"] += counted
		rounds["recounted"] += recounted
		if pending {
			rounds["corrected"] += counted
		}
		require.NoError(t,
			h.pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE split_at IS NULL), count(split_at) FROM link_merges`).Scan(&merged, &split))
	}
	close(turns)
	close(counts)
	close(merges)
	all.Wait()
	for range writers + 2 {
		require.NoError(t, <-failed)
	}
	t.Logf("%d steps; rankings: %v, %d of another time, %d with walls; %d merged, %d split", h.steps.Load(), rounds, h.moved, h.walled, merged,
		split)
	h.finish(t)
}

// give offers up to n turns, without waiting until they are taken.
func give(turns chan<- struct{}, n int) {
	for range n {
		select {
		case turns <- struct{}{}:
		default:
			return
		}
	}
}

// check requires that no count differs from a recount.
func (h *history) check(t *testing.T) {
	t.Helper()
	done, err := Check(t.Context(), h.pool, func(d Difference) { require.Fail(t, d.String()) })
	require.NoError(t, err)
	require.False(t, done.Pending)
}

// finish counts everything that is pending, and compares every window in every order.
func (h *history) finish(t *testing.T) {
	t.Helper()
	for {
		done, err := Count(t.Context(), h.pool, h.now())
		require.NoError(t, err)
		if !done.More && !done.Busy { // a killed counter holds its lock until the server notices
			break
		}
	}
	var queries []Query
	for _, w := range Windows() {
		for _, sort := range []Sort{Sharers, Speed, Newest} {
			for _, watch := range []string{"", "target0.example"} {
				for _, network := range []Network{BothNetworks, Bluesky, Nostr} {
					queries = append(queries, Query{At: h.now(), Window: w.Length, Sort: sort, Watch: watch, Network: network, Limit: 20})
				}
			}
		}
	}
	h.check(t)
	_, recounted, pending := h.compare(t, queries)
	require.False(t, pending)
	require.Zero(t, recounted, "nothing is pending")
}

// TestDifferencesAreFound shows that a wrong count is reported with its link, and that a recount
// repairs it.
func TestDifferencesAreFound(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	exec := func(sql string, args ...any) {
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	differences := func() (lines []string, pending bool) {
		found := func(d Difference) { lines = append(lines, d.String()) }
		done, err := Check(t.Context(), pool, found)
		require.NoError(t, err)
		return lines, done.Pending
	}
	exec(`INSERT INTO links (identity, url, site, first_seen) SELECT n::text, n::text, 's', $1 FROM generate_series(1, 3) AS n`, now)
	exec(`
		INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:' || n, 'c', id::text, id, id, 'post', $1 FROM links, generate_series(1, 2) AS n`, now)
	_, pending := differences()
	require.True(t, pending, "nothing is counted yet")
	_, err := Count(t.Context(), pool, now)
	require.NoError(t, err)
	lines, pending := differences()
	require.False(t, pending)
	require.Empty(t, lines)

	exec(`UPDATE link_counts SET in_7d = 1, in_24h = 1, in_12h = 1, in_6h = 1, in_3h = 1, in_1h = 1 WHERE link_id = 1`)
	exec(`DELETE FROM sharers WHERE link_id = 2 AND did = 'did:plc:1'`)
	exec(`UPDATE sharers SET repost_at = at WHERE link_id = 3 AND did = 'did:plc:2'`)
	exec(`DELETE FROM link_counts WHERE link_id = 3`)
	lines, _ = differences()
	require.Len(t, lines, 5, "%v", lines)
	for i, begins := range []string{
		"link 2, sharer did:plc:1: kept nothing, recounted {", "link 3, sharer did:plc:2: kept {", "link 1: kept {", "link 2: kept {",
		"link 3: kept nothing, recounted {",
	} {
		require.True(t, strings.HasPrefix(lines[i], begins), "%s: expected %s", lines[i], begins)
	}
	sampled := map[int64]bool{}
	wrong, err := CheckSample(t.Context(), pool, 100, now, func(d Difference) { sampled[d.Link] = true })
	require.NoError(t, err)
	require.Equal(t, 5, wrong)
	read, err := Health().Read(t.Context(), pool, now)
	require.NoError(t, err)
	require.Equal(t, 5.0, read.Values["counts_wrong"])
	require.Equal(t, map[string]string{"WeirCountsWrong": "5 counts of the last sample are not what the shares say"}, read.Messages)
	require.Equal(t, map[int64]bool{1: true, 2: true, 3: true}, sampled)

	// A pending pair is omitted: readers correct it.
	exec(`INSERT INTO pending_counts (link_id, did) VALUES (2, 'did:plc:1')`)
	lines, _ = differences()
	require.Len(t, lines, 4)
	require.NoError(t, CountEverything(t.Context(), pool))
	_, pending = differences()
	require.True(t, pending)
	_, err = Count(t.Context(), pool, now)
	require.NoError(t, err)
	lines, _ = differences()
	require.Empty(t, lines)
}
