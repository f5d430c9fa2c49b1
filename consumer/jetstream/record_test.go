package jetstream

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
)

func record(t testing.TB, record string) string {
	t.Helper()
	return with(t, frameCreate, `{"text":"hi"}`, record)
}

type replacement struct {
	record, want string
	count        int
}

// replacements are records with text that jsonb refuses, and the records that
// are stored instead.
func replacements() []replacement {
	return []replacement{
		{`{"a":"\u0000"}`, `{"a":"\ufffd"}`, 1},
		{`{"a":"x\u0000y\u0000\u0000"}`, `{"a":"x\ufffdy\ufffd\ufffd"}`, 3},
		{`{"a\u0000b":{"c":["\u0000",{"d\u0000":1}]}}`, `{"a\ufffdb":{"c":["\ufffd",{"d\ufffd":1}]}}`, 3},
		{`{"a":"\ud800"}`, `{"a":"\ufffd"}`, 1},
		{`{"a":"\uDFFF"}`, `{"a":"\ufffd"}`, 1},
		{`{"a":"\ud800\ud800\udc00\udc00"}`, `{"a":"\ufffd\ud800\udc00\ufffd"}`, 2},
		{`{"a":"\udc00\ud800"}`, `{"a":"\ufffd\ufffd"}`, 2},
		{`{"a":"\ud800\u0000"}`, `{"a":"\ufffd\ufffd"}`, 2},
		{`{"a":"\ud800\u0061"}`, `{"a":"\ufffd\u0061"}`, 1},
		{`{"a":"\ud800\\udc00"}`, `{"a":"\ufffd\\udc00"}`, 1},
		{`{"a":"\ud800\ue000\udbff\uffff"}`, `{"a":"\ufffd\ue000\ufffd\uffff"}`, 2},
		{`{"a":"\ud800\n"}`, `{"a":"\ufffd\n"}`, 1},
		{`{"a":"\ud800","b":"\udc00"}`, `{"a":"\ufffd","b":"\ufffd"}`, 2},
		{`{"\ud800":"\ud800"}`, `{"\ufffd":"\ufffd"}`, 2},
		{`{"a":"\\\u0000"}`, `{"a":"\\\ufffd"}`, 1},
		// Nothing in these records must be replaced.
		{`{"a":"\\u0000"}`, `{"a":"\\u0000"}`, 0},
		{`{"a":"\\\\ud800"}`, `{"a":"\\\\ud800"}`, 0},
		{`{"a":"\ud83d\ude00\uDBFF\uDFFF\uD800\uDC00"}`, `{"a":"\ud83d\ude00\uDBFF\uDFFF\uD800\uDC00"}`, 0},
		{`{"a":"\u0001\u0020\ud7ff\ue000\ufffd\uffff\ufffe"}`, `{"a":"\u0001\u0020\ud7ff\ue000\ufffd\uffff\ufffe"}`, 0},
		{`{"a":"\"\u002f\\","u0000":"u"}`, `{"a":"\"\u002f\\","u0000":"u"}`, 0},
		{"{\"a\":\"\u007f\uFFFE\uFFFF\U0010FFFF\u202e\"}", "{\"a\":\"\u007f\uFFFE\uFFFF\U0010FFFF\u202e\"}", 0},
		{`{}`, `{}`, 0},
	}
}

func TestCharactersThatCannotBeStoredAreReplacedAndCounted(t *testing.T) {
	t.Parallel()
	for _, c := range replacements() {
		ev := accepted(t, record(t, c.record))
		require.Equal(t, c.want, string(ev.Record))
		require.Equal(t, c.count, ev.Replaced, c.record)
		require.True(t, jsontext.Value(ev.Record).IsValid(), "%s", ev.Record)
	}
}

func TestPostgresTakesEveryRecord(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	take := func(record string) error {
		_, err := pool.Exec(t.Context(), `SELECT length(($1::text::jsonb)::text)`, record)
		return err
	}
	for _, c := range replacements() {
		require.NoError(t, take(string(accepted(t, record(t, c.record)).Record)), c.record)
		if c.count > 0 {
			require.Error(t, take(c.record), "%s need not be replaced", c.record)
		}
	}
	require.NoError(t, take(string(accepted(t, record(t, `{"a":[1e324,-1e324,1e-324,12345678901234567890]}`)).Record)))
	deepest := strings.Repeat(`{"a":[`, maxDepth/2) + strings.Repeat(`]}`, maxDepth/2)
	require.NoError(t, take(string(accepted(t, record(t, deepest)).Record)))
}

func TestNamesThatCollideAfterReplacementAreRefused(t *testing.T) {
	t.Parallel()
	const cause = "two names differ only in characters that cannot be stored"
	for _, r := range []string{
		`{"\u0000":1,"\ufffd":2}`, "{\"\\u0000\":1,\"\uFFFD\":2}", `{"a\u0000":1,"a\ud800":2}`, `{"a":[{"b":{"\u0000":1,"\udfff":2}}]}`,
	} {
		refused(t, record(t, r), cause, "/commit/record")
	}
	require.Equal(t, 2, accepted(t, record(t, `{"\u0000":1,"x\u0000":2,"a":{"\ufffd":1}}`)).Replaced)
}

func TestRecordSharesNoMemoryWithFrame(t *testing.T) {
	t.Parallel()
	for _, r := range []string{`{"text":"ho"}`, `{"text":"\u0000"}`} {
		frame := []byte(record(t, r))
		before := bytes.Clone(frame)
		ev, err := event(new(decoder).decode, frame[:len(frame):len(frame)])
		require.NoError(t, err)
		_ = append(ev.Record, "overwritten"...)
		_ = append(ev.Raw, "overwritten"...)
		require.Equal(t, before, frame)
	}
	both := []byte(frameCreate + frameDelete)
	ev, err := event(new(decoder).decode, both[:len(frameCreate)])
	require.NoError(t, err)
	_ = append(ev.Raw, "overwritten"...)
	require.Equal(t, frameCreate+frameDelete, string(both), "the frame's neighbour in memory was written to")
}

func TestDeepNestingIsRefused(t *testing.T) {
	t.Parallel()
	arrays := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	objects := func(n int) string { return strings.Repeat(`{"a":`, n-1) + `{}` + strings.Repeat("}", n-1) }
	mixed := func(n int) string { return strings.Repeat(`[{"a":`, n/2) + "0" + strings.Repeat("}]", n/2) }
	const cause = "nested too deeply"
	for name, nest := range map[string]func(int) string{"arrays": arrays, "objects": objects, "mixed": mixed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, n := range []int{10, 198} {
				accepted(t, record(t, `{"a":`+nest(n)+`}`))
				accepted(t, with(t, frameCreate, `"cursor":5860`, `"x":`+nest(n)))
			}
			for _, n := range []int{202, 1000, 9_998, 10_000, 100_000} {
				refused(t, record(t, `{"a":`+nest(n)+`}`), cause, "")
				refused(t, with(t, frameCreate, `"cursor":5860`, `"x":`+nest(n)), cause, "")
				refused(t, with(t, frameDelete, `"kind"`, `"identity":`+nest(n)+`,"kind"`), cause, "")
				refused(t, nest(n+2), cause, "")
			}
		})
	}
	accepted(t, record(t, objects(maxDepth)))
	refused(t, record(t, objects(maxDepth+1)), cause, "")
	refused(t, strings.Repeat("[", 10_000), cause, "")
	refused(t, strings.Repeat(`{"a":`, 10_000), cause, "")
	refused(t, strings.Repeat("]", 10_000)+strings.Repeat("[", 10_000), "not JSON", "")

	// Adjacent brackets and brackets in strings are not nesting.
	accepted(t, record(t, `{"a":[`+strings.Repeat(`{},[],`, 10_000)+`0]}`))
	for _, text := range []string{"[{", `\\[`, `\"[{`, `\\\"{`, `]`, `\u005b{`} {
		r := `{"` + strings.Repeat(text, 10_000) + `":"` + strings.Repeat(text, 10_000) + `"}`
		require.Equal(t, r, string(accepted(t, record(t, r)).Record))
	}
	refused(t, record(t, `{"]]]]]]":`+arrays(maxDepth)+`,"a\"":"]]"}`), cause, "")
}

func TestNumbersOfARecordAreKept(t *testing.T) {
	t.Parallel()
	for _, n := range []string{
		"-0", "0.10", "1.5", "1E+2", "12345678901234567890123456789", "1.7976931348623157e308", "-5E-324", "1e00000324",
		strings.Repeat("9", 200_000),
	} {
		for _, r := range []string{`{"a":%s}`, `{"a":[true,%s,false],"1e999":"2e999\\"}`, `{"3e999\"4e999":[[%s]]}`} {
			r = fmt.Sprintf(r, n)
			require.Equal(t, r, string(accepted(t, record(t, r)).Record))
		}
	}
}

// TestNumbersBeyondDoubleAreRejected prevents a small record from becoming
// large when it is read: Postgres writes numbers in full, whatever their
// exponents.
func TestNumbersBeyondDoubleAreRejected(t *testing.T) {
	t.Parallel()
	for _, n := range []string{
		"1e400000", "-1E-400000", "1e131071", "1e131072", "1e+325", "0.1e-16383", "0e325", "1e" + strings.Repeat("9", 1000), "1e0000000325",
	} {
		for _, r := range []string{`{"a":%s}`, `{"a":[1e1,%s,2]}`, `{"a":["\\",%s]}`, `{"\"":{"b":%s }}`, `{"a":[true,%s]}`} {
			refused(t, record(t, fmt.Sprintf(r, n)), "a number is out of the range of a double", "/commit/record")
		}
	}
	accepted(t, with(t, frameCreate, `"cursor":5860`, `"x":1e400000`))
	accepted(t, with(t, frameDelete, `"operation"`, `"record":{"a":1e400000},"operation"`))
}

func TestLargeRecordIsRead(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]string{
		"text":         `{"text":"` + strings.Repeat("é", 5<<20) + `"}`,
		"escapes":      `{"text":"` + strings.Repeat(`\n`, 5<<20) + `"}`,
		"many values":  `{"a":[` + strings.Repeat(`{},`, 3<<20) + `0]}`,
		"replacements": `{"text":"` + strings.Repeat(`\u0000`, 10<<20/6) + `"}`,
	} {
		ev, err := event(new(decoder).decode, []byte(record(t, r)))
		require.NoError(t, err, name)
		require.Len(t, ev.Record, len(r), name)
	}
	var names strings.Builder
	for i := range 200_000 {
		fmt.Fprintf(&names, `"%d":0,`, i)
	}
	_, err := event(new(decoder).decode, []byte(record(t, `{`+names.String()+`"a":"\u0000"}`)))
	require.NoError(t, err)
}
