package jetstream

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
)

// agreesWithEncodingJSON compares an event with what encoding/json reads from
// the frame.
func agreesWithEncodingJSON(t testing.TB, frame []byte, ev *consumer.Event) {
	t.Helper()
	var outer map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(frame, &outer))
	var kind string
	require.NoError(t, json.Unmarshal(outer["kind"], &kind))
	same(t, outer, "did", ev.Author)
	same(t, outer, "time_us", ev.TimeUS)
	same(t, outer, "cursor", ev.Seq)
	require.Equal(t, map[string]consumer.Kind{
		"commit": consumer.KindCommit, "identity": consumer.KindIdentity, "account": consumer.KindAccount,
	}[kind], ev.Kind)
	if ev.Kind == consumer.KindOther {
		return
	}
	var inner map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(outer[kind], &inner))
	switch ev.Kind {
	case consumer.KindCommit:
		same(t, inner, "rev", ev.Revision)
		same(t, inner, "operation", ev.Operation.String())
		same(t, inner, "collection", ev.Collection)
		same(t, inner, "rkey", ev.Key)
		if ev.Operation == consumer.Delete {
			require.Empty(t, ev.CID)
			require.Nil(t, ev.Record)
			return
		}
		same(t, inner, "cid", ev.CID)
		sameRecord(t, inner["record"], ev)
	case consumer.KindIdentity:
		if ev.Handle != consumer.InvalidHandle {
			same(t, inner, "handle", ev.Handle)
		}
		same(t, inner, "did", ev.Author)
	case consumer.KindAccount:
		same(t, inner, "active", ev.Active)
		same(t, inner, "status", ev.Status)
		same(t, inner, "did", ev.Author)
	}
}

// same compares a field that is present.
func same[T any](t testing.TB, in map[string]json.RawMessage, name string, got T) {
	t.Helper()
	raw, ok := in[name]
	if !ok {
		return
	}
	var want T
	require.NoError(t, json.Unmarshal(raw, &want), name)
	require.Equal(t, want, got, name)
}

// sameRecord compares an event's record with the frame's. Like Weir,
// encoding/json reads half a surrogate pair as U+FFFD, but it keeps a NUL.
func sameRecord(t testing.TB, raw json.RawMessage, ev *consumer.Event) {
	t.Helper()
	require.True(t, jsontext.Value(ev.Record).IsValid(), "%s", ev.Record)
	require.Equal(t, jsontext.KindBeginObject, jsontext.Value(ev.Record).Kind())
	want, got := tokens(t, raw), tokens(t, ev.Record)
	for i := range want {
		if s, ok := want[i].(string); ok {
			want[i] = strings.ReplaceAll(s, "\x00", "\uFFFD")
		}
	}
	require.Equal(t, want, got)
	if ev.Replaced == 0 {
		require.Equal(t, []byte(raw), ev.Record)
	}
}

func tokens(t testing.TB, data []byte) []any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var all []any
	for d.InputOffset() < int64(len(data)) {
		token, err := d.Token()
		require.NoError(t, err)
		all = append(all, token)
	}
	return all
}

func FuzzDecode(f *testing.F) {
	for _, frame := range []string{frameCreate, frameDelete, frameHandle, frameStatus} {
		f.Add([]byte(frame))
	}
	for _, record := range []string{`{"a\u0000":"\ud800\udc00\ud800","b":["\\u0000",1e400000,-0.5E-7,null]}`, `{"\u0000":1,"\ufffd":2}`,
		`{"a":"é\uDBFF\"","b":{"a":{},"b":[[],[{}]]}}`, `{"a":1,"a":2}`} {
		f.Add([]byte(with(f, frameCreate, `{"text":"hi"}`, record)))
	}
	f.Add([]byte(`{"commit":{"rev":"3mptbypluud2a"},"account":{"active":true,"did":"did:web:a"},"kind":"account","time_us":1,` +
		`"did":"did:web:a"}`))
	f.Add([]byte(`{"kind":"\u0063ommit","d\u0069d":"did:plc:\u0061","time_us":1,"x":"\ud800"}`))
	f.Add([]byte("{\"kind\":\"\xff\"}"))
	f.Add([]byte(`{"x":` + strings.Repeat(`[`, 300)))
	f.Fuzz(func(t *testing.T, frame []byte) {
		ev, bad := decode(t, frame)
		if bad != nil {
			if !json.Valid(frame) {
				return
			}
			mayRefuse(t, frame, bad)
			return
		}
		require.True(t, json.Valid(frame))
		agreesWithEncodingJSON(t, frame, &ev)
	})
}

// mayRefuse fails the test if the decoder refused a valid deletion. It checks
// the frame with another JSON reader and the network's syntax library. It uses
// deletions because they have the fewest parts that may be wrong.
func mayRefuse(t testing.TB, frame []byte, bad *consumer.Malformed) {
	t.Helper()
	if strings.Contains(bad.Cause, "twice") || strings.Contains(bad.Cause, "UTF-8") || strings.Contains(bad.Cause, "nested") ||
		bytes.Contains(frame, []byte(`\u`)) {
		return
	}
	var outer, inner map[string]json.RawMessage
	if json.Unmarshal(frame, &outer) != nil || json.Unmarshal(outer["commit"], &inner) != nil {
		return
	}
	at, cursor := int64(0), int64(0)
	if !reads(outer, "time_us", &at) || at <= 0 || at > maxTimeUS || (outer["cursor"] != nil && !reads(outer, "cursor", &cursor)) ||
		cursor < 0 || cursor > maxSeq {
		return
	}
	parts := map[string]string{}
	for _, name := range []string{"did", "kind", "rev", "operation", "collection", "rkey"} {
		var s string
		if !reads(outer, name, &s) && !reads(inner, name, &s) {
			return
		}
		parts[name] = s
	}
	if inner["cid"] != nil && inner["cid"][0] != '"' {
		return
	}
	_, badDID := syntax.ParseDID(parts["did"])
	_, badRev := syntax.ParseTID(parts["rev"])
	_, badCollection := syntax.ParseNSID(parts["collection"])
	_, badRkey := syntax.ParseRecordKey(parts["rkey"])
	if parts["kind"] == "commit" && parts["operation"] == "delete" && badDID == nil && badRev == nil && badCollection == nil &&
		badRkey == nil {
		require.Fail(t, "a good deletion was refused", "%s: %s", bad, frame)
	}
}

// reads reports whether a field is present and has the type of v.
func reads(in map[string]json.RawMessage, name string, v any) bool {
	return in[name] != nil && string(in[name]) != "null" && json.Unmarshal(in[name], v) == nil
}
