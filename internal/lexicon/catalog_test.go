package lexicon_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/lexicon"
)

// TestSchemasThatAreRefused shows that one bad file makes the whole catalog
// refused.
func TestSchemasThatAreRefused(t *testing.T) {
	t.Parallel()
	def := func(def string) string { return `{"lexicon":1,"id":"a.b.c","defs":{"x":` + def + `}}` }
	property := func(p string) string { return def(`{"type":"object","properties":{"p":` + p + `}}`) }
	for schema, message := range map[string]string{
		`{`:                              "read schema",
		`{"lexicon":"one","id":"a.b.c"}`: "read schema",
		`{"lexicon":2,"id":"a.b.c"}`:     "version 2",
		`{"lexicon":1,"id":"one-two"}`:   "one-two",
		`{"lexicon":1,"id":"a.b.c","defs":{"x.y":{"type":"token"}}}`:    "x.y",
		def(`{"type":"unknown"}`):                                       "not allowed as a definition",
		def(`{"type":"ref","ref":"a.b.d"}`):                             "not allowed as a definition",
		def(`{"type":"union","refs":[]}`):                               "not allowed as a definition",
		def(`{"type":"record","key":"any","record":{"type":"object"}}`): "as main only",
		def(`{"type":"query"}`):                                         "as main only",
		def(`{"type":"params"}`):                                        `"params"`,
		def(`5`):                                                        "unmarshal",
		`{"lexicon":1,"id":"a.b.c","defs":{"main":{"type":"record","record":{"type":"object"}}}}`:                     "record key",
		`{"lexicon":1,"id":"a.b.c","defs":{"main":{"type":"record","key":"literal:a/b","record":{"type":"object"}}}}`: "record key",
		`{"lexicon":1,"id":"a.b.c","defs":{"main":{"type":"record","key":"any"}}}`:                                    "must be an object",
		`{"lexicon":1,"id":"a.b.c","defs":{"main":{"type":"record","key":"any","record":{"properties":{}}}}}`:         "must be an object",
		def(`{"type":"object","required":["p"]}`):                                                                     "required",
		def(`{"type":"object","required":["p","p"],"properties":{"p":{"type":"boolean"}}}`):                           "once each",
		def(`{"type":"object","nullable":["p"]}`):                                                                     "nullable",
		property(`null`):                                          "no type",
		property(`{"type":"token"}`):                              `"token"`,
		property(`{"type":"array"}`):                              "no type",
		property(`{"type":"ref","ref":""}`):                       "", // refers to the definition itself
		property(`{"type":"ref","ref":"a"}`):                      "ref to",
		property(`{"type":"ref","ref":"#a#b"}`):                   "ref to",
		property(`{"type":"union","closed":true,"refs":[]}`):      "closed union",
		property(`{"type":"integer","minimum":5,"maximum":4}`):    "minimum above",
		property(`{"type":"integer","enum":["a"]}`):               "enum",
		property(`{"type":"integer","const":0.5}`):                "const",
		property(`{"type":"string","minLength":5,"maxLength":4}`): "minimum above",
		property(`{"type":"string","maxGraphemes":-1}`):           "below 0",
		property(`{"type":"bytes","maxLength":-1}`):               "below 0",
		property(`{"type":"blob","maxSize":0}`):                   "at most 0",
	} {
		if message == "" {
			continue
		}
		_, err := lexicon.New([]byte(schema))
		require.ErrorContains(t, err, message, schema)
	}
	good := recordSchema("a.b.c", `"properties":{}`)
	c, err := lexicon.New(good, good)
	require.ErrorContains(t, err, "two schemas define a.b.c")
	require.Nil(t, c)
	_, err = lexicon.New(recordSchema("a.b.c", `"properties":{"p":{"type":"ref","ref":"a.b.q"}}`),
		[]byte(`{"lexicon":1,"id":"a.b.q","defs":{"main":{"type":"query"}}}`))
	require.ErrorContains(t, err, "a query is not data")
	_, err = lexicon.New([]byte(def(`{"type":"params"}`)), []byte(`{"lexicon":1,"id":"a.b.d","defs":{"x":{"type":"query"}}}`))
	require.ErrorContains(t, err, "params")
	require.ErrorContains(t, err, "query", "every bad file is named")
}

// TestErrorsNameTheFiles shows that each file of a folder that cannot be used is named, and why.
func TestErrorsNameTheFiles(t *testing.T) {
	t.Parallel()
	folder := fstest.MapFS{"good.json": {Data: recordSchema("a.b.good", `"properties":{}`)}, "notes.txt": {Data: []byte("no schema")}}
	_, err := lexicon.Load(folder)
	require.NoError(t, err)
	files := map[string]string{
		"again/good.json": `{"lexicon":1,"id":"a.b.good","defs":{}}`,
		"package.json":    `{"name":"a"}`,
		"cut.json":        `{"lexicon":1,`,
		"marked.json":     "\ufeff{}",
		"list.json":       `[]`,
		"nul.json":        `{"lexicon":1,"id":"a.b.nul","defs":{},"description":"a\u0000b"}`,
		"huge.json":       `{"lexicon":1,"id":"a.b.huge","defs":{},"x":1e200000}`,
		"tiny.json":       `{"lexicon":1,"id":"a.b.tiny","defs":{},"x":[1e-200000]}`,
	}
	for path, content := range files {
		folder[path] = &fstest.MapFile{Data: []byte(content)}
	}
	_, err = lexicon.Load(folder)
	for path := range files {
		if path != "again/good.json" { // the second of the two is named first
			require.ErrorContains(t, err, path+": ")
		}
	}
	require.ErrorContains(t, err, "good.json: two schemas define a.b.good: this one and again/good.json")
	require.ErrorContains(t, err, "nul.json: read schema: a NUL, which Postgres cannot store: /description")
	require.ErrorContains(t, err, "tiny.json: read schema: a number that Postgres cannot store: /x/0")
	require.NotContains(t, err.Error(), "notes.txt")
}

// TestNewTypesLeaveOtherSchemasUsable shows that a definition of a type that is not known makes
// only the records unknown that need it.
func TestNewTypesLeaveOtherSchemasUsable(t *testing.T) {
	t.Parallel()
	c, err := lexicon.New(
		[]byte(`{"lexicon":1,"id":"a.b.forum","defs":{"main":{"type":"space","key":"any","collections":["a.b.c"]},
			"ratio":{"type":"object","properties":{"list":{"type":"array","items":{"type":"float"}}}}}}`),
		recordSchema("a.b.c", `"properties":{"size":{"type":"integer"},"ratio":{"type":"ref","ref":"a.b.forum#ratio"},"in":{"type":"ref",`+
			`"ref":"a.b.forum"}}`),
		recordSchema("a.b.d", `"properties":{"size":{"type":"decimal"}}`))
	require.NoError(t, err)
	require.Equal(t, []string{"a.b.c"}, c.Collections())
	for record, verdict := range map[string]lexicon.Verdict{
		`{"$type":"a.b.c","size":1}`:                    lexicon.Valid,
		`{"$type":"a.b.c","size":"1"}`:                  lexicon.Invalid,
		`{"$type":"a.b.c","ratio":{"list":[1]}}`:        lexicon.Unknown,
		`{"$type":"a.b.c","in":"at://did:web:a.b/x.y"}`: lexicon.Unknown,
	} {
		require.Equal(t, verdict, c.Validate("a.b.c", "self", []byte(record)).Verdict, record)
	}
	require.Equal(t, lexicon.Unknown, c.Validate("a.b.d", "self", []byte(`{"$type":"a.b.d"}`)).Verdict)
}

func TestLoadReadsFoldersInFolders(t *testing.T) {
	t.Parallel()
	c, err := lexicon.Load(fstest.MapFS{
		"one.json":      {Data: recordSchema("a.b.c", `"properties":{}`)},
		"in/a/two.json": {Data: recordSchema("a.b.d", `"properties":{}`)},
		"README.md":     {Data: []byte("no schema")},
	})
	require.NoError(t, err)
	require.Equal(t, []string{"a.b.c", "a.b.d"}, c.Collections())
	_, err = lexicon.Load(os.DirFS("testdata/nowhere"))
	require.Error(t, err)
}

// TestHashCoversWhatTheSchemaUses shows that only used definitions change the
// hash, and that the layout of a file does not.
func TestHashCoversWhatTheSchemaUses(t *testing.T) {
	t.Parallel()
	record := string(recordSchema("a.b.c", `"properties":{"p":{"type":"ref","ref":"a.b.defs#used"}}`))
	defs := `{"lexicon":1,"id":"a.b.defs","defs":{"used":{"type":"object","properties":{"q":{"type":"ref","ref":"#deep"}}},` +
		`"deep":{"type":"string"},"other":{"type":"string"}}}`
	hash := func(files ...string) string {
		var all [][]byte
		for _, f := range files {
			all = append(all, []byte(f))
		}
		c, err := lexicon.New(all...)
		require.NoError(t, err)
		return c.Hash("a.b.c")
	}
	base := hash(record, defs)
	require.Len(t, base, 64)
	require.Equal(t, base, hash(defs, strings.ReplaceAll(record, ",", ", \n")))
	require.Equal(t, base, hash(record, strings.Replace(defs, `"other":{"type":"string"}`, `"other":{"type":"boolean"}`, 1)))
	require.NotEqual(t, base, hash(record, strings.Replace(defs, `"deep":{"type":"string"}`, `"deep":{"type":"boolean"}`, 1)))
	require.NotEqual(t, base, hash(record), "adding a missing definition must change the hash")
	large := `"properties":{"p":{"type":"integer","maximum":%d}}`
	require.NotEqual(t, hash(string(recordSchema("a.b.c", fmt.Sprintf(large, 1<<53)))),
		hash(string(recordSchema("a.b.c", fmt.Sprintf(large, 1<<53+1)))))

	c, err := lexicon.New([]byte(record))
	require.NoError(t, err)
	require.Empty(t, c.Hash("a.b.none"))
	require.Equal(t, c.Hash("a.b.c"), c.Validate("a.b.c", "x", []byte(`{}`)).Hash)
}

// TestManyValidateAtOnce shows that one catalog gives the same verdict to many goroutines.
// The race detector sees what they share.
func TestManyValidateAtOnce(t *testing.T) {
	t.Parallel()
	c := catalog(t)
	validate := func() lexicon.Result {
		return c.Validate(everything, key, with(`"node":{"children":[{}]},"either":{"$type":"example.weir.everything#leaf"},"gone":{}`))
	}
	want := validate()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				assert.Equal(t, want, validate())
			}
		})
	}
	all.Wait()
}
