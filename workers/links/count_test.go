package links

import (
	"context"
	"github.com/weir-social/weir/internal/testing/workertest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/workers"
)

// TestOneOfTheWorkersCounts shows that two processes count the shares stored while they run, that
// the periodic check finds a wrong count, and that nothing is counted after both have stopped.
func TestOneOfTheWorkersCounts(t *testing.T) {
	t.Parallel()
	r := &rig{t: t, pool: schematest.New(t)}
	registry := prometheus.NewRegistry()
	var clients []*workers.Client
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	for _, id := range []string{"a", "b"} {
		client := client(t, workers.Config{
			Shared: workers.Shared{Pool: r.pool, Projections: registered(t, r.pool),
				Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"process": id}, registry)},
			ID: id,
		}, Config{announced: announceInterval})
		require.NoError(t, client.Start(ctx))
		clients = append(clients, client)
	}
	r.execute(`INSERT INTO links (identity, url, site, first_seen) VALUES ('a.example', 'https://a.example/', 'a.example', now())`)
	const add = `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:' || n, 'c', 'r', id, id, 'post', now() FROM links, generate_series($1::int, $2) AS n`
	r.execute(add, 1, 2)
	r.becomes(2, `SELECT coalesce(max(in_1h), 0) FROM link_counts`)
	r.execute(add, 3, 20)
	r.becomes(20, `SELECT max(in_1h) FROM link_counts`)
	r.becomes(0, `SELECT count(*) FROM pending_counts`)

	r.execute(`UPDATE link_counts SET in_7d = 19, in_24h = 19, in_12h = 19, in_6h = 19, in_3h = 19, in_1h = 19`)
	_, err := clients[0].Insert(t.Context(), CheckCountsArgs{}, nil)
	require.NoError(t, err)
	r.becomes(1, `SELECT coalesce(max(wrong), 0) FROM count_checks WHERE links = 1`)

	stop()
	for _, client := range clients {
		<-client.Stopped()
	}
	steps := workertest.Samples(t, registry, "weir_counts_seconds", func(m *dto.Metric) uint64 { return m.GetHistogram().GetSampleCount() })
	require.NotEmpty(t, steps)
	r.execute(add, 21, 21)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM pending_counts`))
}
