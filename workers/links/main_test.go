package links

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/internal/testing/workertest"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

func TestMain(m *testing.M) { schematest.Main(m) }

// The short names of what tests use most.
var (
	execute   = workertest.Execute
	count     = workertest.Count
	strs      = workertest.Strings
	becomes   = workertest.Becomes
	schedules = workertest.Schedules
)

const (
	alice = "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa"
	day   = 24 * time.Hour
)

// registered registers the projection and returns it.
func registered(t testing.TB, pool *pgxpool.Pool) schema.Projections {
	t.Helper()
	p := schema.NewProjections(Projection())
	_, err := p.Register(t.Context(), pool)
	require.NoError(t, err)
	return p
}

// client returns a client with the workers of links.
func client(t testing.TB, cfg workers.Config, links Config) *workers.Client {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Features = append(cfg.Features, func(b workers.Bundle) error {
		Add(b, links)
		return nil
	})
	c, err := workers.New(cfg)
	require.NoError(t, err)
	return c
}

// expiring is the worker of the expiry, with what it does for links.
type expiring struct {
	*workers.Expire
	*expiry
}

func expirer(t testing.TB, pool *pgxpool.Pool, keep Retention, core workers.Retention, stored ...collection.Entry) expiring {
	t.Helper()
	b := workers.NewBundle(workers.Config{
		Shared: workers.Shared{Pool: pool, Projections: schema.NewProjections(Projection()), Logger: slog.New(slog.DiscardHandler),
			Collections: collection.Of(stored...)},
	})
	e := newExpiry(pool, keep)
	b.Expire(e.ensureDays, e.expireShares)
	core.Projected = keep.Shares
	w, err := workers.NewExpire(b, core)
	require.NoError(t, err)
	return expiring{w, e}
}

// rig is a simulated network, a database, and workers between them.
type rig struct {
	t      *testing.T
	net    *simnet.Net
	pool   *pgxpool.Pool
	client *workers.Client
	api    *bluesky.Client
}

func newRig(t *testing.T) *rig {
	t.Helper()
	n, api := workertest.Network(t, simnet.Config{Seed: 21, Accounts: 300, Follows: 250, History: 4000, HistorySpan: 3 * time.Hour})
	r := &rig{t: t, net: n, pool: schematest.New(t), api: api}
	r.client = client(t, workers.Config{
		Shared: workers.Shared{Pool: r.pool, Projections: registered(t, r.pool), Bluesky: api}, ID: t.Name(),
	}, Config{announced: announceInterval})
	ctx, cancel := context.WithCancel(context.Background())
	require.NoError(t, r.client.Start(ctx))
	t.Cleanup(func() {
		cancel()
		<-r.client.Stopped()
	})
	schedules(t, r.pool)
	becomes(t, r.pool, []string{"1"}, `SELECT count(*)::text FROM river_job
		WHERE kind = 'sync_follows' AND args ->> 'watch' = '0' AND state = 'completed'`)
	return r
}

func (r *rig) count(sql string, args ...any) (n int) {
	r.t.Helper()
	return count(r.t, r.pool, sql, args...)
}

func (r *rig) execute(sql string, args ...any) {
	r.t.Helper()
	execute(r.t, r.pool, sql, args...)
}

// becomes waits until a query returns the expected count.
func (r *rig) becomes(want int, sql string, args ...any) {
	r.t.Helper()
	eventually.True(r.t, func() bool { return r.count(sql, args...) == want }, 20*time.Millisecond, "%s", sql)
}

// idle waits until only second reads are left, which are due in a minute.
func (r *rig) idle() {
	r.t.Helper()
	r.becomes(0, workertest.Unfinished)
}

// pauses pauses a queue, and returns when the client works no further jobs of it.
func (r *rig) pauses(queue string) {
	r.t.Helper()
	workertest.Pauses(r.t, r.client, queue)
}

// followed returns the accounts that the hub follows and the AppView shows.
func (r *rig) followed() []string { return workertest.Followed(r.net) }

// busiest returns the account with the most posts among those the hub follows.
func (r *rig) busiest() (did string, posts int) { return workertest.Busiest(r.net) }

// follows adds a watch for each account, and waits until their feeds are read.
func (r *rig) follows(dids ...string) {
	r.t.Helper()
	for _, did := range dids {
		r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
	}
	r.becomes(len(dids), `SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL`)
}

// posts returns an account's posts in its repository, newest first.
func (r *rig) posts(did string) []schema.SourceRecord {
	r.t.Helper()
	return workertest.Posts(r.t, r.api, did)
}

// rigOfPDS returns a rig that follows an account whose PDS lists the given posts.
func rigOfPDS(t *testing.T, list http.HandlerFunc) *rig {
	t.Helper()
	r := &rig{t: t, pool: schematest.New(t), api: workertest.PDS(t, list)}
	workertest.Follow(t, r.pool, alice)
	return r
}

func uri(did, rkey string) string { return workertest.URI(did, rkey) }

const addGap = workertest.AddGap

// commit stores a batch like the consumer.
func (a author) commit(p schema.Projections, b schema.Batch) (err error) {
	a.t.Helper()
	queue, err := workers.Queue(a.pool, slog.New(slog.DiscardHandler))
	require.NoError(a.t, err)
	b.Projections, b.Careful = p, true
	return pgx.BeginFunc(a.t.Context(), a.pool, func(tx pgx.Tx) error {
		written, err := b.Apply(a.t.Context(), tx, a.lease)
		if err != nil {
			return err
		}
		return p.Enqueue(queue, "s")(a.t.Context(), tx, append(b.Stored(written), schema.NotFresh(p.Deleted(b.Deletions))...), time.Now())
	})
}
