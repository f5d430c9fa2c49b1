package consumer_test

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/firehose"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// wire is a source with real servers on loopback. Every source passes the same
// tests: add a row to wires for a new source.
type wire struct {
	name    string
	decodes consumer.Wire
	network func(t *testing.T, h history) network
	source  func(t *testing.T, endpoints []string, ping time.Duration, log *slog.Logger) consumer.Source

	numbers  bool   // its frames have sequence numbers
	asksAnew string // the log message of a connection that does not request the position itself

	variant bool // another row has the same source: skipped by -short
}

func wires() []wire {
	return []wire{
		{"jetstream v1", jetstream.Wire(nil), jetstreamNetwork(simnet.V1), jetstreamSource, false, "cursor_kind=time", false},
		{"jetstream v2", jetstream.Wire(nil), jetstreamNetwork(simnet.V2), jetstreamSource, true, "cursor_kind=time", true},
		{"jetstream events", jetstream.Wire(nil), eventsNetwork, jetstreamSource, true, "cursor_kind=time", false},
		{"toy", toyWire(), newToyNet, toySourceOf, true, "cursor=0 cursor_kind=seq", false},
		{"firehose", firehose.Wire(nil, nil), relayNetwork(simnet.Relay{}), firehoseSource, true, "cursor_kind=time", false},
		{
			"firehose of a silent, inclusive relay", firehose.Wire(nil, nil), relayNetwork(simnet.Relay{Silent: true, Inclusive: true}),
			firehoseSource, true, "cursor_kind=time", true,
		},
	}
}

// wireOf returns the row of a name.
func wireOf(t *testing.T, name string) wire {
	t.Helper()
	all := wires()
	at := slices.IndexFunc(all, func(w wire) bool { return w.name == name })
	require.GreaterOrEqual(t, at, 0, name)
	return all[at]
}

// onEveryWire runs a test for every source.
func onEveryWire(t *testing.T, test func(t *testing.T, w wire)) {
	t.Parallel()
	for _, w := range wires() {
		if w.variant && testing.Short() {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			test(t, w)
		})
	}
}

// history is the past of a server before it starts.
type history struct {
	events int
	end    time.Time // the current time if zero
}

// network is a server and the log of its events.
type network interface {
	Endpoint() string
	Host() string
	Play(n int)           // adds events
	Happened() []happened // all events, in order
	Cursor() int64        // the position after all events
	Forget()              // the server drops all events so far
	Renumber()            // the server restarts, and every number becomes lower by four: an earlier position may then equal Cursor
	Refuse()              // the server refuses connections from now on
}

// happened is an event in the form that the tests need.
type happened struct {
	did, rkey string
	post      bool   // whether the event is about a post
	there     bool   // whether that post exists after it
	status    string // the new status of an account
	at        int64  // microseconds since 1970, as the server dates it
}

type jetstreamNet struct {
	*simnet.Net
	t          *testing.T
	generation simnet.Generation
}

func jetstreamNetwork(g simnet.Generation) func(*testing.T, history) network {
	return func(t *testing.T, h history) network {
		return startJetstream(t, simnet.Config{Generation: g, History: h.events, Start: h.end})
	}
}

func eventsNetwork(t *testing.T, h history) network {
	return startJetstream(t, simnet.Config{Serving: simnet.Serving{Events: true}, History: h.events, Start: h.end})
}

func startJetstream(t *testing.T, cfg simnet.Config) jetstreamNet {
	t.Helper()
	cfg.Seed, cfg.Accounts = 3, 100
	n, err := simnet.New(cfg)
	require.NoError(t, err)
	require.NoError(t, n.Start("127.0.0.1:0"))
	t.Cleanup(n.Stop)
	return jetstreamNet{n, t, cfg.Generation}
}

func (n jetstreamNet) Endpoint() string { return n.URL() }
func (n jetstreamNet) Host() string     { return n.Address() }
func (n jetstreamNet) Forget()          { require.NoError(n.t, n.Do(simnet.TooOld)) }
func (n jetstreamNet) Renumber()        { require.NoError(n.t, n.Do(simnet.Renumber)) }
func (n jetstreamNet) Refuse()          { require.NoError(n.t, n.Do(simnet.Refuse)) }

func (n jetstreamNet) Cursor() int64 {
	if n.generation == simnet.V1 {
		return n.Log().Last().UniqueUS
	}
	return n.Log().Last().Seq - n.lowered()
}

// lowered returns how much lower than in the log the server's numbers are.
func (n jetstreamNet) lowered() int64 { return 4 * int64(n.Fired()[simnet.Renumber]) }

func (n jetstreamNet) Happened() []happened {
	var all []happened
	for _, e := range n.Log().Entries() {
		h := happened{
			did: e.DID, rkey: e.Rkey, post: e.Kind == "commit" && e.Collection == schema.PostCollection, there: e.Record != nil, at: e.TimeUS,
		}
		if e.Kind == "account" {
			h.status = e.Status
			if e.Active {
				h.status = "active"
			}
		}
		if n.generation == simnet.V1 {
			h.at = e.UniqueUS
		}
		all = append(all, h)
	}
	return all
}

// relayNet is the same network, read from its relay.
type relayNet struct{ jetstreamNet }

func relayNetwork(r simnet.Relay) func(*testing.T, history) network {
	return func(t *testing.T, h history) network {
		return relayNet{startJetstream(t, simnet.Config{Serving: simnet.Serving{Relay: r}, History: h.events, Start: h.end})}
	}
}

func (n relayNet) Endpoint() string { return n.RelayURL() }
func (n relayNet) Cursor() int64    { return n.Log().Last().RelaySeq - n.lowered() }

func firehoseSource(t *testing.T, endpoints []string, ping time.Duration, log *slog.Logger) consumer.Source {
	t.Helper()
	source, err := firehose.New(firehose.Config{Config: shortWaits(endpoints, ping, log)})
	require.NoError(t, err)
	return source
}

func jetstreamSource(t *testing.T, endpoints []string, ping time.Duration, log *slog.Logger) consumer.Source {
	t.Helper()
	source, err := jetstream.New(jetstream.Config{Filter: consumer.Filter{Everyone: true}, Config: shortWaits(endpoints, ping, log)})
	require.NoError(t, err)
	return source
}

// shortWaits configures a dialer for a test.
func shortWaits(endpoints []string, ping time.Duration, log *slog.Logger) socket.Config {
	return socket.Config{Endpoints: endpoints, MinWait: time.Millisecond, MaxWait: 10 * time.Millisecond, QuietAfter: ping, Logger: log}
}
