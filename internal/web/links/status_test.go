package links

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/testing/webtest"
	"github.com/weir-social/weir/schema"
)

func (r *rig) statuses() (all []string) {
	r.T.Helper()
	for _, n := range webtest.Find(r.Parse(r.Get("/")), webtest.Class("status")) {
		all = append(all, webtest.Text(n))
	}
	return all
}

// stateLine returns the line with the state of the streams.
func (r *rig) stateLine() string {
	r.T.Helper()
	return webtest.Text(webtest.Find(r.Parse(r.Get("/")), func(n *html.Node) bool { return webtest.Attr(n, "id") == "word" })[0])
}

func (r *rig) empty(target string) string {
	r.T.Helper()
	found := webtest.Find(r.Parse(r.Get(target)), webtest.Class("empty"))
	require.Len(r.T, found, 1)
	return webtest.Text(found[0])
}

// apiState returns the state of the only stream, from the API.
func (r *rig) apiState() string {
	r.T.Helper()
	var response trendingJSON
	require.NoError(r.T, json.Unmarshal([]byte(r.Get("/api/v1/trending")), &response))
	require.Len(r.T, response.Stream, 1)
	return response.Stream[0].State
}

func TestStatusDescribesTheStream(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state, detail   string
		status, heading string
	}{
		{schema.StateLive, "", "Live", "Nobody shared a link in the last 6 hours"},
		{schema.StateQuiet, "", "Quiet since 4 May, 11:59 UTC", "Nobody shared a link in the last 6 hours"},
		{schema.StateCatchingUp, "", "Behind by 30 s", "Catching up"},
		{schema.StateConnecting, "", "Connecting", "Connecting"},
		{schema.StateNoNetwork, "dial tcp: no <such> host", "Reconnecting since 4 May, 11:58 UTC", "Not connected"},
		{schema.StateDraining, "the buffer is full", "Storing what was read", "Catching up"},
		{"something later", "its detail", "something later", "Nobody shared a link in the last 6 hours"},
	} {
		t.Run(c.state, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.Stream("jetstream", c.state, c.detail)
			require.Equal(t, c.status, r.stateLine())
			require.Contains(t, r.empty("/"), c.heading+" ")
			require.Equal(t, c.state, r.apiState())
		})
	}
}

// TestConsumerWithAnExpiredLeaseIsNotConnected shows that the last state that a dead consumer
// stored is not reported as the state of the stream.
func TestConsumerWithAnExpiredLeaseIsNotConnected(t *testing.T) {
	t.Parallel()
	for _, state := range []string{
		schema.StateLive, schema.StateQuiet, schema.StateCatchingUp, schema.StateConnecting, schema.StateNoNetwork,
	} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.Stream("jetstream", state, "an old detail")
			r.Exec(`UPDATE streams SET lease_expires_at = now() - interval '1 second'`)
			require.Equal(t, []string{
				"Not connected · the consumer has stopped responding; nothing new is counted until it or another one continues · last event 30 s ago",
			}, r.statuses())
			require.Equal(t, "The consumer does not respond since 4 May, 11:58 UTC", r.stateLine())
			require.Contains(t, r.empty("/"), "Not connected The consumer has stopped responding.")
			require.Equal(t, schema.StateNoNetwork, r.apiState())
		})
	}
}

func TestReleasedStreamHasNoConsumer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lease, ok, err := schema.TakeLease(t.Context(), r.Pool, "jetstream", "jetstream", "me", time.Hour)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, []string{"Connecting · nothing new is counted until the stream responds · no event yet"}, r.statuses())
	require.NoError(t, lease.Release(t.Context(), r.Pool))
	require.Equal(t, []string{"No consumer is running · nothing new is counted until one starts · no event yet"}, r.statuses())
	require.Contains(t, r.empty("/"), "Links appear here automatically once one runs: weir serve")
	require.Equal(t, "no consumer is running", r.apiState())
}

func TestFreshDatabaseShowsThatNothingWasRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.Equal(t, "No consumer is running", r.stateLine())
	require.Contains(t, r.empty("/"), "To run everything: weir serve")
	require.Contains(t, r.empty("/"), "Nothing has been read yet")
	r.Stream("jetstream", schema.StateLive, "")
	r.Exec(`UPDATE streams SET last_event_at = NULL`)
	require.Contains(t, r.empty("/"), "Just started")
	require.Equal(t, []string{"Live · reading host.example · no event yet"}, r.statuses())
}

// TestEmptyPageSaysHowManyPostsWereRead shows what a first page says while no post that was read shares a link.
func TestEmptyPageSaysHowManyPostsWereRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Stream("jetstream", schema.StateLive, "")
	const when = " read so far. A link ranks a second or two after the first post that shares it."
	require.NotContains(t, r.empty("/"), when)
	add := func(collection string, from, to int) {
		r.Exec(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
			SELECT $1, 'did:plc:aaa', n::text, 'r', 'c', now(), '{}' FROM generate_series($2::int, $3::int) AS n`, collection, from, to)
	}
	add("app.bsky.feed.post", 1, 1)
	add("app.bsky.feed.like", 1, 1)
	require.Contains(t, r.empty("/"), "1 post has been"+when)
	add("app.bsky.feed.post", 2, 3)
	add("nostr.1", 1, 1)
	require.Contains(t, r.empty("/"), "4 posts have been"+when)
	require.NotContains(t, r.empty("/?domain=a.example"), when)
	add("app.bsky.feed.post", 4, schema.ManyPosts)
	require.Contains(t, r.empty("/"), "At least 10,000 posts have been"+when)
}

func TestEmptyWindowOffersALongerOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Stream("jetstream", schema.StateLive, "")
	require.Contains(t, r.empty("/?window=1h"), "Show 7d instead")
	require.NotContains(t, r.empty("/?window=7d"), "instead")
	r.Share("https://a.example/", "did:plc:aaa", time.Minute)
	require.Empty(t, webtest.Find(r.Parse(r.Get("/")), webtest.Class("empty")))
}

func TestSeveralStreamsAreNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Stream("two", schema.StateQuiet, "")
	r.Stream("one", schema.StateNoNetwork, "")
	require.Equal(t, []string{
		"Not connected · one · trying again; nothing new is counted meanwhile · last event 30 s ago",
		"Quiet · two · connected to host.example, which has no new events · last event 30 s ago",
	}, r.statuses())
	require.Equal(t, "Reconnecting since 4 May, 11:58 UTC", r.stateLine(), "the worst state must be shown")
}

func TestOpenGapInTheWindowIsShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gap := func(from, to time.Duration, reason string) {
		r.Exec(`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('jetstream', $1, $2, $3, now())`,
			r.Now.Add(-from), r.Now.Add(-to), reason)
	}
	notice := func(target string) string {
		found := webtest.Find(r.Parse(r.Get(target)), webtest.Class("gaps"))
		if len(found) == 0 {
			return ""
		}
		return webtest.Text(found[0])
	}
	gap(5*time.Hour, 3*time.Hour, "the <b>server</b> forgot")
	require.Equal(t,
		"The counts may be too low. Weir may have missed shares between 4 May, 07:00 UTC and 4 May, 09:00 UTC. Why, and how far the repair is "+
			"4 May, 07:00 UTC – 4 May, 09:00 UTC: the <b>server</b> forgot; the repair has not begun", notice("/?window=6h"))
	r.Exec(`UPDATE gaps SET accounts = 342, checked = 118, unchecked = 2`)
	require.Contains(t, notice("/?window=6h"), "forgot; 342 accounts have to be compared with what is stored; 120 done")
	r.Exec(`UPDATE gaps SET problem = 'an internal cause'`)
	require.Contains(t, notice("/?window=6h"), "forgot; it cannot be repaired until an operator looks at it")
	require.NotContains(t, r.Get("/?window=6h"), "an internal cause")
	require.NotContains(t, r.Get("/?window=6h"), `href="#gaps" hidden`)
	require.Contains(t, r.Get("/?window=1h"), `href="#gaps" hidden`)
	require.Empty(t, notice("/?window=3h"), "the gap ends at the beginning of the window")
	require.Empty(t, notice("/?window=1h"))
	gap(30*time.Minute, 20*time.Minute, "another")
	require.Contains(t, notice("/?window=12h"), "in 2 intervals of this window.")
	require.Contains(t, notice("/?window=1h"), "another")

	var response trendingJSON
	require.NoError(t, json.Unmarshal([]byte(r.Get("/api/v1/trending?window=6h")), &response))
	require.Equal(t, gapJSON{
		Stream: "jetstream", From: r.Now.Add(-5 * time.Hour), To: r.Now.Add(-3 * time.Hour), Reason: "the <b>server</b> forgot",
	}, response.Gaps[0])

	r.Exec(`UPDATE gaps SET closed_at = now()`)
	require.Empty(t, notice("/?window=12h"))
}

// TestEmptyPageSaysWhatIsHappening shows that an empty page reports the progress of the lists and
// of the accounts' past posts, and says what to do next.
func TestEmptyPageSaysWhatIsHappening(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Stream("jetstream", schema.StateLive, "")
	r.watch("follows", "alice.example")
	require.Contains(t, r.empty("/"), "1 follow list has not been read yet. To see the state of each list: weir watch list")
	r.Exec(`UPDATE watches SET problem = 'no such account'`)
	require.Contains(t, r.empty("/"), "1 follow list could not be read")
	require.NotContains(t, r.empty("/"), "no such account")
	r.Exec(`UPDATE watches SET problem = '', synced_at = now()`)
	r.Exec(`INSERT INTO watch_members (watch_id, did) SELECT 1, 'did:plc:' || n FROM generate_series(1, 342) AS n`)
	r.Exec(`INSERT INTO accounts (did, feed_read_at) SELECT 'did:plc:' || n, now() FROM generate_series(1, 120) AS n`)
	require.Contains(t, r.empty("/"),
		"The follow lists have been read: 342 accounts. Their past posts are being read: 120 of 342 accounts are done.")
	r.Exec(`INSERT INTO accounts (did, feed_read_at) SELECT 'did:plc:' || n, now() FROM generate_series(121, 342) AS n`)
	require.Contains(t, r.empty("/"), "Their past posts have been read.")
	require.Contains(t, r.empty("/?domain=a.example&window=1h"),
		"No link matches Nobody shared a link in the last hour that passes the filters.")
	clear := webtest.Find(r.Parse(r.Get("/?domain=a.example&window=1h")), webtest.Class("empty"))[0]
	require.Equal(t, "/?window=1h", webtest.Attr(webtest.Find(clear, webtest.Element("a"))[0], "href"))
}
