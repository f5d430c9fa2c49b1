package ranking_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// listener collects announcements.
type listener struct{ conn *pgx.Conn }

func listen(t *testing.T, url string) *listener {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) }) // the test is over
	_, err = conn.Exec(t.Context(), `LISTEN weir_links`)
	require.NoError(t, err)
	return &listener{conn}
}

// heard returns the announcements so far, as "window id url".
func (l *listener) heard(t *testing.T) (all []string) {
	t.Helper()
	_, err := l.conn.Exec(t.Context(), `SELECT pg_notify('weir_links', '{"window":"end"}')`)
	require.NoError(t, err)
	for {
		n, err := l.conn.WaitForNotification(t.Context())
		require.NoError(t, err)
		var payload struct {
			Window string
			ID     int64
			URL    string
		}
		require.NoError(t, json.Unmarshal([]byte(n.Payload), &payload))
		if payload.Window == "end" {
			return all
		}
		all = append(all, fmt.Sprintf("%s %d %s", payload.Window, payload.ID, payload.URL))
	}
}

func announce(t *testing.T, pool *pgxpool.Pool, at time.Time) {
	t.Helper()
	_, err := ranking.Count(t.Context(), pool, at)
	require.NoError(t, err)
	_, done, err := ranking.Announce(t.Context(), pool, -time.Second)
	require.NoError(t, err)
	require.True(t, done)
}

// TestLinksThatEnterTheTopAreAnnounced shows that such links are announced once
// for each window, however often they are counted, and again if they left it in
// between.
func TestLinksThatEnterTheTopAreAnnounced(t *testing.T) {
	t.Parallel()
	url := schematest.NewURL(t)
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	l := listen(t, url)
	now := time.Now().Truncate(time.Second)
	execute(t, pool, `INSERT INTO links (identity, url, site, first_seen)
		SELECT n::text, 'https://a.example/?"' || n, 'a.example', now() FROM generate_series(1, 51) AS n`)
	add := func(did string, link int, at time.Time) {
		execute(t, pool, `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
			VALUES ($1, 'c', $2::bigint::text, $2, $2, 'post', $3)`, did, link, at)
	}
	for n := range 51 { // the oldest link is not among the top
		add("did:plc:a", n+1, now.Add(time.Duration(n-100)*time.Second))
	}
	announce(t, pool, now)
	heard := l.heard(t)
	require.Len(t, heard, 6*ranking.TopLinks)
	require.Contains(t, heard, `1h 51 https://a.example/?"51`)
	require.NotContains(t, heard, `1h 1 https://a.example/?"1`)
	announce(t, pool, now)
	require.Empty(t, l.heard(t), "nothing entered")

	add("did:plc:b", 1, now.Add(-2*time.Hour))
	add("did:plc:c", 51, now)
	announce(t, pool, now)
	require.ElementsMatch(t, []string{
		`3h 1 https://a.example/?"1`, `6h 1 https://a.example/?"1`, `12h 1 https://a.example/?"1`,
		`24h 1 https://a.example/?"1`, `7d 1 https://a.example/?"1`,
	}, l.heard(t))
	execute(t, pool, `DELETE FROM shares WHERE link_id = 51`)
	announce(t, pool, now)
	require.ElementsMatch(t,
		[]string{`1h 1 https://a.example/?"1`, `3h 2 https://a.example/?"2`, `6h 2 https://a.example/?"2`, `12h 2 https://a.example/?"2`,
			`24h 2 https://a.example/?"2`,
			`7d 2 https://a.example/?"2`}, l.heard(t), "a link in the place of another; one is back in the place that the first took")
	add("did:plc:c", 51, now)
	announce(t, pool, now)
	require.Contains(t, l.heard(t), `24h 51 https://a.example/?"51`)

	_, done, err := ranking.Announce(t.Context(), pool, time.Hour)
	require.NoError(t, err)
	require.False(t, done, "too soon")
	execute(t, pool, `DELETE FROM count_state`)
	_, done, err = ranking.Announce(t.Context(), pool, -time.Second)
	require.NoError(t, err)
	require.False(t, done, "nothing is counted")
}
