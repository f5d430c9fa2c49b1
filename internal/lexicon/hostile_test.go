package lexicon_test

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/lexicon"
)

func recordSchema(id, properties string) []byte {
	return []byte(`{"lexicon":1,"id":"` + id + `","defs":{"main":{"type":"record","key":"any","record":{"type":"object",` + properties +
		`}}}}`)
}

// times returns n copies of a format with commas between them, each with its number.
func times(n int, format string) string {
	var all strings.Builder
	for i := range n {
		if i > 0 {
			all.WriteByte(',')
		}
		fmt.Fprintf(&all, format, i)
	}
	return all.String()
}

// list returns n copies with commas between them.
func list(n int, s string) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }

// TestHostileSchemasAndRecordsEnd would exceed a test's time limit if the work of one of these grew
// faster than its size.
func TestHostileSchemasAndRecordsEnd(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		schema  []byte
		record  string
		verdict lexicon.Verdict
		more    int
	}{
		"every object lacks ten thousand fields": {
			recordSchema("a.b.c", `"properties":{"list":{"type":"array","items":{"type":"object","required":[`+times(10_000,
				`"f%d"`)+`],"properties":{`+times(10_000, `"f%d":{"type":"boolean"}`)+`}}}}`),
			`{"$type":"a.b.c","list":[` + times(100_000, `{"x%d":0}`) + `]}`, lexicon.Invalid, 100_000*10_000 - 20,
		},
		"every string is outside of a long list": {
			recordSchema("a.b.c", `"properties":{"list":{"type":"array","items":{"type":"string","enum":[`+times(50_000, `"value %d"`)+`]}}}`),
			`{"$type":"a.b.c","list":[` + times(100_000, `"%d"`) + `]}`, lexicon.Invalid, 100_000 - 20,
		},
		"every union has each union": {
			[]byte(`{"lexicon":1,"id":"a.b.c","defs":{"main":{"type":"record","key":"any","record":{"type":"object",` +
				`"properties":{"u":{"type":"union","closed":true,"refs":[` + times(500, `"#o%d"`) + `]}}}},` +
				times(500, `"o%d":{"type":"object","properties":{"u":{"type":"union","closed":true,"refs":["#o1","#o8","#o9"]}}}`) + `}}`),
			`{"$type":"a.b.c","u":` + strings.Repeat(`{"$type":"a.b.c#o8","u":`, 198) + `{"$type":"a.b.c#o1"}` + strings.Repeat("}", 198) + `}`,
			lexicon.Valid, 0,
		},
		"definitions refer to each other": {
			[]byte(`{"lexicon":1,"id":"a.b.c","defs":{"main":{"type":"record","key":"any","record":{"type":"object",` +
				`"properties":{"x":{"type":"ref","ref":"#x"}}}},"x":{"type":"object","properties":{"y":{"type":"ref","ref":"#y"}}},` +
				`"y":{"type":"object","properties":{"x":{"type":"ref","ref":"#x"},"main":{"type":"ref","ref":"a.b.c"}}}}}`),
			`{"$type":"a.b.c","x":{"y":{"main":{"x":{"y":{"x":{"y":{}}}}}}}}`, lexicon.Valid, 0,
		},
		"a wide object with escaped names": {
			recordSchema("a.b.c", `"properties":{}`), `{"$type":"a.b.c",` + times(120_000, `"\u0061%d":0`) + `}`, lexicon.Valid, 0,
		},
		"as many values as fit": {
			recordSchema("a.b.c", `"properties":{}`), `{"$type":"a.b.c","x":[` + list(6, "["+list(131_000, "0")+"]") + `]}`, lexicon.Valid, 0,
		},
		"graphemes without end": {
			recordSchema("a.b.c", `"properties":{"x":{"type":"string","maxGraphemes":1}}`),
			`{"$type":"a.b.c","x":"a` + strings.Repeat("\u0301", 500_000) + `"}`, lexicon.Valid, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := lexicon.New(test.schema)
			require.NoError(t, err)
			got := c.Validate("a.b.c", "x", []byte(test.record))
			require.Equal(t, test.verdict, got.Verdict, got.Problems)
			require.Equal(t, test.more, got.More)
		})
	}
}

// TestReferencesAreBounded shows that references are bounded by what fits in a record, and by the
// bytes of their paths.
func TestReferencesAreBounded(t *testing.T) {
	t.Parallel()
	c, err := lexicon.New(recordSchema("a.b.c", `"properties":{"list":{"type":"array","items":{"type":"string","format":"at-uri"}}}`))
	require.NoError(t, err)
	tenThousand := c.Validate("a.b.c", "x",
		[]byte(`{"$type":"a.b.c","list":[`+times(10_000, `"at://did:plc:wq4aajammjtxdomz3e23667t/b.c.d/%d"`)+`]}`))
	require.Equal(t, lexicon.Valid, tenThousand.Verdict)
	require.Len(t, tenThousand.References, 10_000)
	require.Equal(t, "/list/9999", tenThousand.References[9999].Path)
	require.Zero(t, tenThousand.Dropped)

	most := c.Validate("a.b.c", "x", []byte(`{"$type":"a.b.c","list":[`+list(100_000, `"at://d.e/f.g.h"`)+`]}`))
	require.Len(t, most.References, 100_000, "as many as fit in a record")

	const depth, uris = 150, 20_000
	deep := `{"$type":"a.b.c","x":` + strings.Repeat(`{"`+strings.Repeat("k", 8000)+`":`, depth) + `[` + list(uris, `"at://d.e/f.g.h"`) + `]` +
		strings.Repeat("}", depth) + "}"
	long := c.Validate("a.b.c", "x", []byte(deep))
	require.Equal(t, lexicon.Valid, long.Verdict, long.Problems)
	bytes := 0
	for _, r := range long.References {
		bytes += len(r.Path)
	}
	require.Less(t, bytes, 9<<20)
	require.Equal(t, uris, len(long.References)+long.Dropped)
	require.NotZero(t, long.Dropped)
}

// TestHostileSchemasAreRefused shows that the error names the schema.
func TestHostileSchemasAreRefused(t *testing.T) {
	t.Parallel()
	nested := strings.Repeat(`{"type":"array","items":`, 70) + `{"type":"boolean"}` + strings.Repeat("}", 70)
	many := `"properties":{"x":` + strings.Repeat(`{"type":"array","items":`, 4000) + `{"type":"boolean"}` + strings.Repeat("}", 4000) + `}`
	for _, hostile := range []struct {
		says   string
		schema []byte
	}{
		{"more than 1048576", []byte(`{"lexicon":1,"id":"a.b.c","defs":{"main":{"type":"object",` +
			`"description":"` + strings.Repeat("x", 1<<20) + `"}}}`)},
		{"types in more than 64 others", recordSchema("a.b.c", `"properties":{"x":`+nested+`}`)},
		{"types in more than 64 others", recordSchema("a.b.c", many)},
		{"more than 256 media types", recordSchema("a.b.c", `"properties":{"x":{"type":"blob","accept":[`+times(300, `"a/%d"`)+`]}}`)},
		{"unmarshal JSON array into Go lexicon.file", []byte(strings.Repeat("[", 1<<20))},
	} {
		_, err := lexicon.New(hostile.schema)
		require.ErrorContains(t, err, hostile.says)
	}
}

// TestValidationCannotMakeRequests shows that none of the package's dependencies can open a
// connection.
func TestValidationCannotMakeRequests(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", ".", "./rules").Output()
	require.NoError(t, err)
	packages := strings.Fields(string(out))
	require.Contains(t, packages, "github.com/weir-social/weir/internal/atproto/syntax")
	for _, able := range []string{"net", "net/http", "os/exec", "database/sql"} {
		require.False(t, slices.Contains(packages, able), able)
	}
}
