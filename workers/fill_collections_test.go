package workers

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer/firehose"
	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/history"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// filling is a rig with a small network. A stream stores its collections, and workers read
// histories without waiting.
func filling(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	r := newRigOn(t, simnet.Config{Seed: 21, Accounts: 30, History: 100, HistorySpan: 3 * time.Hour}, func(c *Config) {
		c.Collections = stored()
		c.History = HistoryLimits{Settle: time.Millisecond, Pause: time.Millisecond}
		c.ReadRepository = func(car []byte, did string, key atcrypto.PublicKey) (Repository, error) {
			return firehose.ReadRepository(car, did, key, c.Collections.Stores)
		}
		if change != nil {
			change(c)
		}
	})
	r.streams(schema.PostCollection, document, "pub.layers.*")
	return r
}

// streams makes the stream store collections from now on. Histories read those in full whole.
func (r *rig) streams(entries ...string) {
	r.t.Helper()
	require.NoError(r.t, pgx.BeginFunc(r.t.Context(), r.pool, func(tx pgx.Tx) error {
		return history.StoreCollections(r.t.Context(), tx, entries, nil)
	}))
	r.execute(`
		INSERT INTO streams (name, wire, advanced_at) VALUES ('s', 'jetstream', clock_timestamp()) ON CONFLICT (name) DO UPDATE
		SET advanced_at = excluded.advanced_at`)
}

// requests requests the history of a collection.
func (r *rig) requests(collection string) {
	r.t.Helper()
	_, err := history.Request(r.t.Context(), r.pool, collection)
	require.NoError(r.t, err)
}

// fills requests the history of a collection, and waits until it is complete. It checks that the
// figures of the history agree with its rows.
func (r *rig) fills(collection string) history.History {
	r.t.Helper()
	r.requests(collection)
	return r.filled(collection)
}

func (r *rig) filled(collection string) history.History {
	r.t.Helper()
	r.becomes(1, `SELECT count(*) FROM histories WHERE collection = $1 AND completed_at IS NOT NULL`, collection)
	r.counted()
	all, err := history.Histories(r.t.Context(), r.pool)
	require.NoError(r.t, err)
	at := slices.IndexFunc(all, func(h history.History) bool { return h.Collection == collection })
	require.GreaterOrEqual(r.t, at, 0)
	return all[at]
}

// counted compares the figures of the histories with their rows.
func (r *rig) counted() {
	r.t.Helper()
	require.Zero(r.t, r.count(`
SELECT count(*) FROM histories AS h
WHERE (h.accounts, h.done, h.unread, h.limited, h.records, h.bytes) IS DISTINCT FROM (
    SELECT (count(*), count(*) FILTER (WHERE state = 'done'), count(*) FILTER (WHERE state = 'unread'),
        count(*) FILTER (WHERE state = 'done' AND limited),
            coalesce(sum(records) FILTER (WHERE state = 'done'), 0)::bigint, coalesce(sum(bytes) FILTER (WHERE state = 'done'), 0)::bigint)
    FROM history_accounts AS a WHERE a.collection = h.collection AND a.run = h.run)`))
}

// old returns the rkey of a record written long ago.
func old(i int) string { return tidBefore(1000*time.Hour - time.Duration(i)*time.Minute) }

// TestHistoryOfAPrefix shows that relays are asked for the known collections: those of the stream
// and those that the repositories have.
func TestHistoryOfAPrefix(t *testing.T) {
	t.Parallel()
	r := filling(t, nil)
	accounts := r.net.Accounts()
	want := 0
	for i, a := range accounts[:12] {
		for _, name := range [][]string{{persona}, {persona, note}, {note}, {note, "pub.layers.third", "pub.layers.fourth"}}[i%4] {
			r.puts(a.DID, name, old(i), "of long ago")
			r.puts(a.DID, name, "self", "s")
			want += 2
		}
	}
	r.puts(accounts[13].DID, "pub.layersx.note", "self", "under no prefix")
	r.puts(accounts[14].DID, document, old(1), "kept for a day")
	r.requests("pub.layers.*")
	r.becomes(1, `SELECT count(*) FROM histories WHERE problem LIKE 'no collection under the prefix is known yet%'`)
	r.execute(`
		INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
		VALUES ($1, $2, 'self', '3zzzzzzzzzzzz', 'c', now(), '{"text": "by the stream"}')`, persona, accounts[0].DID)
	r.requests("pub.layers.*")
	h := r.filled("pub.layers.*")
	require.Equal(t, history.History{
		Collection: "pub.layers.*", State: history.StateComplete, Accounts: 12, Done: 12, Records: int64(want), Bytes: h.Bytes,
	}, h)
	require.Equal(t, want, r.count(`SELECT count(*) FROM records_other`))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM records_other WHERE record ->> 'text' = 'by the stream'`),
		"the stream's later revision must be kept")
	require.Len(t, r.net.Calls("com.atproto.sync.listReposByCollection"), 4, "expected one page for each collection")
	fetched := r.fetched()
	require.True(t, fetched > 0 && fetched <= 3, "only accounts with three collections are fetched whole, while there is memory: %d were",
		fetched)
}

// TestHistoryOfFollowedAccounts shows that no other accounts are read and no relay is asked. An
// account that is followed later is read too.
func TestHistoryOfFollowedAccounts(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	r := filling(t, nil)
	accounts := r.net.Accounts()
	for i, a := range accounts[:6] {
		r.puts(a.DID, persona, old(i), "of long ago")
	}
	later, inactive := accounts[2].DID, accounts[3].DID
	r.follows(accounts[0].DID, accounts[1].DID, inactive)
	r.execute(`UPDATE accounts SET status = 'deactivated' WHERE did = $1`, inactive)
	h := r.fills("pub.layers.*")
	require.Equal(t, []int64{3, 2, 1, 2}, []int64{h.Accounts, h.Done, h.Unread, h.Records})
	stored := func(n int) {
		t.Helper()
		r.becomes(n, `SELECT count(*) FROM records_other WHERE rkey < $1`, tidBefore(999*time.Hour))
	}
	stored(2)

	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account'), ($2, 'account')`, later, accounts[4].DID)
	r.becomes(5, `SELECT count(*) FROM watch_members`)
	r.requests("pub.layers.*") // a pass: the next one would run within a minute
	stored(4)
	r.execute(`UPDATE accounts SET status = 'active' WHERE did = $1`, inactive)
	r.execute(`UPDATE history_accounts SET retry_at = now() WHERE did = $1`, inactive)
	r.requests("pub.layers.*")
	stored(5)
	r.filled("pub.layers.*")
	require.Empty(t, r.net.Calls("com.atproto.sync.listReposByCollection"))
	require.Zero(t, r.count(`SELECT count(*) FROM records WHERE did = $1`, accounts[5].DID))

	// as if the account had been unfollowed since
	r.execute(`INSERT INTO history_accounts (collection, did, run) SELECT collection, $1, run FROM histories`, accounts[5].DID)
	r.execute(`UPDATE histories SET accounts = accounts + 1`)
	r.execute(`SELECT enqueue_job('fill_collections', 'network', '{"once": true}')`)
	r.becomes(0, `SELECT count(*) FROM history_accounts WHERE did = $1`, accounts[5].DID)
	require.Zero(t, r.count(`SELECT count(*) FROM records WHERE did = $1`, accounts[5].DID))
	r.counted()
}

// TestLostJobsOfHistoriesReturn shows that deleted jobs are added again, because the accounts still
// wait.
func TestLostJobsOfHistoriesReturn(t *testing.T) {
	t.Parallel()
	r := filling(t, nil)
	for i, a := range r.net.Accounts() {
		r.puts(a.DID, persona, old(i), "p")
	}
	r.pauses("backfill")
	r.requests(persona)
	r.becomes(30, `SELECT count(*) FROM river_job WHERE kind = 'backfill_repo' AND state = 'available'`)
	r.execute(`DELETE FROM river_job WHERE kind = 'backfill_repo' AND state = 'available'`)
	r.becomes(30, `SELECT count(*) FROM river_job WHERE kind = 'backfill_repo' AND state = 'available'`)
	require.NoError(t, r.client.QueueResume(t.Context(), "backfill", nil))
	require.EqualValues(t, 30, r.filled(persona).Records)
}

// TestHistoriesAddFewJobs shows that only a bounded number of accounts wait or have jobs, and that
// no account gets a job while other backfills wait.
func TestHistoriesAddFewJobs(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	r := filling(t, func(c *Config) {
		c.History = HistoryLimits{Waiting: 7, Jobs: 3, Settle: time.Millisecond, Pause: time.Millisecond}
	})
	for i, a := range r.net.Accounts() {
		r.puts(a.DID, persona, old(i), "p")
	}
	r.execute(`CREATE FUNCTION few() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF (SELECT count(*) FROM river_job WHERE kind = 'backfill_repo' AND state IN ('available', 'running', 'scheduled',
		    'retryable')) > 3 THEN RAISE EXCEPTION 'too many jobs'; END IF;
		-- a page beyond the limit
		IF (SELECT count(*) FROM history_accounts WHERE state = 'waiting') > 13 THEN RAISE EXCEPTION 'too many accounts'; END IF;
		RETURN NULL; END $$`)
	r.execute(`CREATE TRIGGER few AFTER INSERT ON river_job FOR EACH STATEMENT EXECUTE FUNCTION few()`)
	r.execute(`INSERT INTO river_job (args, kind, max_attempts, priority, queue, state, scheduled_at)
		-- it waits, and no worker takes it
		VALUES ('{"did": "did:plc:other"}', 'backfill_other', 9, 4, 'backfill', 'available', now() + interval '1 hour')`)
	r.requests(persona)
	r.becomes(1, `SELECT count(*) FROM history_listings WHERE pages = 1 AND ended_at IS NULL`)
	pass, err := history.Request(t.Context(), r.pool, persona)
	require.NoError(t, err)
	r.becomes(1, `SELECT count(*) FROM river_job WHERE id = $1 AND state = 'completed'`, pass)
	require.Zero(t, r.count(`SELECT count(*) FROM river_job WHERE kind = 'backfill_repo'`), "others wait")
	r.execute(`DELETE FROM river_job WHERE kind = 'backfill_other'`)
	h := r.filled(persona)
	require.EqualValues(t, 30, h.Records)
	require.Zero(t, r.count(`SELECT count(*) FROM river_job WHERE errors::text LIKE '%too many%'`))
	require.GreaterOrEqual(t, len(r.net.Calls("com.atproto.sync.listReposByCollection")), 5)
}

// TestHostileRelay covers endless pages, repeated cursors, and invalid and repeated DIDs. Each
// listing ends, and the next relay names the accounts.
func TestHostileRelay(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]func(calls int, cursor string) string{
		"the same cursor": func(int, string) string { return `{"repos": [{"did": "did:plc:a"}], "cursor": "c"}` },
		"endless": func(calls int, _ string) string {
			repos := make([]string, 2000)
			for i := range repos {
				repos[i] = fmt.Sprintf(`{"did": "did:plc:again%d"}`, i%50)
			}
			return fmt.Sprintf(`{"repos": [%s], "cursor": "%d"}`, strings.Join(repos, ","), calls)
		},
		"empty pages": func(calls int, _ string) string { return fmt.Sprintf(`{"repos": [], "cursor": "%d"}`, calls) },
		"too many": func(int, string) string {
			return `{"repos": [` + strings.Repeat(`{"did": "did:plc:a"},`, 2000) + `{"did": "did:plc:a"}]}`
		},
		"no page at all": func(int, string) string { return `{"repos": "did:plc:a"}` },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			hostile := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				w.Write([]byte(reply(int(calls.Add(1)), q.URL.Query().Get("cursor")))) // the client may leave
			}))
			t.Cleanup(hostile.Close)
			r := filling(t, func(c *Config) {
				c.Bluesky = apiWith(t, c, hostile.URL)
				c.History.Endless = 100
			})
			did := r.net.Accounts()[0].DID
			r.puts(did, persona, old(1), "p")
			r.requests(persona)
			eventually.True(t, func() bool {
				r.execute(`UPDATE history_listings SET retry_at = now() WHERE ended_at IS NULL`)
				return r.count(`SELECT count(*) FROM records WHERE did = $1`, did) == 1
			}, 20*time.Millisecond)
			h := r.filled(persona)
			require.Positive(t, h.Done)
			require.Less(t, calls.Load(), int64(1000))
			require.Equal(t, 1, r.count(`SELECT count(*) FROM history_listings WHERE host = $1 AND ended_at IS NOT NULL`, r.net.PDSURL()))
		})
	}
}

// apiWith returns a rig's client with another relay before its own.
func apiWith(t *testing.T, c *Config, relay string) *bluesky.Client {
	t.Helper()
	own := c.Bluesky.Relays()[0]
	api, err := bluesky.New(bluesky.Config{
		AppView: own, Directory: own, Relays: []string{relay, own}, Logger: c.Logger, Retries: []time.Duration{time.Millisecond},
	})
	require.NoError(t, err)
	return api
}

// TestHistoryWaitsForItsStream shows that a history waits for its stream, for workers that know the
// collection, and for space in the database.
func TestHistoryWaitsForItsStream(t *testing.T) {
	t.Parallel()
	r := filling(t, nil)
	r.puts(r.net.Accounts()[0].DID, persona, old(1), "p")
	r.execute(`DELETE FROM stored_collections`)
	says := func(collection, problem string) {
		t.Helper()
		r.requests(collection)
		r.becomes(1, `SELECT count(*) FROM histories WHERE collection = $1 AND problem = $2 AND began_at IS NULL`, collection, problem)
	}
	says("com.example.else", "WEIR_COLLECTIONS of the workers does not name it")
	says(persona, "no stream stores it yet")
	require.NoError(t, pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		return history.StoreCollections(t.Context(), tx, []string{"pub.layers.*"}, nil)
	}))
	says(persona, "no stream stores it yet") // the stream has not advanced since
	require.Empty(t, r.net.Calls("com.atproto.sync.listReposByCollection"))
	r.streams("pub.layers.*")
	require.EqualValues(t, 1, r.filled(persona).Records)
	r.streams(document)
	r.streams("pub.layers.*") // the stream returns: records written meanwhile are in no stream
	r.becomes(1, `SELECT count(*) FROM histories WHERE collection = $1 AND run = 2 AND completed_at IS NOT NULL`, persona)
}
