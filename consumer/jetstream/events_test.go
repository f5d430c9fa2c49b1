package jetstream

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
)

// Frames of subscribeEvents.
const (
	eventCreate = `{"$type":"message","payload":{"$type":"` + eventTypes +
		`commit","seq":5860,"did":"did:plc:wq4aajammjtxdomz3e23667t","time":"2026-07-04T15:11:28.085434Z",` +
		`"rev":"3mptbypluud2a","operation":"create","collection":"app.bsky.feed.like","rkey":"3mptbyplj5d2a",` +
		`"record":{"text":"hi"},"cid":"bafyreiguce4jh7kcbmof3pmcvasifqtw24b6isakj5ve5ga2b4z4alpc4i"}}`
	eventDelete = `{"$type":"message","payload":{"$type":"` + eventTypes +
		`commit","seq":7,"did":"did:plc:ux2eeflheratfrvp3xfbp4zi","time":"2026-07-04T15:11:28.112407Z",` +
		`"rev":"3mptbyp63ih2m","operation":"delete","collection":"app.bsky.graph.follow","rkey":"3m3q3ut7jsm2m"}}`
	eventHandle = `{"$type":"message","payload":{"$type":"` + eventTypes +
		`identity","seq":8,"did":"did:plc:exicsidqd7737xpugiq5r4c5","time":"2026-07-04T15:11:28.112407Z",` +
		`"identity":{"did":"did:plc:exicsidqd7737xpugiq5r4c5","handle":"user-603-h1.test","seq":1531,` +
		`"time":"2023-11-14T22:13:20.003Z"}}}`
	eventStatus = `{"$type":"message","payload":{"$type":"` + eventTypes +
		`account","seq":9,"did":"did:plc:hqvhxrowqbemo5e4wjnj6zao","time":"2026-07-04T15:11:28.112407Z",` +
		`"account":{"active":false,"did":"did:plc:hqvhxrowqbemo5e4wjnj6zao","seq":31527015471,` +
		`"status":"deactivated","time":"2026-07-04T14:38:07.877Z"}}}`
	eventSync = `{"$type":"message","payload":{"$type":"` + eventTypes +
		`sync","seq":10,"did":"did:plc:hqvhxrowqbemo5e4wjnj6zao","time":"2026-07-04T15:11:28.112407Z",` +
		`"sync":{"blocks":{"$bytes":"oWVyb290c4A"},"did":"did:plc:hqvhxrowqbemo5e4wjnj6zao","rev":"3mptbyp63ih2m",` +
		`"seq":31,"time":"2026-07-04T14:38:07.877Z"}}}`
	eventInfo  = `{"$type":"message","payload":{"$type":"` + eventTypes + `info","name":"OutdatedCursor","message":"starting at seq 12"}}`
	eventError = `{"$type":"error","error":"ConsumerTooSlow","message":"too far behind"}`
)

func eventFrames() []string {
	return []string{eventCreate, eventDelete, eventHandle, eventStatus, eventSync, eventInfo, eventError}
}

// TestBothFormsAreTheSameEvent compares each event with what is decoded from the form of /subscribe.
func TestBothFormsAreTheSameEvent(t *testing.T) {
	t.Parallel()
	for frame, old := range map[string]string{
		eventCreate: strings.Replace(frameCreate, "1783175888085434", "1783177888085434", 1),
		eventDelete: strings.Replace(frameDelete, `"time_us":1783175888112407`, `"time_us":1783177888112407,"cursor":7`, 1),
		eventHandle: strings.Replace(frameHandle, `"time_us":1795224953892193,"cursor":6077`, `"time_us":1783177888112407,"cursor":8`, 1),
		eventStatus: strings.Replace(frameStatus, `"time_us":1783175888390226`, `"time_us":1783177888112407,"cursor":9`, 1),
	} {
		want, got := accepted(t, old), accepted(t, frame)
		want.Raw = got.Raw
		require.Equal(t, want, got)
		var message, older consumer.Message
		new(decoder).decode([]byte(frame), arrival(), &message)
		new(decoder).decode([]byte(old), arrival(), &older)
		require.Equal(t, older.FramePosition, message.FramePosition, "the identity is that of the anchors")
	}
	ev := accepted(t, eventSync)
	require.Equal(t, consumer.KindSync, ev.Kind)
	require.Equal(t, []any{"did:plc:hqvhxrowqbemo5e4wjnj6zao", "3mptbyp63ih2m", int64(10)}, []any{ev.Author, ev.Revision, ev.Seq})

	imported := with(t, eventCreate, `"rev"`, `"witnessedAt":"2026-07-04T15:11:29.000001Z","rev"`)
	require.Equal(t, int64(1783177889000001), accepted(t, imported).TimeUS, "a cursor by time refers to when the server saw the event")
}

func TestNoticesHaveNoPlace(t *testing.T) {
	t.Parallel()
	for frame, want := range map[string]notice{
		eventInfo:  {"OutdatedCursor", "starting at seq 12", false},
		eventError: {"ConsumerTooSlow", "too far behind", true},
		`{"message":"too far behind","error":"ConsumerTooSlow","$type":"error"}`: {"ConsumerTooSlow", "too far behind", true},
		`{"$type":"error"}`: {"", "", true},
		with(t, eventInfo, `"name"`, `"seq":5,"time":"2026-07-04T15:11:28Z","name"`): {"OutdatedCursor", "starting at seq 12", false},
	} {
		var m consumer.Message
		d := new(decoder)
		d.decode([]byte(frame), arrival(), &m)
		require.Empty(t, m.Malformed, frame)
		require.Equal(t, want, *d.notice, frame)
		require.Zero(t, m.Seq, frame)
		require.Zero(t, m.TimeUS, frame)
		require.Equal(t, consumer.KindOther, m.Events[0].Kind)
		require.Zero(t, m.Identity, "a notice is not archived")
	}
}

func TestOrderOfFieldsOfEventsMeansNothing(t *testing.T) {
	t.Parallel()
	for _, frame := range eventFrames() {
		want := accepted(t, frame)
		var outer map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(frame), &outer))
		var turned []string
		payload := string(outer["payload"])
		if payload == "" {
			payload = "{}"
		}
		all := fields(t, payload)
		for range all { // every rotation, forward and backward
			all = append(all[1:], all[0])
			back := make([]string, 0, len(all))
			for i := range all {
				back = append(back, all[len(all)-1-i])
			}
			for _, order := range [][]string{all, back} {
				for _, parts := range permutations(fields(t, frame)) {
					joined := "{" + strings.Join(parts, ",") + "}"
					turned = append(turned, strings.Replace(joined, payload, "{"+strings.Join(order, ",")+"}", 1))
				}
			}
		}
		for _, f := range turned {
			got := accepted(t, f)
			got.Raw = want.Raw
			require.Equal(t, want, got, f)
		}
	}
}

// TestUnknownFramesAreSkipped covers frames and events that servers may send in the future.
func TestUnknownFramesAreSkipped(t *testing.T) {
	t.Parallel()
	for _, frame := range []string{`{"$type":"ping"}`, `{"$type":"ping","payload":7,"error":[],"seq":-1}`,
		`{"payload":{"seq":"x"},"$type":"#x"}`,
		with(t, eventDelete, "#commit", "#repost"), with(t, eventDelete, eventTypes, "org.example#"),
		`{"$type":"message","payload":{"$type":"#commit"}}`, with(t, eventStatus, "#account", "#Account")} {
		ev := accepted(t, frame)
		require.Equal(t, consumer.KindOther, ev.Kind, frame)
		require.Equal(t, strings.Contains(frame, `"time"`), ev.TimeUS > 0, frame)
		require.Equal(t, ev.TimeUS > 0, ev.Seq > 0, "a time without a number would become a position by time")
	}
	for _, more := range []string{`"x":null,`, `"":[[],{"a":{"did":"b"}}],`, `"sync":7,"name":[],"kind":"identity",`} {
		ev := accepted(t, strings.Replace(eventCreate, `"seq"`, more+`"seq"`, 1))
		want := accepted(t, eventCreate)
		ev.Raw = want.Raw
		require.Equal(t, want, ev)
	}
}

func TestInvalidEventOfSubscribeEventsIsRejected(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ frame, cause, path string }{
		"no payload":          {`{"$type":"message"}`, "the frame has no event", "/payload"},
		"payload of null":     {`{"$type":"message","payload":null}`, "wrong type", "/payload"},
		"payload is an array": {`{"$type":"message","payload":[]}`, "wrong type", "/payload"},
		"empty payload":       {`{"$type":"message","payload":{}}`, "the kind is missing", "/payload/$type"},
		"kind is a number":    {with(t, eventCreate, `"`+eventTypes+`commit"`, "5"), "wrong type", "/payload/$type"},
		"no number":           {with(t, eventCreate, `"seq":5860,`, ""), "not a sequence number", "/payload/seq"},
		"number zero":         {with(t, eventCreate, `5860`, "0"), "not a sequence number", "/payload/seq"},
		"number negative":     {with(t, eventCreate, `5860`, "-1"), "not a sequence number", "/payload/seq"},
		"number is a time":    {with(t, eventCreate, `5860`, "1000000000000000"), "not a sequence number", "/payload/seq"},
		"number of 65 bits":   {with(t, eventCreate, `5860`, "18446744073709551616"), "not an integer of 64 bits", "/payload/seq"},
		"number is a text":    {with(t, eventCreate, `5860`, `"5860"`), "wrong type", "/payload/seq"},
		"no time":             {with(t, eventCreate, `"time":"2026-07-04T15:11:28.085434Z",`, ""), "the time is missing", "/payload/time"},
		"time is a number":    {with(t, eventCreate, `"2026-07-04T15:11:28.085434Z"`, "1783175888085434"), "wrong type", "/payload/time"},
		"not a time":          {with(t, eventCreate, `2026-07-04T15:11:28.085434Z`, "yesterday"), "not a time", "/payload/time"},
		"before 1970":         {with(t, eventCreate, `2026-07-04`, "1969-07-04"), "the time is missing or out of range", "/payload/time"},
		"year 0":              {with(t, eventCreate, `2026-07-04`, "0000-07-04"), "the time is missing or out of range", "/payload/time"},
		"year 10000":          {with(t, eventCreate, `2026-07-04`, "10000-07-04"), "not a time", "/payload/time"},
		"not a DID":           {with(t, eventCreate, "did:plc:wq4aajammjtxdomz3e23667t", "nobody"), "not a DID", "/payload/did"},
		"not a collection":    {with(t, eventCreate, "app.bsky.feed.like", "like"), "not a collection", "/payload/collection"},
		"not a record key":    {with(t, eventCreate, "3mptbyplj5d2a", "a/b"), "not a record key", "/payload/rkey"},
		"not a revision":      {with(t, eventCreate, "3mptbypluud2a", "zzz"), "not a revision", "/payload/rev"},
		"unknown operation":   {with(t, eventCreate, `"create"`, `"upsert"`), "unknown operation", "/payload/operation"},
		"no record":           {with(t, eventCreate, `"record":{"text":"hi"},`, ""), "the record is missing", "/payload/record"},
		"record is a number":  {with(t, eventCreate, `{"text":"hi"}`, "1e9"), "wrong type", "/payload/record"},
		"number out of range": {with(t, eventCreate, `"hi"`, "1e400000"), "out of the range of a double", "/payload/record"},
		"not a CID":           {with(t, eventCreate, `"cid":"bafy`, `"cid":"-`), "not a CID", "/payload/cid"},
		"no identity":         {with(t, eventHandle, `"identity":{`, `"other":{`), "the event has no body", "/payload/identity"},
		"two DIDs":            {with(t, eventSync, `10,"did":"did:plc:hq`, `10,"did":"did:plc:hr`), "two DIDs", "/payload/sync/did"},
		"sync's revision":     {with(t, eventSync, "3mptbyp63ih2m", "x"), "not a revision", "/payload/sync/rev"},
		"state":               {with(t, eventStatus, `"active":false,`, ""), "the account's state is missing", "/payload/account/active"},
		"twice":               {with(t, eventCreate, `"seq"`, `"did":"did:plc:x","seq"`), "a name occurs twice", "/payload/did"},
		"twice beside":        {`{"$type":"message",` + eventCreate[1:], "a name occurs twice", "/$type"},
		"garbage":             {with(t, eventCreate, `"seq"`, `seq`), "not JSON", "/payload"},
		"cut":                 {eventCreate[:200], "not JSON", "/payload"},
		"more after it":       {eventCreate + "{}", "the frame has data after the event", ""},
		"not UTF-8":           {with(t, eventCreate, "hi", "\xff"), "not UTF-8", ""},
		"depth":               {with(t, eventCreate, `"hi"`, strings.Repeat("[", 300)+strings.Repeat("]", 300)), "nested too deeply", ""},
		"error is a number":   {`{"$type":"error","error":5}`, "wrong type", "/error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := refused(t, c.frame, c.cause, c.path)
			if slices.Contains([]string{"/payload/rkey", "/payload/rev", "/payload/cid", "/payload/record", "/payload/time"}, bad.Path) {
				require.Equal(t, "did:plc:wq4aajammjtxdomz3e23667t", bad.Author, "the dead letter names the account")
			}
		})
	}
}

// TestMalformedEventKeepsItsPlace covers frames that cannot be read, but whose place can.
func TestMalformedEventKeepsItsPlace(t *testing.T) {
	t.Parallel()
	place := func(frame string) (int64, int64) {
		var m consumer.Message
		new(decoder).decode([]byte(frame), arrival(), &m)
		require.Len(t, m.Malformed, 1, frame)
		return m.Seq, m.TimeUS
	}
	unread := []string{with(t, eventCreate, "3mptbyplj5d2a", "a/b"), with(t, eventCreate, `{"text":"hi"}`, "["),
		eventCreate[:len(eventCreate)-40]}
	for _, frame := range unread {
		seq, at := place(frame)
		require.Equal(t, []int64{5860, 1783177888085434}, []int64{seq, at})
	}
	for _, frame := range []string{with(t, eventCreate, "5860", "-5"), with(t, eventCreate, "5860", "1e15"),
		with(t, eventCreate, "2026-07-04", "1926-07-04"), with(t, eventCreate, `"time":"2026-07-04T15:11:28.085434Z",`, "")} {
		seq, at := place(frame)
		require.Zero(t, seq)
		require.Zero(t, at, "neither may become the position alone")
	}
	bad := refused(t, with(t, eventCreate, `{"text":"hi"}`, "7"), "wrong type", "/payload/record")
	require.Equal(t, "app.bsky.feed.like/3mptbyplj5d2a/3mptbypluud2a", bad.Collection+"/"+bad.Key+"/"+bad.Revision)
}

// TestTruncatedEventKeepsItsPlace reads the beginning of a frame beyond the read limit.
func TestTruncatedEventKeepsItsPlace(t *testing.T) {
	t.Parallel()
	var m consumer.Message
	k := &conn{client: &Client{}}
	require.NoError(t, k.Decode(consumer.Frame{Data: []byte(eventCreate[:300]), Truncated: true, Arrived: arrival()}, &m))
	require.Equal(t, "the frame is too long", m.Malformed[0].Cause)
	require.Equal(t, int64(5860), m.Seq)
}

// FuzzDecodeEvents compares what is decoded with what another reader of JSON finds.
func FuzzDecodeEvents(f *testing.F) {
	for _, frame := range eventFrames() {
		f.Add([]byte(frame))
	}
	for _, more := range []string{`{"payload":{"rkey":"a","seq":1,"$type":"` + eventTypes + `commit"},"$type":"message"}`,
		`{"$type":"message","payload":{"\u0024type":"` + eventTypes + `info","name":"\ud800"}}`,
		`{"$type":"message","payload":{"$type":"` + eventTypes + `sync","sync":{"did":"did:web:a"}}}`,
		`{"$type":"message","payload":` + strings.Repeat("[", 300), `{"$type":"error","error":"` + strings.Repeat("x", 9000) + `"}`} {
		f.Add([]byte(more))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		ev, bad := decode(t, frame)
		if bad != nil {
			return
		}
		require.True(t, json.Valid(frame))
		var outer struct {
			Type    string `json:"$type"`
			Kind    *string
			Payload map[string]json.RawMessage
		}
		if json.Unmarshal(frame, &outer) != nil || outer.Type != "message" {
			return
		}
		if ev.Kind == consumer.KindOther {
			return
		}
		var kind string
		require.NoError(t, json.Unmarshal(outer.Payload["$type"], &kind))
		want := map[string]consumer.Kind{"commit": consumer.KindCommit, "identity": consumer.KindIdentity, "account": consumer.KindAccount,
			"sync": consumer.KindSync}
		require.Equal(t, want[strings.TrimPrefix(kind, eventTypes)], ev.Kind)
		same(t, outer.Payload, "seq", ev.Seq)
		same(t, outer.Payload, "did", ev.Author)
		require.True(t, ev.Seq > 0 && ev.Seq <= maxSeq && ev.TimeUS > 0 && ev.TimeUS <= maxTimeUS, "%d %d", ev.Seq, ev.TimeUS)
		if ev.Kind == consumer.KindCommit {
			same(t, outer.Payload, "rev", ev.Revision)
			same(t, outer.Payload, "operation", ev.Operation.String())
			same(t, outer.Payload, "collection", ev.Collection)
			same(t, outer.Payload, "rkey", ev.Key)
			if ev.Operation != consumer.Delete {
				sameRecord(t, outer.Payload["record"], &ev)
			}
		}
	})
}
