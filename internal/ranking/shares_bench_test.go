package ranking_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// BenchmarkShares compares shares in partitions of a day with one table without partitions,
// alternately. It measures the time to store a batch of 150 shares, and the time of a commit that
// deletes 20 posts with their shares. It prints the ratios.
func BenchmarkShares(b *testing.B) {
	const shares, deletions, turns = 150, 20, 150
	pools := map[string]*pgxpool.Pool{"partitioned": schematest.New(b), "plain": schematest.New(b)}
	for b.Loop() {
		b.StopTimer()
		now := time.Now().Truncate(time.Second)
		for _, sql := range []string{
			`DROP TABLE shares`,
			`CREATE TABLE shares (did text COLLATE "C" NOT NULL, collection text COLLATE "C" NOT NULL, rkey text COLLATE "C" NOT NULL,
			link_id bigint NOT NULL REFERENCES links (id),
			 how text NOT NULL CHECK (how IN ('post', 'quote', 'repost')), shared_at timestamptz NOT NULL,
			     stored_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (did, collection, rkey, link_id))`,
			`CREATE INDEX shares_window ON shares (shared_at, link_id)`, `CREATE INDEX shares_link ON shares (link_id, shared_at)`,
		} {
			_, err := pools["plain"].Exec(b.Context(), sql)
			require.NoError(b, err)
		}
		require.NoError(b, ranking.EnsureDays(b.Context(), pools["partitioned"], now.Add(-5*24*time.Hour), 7*24*time.Hour))
		for range 3 { // eight days, as a week needs
			require.NoError(b, ranking.EnsureDays(b.Context(), pools["partitioned"], now, 7*24*time.Hour))
		}
		took := map[string]time.Duration{}
		for turn := range turns {
			for name, pool := range pools {
				keys, all := batchOf(turn, shares, now)
				_, err := ranking.EnsureLinks(b.Context(), pool, all, now)
				require.NoError(b, err)
				timed(b, took, name+" store", turn, func() error {
					return pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error { return ranking.ReplaceShares(b.Context(), tx, keys, all, now) })
				})
				timed(b, took, name+" delete", turn, func() error { return deletePosts(b.Context(), pool, keys[:deletions], now) })
			}
		}
		for _, what := range []string{"store", "delete"} {
			b.ReportMetric(took["partitioned "+what].Seconds()/took["plain "+what].Seconds(), what+"-ratio")
			b.ReportMetric(took["partitioned "+what].Seconds()*1000/turns, what+"-ms")
		}
		b.ReportMetric(0, "ns/op")
		b.StartTimer()
	}
}

// timed adds the time of a call. It ignores the first turns, which warm up.
func timed(b *testing.B, took map[string]time.Duration, name string, turn int, do func() error) {
	b.Helper()
	at := time.Now()
	require.NoError(b, do())
	if turn >= 20 {
		took[name] += time.Since(at)
	}
}

func batchOf(turn, n int, now time.Time) (keys []schema.Key, shares []ranking.Share) {
	for i := range n {
		k := schema.Key{
			Collection: schema.PostCollection, DID: fmt.Sprintf("did:plc:%024d", i),
			Rkey: syntax.NewTID(now.Add(-time.Duration(turn*n+i)*time.Second).UnixMicro(), 0).String(),
		}
		keys = append(keys, k)
		shares = append(shares, ranking.Share{
			Key: k,
			Link: link.Link{
				Identity: fmt.Sprintf("https://site.example/%d", (turn*n+i)%5000),
				URL:      fmt.Sprintf("https://site.example/%d", (turn*n+i)%5000), Site: "site.example",
			},
			How: "post", SharedAt: now, StoredAt: now,
		})
	}
	return keys, shares
}

// deletePosts deletes posts as a stream's commit does.
func deletePosts(ctx context.Context, pool *pgxpool.Pool, keys []schema.Key, now time.Time) error {
	deletions := make([]schema.Deletion, len(keys))
	for i, k := range keys {
		deletions[i] = schema.Deletion{Key: k, Rev: "3", At: now}
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return schema.DeleteRecords(ctx, tx, deletions, schema.Projections{{
			Name: "links", Collections: []string{schema.PostCollection}, Tables: []string{"shares"},
		}})
	})
}
