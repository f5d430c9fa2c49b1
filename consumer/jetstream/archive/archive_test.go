package archive_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/jetstream/archive"
	"github.com/weir-social/weir/consumer/recording"
	"github.com/weir-social/weir/internal/testing/simnet"
)

func network(t *testing.T, a simnet.Archive) *simnet.Net {
	t.Helper()
	if a.BlockEvents == 0 {
		a.BlockEvents, a.SegmentBlocks = 50, 4
	}
	n, err := simnet.New(simnet.Config{Seed: 3, Accounts: 30, Follows: 10, History: 1500, HistorySpan: 3 * time.Hour,
		Serving: simnet.Serving{Archive: &a}})
	require.NoError(t, err)
	require.NoError(t, n.Start("127.0.0.1:0"))
	t.Cleanup(n.Stop)
	n.SealArchive()
	return n
}

func client(t *testing.T, n *simnet.Net, key string) *archive.Client {
	t.Helper()
	c, err := archive.New(archive.Config{Endpoints: []string{n.URL()}, Key: key, Retry: time.Millisecond})
	require.NoError(t, err)
	return c
}

func everything() archive.Query {
	return archive.Query{From: time.UnixMicro(1), To: time.Now().Add(time.Hour)}
}

// read returns the events of a query as strings, decoded like those of any other recording.
func read(t *testing.T, c *archive.Client, q archive.Query) (events []string, err error) {
	t.Helper()
	p, err := c.Plan(t.Context(), q)
	if err != nil {
		return nil, err
	}
	through := time.Time{}
	err = c.Read(t.Context(), p, func(portion archive.Portion) error {
		require.False(t, portion.Through.Before(through))
		through = portion.Through
		source := &recording.Records{Wire: jetstream.Wire(nil), Frames: func(yield func([]byte, error) bool) {
			for _, f := range portion.Frames {
				if !yield(f, nil) {
					return
				}
			}
		}}
		conn, err := source.Connect(t.Context(), nil, nil)
		require.NoError(t, err)
		var m consumer.Message
		for {
			frame, err := conn.Next(t.Context())
			if errors.Is(err, consumer.ErrEnd) {
				return nil
			}
			require.NoError(t, err)
			require.NoError(t, conn.Decode(frame, &m))
			require.Empty(t, m.Malformed)
			ev := m.Events[0]
			require.False(t, time.UnixMicro(m.TimeUS).After(portion.Through))
			events = append(events, described(t, &m, &ev))
		}
	})
	return events, err
}

// described returns an event as a string. The fields of its record are in the order of their names.
func described(t *testing.T, m *consumer.Message, ev *consumer.Event) string {
	t.Helper()
	record := ""
	if ev.Record != nil {
		var value any
		require.NoError(t, json.Unmarshal(ev.Record, &value))
		sorted, err := json.Marshal(value)
		require.NoError(t, err)
		record = string(sorted)
	}
	return fmt.Sprint(m.Seq, m.TimeUS, ev.Kind, ev.Author, ev.Operation, ev.Collection, ev.Key, ev.Revision, ev.CID, record, ev.Handle,
		ev.Active, ev.Status)
}

// logged returns the same of the log, by the wire of the server.
func logged(t *testing.T, n *simnet.Net, includes func(*simnet.Entry) bool) (events []string) {
	t.Helper()
	var lines strings.Builder
	require.NoError(t, n.Log().WriteJSONL(&lines, simnet.V2))
	wire := jetstream.Wire(nil)
	var m consumer.Message
	all := strings.Split(strings.TrimSpace(lines.String()), "\n")
	entries := n.Log().Entries()
	require.Len(t, all, len(entries))
	for i, line := range all {
		if !includes(entries[i]) {
			continue
		}
		wire.Decode([]byte(line), time.Now(), &m)
		ev := m.Events[0]
		events = append(events, described(t, &m, &ev))
	}
	return events
}

// TestArchiveIsARecording shows that the archive yields what the server sent, in order, for the
// whole network, for a time, for collections and for accounts, over several pages.
func TestArchiveIsARecording(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Archive{Page: 2, BlockEvents: 50, SegmentBlocks: 4})
	c := client(t, n, "")
	entries := n.Log().Entries()
	from, to := entries[333].TimeUS, entries[1111].TimeUS
	within := func(e *simnet.Entry) bool { return e.TimeUS >= from && e.TimeUS <= to }
	did := entries[500].DID
	for name, test := range map[string]struct {
		query archive.Query
		wants func(*simnet.Entry) bool
	}{
		"everything": {everything(), func(*simnet.Entry) bool { return true }},
		"a time":     {archive.Query{From: time.UnixMicro(from), To: time.UnixMicro(to)}, within},
		"collections": {archive.Query{
			From: time.UnixMicro(from), To: time.UnixMicro(to), Collections: []string{"app.bsky.graph.*", "app.bsky.feed.repost"},
		},
			func(e *simnet.Entry) bool {
				return within(e) && (e.Kind != "commit" || strings.HasPrefix(e.Collection, "app.bsky.graph.") || e.Collection == "app.bsky.feed.repost")
			}},
		"accounts": {archive.Query{
			From: time.UnixMicro(from), To: time.UnixMicro(to), DIDs: []string{did}, Wants: func(d []byte) bool { return string(d) == did },
		},
			func(e *simnet.Entry) bool { return within(e) && e.DID == did }},
		"nothing": {archive.Query{From: time.Now().Add(time.Hour), To: time.Now().Add(2 * time.Hour)}, func(*simnet.Entry) bool { return false }},
	} {
		got, err := read(t, c, test.query)
		require.NoError(t, err, name)
		require.Equal(t, logged(t, n, test.wants), got, name)
	}
	p, err := c.Plan(t.Context(), archive.Query{From: time.UnixMicro(from), To: time.UnixMicro(to)})
	require.NoError(t, err)
	require.True(t, p.Whole())
	require.Equal(t, entries[len(entries)-1].TimeUS, p.Sealed.UnixMicro())
	n.DropSegments(3)
	p, err = c.Plan(t.Context(), archive.Query{From: time.UnixMicro(from), To: time.UnixMicro(to)})
	require.NoError(t, err)
	require.False(t, p.Whole(), "the archive begins later")
	require.Equal(t, entries[600].TimeUS, p.Begins.UnixMicro())
}

// TestArchiveIsThePresent reads an archive after a compaction and a renumbering: what was superseded
// is gone, and records are there that the server read from a repository again.
func TestArchiveIsThePresent(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Archive{})
	did := n.Accounts()[0].DID
	require.NoError(t, n.Withhold(did, true))
	hidden, err := n.PostNow(did, "no stream has this")
	require.NoError(t, err)
	require.NoError(t, n.Withhold(did, false))
	require.NoError(t, n.ResyncRepo(did))
	edited, err := n.PostNow(n.Accounts()[1].DID, "first")
	require.NoError(t, err)
	_, err = n.EditPost("at://"+edited.DID+"/"+edited.Collection+"/"+edited.Rkey, "second")
	require.NoError(t, err)
	n.SealArchive()
	n.CompactArchive()
	require.NoError(t, n.Do(simnet.Renumber))
	got, err := read(t, client(t, n, ""), everything())
	require.NoError(t, err)
	has := func(parts ...string) (count int) {
		for _, event := range got {
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(event, part) }) {
				count++
			}
		}
		return count
	}
	require.Equal(t, 1, has(hidden.Rkey, "no stream has this"))
	require.Equal(t, 1, has(edited.Rkey), "only the edit is left")
	require.Equal(t, 1, has(edited.Rkey, "second"))
	entries := n.Log().Entries()
	last := entries[len(entries)-1]
	require.Equal(t, 1, has(fmt.Sprint(last.Seq-4, " ", last.TimeUS)), "the numbers are those of the server")
	synced := slices.IndexFunc(got, func(event string) bool { return strings.Contains(event, fmt.Sprint(" ", consumer.KindSync, did)) })
	require.NotEqual(t, -1, synced)
	require.Less(t, has(did), len(got))
}

// TestDamagedBlocksAreRequestedAgain damages responses in every way. A block that is damaged once
// is read all the same; a block that stays damaged is named, and nothing of it is yielded.
func TestDamagedBlocksAreRequestedAgain(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Archive{})
	whole := logged(t, n, func(*simnet.Entry) bool { return true })
	for _, fault := range simnet.BlockFaults() {
		n.SpoilBlocks(fault, 2)
		got, err := read(t, client(t, n, ""), everything())
		require.NoError(t, err, fault)
		require.Equal(t, whole, got, fault)
		require.Equal(t, 2, n.ArchiveFired()[fault])
	}
	for _, fault := range []simnet.ArchiveFault{simnet.FlippedBit, simnet.OtherBlock, simnet.Bomb} {
		n := network(t, simnet.Archive{})
		n.SpoilBlocks(fault, 1000)
		got, err := read(t, client(t, n, ""), everything())
		var damaged *archive.DamagedError
		require.ErrorAs(t, err, &damaged, fault)
		require.Equal(t, "seg_0000000000.jss", damaged.Segment)
		require.Zero(t, damaged.Block)
		require.Contains(t, err.Error(), "block 0 of segment seg_0000000000.jss is damaged: ")
		require.Empty(t, got, fault)
	}
	for _, fault := range []simnet.CallFaultKind{simnet.InternalError, simnet.TooMany, simnet.Severed} {
		require.NoError(t, n.FailCalls(simnet.CallFault{Kind: fault, Endpoint: "network.bsky.jetstream.getBlock"}))
		require.NoError(t, n.FailCalls(simnet.CallFault{Kind: fault, Endpoint: "network.bsky.jetstream.getSegment"}))
	}
	got, err := read(t, client(t, n, ""), everything())
	require.NoError(t, err)
	require.Equal(t, whole, got)
	n.SpoilSegments(simnet.FlippedBit, 1)
	n.SpoilSegments(simnet.CutShort, 1)
	got, err = read(t, client(t, n, ""), everything())
	require.NoError(t, err)
	require.Equal(t, whole, got)
	require.Equal(t, 6, n.ArchiveFired()[simnet.FlippedBit]+n.ArchiveFired()[simnet.CutShort], "two blocks and a segment each")
}

// TestOnlyTheRequestedBytesAreRead reads from a server that once sends other bytes than the requested ones, and from
// one that ignores Range, and sends the whole segment: nothing of it is read.
func TestOnlyTheRequestedBytesAreRead(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Archive{})
	n.SpoilSegments(simnet.OtherRange, 1)
	got, err := read(t, client(t, n, ""), everything())
	require.NoError(t, err)
	require.Equal(t, logged(t, n, func(*simnet.Entry) bool { return true }), got)
	require.Equal(t, 1, n.ArchiveFired()[simnet.OtherRange])

	got, err = read(t, client(t, network(t, simnet.Archive{NoRanges: true}), ""), everything())
	require.ErrorContains(t, err, "does not send the requested range of bytes")
	require.Empty(t, got)
}

// TestOtherServerHasWhatOneLacks asks the other server first after a block was missing, and the first one again when that
// one cannot be read.
func TestOtherServerHasWhatOneLacks(t *testing.T) {
	t.Parallel()
	first, second := network(t, simnet.Archive{}), network(t, simnet.Archive{})
	c, err := archive.New(archive.Config{Endpoints: []string{first.URL(), second.URL()}, Retry: time.Millisecond})
	require.NoError(t, err)
	for i, n := range []*simnet.Net{first, second, first} {
		p, err := c.Plan(t.Context(), everything())
		require.NoError(t, err)
		require.Equal(t, n.Address(), p.Host)
		if i < 2 {
			n.SpoilBlocks(simnet.BlockAbsent, 15) // five times the three that are requested at once
		}
		_, err = read(t, c, everything())
		require.Equal(t, i < 2, err != nil, "%v", err)
	}
}

// TestRewrittenSegmentIsPlannedAgain shows that a plan is not mixed with a later generation of a
// segment.
func TestRewrittenSegmentIsPlannedAgain(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Archive{BlockEvents: 50, SegmentBlocks: 100})
	c := client(t, n, "")
	p, err := c.Plan(t.Context(), everything())
	require.NoError(t, err)
	compact := sync.OnceFunc(n.CompactArchive)
	require.ErrorIs(t, c.Read(t.Context(), p, func(archive.Portion) error { compact(); return nil }), archive.ErrChanged, "between two blocks")
	require.ErrorIs(t, c.Read(t.Context(), p, func(archive.Portion) error { return nil }), archive.ErrChanged, "since the plan")
	_, err = read(t, c, everything())
	require.NoError(t, err)
}

// TestKeyIsForTheArchiveOnly shows that a server that demands a key gets it, and that it is not sent
// unencrypted to other machines. Where a server redirects, nothing is requested.
func TestKeyIsForTheArchiveOnly(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Archive{Key: "secret"})
	_, err := read(t, client(t, n, ""), everything())
	require.ErrorContains(t, err, "status 401")
	_, err = read(t, client(t, n, "secret"), everything())
	require.NoError(t, err)

	sent := make(chan string, 10)
	record := func(r *http.Request) { sent <- r.Host + " " + r.Header.Get("Authorization") + " " + r.URL.Path }
	redirects := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		record(r)
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	}))
	t.Cleanup(redirects.Close)
	c, err := archive.New(archive.Config{
		Endpoints: []string{"ws" + strings.TrimPrefix(redirects.URL, "http")}, Key: "secret", Retry: time.Millisecond,
	})
	require.NoError(t, err)
	_, err = c.Plan(t.Context(), everything())
	require.ErrorContains(t, err, "listSegments: status 302")
	for range 5 { // attempts
		require.Equal(t, strings.TrimPrefix(redirects.URL, "http://")+" Bearer secret /xrpc/network.bsky.jetstream.listSegments", <-sent)
	}
	require.Empty(t, sent)

	plain, err := archive.New(archive.Config{Endpoints: []string{"ws://jetstream.example/subscribe"}, Key: "secret", Retry: time.Millisecond,
		HTTP: &http.Client{Transport: refusing(func(r *http.Request) { sent <- r.Header.Get("Authorization") })}})
	require.NoError(t, err)
	_, err = plain.Plan(t.Context(), everything())
	require.ErrorIs(t, err, archive.ErrNone)
	require.Empty(t, <-sent)
}

// refusing is a transport that reports the request and answers 404.
type refusing func(*http.Request)

func (f refusing) RoundTrip(r *http.Request) (*http.Response, error) {
	f(r)
	return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody, Request: r}, nil
}

// ends is a log whose first line ends something.
type ends func()

func (f ends) Write(line []byte) (int, error) {
	f()
	return len(line), nil
}

// TestWhatFailedIsSaidWhenTheTimeEnds ends the time of a reading in the wait for a missing block. There is
// one block: of several at once, the first could be asked for when the time ends.
func TestWhatFailedIsSaidWhenTheTimeEnds(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Archive{BlockEvents: 10_000, SegmentBlocks: 1})
	n.SpoilBlocks(simnet.BlockAbsent, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	c, err := archive.New(archive.Config{
		Endpoints: []string{n.URL()}, Retry: time.Hour, Logger: slog.New(slog.NewTextHandler(ends(cancel), nil)),
	})
	require.NoError(t, err)
	p, err := c.Plan(ctx, everything())
	require.NoError(t, err)
	err = c.Read(ctx, p, func(archive.Portion) error { return nil })
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "BlockNotFound")
}
