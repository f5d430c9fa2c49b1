package workers

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestHistoryEndsAtTheLimit shows that an account is read up to its limit over all collections. The
// newest records are stored. The rows, the figures and the next run agree.
func TestHistoryEndsAtTheLimit(t *testing.T) {
	t.Parallel()
	// the last record may exceed the limit
	for name, limits := range map[string]HistoryLimits{"records": {Records: 150}, "bytes": {Records: 10_000, Bytes: 150*44 - 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := filling(t, func(c *Config) {
				limits.Settle, limits.Pause = time.Millisecond, time.Millisecond
				c.History = limits
				c.Collections = collection.Of(collection.Entry{Pattern: persona}, collection.Entry{Pattern: note})
			})
			r.streams(persona, note)
			many, few := r.net.Accounts()[0].DID, r.net.Accounts()[1].DID
			var rkeys []string
			for i := range 230 {
				rkeys = append(rkeys, r.puts(many, persona, old(i), "0123")) // 44 bytes
			}
			for i := range 40 {
				r.puts(many, note, old(i), "n")
				r.puts(few, persona, old(i), "0123")
			}
			h := r.fills(persona)
			require.Equal(t, []int64{2, 2, 0, 1, 190}, []int64{h.Accounts, h.Done, h.Unread, h.Limited, h.Records})
			require.Equal(t, 150, r.count(`SELECT count(*) FROM records_other WHERE did = $1 AND rkey >= $2`, many, rkeys[80]))
			require.Equal(t, 150, r.count(`SELECT count(*) FROM records_other WHERE did = $1`, many))
			require.Equal(t, 1, r.count(`SELECT count(*) FROM history_accounts WHERE limited AND did = $1 AND records = 150`, many))
			h = r.fills(note)
			require.Equal(t, []int64{1, 1, 0, 1, 0}, []int64{h.Accounts, h.Done, h.Unread, h.Limited, h.Records},
				"the account has reached its limit in another collection")
			require.Zero(t, r.count(`SELECT count(*) FROM records_other WHERE collection = $1`, note))
			h = r.fills(persona)
			require.Equal(t, []int64{2, 2, 0, 1, 190}, []int64{h.Accounts, h.Done, h.Unread, h.Limited, h.Records},
				"another run must have the same figures")
			require.Equal(t, 150, r.count(`SELECT count(*) FROM records_other WHERE did = $1`, many))
		})
	}
}

// TestInterruptedHistoryContinues shows that a history continues at its page after an attempt was
// ended by a rate limit, a failing server, or the loss of the job.
func TestInterruptedHistoryContinues(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	r := filling(t, nil)
	did := r.net.Accounts()[0].DID
	for i := range 3*repositoryPage + 10 {
		r.puts(did, persona, old(i), "p")
	}
	const listing = "com.atproto.repo.listRecords"
	awaited, release := r.holdingRecords(listing)
	r.requests(persona)
	awaited() // the job has its first page
	require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.TooMany, Endpoint: listing, Count: 1, Wait: 6 * time.Second}))
	release()
	r.becomes(1,
		`SELECT count(*) FROM history_accounts WHERE state = 'unread' AND tries = 0 AND records = $1 AND problem LIKE '%RateLimitExceeded%'`,
		repositoryPage)
	r.becomes(1, `SELECT count(*) FROM histories WHERE completed_at IS NOT NULL AND unread = 1`)
	r.counted()
	require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.Severed, Endpoint: listing, Count: 2}))
	again := func() {
		t.Helper()
		r.execute(`UPDATE history_accounts SET retry_at = now()`)
		r.execute(`SELECT enqueue_job('fill_collections', 'network', '{"once": true}')`)
	}
	eventually.True(t, func() bool { // the rate limit ends after a while
		if r.count(`SELECT count(*) FROM history_accounts WHERE state = 'unread' AND tries = 1`) == 1 {
			return true
		}
		if r.count(`SELECT count(*) FROM river_job WHERE kind IN ('fill_collections', 'backfill_repo') AND state <> 'completed'`) == 0 {
			again() // a second one would read the account again
		}
		return false
	}, 100*time.Millisecond)
	r.becomes(0, `SELECT count(*) FROM river_job WHERE kind = 'backfill_repo' AND state <> 'completed'`)
	awaited, release = r.holdingRecords(listing)
	again()
	awaited()
	r.execute(`DELETE FROM river_job WHERE kind = 'backfill_repo' AND state <> 'running'`)
	release()
	r.becomes(1, `SELECT count(*) FROM history_accounts WHERE state = 'done' AND records = $1`, 3*repositoryPage+10)
	r.counted()
	require.Equal(t, 3*repositoryPage+10, r.count(`SELECT count(*) FROM records WHERE did = $1`, did))
	seen := map[string]int{}
	for _, c := range r.net.Calls(listing) {
		if c.Actor == did && c.Status == http.StatusOK {
			seen[c.Cursor]++
		}
	}
	require.Equal(t, 1, seen[""], "the first page is not read again")
}

// TestRefusedCollectionEndsNoOther shows that if a server refuses one collection, the account's
// others are still read.
func TestRefusedCollectionEndsNoOther(t *testing.T) {
	t.Parallel()
	r := filling(t, nil)
	did := r.net.Accounts()[0].DID
	r.puts(did, note, "self", "n")
	r.puts(did, persona, "self", "p")
	r.pauses("backfill")
	r.requests(note)
	r.requests(persona)
	r.becomes(2, `SELECT count(*) FROM history_accounts WHERE state = 'waiting'`)
	require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.Forbidden, Endpoint: "com.atproto.repo.listRecords", Count: 1}))
	require.NoError(t, r.client.QueueResume(t.Context(), "backfill", nil))
	require.EqualValues(t, 1, r.filled(note).Unread)
	require.EqualValues(t, 1, r.filled(persona).Done)
	require.Equal(t, []string{persona + " self p"}, r.records(did))
}

// TestHostileRepository covers a server that lists a million records, one per page, in the wrong
// order or repeatedly. The account ends at the limit, or is retried later.
func TestHostileRepository(t *testing.T) {
	t.Parallel()
	item := func(did string, rkey int) string {
		return fmt.Sprintf(`{"uri": "at://%s/%s/k%07d", "cid": "bafyreib2rxk3rybk3aobmv5cjuql3bm2twh4jo5uxgf5kpqcsgz7soitae",`+
			` "value": {"text": "t"}}`,
			did, persona, rkey)
	}
	for name, c := range map[string]struct {
		page func(did string, from int) (items []string, next int)
		want string
	}{
		"a million records": {func(did string, from int) (items []string, next int) {
			for i := range 100 {
				items = append(items, item(did, from-i))
			}
			return items, from - 100
		}, `state = 'done' AND limited AND records = 120`},
		"one to a page": {func(did string, from int) ([]string, int) {
			return []string{item(did, from)}, from - 1
		}, `state = 'done' AND limited AND records = 120`},
		"rising": {func(did string, from int) ([]string, int) {
			return []string{item(did, from), item(did, from+1)}, from - 1
		}, `state = 'unread' AND problem LIKE '%does not list%' AND records = 0`},
		"the same": {func(did string, _ int) ([]string, int) {
			return []string{item(did, 7)}, 8
		}, `state = 'unread' AND problem LIKE '%the cursor of the next page%' AND records = 1`},
		"nothing": {func(string, int) ([]string, int) { return nil, 7 }, `state = 'unread' AND problem LIKE '%does not list%'`},
		"strangers'": {func(_ string, from int) ([]string, int) {
			return []string{item("did:plc:stranger", from)}, 0
		}, `state = 'done' AND records = 0`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var r *rig
			hostile := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				did := q.URL.Query().Get("repo")
				switch {
				case strings.HasPrefix(q.URL.Path, "/did:"):
					fmt.Fprintf(w, `{"id": %q, "service": [{"id": "#atproto_pds", "type": "AtprotoPersonalDataServer", "serviceEndpoint": "http://%s"}]}`,
						q.URL.Path[1:], q.Host)
				case strings.HasSuffix(q.URL.Path, "getLatestCommit"):
					fmt.Fprintf(w, `{"cid": "bafyreib2rxk3rybk3aobmv5cjuql3bm2twh4jo5uxgf5kpqcsgz7soitae", "rev": %q}`, revNow())
				default:
					from, err := strconv.Atoi(q.URL.Query().Get("cursor"))
					if err != nil {
						from = 1_000_000
					}
					items, next := c.page(did, from)
					cursor := ""
					if next != 0 {
						cursor = strconv.Itoa(next)
					}
					json.NewEncoder(w).Encode(map[string]any{"records": raw(items), "cursor": cursor}) // the client may leave
				}
			}))
			t.Cleanup(hostile.Close)
			r = filling(t, func(c *Config) {
				c.History.Records = 120
				api, err := bluesky.New(bluesky.Config{
					AppView: c.Bluesky.Relays()[0], Directory: hostile.URL, Relays: c.Bluesky.Relays(), Logger: c.Logger,
					Retries: []time.Duration{time.Millisecond},
				})
				require.NoError(t, err)
				c.Bluesky = api
			})
			did := r.net.Accounts()[0].DID
			r.puts(did, persona, old(1), "p")
			h := r.fills(persona)
			require.EqualValues(t, 1, h.Accounts)
			require.Equal(t, 1, r.count(`SELECT count(*) FROM history_accounts WHERE `+c.want), "%+v", h)
			require.LessOrEqual(t, r.count(`SELECT count(*) FROM records`), 120)
		})
	}
}

func raw(items []string) []json.RawMessage {
	all := make([]json.RawMessage, len(items))
	for i, s := range items {
		all[i] = json.RawMessage(s)
	}
	return all
}

// TestHistoryOfAccountsThatCannotBeRead shows that deleted accounts leave the history, and that
// others are retried, but not for ever.
func TestHistoryOfAccountsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	r := filling(t, nil)
	accounts := r.net.Accounts()[:4]
	for i, a := range accounts {
		r.puts(a.DID, persona, old(i), "p")
	}
	require.NoError(t, r.net.Deactivate(accounts[0].DID)) // no event reported it
	r.execute(`INSERT INTO accounts (did, status) VALUES ($1, 'takendown'), ($2, 'deleted')`, accounts[1].DID, accounts[2].DID)
	h := r.fills(persona)
	require.Equal(t, []int64{3, 1, 2}, []int64{h.Accounts, h.Done, h.Unread}, "the deleted account must leave the history")
	require.Equal(t, 1, r.count(`
		SELECT count(*) FROM history_accounts WHERE did = $1 AND tries = 1 AND problem LIKE '%RepoDeactivated%'
		    AND retry_at > now() + interval '50 minutes'`, accounts[0].DID))
	require.Equal(t, 1,
		r.count(`SELECT count(*) FROM history_accounts WHERE did = $1 AND tries = 0 AND problem = 'the account is takendown'`, accounts[1].DID))
	pass := func() {
		t.Helper()
		r.execute(`UPDATE history_accounts SET retry_at = now() WHERE retry_at IS NOT NULL`)
		r.execute(`SELECT enqueue_job('fill_collections', 'network', '{"once": true}')`)
	}
	r.execute(`UPDATE history_accounts SET tries = 9 WHERE did = $1`, accounts[0].DID)
	pass()
	r.becomes(1, `SELECT count(*) FROM history_accounts WHERE did = $1 AND state = 'unread' AND tries = 10 AND retry_at IS NULL`,
		accounts[0].DID)
	r.execute(`UPDATE accounts SET status = 'active' WHERE did = $1`, accounts[1].DID)
	pass()
	r.becomes(2, `SELECT count(*) FROM records`)
	r.counted()
	require.NoError(t, r.net.Reactivate(accounts[0].DID))
	require.EqualValues(t, 3, r.fills(persona).Done, "another run must retry the account")
}
