package ranking

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/words"
)

var update = flag.Bool("update", false, "write queries.sql")

// TestQueriesAreAsWritten checks that queries.sql, in which people read the queries that are composed of parts, has
// what runs. `go generate ./internal/ranking` rewrites it.
func TestQueriesAreAsWritten(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("-- The queries of internal/ranking that are composed of parts, for reading: nothing runs this file.\n")
	for _, q := range composedQueries() {
		r := &recorder{}
		q.run(r)
		require.NotEmpty(t, r.queries, q.name)
		for i, sql := range r.queries {
			name := q.name
			if i > 0 {
				name += fmt.Sprintf(" (%d)", i+1)
			}
			fmt.Fprintf(&text, "\n-- %s\n%s;\n", name, strings.TrimSpace(sql))
		}
	}
	if *update {
		require.NoError(t, os.WriteFile("queries.sql", []byte(text.String()), 0o644))
	}
	committed, err := os.ReadFile("queries.sql")
	require.NoError(t, err)
	require.Equal(t, string(committed), text.String(), "run `go generate ./internal/ranking`")
}

type composed struct {
	name string
	run  func(*recorder)
}

// queued is what a function queues.
func queued(name string, queue func(*pgx.Batch)) composed {
	return composed{name, func(r *recorder) {
		q := &pgx.Batch{}
		queue(q)
		r.SendBatch(context.Background(), q)
	}}
}

// asked is the first query of a function.
func asked(name string, ask func(ctx context.Context, tx pgx.Tx)) composed {
	return composed{name, func(r *recorder) { ask(context.Background(), r) }}
}

func composedQueries() []composed {
	return slices.Concat(countingQueries(), rankingQueries(), linkQueries())
}

// countingQueries are those of the counter and of its checks.
func countingQueries() []composed {
	now, link := time.Unix(1, 0), []int64{1}
	var crossings []crossing
	votes := map[claimed]*claimSums{{1, 1}: {title: sum{n: 1}}}
	return []composed{
		asked("recountEverything", func(ctx context.Context, tx pgx.Tx) { recountEverything(ctx, tx, now, state{}) }),
		asked("readChanges", func(ctx context.Context, tx pgx.Tx) {
			p := pending{}
			p.add(&link[0], nil, nil, nil)
			readChanges(ctx, tx, p, state{})
		}),
		asked("addVotes", func(ctx context.Context, tx pgx.Tx) { changes{}.addVotes(ctx, tx, []ownPost{{}}) }),
		queued("queueCrossings", func(q *pgx.Batch) { queueCrossings(q, Nostr, now, now, []int{0}, 1, &crossings) }),
		asked("readTallies", func(ctx context.Context, tx pgx.Tx) {
			readTallies(ctx, tx, Nostr, map[int64]int{1: 1}, state{}, nil, nil)
		}),
		asked("sumVotes", func(ctx context.Context, tx pgx.Tx) { sumVotes(ctx, tx, []ballot{{}}) }),
		asked("readHeadlines", func(ctx context.Context, tx pgx.Tx) { readHeadlines(ctx, tx, link, votes) }),
		asked("recountHeadlines: before the first count", func(ctx context.Context, tx pgx.Tx) { recountHeadlines(ctx, tx, state{}, link) }),
		queued("queueHeadlines", func(q *pgx.Batch) { queueHeadlines(q, link) }),
		queued("queueDropCards", func(q *pgx.Batch) { queueDropCards(q, link) }),
		queued("queueLockPages", func(q *pgx.Batch) { queueLockPages(q, link) }),
		queued("queueCards", func(q *pgx.Batch) { queueCards(q, wantedColumns{links: link}) }),
		asked("doubtful.judge", func(ctx context.Context, tx pgx.Tx) { doubtful{groups: link}.judge(ctx, tx) }),
		asked("checkSharers", func(ctx context.Context, tx pgx.Tx) { checkSharers(ctx, tx, state{}, link, nil) }),
		asked("checkCounts", func(ctx context.Context, tx pgx.Tx) { checkCounts(ctx, tx, Nostr, state{}, link, nil) }),
		asked("checkVotes", func(ctx context.Context, tx pgx.Tx) { checkVotes(ctx, tx, state{}, link, nil) }),
		asked("checkSums", func(ctx context.Context, tx pgx.Tx) { checkSums(ctx, tx, link, nil) }),
		asked("checkWalls", func(ctx context.Context, tx pgx.Tx) { checkWalls(ctx, tx, link, nil) }),
		asked("checkHeadlines", func(ctx context.Context, tx pgx.Tx) { checkHeadlines(ctx, tx, link, nil) }),
	}
}

// rankingQueries are those of a page of the ranking.
func rankingQueries() []composed {
	link := []int64{1}
	var gifts []gift
	var links []TrendingLink
	plain := func(*reader) {}
	nostr := func(r *reader) { r.q.Network = Nostr }
	searching := func(r *reader) { r.text = &searched{Search: words.Parse("word")} }
	described := func(name string, change func(*reader)) composed {
		return queued("queueDescriptions: "+name, func(q *pgx.Batch) { pageIn(nil, change).queueDescriptions(q, []entry{{ID: 1}}, link, &links) })
	}
	return []composed{
		asked("rankScan.ordered", func(ctx context.Context, tx pgx.Tx) { (&rankScan{reader: pageIn(tx, plain)}).ordered(ctx, nil, 50) }),
		asked("rankScan.ordered: some links of Nostr", func(ctx context.Context, tx pgx.Tx) {
			(&rankScan{reader: pageIn(tx, nostr), only: link}).ordered(ctx, nil, 50)
		}),
		asked("rankScan.singles", func(ctx context.Context, tx pgx.Tx) {
			(&rankScan{reader: pageIn(tx, plain)}).singles(ctx, nil, nil, 50)
		}),
		asked("rankScan.singles: some links of Nostr", func(ctx context.Context, tx pgx.Tx) {
			(&rankScan{reader: pageIn(tx, nostr), only: link}).singles(ctx, nil, nil, 50)
		}),
		asked("rankScan.newest", func(ctx context.Context, tx pgx.Tx) { (&rankScan{reader: pageIn(tx, plain)}).newest(ctx, nil, 50) }),
		asked("rankScan.newest: of Nostr", func(ctx context.Context, tx pgx.Tx) { (&rankScan{reader: pageIn(tx, nostr)}).newest(ctx, nil, 50) }),
		asked("rankScan.recount: of one way", func(ctx context.Context, tx pgx.Tx) {
			(&rankScan{reader: pageIn(tx, func(r *reader) { r.q.Ways = []string{"post", "quote"} })}).recount(ctx, Nostr, []entry{{ID: 1}})
		}),
		asked("reader.recount", func(ctx context.Context, tx pgx.Tx) { pageIn(tx, plain).recount(ctx) }),
		asked("reader.recount: of watches", func(ctx context.Context, tx pgx.Tx) {
			pageIn(tx, func(r *reader) { r.watches = link }).recount(ctx)
		}),
		described("everyone", plain),
		described("from the counts", func(r *reader) { r.unread = changes{} }),
		described("members", func(r *reader) { r.watches = link }),
		queued("queueGifts", func(q *pgx.Batch) { queueGifts(q, link, &gifts) }),
		asked("reader.readBy", func(ctx context.Context, tx pgx.Tx) {
			pageIn(tx, func(r *reader) { r.q.By = "alice.example" }).readBy(ctx)
		}),
		asked("reader.list", func(ctx context.Context, tx pgx.Tx) { pageIn(tx, searching).list(ctx, func(int) int { return 1 }) }),
		asked("reader.matchListed", func(ctx context.Context, tx pgx.Tx) { pageIn(tx, searching).matchListed(ctx, link) }),
		asked("reader.keep", func(ctx context.Context, tx pgx.Tx) {
			pageIn(tx, func(r *reader) { searching(r); r.text.other = anywhere }).keep(ctx, []entry{{ID: 1}})
		}),
	}
}

// linkQueries are those of the other readers, of cards and of expiry.
func linkQueries() []composed {
	now, link := time.Unix(1, 0), []int64{1}
	ofLink := func(tx pgx.Tx) *linkReader {
		return &linkReader{reader: *pageIn(tx, func(*reader) {}), of: LinkQuery{ID: 1}}
	}
	return []composed{
		asked("ReachReader.reachWithin", func(ctx context.Context, tx pgx.Tx) {
			(&ReachReader{*pageIn(tx, func(*reader) {})}).reachWithin(ctx, link, 1)
		}),
		asked("ReachReader.scan", func(ctx context.Context, tx pgx.Tx) {
			(&ReachReader{*pageIn(tx, func(r *reader) { r.q.Network = Nostr })}).scan(true, nil)(ctx)
		}),
		asked("linkReader.shares", func(ctx context.Context, tx pgx.Tx) { ofLink(tx).shares(ctx, sharePosition{}, 50) }),
		asked("linkReader.waiting", func(ctx context.Context, tx pgx.Tx) { ofLink(tx).waiting(ctx, sharePosition{}, 50) }),
		asked("linkReader.count", func(ctx context.Context, tx pgx.Tx) { ofLink(tx).count(ctx, &LinkSummary{}) }),
		asked("linkReader.readGiven", func(ctx context.Context, tx pgx.Tx) { ofLink(tx).readGiven(ctx, &LinkSummary{}) }),
		asked("fetchedPage", func(ctx context.Context, tx pgx.Tx) { fetchedPage(ctx, tx, 1) }),
		asked("storing.distrustTitle", func(ctx context.Context, tx pgx.Tx) { (&storing{tx: tx, group: &link[0]}).distrustTitle(ctx) }),
		asked("nextCard", func(ctx context.Context, tx pgx.Tx) { nextCard(ctx, tx) }),
		asked("CountLeaving", func(ctx context.Context, tx pgx.Tx) { CountLeaving(ctx, tx, LinkRule{}, "shares_default", 0, 1) }),
		asked("ExpireOtherShares", func(ctx context.Context, tx pgx.Tx) { ExpireOtherShares(ctx, tx, LinkRule{}, now, 1) }),
		asked("ExpireIdle", func(ctx context.Context, tx pgx.Tx) { ExpireIdle(ctx, tx, now, now, 1) }),
		asked("SharesOfRecord", func(ctx context.Context, tx pgx.Tx) { SharesOfRecord(ctx, tx, Share{}.Key) }),
	}
}

// pageIn is the reader of a page.
func pageIn(tx pgx.Tx, change func(*reader)) *reader {
	r := &reader{
		tx: tx, q: Query{Window: Windows()[2].Length, Sort: Sharers, Limit: 50}, window: 2, end: time.Unix(1, 0),
		limits: usualLimits(),
	}
	change(r)
	return r
}

// recorder is a transaction that records its queries and refuses them.
type recorder struct {
	pgx.Tx
	queries []string
}

type refused struct {
	pgx.BatchResults
	pgx.Row
}

var errRecorded = errors.New("recorded")

func (refused) Close() error      { return errRecorded }
func (refused) Scan(...any) error { return errRecorded }

func (r *recorder) Query(_ context.Context, sql string, _ ...any) (pgx.Rows, error) {
	r.queries = append(r.queries, sql)
	return nil, errRecorded
}

func (r *recorder) QueryRow(_ context.Context, sql string, _ ...any) pgx.Row {
	r.queries = append(r.queries, sql)
	return refused{}
}

func (r *recorder) Exec(_ context.Context, sql string, _ ...any) (pgconn.CommandTag, error) {
	r.queries = append(r.queries, sql)
	return pgconn.CommandTag{}, errRecorded
}

func (r *recorder) SendBatch(_ context.Context, q *pgx.Batch) pgx.BatchResults {
	for _, queued := range q.QueuedQueries {
		r.queries = append(r.queries, queued.SQL)
	}
	return refused{}
}
