package workertest

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
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// AddGap opens a gap of the last ten minutes.
const AddGap = `
	INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('s', now() - interval '10 minutes', now(), 'a test', now())`

// Unfinished counts the jobs that are left, without second reads, which are due in a minute.
const Unfinished = `
SELECT count(*) FROM river_job
WHERE state IN ('available', 'running', 'retryable') OR state = 'scheduled' AND kind <> 'request_backfill'`

// URI returns the AT-URI of a post.
func URI(did, rkey string) string { return "at://" + did + "/" + schema.PostCollection + "/" + rkey }

// Network starts a simulated network, and returns a client of its services.
func Network(t testing.TB, cfg simnet.Config) (*simnet.Net, *bluesky.Client) {
	t.Helper()
	n, err := simnet.New(cfg)
	require.NoError(t, err)
	require.NoError(t, n.Start("127.0.0.1:0"))
	t.Cleanup(n.Stop)
	return n, API(t, n)
}

// API returns a client of a network's services.
func API(t testing.TB, n *simnet.Net) *bluesky.Client {
	t.Helper()
	api, err := bluesky.New(bluesky.Config{
		AppView: n.AppViewURL(), Directory: n.DirectoryURL(), Relays: []string{n.PDSURL()},
		Logger: slog.New(slog.DiscardHandler), Retries: []time.Duration{time.Millisecond},
	})
	require.NoError(t, err)
	return api
}

// PDS returns a client of services with one PDS, which lists the given posts.
func PDS(t testing.TB, list http.HandlerFunc) *bluesky.Client {
	t.Helper()
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	mux.HandleFunc("GET /{did}", func(w http.ResponseWriter, r *http.Request) {
		const service = `{"id": "#atproto_pds", "type": "AtprotoPersonalDataServer", "serviceEndpoint": %q}`
		fmt.Fprintf(w, `{"id": %q, "service": [`+service+`]}`, r.PathValue("did"), server.URL)
	})
	mux.HandleFunc("GET /xrpc/com.atproto.sync.getLatestCommit", func(w http.ResponseWriter, _ *http.Request) {
		const cid = "bafyreidfayvfuwqa7qlnopdjiqrxzs6blmoeu4rujcjtnci5beludirz2a"
		fmt.Fprintf(w, `{"cid": %q, "rev": %q}`, cid, syntax.NewTID(time.Now().UnixMicro(), 0))
	})
	mux.HandleFunc("GET /xrpc/com.atproto.repo.listRecords", list)
	api, err := bluesky.New(bluesky.Config{AppView: server.URL, Directory: server.URL, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return api
}

// Follow stores that an account is followed, and its feed was read a day ago.
func Follow(t testing.TB, pool *pgxpool.Pool, did string) {
	t.Helper()
	Execute(t, pool, `INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
	Execute(t, pool, `INSERT INTO watch_members (watch_id, did, added_at) SELECT id, target, now() - interval '1 day' FROM watches`)
	Execute(t, pool, `INSERT INTO accounts (did, read_since) VALUES ($1, now() - interval '1 day')`, did)
}

// Followed returns the accounts that the hub follows and the AppView shows.
func Followed(n *simnet.Net) []string {
	return slices.DeleteFunc(n.Follows(n.Hub().DID), func(did string) bool {
		a, ok := n.Account(did)
		return !ok || a.Status != ""
	})
}

// Busiest returns the account with the most posts among those the hub follows.
func Busiest(n *simnet.Net) (did string, posts int) {
	count := map[string]int{}
	for _, e := range n.Log().Entries() {
		if e.Kind == "commit" && e.Collection == schema.PostCollection && e.Operation == "create" {
			count[e.DID]++
		}
	}
	for _, d := range Followed(n) {
		if count[d] > posts {
			did, posts = d, count[d]
		}
	}
	return did, posts
}

// Posts returns an account's posts in its repository, newest first.
func Posts(t testing.TB, api *bluesky.Client, did string) (all []schema.SourceRecord) {
	t.Helper()
	for cursor := ""; ; {
		page, next, err := api.Records(t.Context(), did, schema.PostCollection, cursor, 100)
		require.NoError(t, err)
		for _, p := range page {
			all = append(all, schema.SourceRecord{Rkey: p.Rkey, CID: p.CID, Record: p.Record})
		}
		if next == "" {
			return all
		}
		cursor = next
	}
}

// Pauses pauses a queue, and returns when the client works no further jobs of it.
func Pauses(t testing.TB, client interface {
	Subscribe(kinds ...river.EventKind) (<-chan *river.Event, func())
	QueuePause(ctx context.Context, name string, opts *river.QueuePauseOpts) error
}, queue string) {
	t.Helper()
	paused, cancel := client.Subscribe(river.EventKindQueuePaused)
	defer cancel()
	require.NoError(t, client.QueuePause(t.Context(), queue, nil))
	for event := range paused {
		if event.Queue.Name == queue {
			return
		}
	}
}
