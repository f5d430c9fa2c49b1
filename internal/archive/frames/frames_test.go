package frames_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/archive/frames"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// archivedFrames returns the records of the open rows. It reads them without the code that wrote
// them.
func archivedFrames(t *testing.T, pool *pgxpool.Pool) (frames [][]byte) {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT blob, records, raw_bytes FROM archive_open ORDER BY number`)
	require.NoError(t, err)
	type row struct {
		Blob         []byte
		Records, Raw int
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(t, err)
	for _, r := range all {
		d, err := zstd.NewReader(bytes.NewReader(r.Blob))
		require.NoError(t, err)
		raw, err := io.ReadAll(d)
		require.NoError(t, err)
		d.Close()
		require.Len(t, raw, r.Raw)
		for n := 0; len(raw) > 0; n++ {
			size := binary.LittleEndian.Uint32(raw)
			frames = append(frames, raw[4:4+size])
			raw = raw[4+size:]
			r.Records--
		}
		require.Zero(t, r.Records)
	}
	return frames
}

// archivedEvents counts the archived events of posts and accounts.
func archivedEvents(t *testing.T, pool *pgxpool.Pool, wire consumer.Wire) map[string]int {
	t.Helper()
	events := map[string]int{}
	var m consumer.Message
	for _, frame := range archivedFrames(t, pool) {
		wire.Decode(frame, time.Now(), &m)
		require.Empty(t, m.Malformed)
		for _, ev := range m.Events {
			switch {
			case ev.Kind == consumer.KindCommit && ev.Collection == schema.PostCollection:
				events[fmt.Sprint(ev.Author, " ", ev.Key, " ", ev.Revision, " ", ev.Operation)]++
			case ev.Kind == consumer.KindAccount, ev.Kind == consumer.KindIdentity:
				events[fmt.Sprint(ev.Author, " ", ev.Kind, " ", ev.At.UnixMilli())]++
			}
		}
	}
	return events
}

// happenedOnce returns the log's events of posts, accounts and identities, each with the count one.
func happenedOnce(log []*simnet.Entry) map[string]int {
	events := map[string]int{}
	for _, e := range log {
		switch {
		case e.Kind == "commit" && e.Collection == schema.PostCollection:
			events[fmt.Sprint(e.DID, " ", e.Rkey, " ", e.Rev, " ", e.Operation)]++
		case e.Kind == "account":
			events[fmt.Sprint(e.DID, " ", consumer.KindAccount, " ", e.TimeUS/1000)]++
		case e.Kind == "identity":
			events[fmt.Sprint(e.DID, " ", consumer.KindIdentity, " ", e.TimeUS/1000)]++
		}
	}
	return events
}

// differences returns the events that are not archived as often as they happened.
func differences(want, got map[string]int) (wrong []string) {
	for event, n := range want {
		if got[event] != n {
			wrong = append(wrong, fmt.Sprintf("%s: %d times instead of %d", event, got[event], n))
		}
	}
	for event, n := range got {
		if want[event] == 0 {
			wrong = append(wrong, fmt.Sprintf("%s: %d times, and it never happened", event, n))
		}
	}
	return wrong
}

// TestArchivedOnce kills the consumer in its transactions, again and again, while batches are
// split. It also renumbers the server, so that many events are read several times. Every event is
// in the archive once, including events that the database refused and that a retry stored.
func TestArchivedOnce(t *testing.T) {
	t.Parallel()
	for name, relay := range map[string]bool{"jetstream": false, "firehose": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStream(t, relay, 200)
			_, err := s.pool.Exec(t.Context(), `ALTER TABLE posts ADD CONSTRAINT refusing CHECK (hashtext(rkey) % 8 <> 0)`)
			require.NoError(t, err)
			killed := errors.New("killed")
			random := rand.New(rand.NewPCG(8, 8))
			for kills := 0; ; kills++ {
				lives := 1 + random.IntN(6)
				ended, cancel := s.start(func(cfg *consumer.Config) {
					cfg.Frames, cfg.BatchEvents = &frames.Hook{Scope: frames.ScopeStored}, 40
					cfg.Enqueue = func(context.Context, pgx.Tx, []schema.Stored, time.Time) error {
						if lives--; lives == 0 {
							return killed
						}
						return nil
					}
				})
				var died error
				eventually.True(t, func() bool {
					select {
					case died = <-ended:
						return true
					default:
						return s.read()
					}
				}, 5*time.Millisecond)
				cancel()
				if died == nil {
					require.NoError(t, <-ended)
					require.Greater(t, kills, 2)
					break
				}
				require.ErrorIs(t, died, killed)
				if kills%3 == 2 {
					require.NoError(t, s.net.Do(simnet.Renumber))
					s.net.Play(5)
				}
			}
			want := happenedOnce(s.net.Log().Entries())
			require.Empty(t, differences(want, archivedEvents(t, s.pool, s.wire)))
			require.Positive(t, s.count(`SELECT count(*) FROM dead_letters`))
			_, err = s.pool.Exec(t.Context(), `ALTER TABLE posts DROP CONSTRAINT refusing`)
			require.NoError(t, err)
			s.retries(&frames.Hook{Scope: frames.ScopeStored})
			require.Empty(t, differences(want, archivedEvents(t, s.pool, s.wire)), "after a retry")
			knownAgain(s, s.wire)
		})
	}
}

// TestArchiveScopes checks what is archived of a network in which every second account is followed.
func TestArchiveScopes(t *testing.T) {
	t.Parallel()
	for scope, includes := range map[frames.Scope]func(e *simnet.Entry) bool{
		frames.ScopeNone: func(*simnet.Entry) bool { return false },
		frames.ScopeStored: func(e *simnet.Entry) bool {
			return even(e.DID) && (e.Kind != "commit" || e.Collection == schema.PostCollection)
		},
		frames.ScopeFollowed:   func(e *simnet.Entry) bool { return even(e.DID) },
		frames.ScopeEverything: func(*simnet.Entry) bool { return true },
	} {
		t.Run("scope "+string(scope), func(t *testing.T) {
			t.Parallel()
			s := newStream(t, false, 200)
			s.reads(func(cfg *consumer.Config) {
				if cfg.Follows = even; scope != frames.ScopeNone {
					cfg.Frames = &frames.Hook{Scope: scope, Follows: even}
				}
			})
			want := 0
			for _, e := range s.net.Log().Entries() {
				if includes(e) {
					want++
				}
			}
			require.Len(t, archivedFrames(t, s.pool), want)
			require.Equal(t, want, s.count(`SELECT count(*) FROM archived_ids`))
			knownAgain(s, jetstream.Wire(wantsPosts))
		})
	}
}

// knownAgain checks that the ids of all known events can be restored from the archived records.
func knownAgain(s *stream, wire consumer.Wire) {
	s.t.Helper()
	_, err := s.pool.Exec(s.t.Context(), `CREATE TABLE known AS SELECT id, day FROM archived_ids; DELETE FROM archived_ids`)
	require.NoError(s.t, err)
	units, seen := frames.Units(&wire, archivedFrames(s.t, s.pool))
	require.Empty(s.t, seen)
	for range 2 { // the second run changes nothing
		require.NoError(s.t, catalog.RestoreIDs(s.t.Context(), s.pool, units, nil))
	}
	require.Zero(s.t, s.count(`SELECT count(*) FROM (SELECT id, day FROM known EXCEPT SELECT id, day FROM archived_ids) AS missing`))
}

func even(did string) bool { return did[len(did)-1]%2 == 0 }

// TestArchivedEventsAddOnlyTheirIDs reads events that are archived already into an empty database. Their
// ids are stored, unless no server sends these events again: then there would be years of ids.
func TestArchivedEventsAddOnlyTheirIDs(t *testing.T) {
	t.Parallel()
	for _, outOfReach := range []bool{false, true} {
		s := newStream(t, false, 100)
		s.reads(func(cfg *consumer.Config) {
			cfg.Frames = &frames.Hook{Scope: frames.ScopeStored, IDsOnly: true, OutOfReach: outOfReach}
		})
		require.Zero(t, s.count(`SELECT count(*) FROM archive_open`))
		require.Equal(t, !outOfReach, s.count(`SELECT count(*) FROM archived_ids`) > 0)
	}
}

// TestEventsOfFetchedRecordsAreArchived fetches two records as of the revisions of their events: a
// post before the stream brings it, and one that was lost afterwards. The archive has both events of
// the stream, each once, and both changes by what was fetched: a database that is rebuilt needs them.
func TestEventsOfFetchedRecordsAreArchived(t *testing.T) {
	t.Parallel()
	s := newStream(t, false, 100)
	want := happenedOnce(s.net.Log().Entries())
	fetch := func(e *simnet.Entry) {
		t.Helper()
		w := schema.Write{
			Key: schema.Key{Collection: e.Collection, DID: e.DID, Rkey: e.Rkey}, Rev: e.Rev, CID: e.CID, CreatedAt: e.CreatedAt, Record: e.Record,
		}
		require.NoError(t, pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
			written, err := schema.RepairRecords(t.Context(), tx, []schema.Write{w})
			require.Len(t, written, 1)
			return errors.Join(err, catalog.Hook(jetstream.WireName).Fetched(t.Context(), tx, schema.Fetched{Writes: []schema.Write{w}}))
		}))
		want[fmt.Sprint(e.DID, " ", e.Rkey, " ", e.Rev, " ", e.Operation)]++
	}
	created := s.posts()
	first, lost := created[0], created[1]
	fetch(first)
	s.reads(func(cfg *consumer.Config) { cfg.Frames = &frames.Hook{Scope: frames.ScopeStored} })
	_, err := s.pool.Exec(t.Context(), `DELETE FROM posts WHERE did = $1 AND rkey = $2`, lost.DID, lost.Rkey)
	require.NoError(t, err)
	fetch(lost)
	require.Equal(t, 1, s.count(`SELECT count(*) FROM posts WHERE did = $1 AND rkey = $2`, lost.DID, lost.Rkey))
	require.Empty(t, differences(want, archivedEvents(t, s.pool, jetstream.Wire(nil))))
}
