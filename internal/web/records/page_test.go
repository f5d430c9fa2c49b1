package records

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRecordIsIndented shows that a record is indented as by the standard library, and that invalid
// JSON ends the output.
func TestRecordIsIndented(t *testing.T) {
	t.Parallel()
	for _, record := range []string{
		`{}`, `[]`, `{"a": [], "b":{ },"c":[1,-2 , {"d\"\\": "x, {y}: [z]"}], "e": null}`, `[[[true,"\u00e9"]],"é"]`,
		` {"a" :"b"} `,
	} {
		var want bytes.Buffer
		require.NoError(t, json.Indent(&want, []byte(record), "", "  "))
		text, cut := indented([]byte(record))
		require.Equal(t, strings.TrimSpace(want.String()), text)
		require.False(t, cut)
	}
	for _, record := range []string{``, `"`, `"\`, `}}]`, `{`, `{"a`, "[\x00\xff"} {
		indented([]byte(record))
	}
	text, cut := indented([]byte(`["` + strings.Repeat("a", maxShownRecord) + `"]`))
	require.Len(t, text, maxShownRecord)
	require.True(t, cut)
}

// TestDeepRecordIsCut covers a megabyte of values in 200 levels: with each on its own line, it
// would need 200 MB. It does not run in parallel, because other tests use memory too.
func TestDeepRecordIsCut(t *testing.T) {
	record := []byte(strings.Repeat("[", 200) + strings.Repeat("1,", 500_000) + "1" + strings.Repeat("]", 200))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	parts, cut := linked(record)
	runtime.ReadMemStats(&after)
	require.True(t, cut)
	require.NotEmpty(t, parts)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20))
}
