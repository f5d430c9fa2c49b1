package links

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/workers"
)

// TestRetryOfAPostProjectsItsCurrentRevision retries a post that is refused again, and then after
// the fix. A deleted post needs no projection.
func TestRetryOfAPostProjectsItsCurrentRevision(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a, w := newAuthor(t, pool), worker(pool)
	nobody, err := bluesky.New(bluesky.Config{
		AppView: "http://127.0.0.1:1", Directory: "http://127.0.0.1:1", Logger: slog.New(slog.DiscardHandler),
		Retries: []time.Duration{time.Millisecond},
	})
	require.NoError(t, err)
	a.post("1", "1", "https://x.example/")
	a.post("2", "1", "https://y.example/")
	a.post("3", "1", "https://z.example/")
	w.find = func(string, []byte) (link.Post, error) { return link.Post{}, errors.New("unreadable") }
	require.NoError(t, work(t.Context(), w, "1", "2", "3"))
	a.delete("3", "2")
	execute(t, pool, `ALTER TABLE links ADD CONSTRAINT strict CHECK (url <> 'https://y.example/')`)
	c := client(t, workers.Config{Shared: workers.Shared{Pool: pool, Projections: registered(t, pool), Bluesky: nobody},
		ID: t.Name()}, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	require.NoError(t, c.Start(ctx))
	t.Cleanup(func() {
		cancel()
		<-c.Stopped()
	})
	states := func() (all []string) {
		execute(t, pool, `SELECT retry_dead_letters()`)
		eventually.True(t, func() bool {
			rows, err := pool.Query(t.Context(), `SELECT concat_ws(' ', rkey, projection, state, count, cause,
				substring(last_cause FROM '"strict"')) FROM dead_letters ORDER BY rkey`)
			require.NoError(t, err)
			all, err = pgx.CollectRows(rows, pgx.RowTo[string])
			require.NoError(t, err)
			return !slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, "retrying") })
		}, 20*time.Millisecond)
		return all
	}
	require.Equal(t, []string{"1 links retried 1 unreadable", `2 links open 2 unreadable "strict"`, "3 links retried 1 unreadable"}, states())
	require.Equal(t, []string{"1 https://x.example/"}, shares(t, pool))
	execute(t, pool, `ALTER TABLE links DROP CONSTRAINT strict`)
	require.Equal(t, `2 links retried 2 unreadable "strict"`, states()[1])
	require.Equal(t, []string{"1 https://x.example/", "2 https://y.example/"}, shares(t, pool))
	var n int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM river_job WHERE kind = 'process_posts'`).Scan(&n))
	require.Equal(t, 2, n, "one job for all records requested together")
}
