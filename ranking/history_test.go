package ranking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

// history is a random history: writers who change everything that counts, a clock that
// is set forward and back, and a counter that is killed now and then.
type history struct {
	pool  *pgxpool.Pool
	clock atomic.Int64 // microseconds
	steps atomic.Int64
}

const historyAccounts, historyLinks, historyTargets = 40, 120, 2

func (h *history) now() time.Time { return time.UnixMicro(h.clock.Load()) }

// step queues one random thing, or sets the clock.
func (h *history) step(q *pgx.Batch, r *rand.Rand, writer int) {
	h.steps.Add(1)
	did := func() string { x := r.Float64(); return fmt.Sprintf("did:plc:%02d", int(historyAccounts*x*x)) }
	link := func() int64 { x := r.Float64(); return int64(historyLinks*x*x*x) + 1 } // most links have one sharer or two
	at := func() time.Time {
		x := r.Float64()
		return h.now().Add(time.Minute - time.Duration(x*x*x*float64(8*24*time.Hour))).Truncate([]time.Duration{time.Second, time.Hour}[r.IntN(2)])
	}
	rkey := func() string { return fmt.Sprintf("%d-%03d", writer, r.IntN(300)) } // a writer's own: writers do not wait for each other
	way := func() string { return ways()[r.IntN(3)] }
	// No two accounts share at the same time: the latest sharer is one.
	dated := `$5::timestamptz + right($1, 2)::int * interval '1 microsecond'`
	add := `
INSERT INTO shares (did, collection, rkey, link_id, how, shared_at) SELECT $1, 'c', $2, l.id, $4, ` + dated + ` FROM links AS l WHERE l.id = ANY ($3)
ON CONFLICT (did, collection, rkey, link_id) DO UPDATE SET how = excluded.how, shared_at = excluded.shared_at`
	k := r.IntN(71)
	if writer == 0 { // the one that changes what all writers use, or they would wait for each other's deadlocks
		k = 71 + r.IntN(29)
	}
	switch {
	case k < 45:
		q.Queue(add, did(), rkey(), []int64{link(), link()}[:1+r.IntN(2)], way(), at())
	case k < 55:
		q.Queue(`UPDATE shares SET how = $2, shared_at = $3::timestamptz + right(did, 2)::int * interval '1 microsecond' WHERE rkey = $1`, rkey(), way(), at())
	case k < 60:
		q.Queue(`UPDATE shares SET link_id = $2 WHERE rkey = $1 AND did = $3 AND EXISTS (SELECT FROM links WHERE id = $2)`, rkey(), link(), did())
	case k < 70:
		q.Queue(`DELETE FROM shares WHERE rkey = $1`, rkey())
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
		q.Queue(`INSERT INTO watches (target, kind) VALUES ($1, $2) ON CONFLICT DO NOTHING`, target(r), []string{"follows", "second-degree"}[r.IntN(2)])
	case k < 91 && r.IntN(4) == 0:
		q.Queue(`DELETE FROM watches WHERE target = $1`, target(r))
	case k < 92:
		id := link()
		q.Queue(`DELETE FROM shares WHERE link_id = $1`, id)
		q.Queue(`DELETE FROM links WHERE id = $1`, id)
	case k < 94:
		q.Queue(`INSERT INTO links (id, url, site, first_seen) OVERRIDING SYSTEM VALUE VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`,
			link(), fmt.Sprint(r.Uint64()), fmt.Sprintf("site%d.example", r.IntN(3)), h.now())
	case k < 95 && r.IntN(20) == 0:
		q.Queue(`INSERT INTO pending_counts (link_id) VALUES ($1)`, link())
	default:
		h.clock.Add(h.tick(r).Microseconds())
	}
}

func target(r *rand.Rand) string { return fmt.Sprintf("target%d.example", r.IntN(historyTargets)) }

// tick is how far the clock goes: mostly a little, sometimes back, sometimes far.
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

// write does steps in transactions of random size, one for each turn. Some are rolled
// back.
func (h *history) write(ctx context.Context, r *rand.Rand, writer int, turns <-chan struct{}) error {
	rolled := errors.New("rolled back")
	most := 40
	if writer == 0 {
		most = 2
	}
	for range turns {
		err := pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
			q := &pgx.Batch{}
			for range most - r.IntN(most) {
				h.step(q, r, writer)
			}
			if err := tx.SendBatch(ctx, q).Close(); err != nil || r.IntN(15) > 0 {
				return err
			}
			return rolled
		})
		var pgErr *pgconn.PgError
		expected := errors.Is(err, rolled) || errors.As(err, &pgErr) && slices.Contains([]string{"40P01", "23503", "23505"}, pgErr.Code)
		if err != nil && !expected { // a deadlock, a link that another writer deletes, a move onto another share
			return err
		}
	}
	return nil
}

// count runs the counter until ctx ends, sometimes only for so long that it is killed.
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

// within gives out one snapshot again and again.
type within struct{ tx pgx.Tx }

func (w within) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) { return w.tx.Begin(ctx) }

// ledger is everything that decides the ranking, as one snapshot has it.
type ledger struct {
	shares []struct {
		DID, How string
		Link     int64
		At       time.Time
	}
	hidden  map[string]bool
	members map[string]map[string]bool // of each target and degree
	watched bool
	sites   map[int64]string
}

func readLedger(t *testing.T, tx pgx.Tx) (l ledger) {
	t.Helper()
	ctx := t.Context()
	rows, err := tx.Query(ctx, `SELECT did, how, link_id, shared_at FROM shares`)
	require.NoError(t, err)
	l.shares, err = pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
		DID, How string
		Link     int64
		At       time.Time
	}])
	require.NoError(t, err)
	l.hidden, l.members, l.sites = map[string]bool{}, map[string]map[string]bool{}, map[int64]string{}
	var did, target, kind, site string
	var id int64
	rows, _ = tx.Query(ctx, `SELECT did FROM accounts WHERE status <> 'active'`)
	_, err = pgx.ForEachRow(rows, []any{&did}, func() error { l.hidden[did] = true; return nil })
	require.NoError(t, err)
	rows, _ = tx.Query(ctx, `SELECT w.target, w.kind, coalesce(m.did, '') FROM watches AS w LEFT JOIN watch_members AS m ON m.watch_id = w.id`)
	_, err = pgx.ForEachRow(rows, []any{&target, &kind, &did}, func() error {
		l.watched = true
		for _, k := range []string{"", target, target + " " + map[string]string{"follows": "first", "second-degree": "second"}[kind]} {
			if l.members[k] == nil {
				l.members[k] = map[string]bool{}
			}
			l.members[k][did] = true
		}
		return nil
	})
	require.NoError(t, err)
	rows, _ = tx.Query(ctx, `SELECT id, site FROM links`)
	_, err = pgx.ForEachRow(rows, []any{&id, &site}, func() error { l.sites[id] = site; return nil })
	require.NoError(t, err)
	return l
}

// fold ranks the links of a ledger, without any SQL: a line each.
func (l ledger) fold(q Query) []string {
	latest, first := map[int64]map[string]time.Time{}, map[int64]time.Time{}
	who := l.members[strings.TrimSpace(q.Watch+" "+string(q.Degree))]
	for _, s := range l.shares {
		counts := !l.hidden[s.DID] && (!l.watched || l.members[""][s.DID]) && (q.Watch == "" || who[s.DID]) &&
			(len(q.Ways) == 0 || slices.Contains(q.Ways, s.How)) && (q.Site == "" || l.sites[s.Link] == q.Site)
		if counts && s.At.After(q.At.Add(-8*24*time.Hour)) {
			if latest[s.Link] == nil {
				latest[s.Link] = map[string]time.Time{}
			}
			if q.At.Sub(s.At) < q.Window && (first[s.Link].IsZero() || s.At.Before(first[s.Link])) && q.Watch == "" {
				first[s.Link] = s.At
			}
			if s.At.After(latest[s.Link][s.DID]) {
				latest[s.Link][s.DID] = s.At
			}
		}
	}
	type ranked struct {
		id         int64
		key        int
		n          int
		speed      float64
		last       time.Time
		lastSharer string
	}
	var all []ranked
	for id, sharers := range latest {
		k := ranked{id: id}
		for did, at := range sharers {
			if q.At.Sub(at) < q.Window {
				k.n++
				if at.After(k.last) || at.Equal(k.last) && did < k.lastSharer {
					k.last, k.lastSharer = at, did
				}
			}
			for _, hours := range []float64{1, 3, 6, 12, 24} { // the mean of the hourly rates
				if q.At.Sub(at).Hours() < hours {
					k.speed += 1 / hours / 5
					k.key += int(24 / hours)
				}
			}
		}
		if k.n < max(q.AtLeast, 1) || q.Sort == Speed && k.key == 0 {
			continue
		}
		switch q.Sort {
		case Newest:
			k.key = int(id)
		case Sharers:
			k.key, k.speed = k.n, 0
		}
		if q.Sort == Newest {
			k.speed = 0
		}
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b ranked) int { return cmp.Or(b.key-a.key, b.last.Compare(a.last), int(b.id-a.id)) })
	var lines []string
	for _, k := range all {
		lines = append(lines, line(k.id, k.n, k.speed, first[k.id], k.last, k.lastSharer))
	}
	return lines
}

func line(id int64, sharers int, speed float64, first, last time.Time, by string) string {
	return fmt.Sprintf("link %d: %d sharers, speed %.4f, from %s to %s by %s", id, sharers, speed, first.UTC().Format(time.RFC3339Nano), last.UTC().Format(time.RFC3339Nano), by)
}

// pages reads a whole ranking, page by page.
func pages(t *testing.T, db Beginner, q Query, l limits) (lines []string, recounted bool) {
	t.Helper()
	for {
		p, err := trending(t.Context(), db, q, l)
		require.NoError(t, err)
		recounted = recounted || p.Recounted
		for _, k := range p.Links {
			lines = append(lines, line(k.ID, k.Sharers, k.Speed, k.FirstShared, k.LastShared, k.Faces[0].DID))
		}
		if p.Next == "" {
			return lines, recounted
		}
		q.After = p.Next
	}
}

func randomQuery(r *rand.Rand, now time.Time) Query {
	q := Query{At: now, Window: Windows()[r.IntN(windows)].Length, Sort: []Sort{Sharers, Speed, Newest}[r.IntN(3)], Limit: []int{10, 30, 300}[r.IntN(3)]}
	if r.IntN(3) == 0 {
		q.At = now.Add(time.Duration(r.IntN(int(10*time.Minute))) - 5*time.Minute).Truncate(time.Microsecond)
	}
	if r.IntN(3) == 0 {
		q.Watch = target(r)
		q.Degree = []Degree{BothDegrees, FirstDegree, SecondDegree}[r.IntN(3)]
	}
	if r.IntN(4) == 0 {
		q.Ways = [][]string{{"post"}, {"repost"}, {"post", "quote"}, {"quote", "repost"}}[r.IntN(4)]
	}
	if r.IntN(5) == 0 {
		q.Site = fmt.Sprintf("site%d.example", r.IntN(3))
	}
	if r.IntN(4) == 0 {
		q.AtLeast = 1 + r.IntN(4)
	}
	return q
}

// compare compares some rankings of one snapshot with a fold in Go, and what is kept
// with the ledger. It returns how many it read from the counts and how many it
// recounted, and whether something was pending.
func (h *history) compare(t *testing.T, queries []Query) (counted, recounted int, pending bool) {
	t.Helper()
	tx, err := h.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	require.NoError(t, err)
	defer tx.Rollback(context.Background()) //nolint:errcheck // it wrote nothing
	l := readLedger(t, tx)
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pending_counts)`).Scan(&pending))
	_, err = Check(t.Context(), within{tx}, func(d Difference) { require.Fail(t, d.String()) })
	require.NoError(t, err)
	for i, q := range queries {
		if _, ok := l.members[q.Watch]; q.Watch != "" && !ok {
			_, err := Trending(t.Context(), within{tx}, q)
			require.ErrorIs(t, err, ErrWatch)
			continue
		}
		got, again := pages(t, within{tx}, q, limits{pending: []int{5000, 30}[i%2], few: []int{2000, 2}[i/2%2]})
		require.Equal(t, l.fold(q), got, "%+v, pending %t, recounted %t", q, pending, again)
		if again {
			recounted++
		} else {
			counted++
		}
	}
	return counted, recounted, pending
}
