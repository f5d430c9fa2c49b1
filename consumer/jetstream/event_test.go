package jetstream

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// Frames as the two versions of servers send them. The tests change parts of
// them.
const (
	frameCreate = `{"did":"did:plc:wq4aajammjtxdomz3e23667t","time_us":1783175888085434,"cursor":5860,"kind":"commit",` +
		`"commit":{"rev":"3mptbypluud2a","operation":"create","collection":"app.bsky.feed.like","rkey":"3mptbyplj5d2a","record":{"text":"hi"},` +
		`"cid":"bafyreiguce4jh7kcbmof3pmcvasifqtw24b6isakj5ve5ga2b4z4alpc4i"}}`
	frameDelete = `{"did":"did:plc:ux2eeflheratfrvp3xfbp4zi","time_us":1783175888112407,"kind":"commit","commit":{"rev":"3mptbyp63ih2m",` +
		`"operation":"delete","collection":"app.bsky.graph.follow","rkey":"3m3q3ut7jsm2m"}}`
	frameHandle = `{"did":"did:plc:exicsidqd7737xpugiq5r4c5","time_us":1795224953892193,"cursor":6077,"kind":"identity",` +
		`"identity":{"did":"did:plc:exicsidqd7737xpugiq5r4c5","handle":"user-603-h1.test","seq":1531,"time":"2023-11-14T22:13:20.003Z"}}`
	frameStatus = `{"did":"did:plc:hqvhxrowqbemo5e4wjnj6zao","time_us":1783175888390226,"kind":"account","account":{"active":false,` +
		`"did":"did:plc:hqvhxrowqbemo5e4wjnj6zao","seq":31527015471,"status":"deactivated","time":"2026-07-04T14:38:07.877Z"}}`
)

func arrival() time.Time { return time.Date(2026, 7, 4, 14, 40, 0, 0, time.UTC) }

// with returns the frame with one part replaced.
func with(t testing.TB, frame, part, by string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(frame, part), "%q in %s", part, frame)
	return strings.Replace(frame, part, by, 1)
}

// event returns what a decoder reads from one frame, with the fields that the
// consumer copies from its message.
func event(decode func([]byte, time.Time, *consumer.Message), frame []byte) (consumer.Event, error) {
	var m consumer.Message
	decode(frame, arrival(), &m)
	if len(m.Malformed) > 0 {
		return consumer.Event{}, m.Malformed[0]
	}
	ev := m.Events[0]
	ev.Seq, ev.TimeUS, ev.Arrived, ev.Raw = m.Seq, m.TimeUS, m.Arrived, m.Raw
	return ev, nil
}

// decode reads a frame and checks the properties of every decoding: the frame
// is not written to, an error is a complete Malformed, and a decoder that has
// read other frames before returns the same.
func decode(t testing.TB, frame []byte) (consumer.Event, *consumer.Malformed) {
	t.Helper()
	seed := maphash.MakeSeed()
	before := maphash.Bytes(seed, frame)
	ev, err := event(new(decoder).decode, frame)
	used := new(decoder)
	for _, other := range []string{with(t, frameHandle, `"kind":"identity",`, "")[:120], frameStatus, frameCreate,
		`{"kind":"identity","identity":{"did":"did:plc:x"}}`,
		`{"identity":{"did":"did:plc:x"},"account":1,"commit":[],"kind":"none"}`} {
		event(used.decode, []byte(other)) // only leaves state in the decoder
	}
	again, errAgain := event(used.decode, frame)
	require.Equal(t, err, errAgain)
	require.Equal(t, ev, again)
	require.Equal(t, before, maphash.Bytes(seed, frame), "the frame was written to")
	if err == nil {
		require.Equal(t, frame, ev.Raw)
		require.Equal(t, arrival(), ev.Arrived)
		return ev, nil
	}
	require.Zero(t, ev)
	var bad *consumer.Malformed
	require.ErrorAs(t, err, &bad)
	require.NotEmpty(t, bad.Cause)
	require.Equal(t, frame, bad.Raw)
	require.True(t, bad.Path == "" || bad.Path[0] == '/', "%q is no JSON pointer", bad.Path)
	for _, s := range []string{bad.Cause, bad.Path, bad.Expected, bad.Received} {
		require.True(t, utf8.ValidString(s) && !strings.Contains(s, "\x00"), "%q cannot be stored", s)
		require.LessOrEqual(t, len(s), 3*consumer.MaxQuoted)
	}
	return ev, bad
}

func accepted(t testing.TB, frame string) consumer.Event {
	t.Helper()
	ev, bad := decode(t, []byte(frame))
	require.Nil(t, bad, "%s", bad)
	return ev
}

func refused(t testing.TB, frame, cause, path string) *consumer.Malformed {
	t.Helper()
	ev, bad := decode(t, []byte(frame))
	require.NotNil(t, bad, "%+v", ev)
	require.Contains(t, bad.Cause, cause)
	require.Equal(t, path, bad.Path, bad.Cause)
	return bad
}

func TestEveryKindOfEventIsRead(t *testing.T) {
	t.Parallel()
	create := consumer.Event{Kind: consumer.KindCommit, Author: "did:plc:wq4aajammjtxdomz3e23667t", TimeUS: 1783175888085434, Seq: 5860,
		Operation: consumer.Create, Collection: "app.bsky.feed.like", Key: "3mptbyplj5d2a", Revision: "3mptbypluud2a",
		CID: "bafyreiguce4jh7kcbmof3pmcvasifqtw24b6isakj5ve5ga2b4z4alpc4i", Record: []byte(`{"text":"hi"}`)}
	legacy, update := create, create
	legacy.Seq, update.Operation = 0, consumer.Update
	handle := consumer.Event{Kind: consumer.KindIdentity, Author: "did:plc:exicsidqd7737xpugiq5r4c5", TimeUS: 1795224953892193, Seq: 6077,
		Handle: "user-603-h1.test", At: time.Date(2023, 11, 14, 22, 13, 20, 3e6, time.UTC)}
	nameless := handle
	nameless.Handle = ""
	status := consumer.Event{Kind: consumer.KindAccount, Author: "did:plc:hqvhxrowqbemo5e4wjnj6zao", TimeUS: 1783175888390226,
		Status: "deactivated", At: time.Date(2026, 7, 4, 14, 38, 7, 877e6, time.UTC)}
	active := status
	active.Active, active.Status = true, ""
	cases := map[string]struct {
		frame string
		want  consumer.Event
	}{
		"create":       {frameCreate, create},
		"legacy":       {with(t, frameCreate, `"cursor":5860,`, ""), legacy},
		"update":       {with(t, frameCreate, `"create"`, `"update"`), update},
		"handle":       {frameHandle, handle},
		"no handle":    {with(t, frameHandle, `"handle":"user-603-h1.test",`, ""), nameless},
		"empty handle": {with(t, frameHandle, `"user-603-h1.test"`, `""`), nameless},
		"account":      {frameStatus, status},
		"active":       {with(t, with(t, frameStatus, "false", "true"), `"status":"deactivated",`, ""), active},
		"delete": {frameDelete, consumer.Event{Kind: consumer.KindCommit, Author: "did:plc:ux2eeflheratfrvp3xfbp4zi", TimeUS: 1783175888112407,
			Operation: consumer.Delete, Collection: "app.bsky.graph.follow", Key: "3m3q3ut7jsm2m", Revision: "3mptbyp63ih2m"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.want.Raw, c.want.Arrived = []byte(c.frame), arrival()
			require.Equal(t, c.want, accepted(t, c.frame))
		})
	}
}

// permutations returns all orders of the parts.
func permutations(parts []string) [][]string {
	if len(parts) < 2 {
		return [][]string{parts}
	}
	var all [][]string
	for i := range parts {
		rest := append(append([]string(nil), parts[:i]...), parts[i+1:]...)
		for _, p := range permutations(rest) {
			all = append(all, append([]string{parts[i]}, p...))
		}
	}
	return all
}

// fields returns the members of an object, unchanged.
func fields(t *testing.T, object string) []string {
	t.Helper()
	var members map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(object), &members))
	parts := make([]string, 0, len(members))
	for _, name := range slices.Sorted(maps.Keys(members)) {
		parts = append(parts, fmt.Sprintf(" %q\t:\r\n%s ", name, members[name]))
	}
	return parts
}

func TestOrderOfFieldsMeansNothing(t *testing.T) {
	t.Parallel()
	for _, frame := range []string{frameCreate, frameDelete, frameHandle, frameStatus} {
		want := accepted(t, frame)
		var outer map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(frame), &outer))
		inner := cmp.Or(string(outer["commit"]), string(outer["identity"]), string(outer["account"]))
		frames := permutations(fields(t, frame))
		for i, order := range permutations(fields(t, inner)) {
			orders := permutations(fields(t, strings.Replace(frame, inner, "{"+strings.Join(order, ",")+"}", 1)))
			frames = append(frames, orders[i%len(orders)])
		}
		for _, order := range frames {
			turned := "{" + strings.Join(order, ",") + "}"
			got := accepted(t, turned)
			got.Raw = want.Raw
			require.Equal(t, want, got, turned)
		}
	}
}

func TestUnknownKindIsNoError(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"info", "Commit", "commits", "#commit", "ключ", strings.Repeat("k", 9000)} {
		ev := accepted(t, with(t, frameCreate, `"kind":"commit"`, fmt.Sprintf(`"kind":%q`, kind)))
		require.Equal(t, consumer.KindOther, ev.Kind)
		require.Equal(t, int64(1783175888085434), ev.TimeUS)
		require.Equal(t, int64(5860), ev.Seq)
		require.Nil(t, ev.Record)
	}
	require.Equal(t, consumer.KindOther, accepted(t, `{"kind":"info"}`).Kind)
	require.Equal(t, consumer.KindOther, accepted(t, `{"commit":7,"identity":null,"account":[{}],"kind":"info","did":"not checked"}`).Kind)
	refused(t, `{"kind":"info","time_us":-1}`, "the time is missing or out of range", "/time_us")
	refused(t, `{"kind":"info","did":7}`, "wrong type", "/did")
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	t.Parallel()
	for _, frame := range []string{frameCreate, frameDelete, frameHandle, frameStatus} {
		want := accepted(t, frame)
		for _, more := range []string{
			`"x":null,`, `"DID":7,"Kind":{},`, `"":[[],{"a":{"did":"b"}}],`, `"\u0000":1,"\ud800":2,"di\u0000d":3,`,
			`"$type":"#commit","record":{"did":1},`,
		} {
			extended := strings.Replace(frame, `{"`, `{`+more+`"`, 1)
			if !strings.Contains(more, "record") {
				body := strings.LastIndex(extended, `":{"re`) // the name of the commit's field
				body = max(body, strings.LastIndex(extended, `":{"di`), strings.LastIndex(extended, `":{"ac`))
				extended = extended[:body+3] + more + extended[body+3:]
			}
			got := accepted(t, extended)
			got.Raw = want.Raw
			require.Equal(t, want, got, extended)
		}
		other := `"commit":{"rev":[]},`
		if want.Kind == consumer.KindCommit {
			other = `"identity":{"did":[]},`
		}
		for _, extended := range []string{`{` + other + frame[1:], frame[:len(frame)-1] + "," + other[:len(other)-1] + "}"} {
			got := accepted(t, extended)
			got.Raw = want.Raw
			require.Equal(t, want, got, "a body of another kind than the event's")
		}
	}
}

func TestUnwantedCollectionHasNoRecord(t *testing.T) {
	t.Parallel()
	wanted := Wire(func(collection string) bool { return collection == "app.bsky.feed.post" })
	decode := func(frame []byte, _ time.Time) (consumer.Event, error) { return event(wanted.Decode, frame) }
	odd := strings.Replace(with(t, frameCreate, `"did:plc:wq4aajammjtxdomz3e23667t"`, `"nobody"`), `{"text":"hi"}`, `{"text":"\u0000"}`, 1)
	ev, err := decode([]byte(odd), arrival())
	require.NoError(t, err)
	require.Equal(t, consumer.KindCommit, ev.Kind)
	require.Equal(t, "app.bsky.feed.like", ev.Collection)
	require.Equal(t, int64(5860), ev.Seq)
	require.Nil(t, ev.Record)
	require.Zero(t, ev.Replaced)

	ev, err = decode([]byte(with(t, frameCreate, "app.bsky.feed.like", "app.bsky.feed.post")), arrival())
	require.NoError(t, err)
	require.JSONEq(t, `{"text":"hi"}`, string(ev.Record))

	var bad *consumer.Malformed
	_, err = decode([]byte(with(t, odd, `"app.bsky.feed.like"`, `""`)), arrival())
	require.ErrorAs(t, err, &bad)
	_, err = decode([]byte(with(t, odd, `1783175888085434`, `0`)), arrival())
	require.ErrorAs(t, err, &bad, "an event that is not stored may become the stream's position, so it must be valid")
	require.Equal(t, "/time_us", bad.Path)

	ev = accepted(t, with(t, frameCreate, "app.bsky.feed.like", "com.example.never-seen.thing"))
	require.Equal(t, "com.example.never-seen.thing", ev.Collection, "without a filter every collection is wanted")
}

func TestInvalidEventIsRejected(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ frame, cause, path string }{
		"empty":             {"", "the frame is empty", ""},
		"white space":       {" \r\n\t", "the frame is empty", ""},
		"array":             {`[` + frameCreate + `]`, "the frame is not an event", ""},
		"number":            {`1783175888085434`, "the frame is not an event", ""},
		"string":            {`"commit"`, "the frame is not an event", ""},
		"null":              {`null`, "the frame is not an event", ""},
		"empty object":      {`{}`, "the kind is missing", "/kind"},
		"no kind":           {with(t, frameCreate, `"kind":"commit",`, ""), "the kind is missing", "/kind"},
		"empty kind":        {with(t, frameCreate, `"kind":"commit",`, `"kind":"",`), "the kind is missing", "/kind"},
		"kind of null":      {with(t, frameCreate, `"kind":"commit",`, `"kind":null,`), "wrong type", "/kind"},
		"no body":           {frameCreate[:strings.Index(frameCreate, `,"commit":`)] + "}", "the event has no body", "/commit"},
		"another body":      {with(t, frameCreate, `"commit":{`, `"identity":{`), "the event has no body", "/commit"},
		"body of null":      {`{"kind":"identity","did":"did:plc:abc","time_us":1,"identity":null}`, "wrong type", "/identity"},
		"body is an array":  {`{"kind":"account","account":[{}]}`, "wrong type", "/account"},
		"body then kind":    {`{"account":[{}],"kind":"account"}`, "wrong type", "/account"},
		"field then kind":   {`{"account":{"active":1},"kind":"account"}`, "wrong type", "/account/active"},
		"garbage":           {"\x00\x01 garbage {", "not JSON", ""},
		"byte order mark":   {"\uFEFF" + frameCreate, "not JSON", ""},
		"unquoted":          {`{did:1}`, "not JSON", ""},
		"trailing comma":    {with(t, frameCreate, `{"text":"hi"}`, `{"text":"hi",}`), "not JSON", "/commit/record"},
		"raw newline":       {with(t, frameCreate, `"hi"`, "\"h\ni\""), "not JSON", "/commit/record/text"},
		"raw NUL":           {with(t, frameCreate, `"hi"`, "\"h\x00i\""), "not JSON", "/commit/record/text"},
		"bad escape":        {with(t, frameCreate, `"hi"`, `"h\x00i"`), "not JSON", "/commit/record/text"},
		"bad number":        {with(t, frameCreate, `5860`, `05860`), "not JSON", ""},
		"bad literal":       {with(t, frameStatus, `false`, `flase`), "not JSON", "/account/active"},
		"a second event":    {frameCreate + frameCreate, "data after the event", ""},
		"a second line":     {frameCreate + "\n" + frameCreate, "data after the event", ""},
		"a stray bracket":   {frameCreate + "}", "data after the event", ""},
		"a NUL at the end":  {frameCreate + "\x00", "data after the event", ""},
		"invalid in record": {with(t, frameCreate, `"hi"`, "\"h\xffi\""), "not UTF-8", ""},
		"raw surrogate":     {with(t, frameCreate, `"hi"`, "\"\xed\xa0\x80\""), "not UTF-8", ""},
		"overlong NUL":      {with(t, frameCreate, `"hi"`, "\"\xc0\x80\""), "not UTF-8", ""},
		"invalid in name":   {with(t, frameCreate, `"text"`, "\"t\xc3\""), "not UTF-8", ""},
		"invalid in DID":    {with(t, frameCreate, `did:plc:w`, "did:plc:\xfe"), "not UTF-8", ""},
		"invalid unknown":   {with(t, frameCreate, `"kind"`, "\"\x80\":1,\"kind\""), "not UTF-8", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, c.frame, c.cause, c.path)
		})
	}
	require.Equal(t, consumer.KindCommit, accepted(t, " \n"+frameCreate+"\r\n\t ").Kind, "white space around an event is valid JSON")
}

func TestEveryTruncationIsRefused(t *testing.T) {
	t.Parallel()
	for _, frame := range []string{frameCreate, frameDelete, frameHandle, frameStatus} {
		for i := range len(frame) {
			_, bad := decode(t, []byte(frame[:i]))
			require.NotNil(t, bad, frame[:i])
		}
	}
}

// TestDuplicateNameIsRejected covers objects that two decoders could read
// differently.
func TestDuplicateNameIsRejected(t *testing.T) {
	t.Parallel()
	const cause = "a name occurs twice"
	for _, c := range []struct{ part, by, path string }{
		{`"cursor":5860`, `"did":"did:plc:a"`, "/did"},
		{`"cursor":5860`, `"\u0064i\u0064":"did:plc:a"`, "/did"},
		{`"cursor":5860`, `"x":1,"x":1`, "/x"},
		{`"cursor":5860`, `"x":{"a":[{"y":1,"z":2,"y":3}]}`, "/x/a/0/y"},
		{`"operation"`, `"rev":"3mptbypluud2a","operation"`, "/commit/rev"},
		{`"text":"hi"`, `"text":"hi","text":"ho"`, "/commit/record/text"},
		{`"text":"hi"`, `"text":"hi","t\u0065xt":"ho"`, "/commit/record/text"},
		{`"text":"hi"`, `"a":[{"b":{"c":1,"c":2}}]`, "/commit/record/a/0/b/c"},
		{`"text":"hi"`, `"\ud800":1,"\udfff":2`, "/commit/record/\uFFFD"},
	} {
		refused(t, with(t, frameCreate, c.part, c.by), cause, c.path)
	}
	accepted(t, with(t, frameCreate, `"text":"hi"`, `"a":{"a":{"a":[{"a":1},{"a":1}]}},"A":1`))
}

// TestRecordedStreamsAreRead decodes recordings of real servers, if there are
// any, and events of the simulated network.
func TestRecordedStreamsAreRead(t *testing.T) {
	t.Parallel()
	recordings := map[string][]byte{}
	if dir := os.Getenv("WEIR_TESTDATA"); dir != "" {
		for _, name := range []string{"jetstream-production-152.jsonl", "jetstream-simulated-4000.jsonl"} {
			data, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			recordings[name] = data
		}
	}
	for name, mix := range map[string]simnet.Mix{"posts": simnet.MixPosts, "network": simnet.MixNetwork} {
		recordings[name+" of v1"] = simulated(t, mix, simnet.V1, 4000)
		recordings[name+" of v2"] = simulated(t, mix, simnet.V2, 4000)
	}
	for name, data := range recordings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kinds := map[consumer.Kind]int{}
			for line := range bytes.Lines(data) {
				ev, bad := decode(t, line)
				require.Nil(t, bad, "%s: %s", bad, line)
				kinds[ev.Kind]++
				agreesWithEncodingJSON(t, line, &ev)
			}
			require.Positive(t, kinds[consumer.KindCommit])
			require.Positive(t, kinds[consumer.KindIdentity])
			require.Zero(t, kinds[consumer.KindOther])
		})
	}
}

func simulated(t testing.TB, mix simnet.Mix, g simnet.Generation, events int) []byte {
	t.Helper()
	n, err := simnet.New(simnet.Config{Seed: 3, Accounts: 300, Mix: mix, Generation: g, History: events, Start: arrival()})
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, n.Log().WriteJSONL(&out, g))
	return out.Bytes()
}

func BenchmarkDecode(b *testing.B) {
	for name, mix := range map[string]simnet.Mix{"posts": simnet.MixPosts, "network": simnet.MixNetwork} {
		b.Run(name, func(b *testing.B) {
			var lines [][]byte
			for line := range bytes.Lines(simulated(b, mix, simnet.V2, 5000)) {
				lines = append(lines, line)
			}
			wire, at, size := Wire(nil), arrival(), 0
			var m consumer.Message
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				line := lines[i%len(lines)]
				if wire.Decode(line, at, &m); len(m.Malformed) > 0 {
					b.Fatal(m.Malformed[0])
				}
				size += len(line)
			}
			b.SetBytes(int64(size / b.N))
		})
	}
}
