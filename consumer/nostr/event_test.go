package nostr_test

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/nostr"
	protocol "github.com/weir-social/weir/internal/nostr"
)

// signed returns an event of one author.
func signed(t *testing.T, createdAt int64, kind int, content string, tags ...[]string) *protocol.Event {
	t.Helper()
	e := &protocol.Event{CreatedAt: createdAt, Kind: kind, Content: content, Tags: append([][]string{}, tags...)}
	require.NoError(t, e.Sign([32]byte{31: 9}))
	return e
}

// frame returns the message of an event.
func frame(e *protocol.Event) []byte {
	return fmt.Appendf(nil, `["EVENT","page1",%s]`, e.AppendJSON(nil))
}

// decoded decodes a message with the wire of the tests.
func decoded(t *testing.T, input []byte) *consumer.Message {
	t.Helper()
	m := &consumer.Message{}
	nostr.Wire(nostr.NewVerifier(nostr.VerifierConfig{}), nil).Decode(input, time.Unix(2_000_000_000, 0), m)
	return m
}

func TestNoteIsARecord(t *testing.T) {
	t.Parallel()
	e := signed(t, 1_700_000_000, 1, "a\x00b", []string{"t", "\x00"})
	m := decoded(t, frame(e))
	require.Empty(t, m.Malformed)
	require.Len(t, m.Events, 1)
	ev := m.Events[0]
	id := hex.EncodeToString(e.ID[:])
	require.Equal(t, []string{"did:nostr:" + hex.EncodeToString(e.PubKey[:]), "nostr.1", id}, []string{ev.Author, ev.Collection, ev.Key})
	require.Equal(t, consumer.ID(e.ID[:16]), m.ID)
	require.Equal(t, time.Unix(1_700_000_000, 0), ev.Written)
	require.Equal(t, 2, ev.Replaced)
	require.Contains(t, string(ev.Record), `"content":"a`+"\uFFFD"+`b"`)
	require.Contains(t, string(ev.Record), `"id":"`+id+`"`)
	m.Proof.Start()
	require.Equal(t, consumer.ProofOutcome{}, m.Proof.Outcome())

	spaced := strings.Replace(strings.ReplaceAll(string(frame(e)), `","`, `" , "`), `"id"`, `"\u0069d"`, 1) // other valid JSON
	spaced = strings.Replace(spaced, `"pubkey":"`+hex.EncodeToString(e.PubKey[:])[:1],
		fmt.Sprintf(`"pubkey":"\u%04x`, hex.EncodeToString(e.PubKey[:])[0]), 1)
	require.NotContains(t, spaced, `"EVENT","`)
	require.NotContains(t, spaced, hex.EncodeToString(e.PubKey[:]))
	require.Equal(t, m.Events, decoded(t, []byte(spaced)).Events)
}

// TestCompactIsTheEvent checks that the compact form of a message is shorter and yields the same
// events, also if it is an excerpt.
func TestCompactIsTheEvent(t *testing.T) {
	t.Parallel()
	wire := nostr.Wire(nostr.NewVerifier(nostr.VerifierConfig{}), nil)
	for _, e := range []*protocol.Event{
		signed(t, 1_700_000_000, 1, "line\n\x00é", []string{"t", "\x00"}, []string{"e", strings.Repeat("ab", 32)}),
		signed(t, 0, 30023, "", []string{"d", "10\n"}),
		signed(t, 1_700_000_010, 5, "", []string{"e", strings.Repeat("cd", 32)}, []string{"k", "1"},
			[]string{"a", "30023:" + strings.Repeat("00", 32) + ":x"}),
	} {
		input := frame(e)
		kept := wire.Compact(input)
		require.Less(t, len(kept), len(input))
		require.Equal(t, kept, wire.Compact(kept))
		want, got := decoded(t, input), decoded(t, kept)
		require.NotEmpty(t, got.Events)
		require.Equal(t, want.Events, got.Events)
		require.Equal(t, want.ID, got.ID)
		last := got.Events[len(got.Events)-1]
		require.Equal(t, []consumer.Event{last}, decoded(t, wire.Excerpt(kept, last.Part)).Events)
	}
	for _, other := range []string{`["EOSE","page1"]`, `["EVENT","page1",{}]`, `no JSON`} {
		require.Equal(t, []byte(other), wire.Compact([]byte(other)))
	}
}

// TestRevisionsSortAsTheNetworkDoes checks that the later date is newer, and that of two events
// with the same date the one with the lower id is.
func TestRevisionsSortAsTheNetworkDoes(t *testing.T) {
	t.Parallel()
	low, high := [32]byte{0: 1}, [32]byte{0: 2}
	order := []string{protocol.Revision(9, high), protocol.Revision(9, low), protocol.Revision(10, high), protocol.Revision(10, low),
		protocol.Revision(protocol.MaxCreatedAt, high), "~"}
	require.IsIncreasing(t, order)
}

func TestKeys(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		event *protocol.Event
		key   string
	}{
		"replaceable":   {signed(t, 1, 0, ""), "self"},
		"address":       {signed(t, 1, 30023, "", []string{"d", "a b"}, []string{"d", "other"}), "a b"},
		"empty address": {signed(t, 1, 30023, "", []string{"d", ""}), "#e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
		"no address":    {signed(t, 1, 30023, ""), "#e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
	} {
		m := decoded(t, frame(c.event))
		require.Len(t, m.Events, 1, name)
		require.Equal(t, c.key, m.Events[0].Key, name)
	}
	for _, d := range []string{strings.Repeat("x", 513), "a\x00b", "#e3"} {
		m := decoded(t, frame(signed(t, 1, 30023, "", []string{"d", d})))
		require.Regexp(t, "^#[0-9a-f]{64}$", m.Events[0].Key, d)
	}
}

// TestDeletionNamesItsAuthorsEvents checks that a request deletes only events of its author, of
// any kind, and addresses of any kind only up to its date.
func TestDeletionNamesItsAuthorsEvents(t *testing.T) {
	t.Parallel()
	target, other := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	me := signed(t, 1, 1, "").PubKey
	author := hex.EncodeToString(me[:])
	e := signed(t, 1_700_000_000, 5, "", []string{"e", target}, []string{"e", "junk"}, []string{"e"}, []string{"k", "1"},
		[]string{"a", "30023:" + author + ":one"}, []string{"a", "30023:" + other + ":one"}, []string{"a", "3:" + author + ":"},
		[]string{"a", "3:" + author + ":x"},
		[]string{"a", "30024:" + author + ":not stored"}, []string{"a", "1:" + author + ":"}, []string{"a", "x"})
	m := decoded(t, frame(e))
	var got []string
	for _, ev := range m.Events {
		require.Equal(t, protocol.DID(e.PubKey), ev.Author)
		require.Equal(t, ev.Operation == consumer.Delete, ev.Lasting)
		got = append(got, fmt.Sprintf("%s %s/%s %.17s", ev.Operation, ev.Collection, ev.Key, ev.Revision))
	}
	id := hex.EncodeToString(e.ID[:])
	require.Equal(t, []string{"delete nostr.*/" + target + " ~", "delete nostr.30023/one 0000001700000000-",
		"delete nostr.3/self 0000001700000000-",
		"delete nostr.30024/not stored 0000001700000000-", "create nostr.5/" + id + " 0000001700000000-"}, got)
	at := m.Events[1].Revision
	require.GreaterOrEqual(t, at, protocol.Revision(1_700_000_000, [32]byte{}))
	require.Less(t, at, protocol.Revision(1_700_000_001, [32]byte{0: 255}))

	wire := nostr.Wire(nostr.NewVerifier(nostr.VerifierConfig{}), nil)
	for part, want := range got { // a dead letter has one of the events
		again := decoded(t, wire.Excerpt(frame(e), m.Events[part].Part))
		require.Len(t, again.Events, 1)
		require.Equal(t, want,
			fmt.Sprintf("%s %s/%s %.17s", again.Events[0].Operation, again.Events[0].Collection, again.Events[0].Key, again.Events[0].Revision))
	}
}

// TestDeletionRequestLeavesABoundedNumberOfTombstones shows that a request that names more than
// 2,000 events is refused and leaves a dead letter.
func TestDeletionRequestLeavesABoundedNumberOfTombstones(t *testing.T) {
	t.Parallel()
	const most = 2000
	me := signed(t, 1, 1, "").PubKey
	tags := [][]string{{"e", "junk"}, {"a", "30023:" + hex.EncodeToString(me[:]) + ":first"}}
	for i := range most - 1 {
		tags = append(tags, []string{"e", fmt.Sprintf("%064x", i)})
	}
	m := decoded(t, frame(signed(t, 1_700_000_000, 5, "", tags...)))
	require.Empty(t, m.Malformed)
	require.Len(t, m.Events, 1+most-1+1, "and the request itself")

	tags = append(tags, []string{"e", strings.Repeat("ab", 32)}, []string{"a", "30023:" + hex.EncodeToString(me[:]) + ":last"})
	more := decoded(t, frame(signed(t, 1_700_000_000, 5, "", tags...)))
	require.Empty(t, more.Events)
	require.Len(t, more.Malformed, 1)
	require.Equal(t, []string{"/tags", "at most 2000", "more"},
		[]string{more.Malformed[0].Path, more.Malformed[0].Expected, more.Malformed[0].Received})
}

func TestExpiredAndEphemeralAreNoRecords(t *testing.T) {
	t.Parallel()
	require.Empty(t, decoded(t, frame(signed(t, 1, 1, "", []string{"expiration", "2000000000"}))).Events)
	require.Len(t, decoded(t, frame(signed(t, 1, 1, "", []string{"expiration", "2000000001"}))).Events, 1)
	require.Len(t, decoded(t, frame(signed(t, 1, 1, "", []string{"expiration", "soon"}))).Events, 1)
	require.Empty(t, decoded(t, frame(signed(t, 1, 20001, ""))).Events)
}

// TestForgeriesLeaveFewDeadLetters checks that a forged id is refused by the decoder and a forged
// signature by the proof, and that only the first of them leave dead letters.
// TestRepostOfProtectedEventIsRefused shows that nothing is kept of a repost that has a protected
// event in it, see NIP-70. Without content, it is a repost as any other.
func TestRepostOfProtectedEventIsRefused(t *testing.T) {
	t.Parallel()
	note, protected := signed(t, 1_700_000_000, 1, "hello", []string{"t", "x"}),
		signed(t, 1_700_000_000, 1, "hello", []string{"t", "x"}, []string{"-"})
	id := hex.EncodeToString(protected.ID[:])
	for _, kind := range []int{6, 16} {
		for content, refused := range map[string]bool{string(protected.AppendJSON(nil)): true, ` {"tags":[[1],["-","x"]]}`: true,
			string(note.AppendJSON(nil)): false, "": false, "[-]": false, `{"tags":[["t","-"],[]]}`: false} {
			m := decoded(t, frame(signed(t, 1_700_000_001, kind, content, []string{"e", id})))
			if !refused {
				require.Len(t, m.Events, 1, content)
				require.Empty(t, m.Malformed, content)
				continue
			}
			require.Empty(t, m.Events, content)
			require.Len(t, m.Malformed, 1, content)
			require.True(t, m.Malformed[0].Drop, "a dead letter would publish it")
		}
	}
	require.Len(t, decoded(t, frame(protected)).Events, 1, "the relay has it from its author")
	require.Len(t, decoded(t, frame(signed(t, 1_700_000_001, 1, string(protected.AppendJSON(nil))))).Events, 1, "a note that is no repost")
}

func TestForgeriesLeaveFewDeadLetters(t *testing.T) {
	t.Parallel()
	wire := nostr.Wire(nostr.NewVerifier(nostr.VerifierConfig{Refused: 3}), nil)
	e := signed(t, 1, 1, "hello")
	text := string(frame(e))
	m := &consumer.Message{}
	kept := 0
	for range 5 {
		wire.Decode([]byte(strings.Replace(text, "hello", "hullo", 1)), time.Now(), m)
		require.Empty(t, m.Events)
		require.Equal(t, consumer.ID{}, m.ID)
		require.Len(t, m.Malformed, 1)
		if !m.Malformed[0].Drop {
			kept++
		}
	}
	require.Equal(t, 3, kept)
	e.Sig[40] ^= 1
	wire.Decode(frame(e), time.Now(), m)
	m.Proof.Start()
	outcome := m.Proof.Outcome()
	require.NotEmpty(t, outcome.Cause)
	require.True(t, outcome.Drop)
	for _, input := range []string{"", "{}", "[]", "[7]", `["EVENT"]`, `["EVENT","s"]`, `["EVENT","s",7]`, `["OK","x"]`, "7\n", `["EOSE"]`} {
		wire.Decode([]byte(input), time.Now(), m)
		require.Empty(t, m.Events, input)
	}
}

// TestDemandsToVanishNameRelays checks that requests to vanish may name relays in any spelling. A
// request to another relay is not recorded as seen, so that it is obeyed when that relay sends it,
// even if requests are stored.
func TestDemandsToVanishNameRelays(t *testing.T) {
	t.Parallel()
	wire := nostr.Wire(nostr.NewVerifier(nostr.VerifierConfig{}), []string{"wss://relay.example", "ws://other.example:8080/path"})
	for relay, obeyed := range map[string]bool{
		"ALL_RELAYS": true, "wss://Relay.Example/": true, "wss://relay.example:443": true, "ws://other.example:8080/path/": true,
		"ws://relay.example": false, "wss://relay.example.org": false, "wss://relay.example/path": false, "": false, "junk": false,
	} {
		m := &consumer.Message{}
		wire.Decode(frame(signed(t, 1_700_000_000, 62, "", []string{"relay", relay})), time.Now(), m)
		erased := slices.ContainsFunc(m.Events, func(ev consumer.Event) bool { return ev.Kind == consumer.KindErasure })
		require.Equal(t, obeyed, erased, relay)
		require.Equal(t, obeyed, len(m.Events) > 0, "a frame with events is recorded as seen")
	}
}

func FuzzWire(f *testing.F) {
	e := &protocol.Event{Kind: 5, Tags: [][]string{{"e", strings.Repeat("ab", 32)}, {"a", "3:x:"}}}
	require.NoError(f, e.Sign([32]byte{31: 9}))
	f.Add(frame(e))
	f.Add(append([]byte("1\n"), frame(e)...))
	f.Add(e.AppendNotepack(nil))
	f.Add(append([]byte("0\n"), e.AppendNotepack(nil)...))
	f.Add([]byte(`["CLOSED","live0","auth-required: x"]`))
	f.Add([]byte(`["OK","x",true,""]`))
	wire := nostr.Wire(nostr.NewVerifier(nostr.VerifierConfig{}), nil)
	f.Fuzz(func(t *testing.T, input []byte) {
		m := &consumer.Message{}
		wire.Decode(input, time.Unix(1, 0), m)
		for i := range m.Events {
			ev := &m.Events[i]
			require.NotEmpty(t, ev.Key)
			require.NotContains(t, ev.Key+string(ev.Record), "\x00")
			require.LessOrEqual(t, len(ev.Key), 512)
		}
	})
}

// TestVanishErasesOnlyWhereDemanded checks that a request to vanish from other relays erases
// nothing.
func TestVanishErasesOnlyWhereDemanded(t *testing.T) {
	t.Parallel()
	for relay, erases := range map[string]bool{"ALL_RELAYS": true, "wss://relay.example/": true, "": false} {
		tags := [][]string{}
		if relay != "" {
			tags = append(tags, []string{"relay", relay})
		}
		m := decoded(t, frame(signed(t, 1_700_000_000, 62, "", tags...)))
		require.Len(t, m.Events, map[bool]int{true: 2}[erases], relay)
		if erases {
			require.Equal(t, consumer.KindErasure, m.Events[0].Kind)
			require.GreaterOrEqual(t, m.Events[0].Revision, protocol.Revision(1_700_000_000, [32]byte{}))
		}
	}
}
