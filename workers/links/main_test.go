package links

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
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
	b := workers.NewBundle(workers.Config{Pool: pool, Projections: schema.NewProjections(Projection()), Logger: slog.New(slog.DiscardHandler), Collections: collection.Of(stored...)})
	e := newExpiry(pool, keep)
	b.Expire(e.ensureDays, e.ledger)
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
	n, err := simnet.New(simnet.Config{Seed: 21, Accounts: 300, Follows: 250, History: 4000, HistorySpan: 3 * time.Hour})
	require.NoError(t, err)
	require.NoError(t, n.Start("127.0.0.1:0"))
	t.Cleanup(n.Stop)
	api := apiOf(t, n)
	r := &rig{t: t, net: n, pool: schematest.New(t), api: api}
	r.client = client(t, workers.Config{Pool: r.pool, Projections: registered(t, r.pool), ID: t.Name(), Bluesky: api}, Config{announced: announceInterval})
	ctx, cancel := context.WithCancel(context.Background())
	require.NoError(t, r.client.Start(ctx))
	t.Cleanup(func() {
		cancel()
		<-r.client.Stopped()
	})
	schedules(t, r.pool)
	becomes(t, r.pool, []string{"1"}, `SELECT count(*)::text FROM river_job WHERE kind = 'sync_follows' AND args ->> 'watch' = '0' AND state = 'completed'`)
	return r
}

// apiOf returns a client of a network's services.
func apiOf(t *testing.T, n *simnet.Net) *bluesky.Client {
	t.Helper()
	api, err := bluesky.New(bluesky.Config{AppView: n.AppViewURL(), Directory: n.DirectoryURL(), Relays: []string{n.PDSURL()}, Logger: slog.New(slog.DiscardHandler),
		Retries: []time.Duration{time.Millisecond}})
	require.NoError(t, err)
	return api
}

func (r *rig) count(sql string, args ...any) (n int) {
	r.t.Helper()
	require.NoError(r.t, r.pool.QueryRow(r.t.Context(), sql, args...).Scan(&n))
	return n
}

func (r *rig) execute(sql string, args ...any) {
	r.t.Helper()
	_, err := r.pool.Exec(r.t.Context(), sql, args...)
	require.NoError(r.t, err)
}

// becomes waits until a query returns the expected count.
func (r *rig) becomes(want int, sql string, args ...any) {
	r.t.Helper()
	eventually.True(r.t, func() bool { return r.count(sql, args...) == want }, 20*time.Millisecond, "%s", sql)
}

// idle waits until only second reads are left, which are due in a minute.
func (r *rig) idle() {
	r.t.Helper()
	r.becomes(0, `SELECT count(*) FROM river_job WHERE state IN ('available', 'running', 'retryable') OR state = 'scheduled' AND kind <> 'request_backfill'`)
}

// pauses pauses a queue, and returns when the client works no further jobs of it.
func (r *rig) pauses(queue string) {
	r.t.Helper()
	paused, cancel := r.client.Subscribe(river.EventKindQueuePaused)
	defer cancel()
	require.NoError(r.t, r.client.QueuePause(r.t.Context(), queue, nil))
	for event := range paused {
		if event.Queue.Name == queue {
			return
		}
	}
}

// followed returns the accounts that the hub follows and the AppView shows.
func (r *rig) followed() []string {
	return slices.DeleteFunc(r.net.Follows(r.net.Hub().DID), func(did string) bool {
		a, ok := r.net.Account(did)
		return !ok || a.Status != ""
	})
}

// busiest returns the account with the most posts among those the hub follows.
func (r *rig) busiest() (did string, posts int) {
	n := map[string]int{}
	for _, e := range r.net.Log().Entries() {
		if e.Kind == "commit" && e.Collection == schema.PostCollection && e.Operation == "create" {
			n[e.DID]++
		}
	}
	for _, d := range r.followed() {
		if n[d] > posts {
			did, posts = d, n[d]
		}
	}
	return did, posts
}

// follows adds a watch for each account, and waits until their feeds are read.
func (r *rig) follows(dids ...string) {
	r.t.Helper()
	for _, did := range dids {
		r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
	}
	r.becomes(len(dids), `SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL`)
}

// posts returns an account's posts in its repository, newest first.
func (r *rig) posts(did string) (all []schema.SourceRecord) {
	r.t.Helper()
	for cursor := ""; ; {
		page, next, err := r.api.Records(r.t.Context(), did, schema.PostCollection, cursor, 100)
		require.NoError(r.t, err)
		for _, p := range page {
			all = append(all, schema.SourceRecord{Rkey: p.Rkey, CID: p.CID, Record: p.Record})
		}
		if next == "" {
			return all
		}
		cursor = next
	}
}

// rigOfPDS returns a rig that follows an account whose PDS lists the given posts.
func rigOfPDS(t *testing.T, list http.HandlerFunc) *rig {
	t.Helper()
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	mux.HandleFunc("GET /{did}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"id": %q, "service": [{"id": "#atproto_pds", "type": "AtprotoPersonalDataServer", "serviceEndpoint": %q}]}`, r.PathValue("did"), server.URL)
	})
	mux.HandleFunc("GET /xrpc/com.atproto.sync.getLatestCommit", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"cid": "bafyreidfayvfuwqa7qlnopdjiqrxzs6blmoeu4rujcjtnci5beludirz2a", "rev": %q}`, syntax.NewTID(time.Now().UnixMicro(), 0))
	})
	mux.HandleFunc("GET /xrpc/com.atproto.repo.listRecords", list)
	api, err := bluesky.New(bluesky.Config{AppView: server.URL, Directory: server.URL, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	r := &rig{t: t, pool: schematest.New(t), api: api}
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, alice)
	r.execute(`INSERT INTO watch_members (watch_id, did, added_at) SELECT id, target, now() - interval '1 day' FROM watches`)
	r.execute(`INSERT INTO accounts (did, feed_since) VALUES ($1, now() - interval '1 day')`, alice)
	return r
}

func uri(did, rkey string) string { return "at://" + did + "/" + schema.PostCollection + "/" + rkey }

const addGap = `INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('s', now() - interval '10 minutes', now(), 'a test', now())`

// commit stores a batch like the consumer.
func (a author) commit(p schema.Projections, b schema.Batch) (err error) {
	a.t.Helper()
	queue, err := workers.Queue(a.pool, slog.New(slog.DiscardHandler))
	require.NoError(a.t, err)
	b.Projections = p
	return pgx.BeginFunc(a.t.Context(), a.pool, func(tx pgx.Tx) error {
		written, err := b.Apply(a.t.Context(), tx, a.lease, true)
		if err != nil {
			return err
		}
		return p.Enqueue(queue, "s")(a.t.Context(), tx, append(b.Stored(written), schema.NotFresh(p.Deleted(b.Deletions))...), time.Now())
	})
}
