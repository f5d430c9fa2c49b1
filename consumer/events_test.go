package consumer_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// curious returns a wire of a network that is already running. Each connection asks for
// subscribeEvents.
func curious(t *testing.T, n jetstreamNet) wire {
	t.Helper()
	w := wireOf(t, "jetstream events")
	w.network = func(*testing.T, history) network { return n }
	w.source = func(t *testing.T, endpoints []string, ping time.Duration, log *slog.Logger) consumer.Source {
		t.Helper()
		source, err := jetstream.New(jetstream.Config{Config: shortWaits(endpoints, ping, log), Filter: consumer.Filter{Everyone: true},
			RetryEvents: time.Nanosecond})
		require.NoError(t, err)
		return source
	}
	return w
}

// TestBothServicesStoreTheSameTables reads a server through subscribeEvents, and then, when it has
// that no more, through /subscribe. The tables are equal, except that only subscribeEvents has the
// records that the server found in repositories, and marks the accounts of these.
func TestBothServicesStoreTheSameTables(t *testing.T) {
	t.Parallel()
	n := startJetstream(t, simnet.Config{Serving: simnet.Serving{Events: true}, History: 800, Mix: simnet.MixNetwork})
	var found []*simnet.Entry
	for i := range 3 {
		for _, a := range n.Accounts() {
			if e, err := n.FindMissed(a.DID, "found in the repository"); err == nil && len(found) < 5*(i+1) {
				found = append(found, e)
			}
		}
		n.Play(200)
	}
	_, err := n.PostNow(n.Hub().DID, "the last")
	require.NoError(t, err)

	tables := map[string]string{
		// Records of deleted accounts are purged later.
		"records": `SELECT collection, did, rkey, rev, cid, created_at::text, record::text FROM records AS r
			WHERE NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = r.did AND a.status = 'deleted') ORDER BY 1, 2, 3`,
		"tombstones":   `SELECT t::text FROM tombstones AS t ORDER BY 1`,
		"accounts":     `SELECT did, handle, status FROM accounts ORDER BY 1`,
		"dead_letters": `SELECT cause FROM dead_letters`,
		"gaps":         `SELECT reason FROM gaps`,
		"streams":      `SELECT wire, cursor_kind, cursor::text, anchor::text, last_event_at::text FROM streams`,
	}
	read := func() (*stream, map[string][][]any) {
		s := newStreamOf(t, curious(t, n), history{})
		stop := s.run(func(c *consumer.Config) {
			c.Wanted, c.BatchEvents = func(string) bool { return true }, 1
			c.Resync = func(context.Context, pgx.Tx, []schema.Resync) error { return nil }
		})
		s.reads()
		stop()
		rows := map[string][][]any{}
		for name, query := range tables {
			found, err := s.pool.Query(t.Context(), query)
			require.NoError(t, err, name)
			for found.Next() {
				row, err := found.Values()
				require.NoError(t, err, name)
				rows[name] = append(rows[name], row)
			}
			require.NoError(t, found.Err(), name)
		}
		return s, rows
	}
	newer, withFound := read()
	require.NoError(t, n.Do(simnet.Downgrade))
	older, without := read()
	require.Positive(t, n.Fired()[simnet.Downgrade])
	require.True(t, older.log.has("subscribe_used"))
	require.False(t, newer.log.has("subscribe_used"))

	const text = `record ->> 'text' = 'found in the repository'`
	require.GreaterOrEqual(t, count(t, newer.pool, `SELECT count(*) FROM posts WHERE `+text), 5)
	require.Zero(t, count(t, older.pool, `SELECT count(*) FROM posts WHERE `+text))
	revs := map[any]any{}
	for _, e := range found {
		revs[e.DID+"/"+e.Rkey] = e.Rev
	}
	kept := withFound["records"][:0:0]
	for _, row := range withFound["records"] {
		rev, ok := revs[row[1].(string)+"/"+row[2].(string)] // they are texts
		switch {
		case ok:
			require.Equal(t, rev, row[3], "a found record has the revision of the repository")
		case !strings.Contains(row[6].(string), "found in the repository"): // it is a text
			kept = append(kept, row)
		}
	}
	withFound["records"] = kept
	for name := range tables {
		require.Equal(t, without[name], withFound[name], name)
	}
	require.Greater(t, len(without["records"]), 300)
	require.NotEmpty(t, newer.marked(), "a #sync marks its account")
	require.Empty(t, older.marked())
}

// TestServerMayLoseAndGetSubscribeEvents changes what the server offers while it is down. Each
// connection uses the better service, resumes at the position of the other one, and nothing is lost.
func TestServerMayLoseAndGetSubscribeEvents(t *testing.T) {
	t.Parallel()
	n := startJetstream(t, simnet.Config{Serving: simnet.Serving{Events: true}, History: 300})
	s := newStreamOf(t, curious(t, n), history{})
	stop := s.run(nil)
	s.stores()
	for i, change := range []simnet.Fault{simnet.Downgrade, simnet.Upgrade, simnet.Downgrade} {
		require.NoError(t, n.Do(change))
		require.NoError(t, n.Do(simnet.Restart))
		n.Play(200)
		s.stores()
		require.Equal(t, (i+2)/2, s.log.count("subscribe_used"))
	}
	stop()
	require.False(t, s.log.has("resume_mismatch"), "the sequence numbers of a host are the same in both")
	require.Zero(t, count(t, s.pool, allGaps))
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM dead_letters`))
}

// TestStreamErrorsLoseNothing ends connections with errors, compressed with dictionaries that the
// server replaces.
func TestStreamErrorsLoseNothing(t *testing.T) {
	t.Parallel()
	n := startJetstream(t, simnet.Config{Serving: simnet.Serving{Events: true}, History: 300})
	w := curious(t, n)
	w.source = func(t *testing.T, endpoints []string, ping time.Duration, log *slog.Logger) consumer.Source {
		t.Helper()
		source, err := jetstream.New(jetstream.Config{Config: shortWaits(endpoints, ping, log), Filter: consumer.Filter{Everyone: true},
			Compress: true})
		require.NoError(t, err)
		return source
	}
	s := newStreamOf(t, w, history{})
	stop := s.run(nil)
	s.stores()
	for _, f := range []simnet.Fault{simnet.ConsumerTooSlow, simnet.FailStream} {
		require.NoError(t, n.Do(simnet.RotateDictionary))
		require.NoError(t, n.Do(f))
		n.Play(100)
		s.stores()
		require.Equal(t, 1, n.Fired()[f])
	}
	stop()
	require.Equal(t, 2, n.Fired()[simnet.UnknownDictionary], "the dictionary is fetched again")
	require.True(t, s.log.has("the server ended the connection: ConsumerTooSlow: reconnect"))
	require.True(t, s.log.has("the server ended the connection: InternalError: reconnect"))
	require.False(t, s.log.has("resume_mismatch"))
	require.False(t, s.log.has("plain_frames"))
	require.Zero(t, count(t, s.pool, allGaps))
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM dead_letters`))
}

// TestTooOldNumberIsRefusedAndThenAGap forgets events that were not read. The server refuses the
// number, and announces that it starts later than the time that is requested next.
func TestTooOldNumberIsRefusedAndThenAGap(t *testing.T) {
	t.Parallel()
	n := startJetstream(t, simnet.Config{Serving: simnet.Serving{Events: true}, History: 300, HistorySpan: 10 * time.Hour})
	s := newStreamOf(t, curious(t, n), history{})
	stop := s.run(nil)
	s.reads()
	stop()
	n.Play(100)
	n.Forget()
	n.Play(100)
	stop = s.run(nil)
	s.reads()
	stop()
	require.Equal(t, 1, s.log.count("resume_mismatch"))
	require.True(t, s.log.has("CursorTooOld"))
	require.False(t, s.log.has("subscribe_used"), "the older service would move the cursor silently")
	require.True(t, s.log.has("name=OutdatedCursor"))
	require.Equal(t, 1, count(t, s.pool, allGaps))
}

// TestRecordsOfAResyncKeepTheNewerRevision checks that what a server finds in a repository is
// applied by revision: it neither replaces a newer edit nor brings back a deleted record.
func TestRecordsOfAResyncKeepTheNewerRevision(t *testing.T) {
	t.Parallel()
	n := startJetstream(t, simnet.Config{Serving: simnet.Serving{Events: true}})
	did := n.Hub().DID
	edited, err := n.FindMissed(did, "to be edited")
	require.NoError(t, err)
	deleted, err := n.FindMissed(did, "to be deleted")
	require.NoError(t, err)
	_, err = n.EditPost("at://"+did+"/"+schema.PostCollection+"/"+edited.Rkey, "edited")
	require.NoError(t, err)
	require.NoError(t, n.DeleteRecord("at://"+did+"/"+schema.PostCollection+"/"+deleted.Rkey))
	require.NoError(t, n.Do(simnet.Stale)) // the old revisions come again
	_, err = n.PostNow(did, "the last")
	require.NoError(t, err)
	s := newStreamOf(t, curious(t, n), history{})
	stop := s.run(func(c *consumer.Config) { c.BatchEvents = 1 })
	s.reads()
	stop()
	require.Positive(t, n.Fired()[simnet.Stale])
	texts, err := schema.All(t.Context(), s.pool, "read", pgx.RowTo[string], `SELECT record ->> 'text' FROM posts ORDER BY rkey`)
	require.NoError(t, err)
	require.Equal(t, []string{"edited", "the last"}, texts)
}
