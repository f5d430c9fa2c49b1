package nostr_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// stored are the kinds that the tests store.
func stored() []int { return []int{0, 1, 3, 30023} }

// wants reports whether the tests store a collection.
func wants(collection string) bool {
	kind, err := strconv.Atoi(strings.TrimPrefix(collection, "nostr."))
	return err == nil && slices.Contains(stored(), kind)
}

// network is a simulated network and the database that its relays are read into.
type network struct {
	*simnet.Nostr
	t      *testing.T
	pool   *pgxpool.Pool
	verify *nostr.Verifier
	key    *[32]byte
	kinds  []int // to request; nil: every kind
}

func newNetwork(t *testing.T, cfg simnet.NostrConfig) *network {
	t.Helper()
	cfg.Now = time.Now().Add(-time.Hour)
	if cfg.Authors == 0 {
		cfg.Authors = 20
	}
	net, err := simnet.NewNostr(cfg)
	require.NoError(t, err)
	t.Cleanup(net.Stop)
	return &network{Nostr: net, t: t, pool: schematest.New(t), verify: nostr.NewVerifier(nostr.VerifierConfig{}), kinds: stored()}
}

// start reads one relay until cancel is called or the consumer fails.
func (n *network) start(relay int, change func(*consumer.Config)) (ended <-chan error, cancel func()) {
	n.t.Helper()
	source, err := nostr.New(nostr.Config{Kinds: n.kinds, Verifier: n.verify, Key: n.key,
		Config: socket.Config{Endpoints: n.URLs()[relay : relay+1], MinWait: time.Millisecond, MaxWait: 10 * time.Millisecond}})
	require.NoError(n.t, err)
	require.NoError(n.t, source.SetFilter(n.t.Context(), consumer.Filter{Everyone: true}))
	cfg := consumer.Config{
		Storage: consumer.Storage{Pool: n.pool, Logger: slog.New(slog.DiscardHandler),
			Enqueue: func(context.Context, pgx.Tx, []schema.Stored, time.Time) error { return nil }, Wanted: wants},
		// authors' clocks are wrong by days
		Stream: "nostr-" + strconv.Itoa(relay), Leasing: consumer.Leasing{Owner: n.t.Name()}, Source: source,
		Resuming: consumer.Resuming{Start: consumer.Cursor{Kind: consumer.CursorSeq}, Rewind: 10 * 24 * time.Hour},
		Batching: consumer.Batching{BatchInterval: 10 * time.Millisecond},
	}
	if change != nil {
		change(&cfg)
	}
	c, err := consumer.New(cfg)
	require.NoError(n.t, err)
	ctx, stop := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return done, stop
}

// run reads all relays until the returned function is called.
func (n *network) run(change func(*consumer.Config)) (stop func()) {
	n.t.Helper()
	var stops []func()
	for i := range n.URLs() {
		ended, cancel := n.start(i, change)
		stops = append(stops, func() {
			cancel()
			require.NoError(n.t, <-ended)
		})
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// record is a stored record: its key and the id of its event.
type record struct{ Collection, Author, Key, ID string }

// fold returns the records that the written events result in, according to the NIPs.
func (n *network) fold() []record {
	type name struct {
		kind        int
		author, key string
	}
	deleted, addresses, vanished := map[[2]string]bool{}, map[name]int64{}, map[string]int64{}
	for _, e := range n.Events() {
		if e.Kind == 62 {
			vanished[e.Author] = max(vanished[e.Author], e.CreatedAt)
		}
		for _, tag := range e.Tags {
			switch {
			case e.Kind != 5 || len(tag) < 2:
			case tag[0] == "e":
				deleted[[2]string{e.Author, tag[1]}] = true
			case tag[0] == "a":
				kind, rest, _ := strings.Cut(tag[1], ":")
				author, d, _ := strings.Cut(rest, ":")
				number, err := strconv.Atoi(kind)
				require.NoError(n.t, err)
				at := name{number, author, d}
				if author == e.Author {
					addresses[at] = max(addresses[at], e.CreatedAt)
				}
			}
		}
	}
	latest := map[name]*simnet.NostrEvent{}
	for _, e := range n.Events() {
		at := name{e.Kind, e.Author, ""}
		expired := false
		for _, tag := range e.Tags {
			if len(tag) > 1 && tag[0] == "d" && e.Kind == 30023 {
				at.key = tag[1]
			}
			expired = expired || len(tag) > 1 && tag[0] == "expiration"
		}
		if e.Kind == 1 {
			at.key = e.ID
		}
		deletedAt, addressDeleted := addresses[at]
		old := latest[at]
		switch {
		case !slices.Contains(stored(), e.Kind), expired, e.CreatedAt <= vanished[e.Author]:
		case e.Kind == 1 && deleted[[2]string{e.Author, e.ID}]:
		case e.Kind != 1 && addressDeleted && e.CreatedAt <= deletedAt:
		case old == nil, e.CreatedAt > old.CreatedAt, e.CreatedAt == old.CreatedAt && e.ID < old.ID:
			latest[at] = e
		}
	}
	var all []record
	for at, e := range latest {
		key := at.key
		switch {
		case e.Kind == 0 || e.Kind == 3:
			key = "self"
		case e.Kind == 30023 && (key == "" || key[0] == '#' || len(key) > 512):
			key = fmt.Sprintf("#%x", sha256.Sum256([]byte(key)))
		}
		all = append(all, record{"nostr." + strconv.Itoa(e.Kind), "did:nostr:" + e.Author, key, e.ID})
	}
	sortRecords(all)
	return all
}

func sortRecords(all []record) {
	slices.SortFunc(all, func(a, b record) int {
		return strings.Compare(a.Collection+" "+a.Author+" "+a.Key, b.Collection+" "+b.Author+" "+b.Key)
	})
}

// records returns the stored records.
func (n *network) records() []record {
	n.t.Helper()
	rows, err := n.pool.Query(n.t.Context(), `SELECT collection, did, rkey, record ->> 'id' FROM records`)
	require.NoError(n.t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[record])
	require.NoError(n.t, err)
	sortRecords(all)
	return all
}

// holds waits until the stored records are those of the fold.
func (n *network) holds() {
	n.t.Helper()
	want := n.fold()
	require.NotEmpty(n.t, want)
	var got []record
	ctx, cancel := context.WithTimeout(n.t.Context(), 8*time.Minute)
	defer cancel()
	eventually.Loop(ctx, 20*time.Millisecond, func() bool {
		got = n.records()
		return slices.Equal(want, got)
	})
	require.Equal(n.t, want, got)
}

func (n *network) count(sql string, args ...any) int {
	n.t.Helper()
	var count int
	require.NoError(n.t, n.pool.QueryRow(n.t.Context(), sql, args...).Scan(&count))
	return count
}

// read waits until the past of all relays is read.
func (n *network) read() {
	n.t.Helper()
	relays := len(n.URLs())
	eventually.True(n.t, func() bool { return n.count(`SELECT count(*) FROM streams WHERE cursor_kind = 'time'`) == relays },
		5*time.Millisecond)
}

// TestRelaysAreReadToTheirEnd reads relays that cut pages within a second, some without telling,
// and one that requires authentication.
func TestRelaysAreReadToTheirEnd(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := newNetwork(t, simnet.NostrConfig{
		Seed: 1, Forged: 0.05, Relays: []simnet.NostrRelay{{Page: 500}, {Page: 40, Silent: true}, {Page: 60, Auth: true}},
	})
	n.key = &[32]byte{31: 5}
	n.Play(400)
	defer n.run(nil)()
	n.read()
	n.holds()
	require.Zero(t, n.count(`SELECT count(*) FROM gaps`))
	n.Play(100)
	n.holds()
	n.neverSaw(n.Forged())
	require.Positive(t, n.count(`SELECT count(*) FROM dead_letters WHERE wire = 'nostr' AND stage = 'verify'`))
	require.Positive(t, n.count(`SELECT count(*) FROM dead_letters WHERE wire = 'nostr' AND stage = 'decode'`))
}

// neverSaw checks that no forged event is recorded as seen: the real one would then be skipped.
func (n *network) neverSaw(forged []*simnet.NostrEvent) {
	n.t.Helper()
	real := map[string]bool{}
	for _, e := range n.Events() {
		real[e.ID] = true
	}
	var ids []string
	for _, e := range forged {
		if !real[e.ID] {
			ids = append(ids, e.ID[:32])
		}
	}
	require.NotEmpty(n.t, ids)
	require.Zero(n.t, n.count(`SELECT count(*) FROM seen WHERE id = ANY ($1::uuid[])`, ids))
}

var nostrEvents = flag.Int("nostr-events", 1000, "the events in TestKilledReadersStoreTheFold")

// TestKilledReadersStoreTheFold kills the readers of four relays in their transactions, again and
// again, while events arrive and connections are cut. -nostr-events is the number of events.
func TestKilledReadersStoreTheFold(t *testing.T) {
	t.Parallel()
	events := *nostrEvents
	n := newNetwork(t, simnet.NostrConfig{Seed: 2, Forged: 0.05, Authors: 50, Relays: []simnet.NostrRelay{
		{Page: 100, LostSeam: true}, {Page: 60, Silent: true, CutAt: 700}, {Page: 300, CloseEach: 17}, {Page: 500, Auth: true}}})
	n.key = &[32]byte{31: 5}
	n.Play(events / 2)
	killed := errors.New("killed")
	random := rand.New(rand.NewPCG(3, 3))
	const rounds = 6
	for range rounds {
		type reader struct {
			stream string
			cursor int // before it began
			ended  <-chan error
			cancel func()
		}
		var readers []reader
		for i := range n.URLs() {
			lives := 1 + random.IntN(6)
			stream := "nostr-" + strconv.Itoa(i)
			cursor := n.count(`SELECT coalesce(max(cursor), 0) FROM streams WHERE name = $1`, stream)
			ended, cancel := n.start(i, func(cfg *consumer.Config) {
				cfg.BatchEvents = 60
				cfg.Enqueue = func(context.Context, pgx.Tx, []schema.Stored, time.Time) error {
					if lives--; lives <= 0 {
						return killed
					}
					return nil
				}
			})
			readers = append(readers, reader{stream, cursor, ended, cancel})
		}
		n.Play(events / 2 / rounds)
		n.Cut()
		for _, r := range readers {
			eventually.True(t, func() bool { // it was killed, or has read everything
				return len(r.ended) == 1 || n.count(`SELECT count(*) FROM streams WHERE name = $1 AND cursor <> $2`, r.stream, r.cursor) == 1
			}, 20*time.Millisecond)
			r.cancel()
			if err := <-r.ended; err != nil {
				require.ErrorIs(t, err, killed)
			}
		}
	}
	stop := n.run(nil)
	n.read()
	n.holds()
	stop()
	n.neverSaw(n.Forged())
	require.Zero(t, n.count(`SELECT count(*) FROM gaps`))
	rejected := n.count(`SELECT count(*) FROM dead_letters`)
	require.LessOrEqual(t, rejected, 100, "forgeries must leave a bounded number of dead letters")
	require.Positive(t, n.count(`SELECT count(*) FROM tombstones WHERE deleted_at IS NULL`))
	require.Positive(t, n.count(`SELECT count(*) FROM accounts WHERE erased_rev IS NOT NULL`))
}
