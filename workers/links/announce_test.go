package links

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/workers"
)

// TestOneProcessAnnouncesALink shows that a link is announced once although three processes count,
// and never by the one that stores the share.
func TestOneProcessAnnouncesALink(t *testing.T) {
	t.Parallel()
	r := &rig{t: t, pool: schematest.New(t)}
	conn, err := pgx.ConnectConfig(t.Context(), r.pool.Config().ConnConfig)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) }) // the test is over
	_, err = conn.Exec(t.Context(), `LISTEN weir_links`)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	var clients []*workers.Client
	for _, id := range []string{"a", "b", "c"} {
		client := client(t, workers.Config{
			Shared: workers.Shared{Pool: r.pool, Projections: registered(t, r.pool), Registerer: prometheus.NewRegistry()}, ID: id,
		}, Config{})
		require.NoError(t, client.Start(ctx))
		clients = append(clients, client)
	}
	r.execute(`INSERT INTO links (identity, url, site, first_seen)
		VALUES ('a', 'https://a.example/', 'a.example', now()), ('b', 'https://b.example/', 'b.example', now())`)
	const add = `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		VALUES ('did:plc:' || $1::int, 'c', $1::text, $2, $2, 'post', now())`
	for link := 1; link <= 2; link++ {
		for n := range 3 { // the second and the third share change the counts, but no top link
			r.execute(add, 3*link+n, link)
		}
		windows := map[string]int{}
		for range 6 {
			n, err := conn.WaitForNotification(t.Context())
			require.NoError(t, err)
			require.True(t, strings.HasSuffix(n.Payload, map[int]string{
				1: `"url" : "https://a.example/"}`, 2: `"url" : "https://b.example/"}`,
			}[link]), n.Payload)
			windows[n.Payload]++
		}
		require.Len(t, windows, 6, "each window must be announced once")
		r.becomes(0, `SELECT count(*) FROM pending_counts`)
	}
	stop()
	for _, client := range clients {
		<-client.Stopped()
	}
	_, err = conn.Exec(t.Context(), `NOTIFY weir_links, 'end'`)
	require.NoError(t, err)
	last, err := conn.WaitForNotification(t.Context())
	require.NoError(t, err)
	require.Equal(t, "end", last.Payload, "something was announced twice")
}
