package lexicon_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/lexicon"
)

const (
	everything = "example.weir.everything"
	key        = "3mptbypluud2a"
	created    = `"createdAt":"2026-01-02T03:04:05Z"`
	blockCID   = "bafyreiclp443lavogvhj3d2ob2cxbfuscni2k5jk7bebjzg7khl3esabwq"
	blobJSON   = `{"$type":"blob","ref":{"$link":"` + blockCID + `"},"mimeType":"image/png","size":1000}`
	postURI    = "at://did:plc:wq4aajammjtxdomz3e23667t/app.bsky.feed.post/3mptbypluud2a"
)

func catalog(t testing.TB) *lexicon.Catalog {
	t.Helper()
	c, err := lexicon.Load(os.DirFS("testdata/lexicons"))
	require.NoError(t, err)
	return c
}

// with returns a record with these fields.
func with(fields string) []byte {
	if fields != "" {
		fields = "," + fields
	}
	return []byte(`{"$type":"` + everything + `",` + created + fields + `}`)
}

// brief returns rule and path of each problem.
func brief(problems []lexicon.Problem) string {
	var parts []string
	for _, p := range problems {
		parts = append(parts, p.Rule+" "+p.Path)
	}
	return strings.Join(parts, ", ")
}

// A fieldCase is a record's fields and their problems. Without problems the record is valid, or
// unknown if problems says so.
type fieldCase struct{ fields, problems string }

// scalars returns valid and invalid values of the types without parts.
func scalars() []fieldCase {
	return []fieldCase{
		{``, ``},
		{`"maybe":null`, ``},
		{`"flag":null`, `type /flag`},
		{`"flag":true,"always":true`, ``},
		{`"flag":"true"`, `type /flag`},
		{`"always":false`, `const /always`},
		{`"count":0`, ``}, {`"count":1000`, ``}, {`"count":1001`, `range /count`}, {`"count":-1`, `range /count`},
		{`"count":"5"`, `type /count`},
		{`"odd":3`, ``}, {`"odd":2`, `enum /odd`}, {`"answer":42`, ``}, {`"answer":41`, `const /answer`},
		{`"large":9223372036854775807`, ``}, {`"large":-9223372036854775808`, ``}, {`"large":-0`, ``},
		{`"large":9223372036854775808`, `data_model /large`}, {`"large":-9223372036854775809`, `data_model /large`},
		{`"count":0.5`, `data_model /count`}, {`"count":500.0`, `data_model /count`}, {`"count":1e2`, `data_model /count`},
		{`"extra":0.5`, `data_model /extra`}, {`"anything":{"x":[1,{"y":1.5}]}`, `data_model /anything/x/1/y`},
		{`"text":"a"`, ``}, {`"text":""`, `length /text`},
		{`"text":"` + strings.Repeat("é", 64) + `"`, ``}, {`"text":"` + strings.Repeat("é", 65) + `"`, `length /text`},
		{`"text":"` + strings.Repeat(`\u00e9`, 64) + `"`, ``}, {`"text":"` + strings.Repeat(`\u00e9`, 65) + `"`, `length /text`},
		{`"text":"` + strings.Repeat(`\ud83d\ude00`, 32) + `"`, ``}, {`"text":"` + strings.Repeat(`\ud83d\ude00`, 33) + `"`, `length /text`},
		{`"title":"ab"`, ``}, {`"title":"a"`, `graphemes /title`}, {`"title":"👩‍👩‍👦‍👦"`, `graphemes /title`},
		{`"title":"👩‍👩‍👦‍👦👩‍👩‍👦‍👦👩‍👩‍👦‍👦👩‍👩‍👦‍👦👩‍👩‍👦‍👦"`, ``}, {`"title":"abcdef"`, `graphemes /title`},
		{`"short":"👩‍👩‍👦‍👦e\u0301a"`, ``}, {`"short":"abcd"`, `graphemes /short`},
		{`"color":"red"`, ``}, {`"color":"blue"`, `enum /color`}, {`"shade":"middle"`, ``}, {`"same":"that"`, `const /same`},
		{`"data":{"$bytes":"AAAA"}`, ``}, {`"data":{"$bytes":"AAA"}`, ``}, {`"data":{"$bytes":"AAA="}`, ``},
		{`"data":{"$bytes":"AA"}`, `length /data`}, {`"data":{"$bytes":"AAAAAAA"}`, `length /data`},
		{`"data":{"$bytes":"A"}`, `data_model /data/$bytes`}, {`"data":{"$bytes":"AA-_"}`, `data_model /data/$bytes`},
		{`"data":{"$bytes":1}`, `data_model /data`}, {`"data":{"$bytes":"AAAA","x":1}`, `data_model /data`},
		{`"data":"AAAA"`, `type /data`}, {`"text":{"$bytes":"AAAA"}`, `type /text`}, {`"nested":{"$bytes":"AAAA"}`, `type /nested`},
		{`"target":{"$link":"` + blockCID + `"}`, ``}, {`"target":"` + blockCID + `"`, `type /target`},
		{`"target":{"$link":"` + blockCID + `","x":1}`, `data_model /target`},
		{`"data":{"$bytes":"AAA=="}`, `data_model /data/$bytes`}, {`"data":{"$bytes":"AA\nAA"}`, `data_model /data/$bytes`},
		{`"file":` + strings.Replace(blobJSON, "}", "},\"more\":1", 1), `data_model /file`},
		{`"target":{"$link":"bafy"}`, `data_model /target/$link`}, {`"target":{"$link":1}`, `data_model /target`},
		{`"target":{"$link":"QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"}`, `data_model /target/$link`},
		{`"extra":{"$link":"no"}`, `data_model /extra/$link`},
	}
}

// containers returns valid and invalid values of the types with parts.
func containers() []fieldCase {
	return []fieldCase{
		{`"image":` + blobJSON, ``}, {`"file":` + blobJSON, ``},
		{`"image":` + strings.Replace(blobJSON, "1000", "1001", 1), `blob_size /image/size`},
		{`"image":` + strings.Replace(blobJSON, "1000", "0", 1), `data_model /image/size`},
		{`"image":` + strings.Replace(blobJSON, "1000", `"1"`, 1), `data_model /image/size`},
		{`"image":` + strings.Replace(blobJSON, "1000", `1.5`, 1), `data_model /image/size`},
		{`"image":` + strings.Replace(blobJSON, "image/png", "text/plain", 1), `blob_type /image/mimeType`},
		{`"image":` + strings.Replace(blobJSON, "image/png", "application/pdf", 1), ``},
		{`"image":` + strings.Replace(blobJSON, "image/png", "", 1), `data_model /image/mimeType`},
		{`"image":` + strings.Replace(blobJSON, `"size"`, `"bytes"`, 1), `data_model /image`},
		{`"image":{"cid":"` + blockCID + `","mimeType":"image/png"}`, `type /image`},
		{`"extra":{"cid":"` + blockCID + `","mimeType":"image/png"}`, ``},
		{`"extra":{"cid":"none","mimeType":5}`, ``},
		{`"text":` + blobJSON, `type /text`}, {`"anything":` + blobJSON, `type /anything`},
		{`"anything":{"a":[{}]}`, ``}, {`"anything":[]`, `type /anything`}, {`"anything":{"$type":""}`, `data_model /anything/$type`},
		{`"numbers":[1]`, ``}, {`"numbers":[]`, `length /numbers`}, {`"numbers":[1,2,3,4]`, `length /numbers`},
		{`"numbers":[1,"2",null]`, `type /numbers/1, type /numbers/2`}, {`"numbers":{}`, `type /numbers`},
		{`"nested":{"a":1,"c":[]}`, ``}, {`"nested":{"b":2}`, `type /nested/b, required /nested/a`}, {`"nested":{"a":null}`, `type /nested/a`},
		{`"node":{"label":"x","children":[{"children":[{"label":5}]}]}`, `type /node/children/0/children/0/label`},
		{`"either":{"$type":"example.weir.everything#node","label":"x"}`, ``},
		{`"either":{"$type":"example.weir.everything#leaf"}`, `required /either/size`},
		{`"either":{"$type":"example.weir.everything",` + created + `}`, ``},
		{`"either":{"$type":"example.weir.everything"}`, `required /either/createdAt`},
		{`"either":{"$type":"example.weir.other#x","label":5}`, ``}, {`"either":{"$type":"example.weir.other"}`, ``},
		{`"either":{"label":"x"}`, `union /either`}, {`"either":5`, `type /either`}, {`"either":{"$type":5}`, `data_model /either/$type`},
		{`"either":{"$type":"no name"}`, `union /either/$type`}, {`"either":{"$type":"example.weir.other#"}`, `union /either/$type`},
		{`"either":` + blobJSON, `type /either`},
		{`"oneOf":{"size":1,"$type":"example.weir.everything#leaf"}`, ``},
		{`"oneOf":{"$type":"example.weir.other"}`, `union /oneOf/$type`},
		{`"oneOf":{"$type":"#leaf","size":1}`, `union /oneOf/$type`},
		{`"token":"example.weir.everything#sign"`, ``}, {`"token":"example.weir.everything#node"`, `token /token`}, {`"token":1`, `type /token`},
		{`"named":"four"`, ``}, {`"named":"fiver"`, `length /named`},
		{`"gone":{"a":1}`, `unknown`}, {`"gone":{"a":1},"flag":1`, `type /flag`},
		{`"a/b~c":{"$bytes":0}`, `data_model /a~1b~0c`},
	}
}

// TestFieldVerdicts covers every type of the lexicon language.
func TestFieldVerdicts(t *testing.T) {
	t.Parallel()
	c := catalog(t)
	for _, test := range append(scalars(), containers()...) {
		got := c.Validate(everything, key, with(test.fields))
		if test.problems == "unknown" {
			require.Equal(t, lexicon.Unknown, got.Verdict, test.fields)
			require.Equal(t, []string{"example.weir.gone#thing"}, got.Missing)
			continue
		}
		require.Equal(t, test.problems, brief(got.Problems), test.fields)
		require.Equal(t, test.problems == "", got.Verdict == lexicon.Valid, test.fields)
		require.Equal(t, test.problems != "", got.Verdict == lexicon.Invalid, test.fields)
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	c := catalog(t)
	for format, values := range map[string]struct{ right, wrong []string }{
		"atIdentifier": {[]string{"did:web:a.b", "a.example"}, []string{"", "did:", "a"}},
		"atUri": {[]string{postURI, "at://a.example", "at://a.example/d.e.f"},
			[]string{postURI + "/", postURI + "#a", "at://did:plc:layers/kinds/span", "https://a.b"}},
		"cid": {[]string{blockCID}, []string{"bafy", "Qmbcdefghij"}},
		"datetime": {[]string{"2026-01-02T03:04:05.678+01:00", "1985-04-12T23:20:50Z"}, []string{"2026-01-02T03:04:05",
			"2026-01-02T03:04:05z", "2026-01-02T03:04:05-00:00", "2026-13-02T03:04:05Z", "2026-01-02T03:04:05,5Z", "2026-02-30T00:00:00Z"}},
		"did":       {[]string{"did:plc:wq4aajammjtxdomz3e23667t"}, []string{"did:web", "a.example"}},
		"handle":    {[]string{"a.example"}, []string{"a", "-a.example", "a.1"}},
		"nsid":      {[]string{"a.b.c"}, []string{"a.b", "a.b.c-d"}},
		"tid":       {[]string{key}, []string{"0000000000000", "3mptbypluud2"}},
		"recordKey": {[]string{"self", "a:b"}, []string{".", "a/b", ""}},
		"uri":       {[]string{"https://example.com", "did:web:a"}, []string{"example.com", "https:", "https://a b"}},
		"language":  {[]string{"pt-BR", "i-x"}, []string{"123", ""}},
		"later":     {[]string{"", "anything"}, nil},
	} {
		for _, value := range values.right {
			got := c.Validate(everything, key, with(`"formats":{"`+format+`":"`+value+`"}`))
			require.Equal(t, lexicon.Valid, got.Verdict, "%s %q: %v", format, value, got.Problems)
		}
		for _, value := range values.wrong {
			got := c.Validate(everything, key, with(`"formats":{"`+format+`":"`+value+`"}`))
			require.Equal(t, "format /formats/"+format, brief(got.Problems), value)
		}
	}
}

// TestRecordsThatAreNoJSON shows that broken JSON is found in every collection, known or not.
func TestRecordsThatAreNoJSON(t *testing.T) {
	t.Parallel()
	c := catalog(t)
	for record, problem := range map[string]string{
		``:                             "json ",
		`{`:                            "json ",
		`[]`:                           "data_model ",
		`"text"`:                       "data_model ",
		`{"a":1} x`:                    "json ",
		`{"a":1,}`:                     "json ",
		`{"a":01}`:                     "json ",
		`{"a":-}`:                      "json ",
		`{"a":1.}`:                     "json ",
		`{"a":nul}`:                    "json ",
		`{"a":[1 2]}`:                  "json ",
		`{"a" 1}`:                      "json ",
		`{"a":"` + "\xff" + `"}`:       "json ",
		`{"a":"` + "\n" + `"}`:         "json ",
		`{"a":"\ud800"}`:               "json ",
		`{"a":"\udc00\ud800"}`:         "json ",
		`{"a":"\udc00"}`:               "json ",
		`{"a":"\udfff"}`:               "json ",
		`{"a":"\ud800\ud800"}`:         "json ",
		`{"a":"\x"}`:                   "json ",
		`{"a":"\u12g4"}`:               "json ",
		`{"a":"`:                       "json ",
		`{"a":"\`:                      "json ",
		`{"a":1,"a":2}`:                "json ",
		`{"a":{"b":1,"\u0062":2}}`:     "json ",
		`{` + members(40) + `,"m7":1}`: "json ",
		`{"a":` + strings.Repeat("[", 199) + strings.Repeat("]", 199) + `}`: "",
		`{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`: "depth ",
		`{"a":[` + strings.Repeat("1,", 128<<10-1) + `1]}`:                  "",
		`{"a":[` + strings.Repeat("1,", 128<<10) + `1]}`:                    "data_model /a",
		`{"a":"` + strings.Repeat("x", 1<<20) + `"}`:                        "",
		`{"a":"` + strings.Repeat("x", 1<<20+1) + `"}`:                      "data_model /a",
		`{"a":"` + strings.Repeat("x", 2<<20) + `"}`:                        "record_size ",
		`{"$type":"blob","a":1}`:                                            "data_model ",
		`{"` + strings.Repeat("k", 8192) + `":1}`:                           "",
		`{"` + strings.Repeat(`\u00e9`, 4096) + `":1}`:                      "",
		`{"` + strings.Repeat(`\ud83d\ude00`, 2048) + `":1}`:                "",
		`{"` + strings.Repeat(`\n`, 8192) + `":1}`:                          "",
		`{"` + strings.Repeat(`\u00e9`, 4096) + `k":1}`:                     "data_model /" + strings.Repeat("é", 1023) + "…",
		`{"` + strings.Repeat(`\ud83d\ude00`, 2048) + `k":1}`:               "data_model /" + strings.Repeat("😀", 511) + "…",
		`{"` + strings.Repeat("k", 8193) + `":1}`:                           "data_model /" + strings.Repeat("k", 2047) + "…",
	} {
		got := c.Validate("example.weir.nobody", key, []byte(record))
		shown := record[:min(len(record), 40)]
		require.Equal(t, problem, brief(got.Problems), shown)
		want := lexicon.Unknown
		if problem != "" {
			want = lexicon.Invalid
		}
		require.Equal(t, want, got.Verdict, shown)
		require.Equal(t, []string{"example.weir.nobody"}, got.Missing)
		if got := c.Validate(everything, key, []byte(record)); problem == "json " {
			require.Equal(t, problem, brief(got.Problems), "broken JSON must have no other problems: %s", shown)
		}
	}
}

// members returns n members of an object.
func members(n int) string {
	var list []string
	for i := range n {
		list = append(list, `"m`+strconv.Itoa(i)+`":0`)
	}
	return strings.Join(list, ",")
}

func TestRecordTypeAndKey(t *testing.T) {
	t.Parallel()
	c, err := lexicon.New(
		[]byte(`{"lexicon":1,"id":"a.b.tid","defs":{"main":{"type":"record","key":"tid","record":{"type":"object"}}}}`),
		[]byte(`{"lexicon":1,"id":"a.b.nsid","defs":{"main":{"type":"record","key":"nsid","record":{"type":"object"}}}}`),
		[]byte(`{"lexicon":1,"id":"a.b.self","defs":{"main":{"type":"record","key":"literal:self","record":{"type":"object"}}}}`),
		[]byte(`{"lexicon":1,"id":"a.b.any","defs":{"main":{"type":"record","key":"any","record":{"type":"object"}}}}`),
	)
	require.NoError(t, err)
	for _, test := range []struct{ collection, key, problems string }{
		{"a.b.tid", key, ""}, {"a.b.tid", "item-42", "record_key "},
		{"a.b.nsid", "c.d.e", ""}, {"a.b.nsid", "self", "record_key "},
		{"a.b.self", "self", ""}, {"a.b.self", "other", "record_key "},
		{"a.b.any", "item-42", ""}, {"a.b.any", "a/b", "record_key "}, {"a.b.any", "..", "record_key "}, {"a.b.none", "", "record_key "},
	} {
		got := c.Validate(test.collection, test.key, []byte(`{"$type":"`+test.collection+`"}`))
		require.Equal(t, test.problems, brief(got.Problems), test)
	}
	for record, problem := range map[string]string{
		`{}`: "record_type /$type", `{"$type":"a.b.any#main"}`: "record_type /$type", `{"$type":"a.b.tid"}`: "record_type /$type",
		`{"$type":null}`: "data_model /$type",
	} {
		got := c.Validate("a.b.any", "x", []byte(record))
		require.Equal(t, problem, brief(got.Problems), record)
	}
	got := catalog(t).Validate("example.weir.ask", key, []byte(`{}`))
	require.Equal(t, "collection ", brief(got.Problems), "a query has no records")
}

// TestStrictRefusesWhatMayBeNewer covers records that are valid, but not strictly.
func TestStrictRefusesWhatMayBeNewer(t *testing.T) {
	t.Parallel()
	c := catalog(t)
	strict := c.Strictly(func(collection string) bool { return collection == everything })
	require.NotEqual(t, c.Hash(everything), strict.Hash(everything), "the hash must tell strict verdicts from others")
	require.Equal(t, strict.Hash(everything), strict.Strictly(anyCollection).Hash(everything))
	require.Equal(t, c.Hash("example.weir.corpus.corpus"), strict.Hash("example.weir.corpus.corpus"), "another collection")
	for fields, problems := range map[string]string{
		`"shade":"middle"`: "known_values /shade",
		`"extra":1`:        "undeclared /extra",
		`"node":{"$type":"example.weir.everything#node","x":1}`:                   "undeclared /node/x",
		`"either":{"$type":"example.weir.other"}`:                                 "union /either/$type",
		`"either":{"$type":"example.weir.everything#strong","uri":"a.b","cid":5}`: "union /either/$type",
		`"large":9007199254740992`:                                                "range /large",
		`"large":9007199254740991`:                                                "",
		`"large":-9007199254740992`:                                               "range /large",
		`"shade":"dark","node":{}`:                                                "",
	} {
		require.Equal(t, lexicon.Valid, c.Validate(everything, key, with(fields)).Verdict, fields)
		got := strict.Validate(everything, key, with(fields))
		require.Equal(t, strict.Hash(everything), got.Hash)
		require.Equal(t, problems, brief(got.Problems), fields)
	}
}

// TestProblemsSayWhatWasExpected shows that problems describe the expected value in words.
func TestProblemsSayWhatWasExpected(t *testing.T) {
	t.Parallel()
	c := catalog(t)
	got := c.Validate(everything, "item", []byte(`{"$type":"example.weir.everything","text":"`+strings.Repeat("é",
		65)+`","color":"blue","count":2000,"numbers":[{}],"formats":{"atUri":"at://did:plc:layers/kinds/span"}}`))
	require.Equal(t, []lexicon.Problem{
		{"record_key", "", "a TID as the record's key", `"item"`},
		{"length", "/text", "1 to 128 bytes of UTF-8, not 130", `string "` + strings.Repeat("é", 40) + `…"`},
		{"enum", "/color", "one of green, red", `string "blue"`},
		{"range", "/count", "0 to 1000", "2000"},
		{"type", "/numbers/0", "an integer", "object"},
		{"format", "/formats/atUri", "an at-uri", `string "at://did:plc:layers/kinds/span"`},
		{"required", "/createdAt", "a value", "nothing"},
	}, got.Problems)

	many := c.Validate(everything, key, with(`"links":[`+strings.Repeat("0,", 99)+`0]`))
	require.Len(t, many.Problems, 20)
	require.Equal(t, "type /links/0, type /links/1, type /links/2", brief(many.Problems[:3]))
	require.Equal(t, 80, many.More)
}

func TestReferencesAndTexts(t *testing.T) {
	t.Parallel()
	record := with(`"text":"written","maybe":"also \u00e9","color":"red","shade":"middle",
		"links":["` + postURI + `","at://a.example/b.c.d/e"],
		"strong":{"uri":"` + postURI + `","cid":"` + blockCID + `"},
		"formats":{"did":"did:web:a.b","atIdentifier":"a.example","later":"x"},
		"image":` + blobJSON + `,"target":{"$link":"` + blockCID + `"},
		"anything":{"deep":[{"uri":"` + postURI + `","cid":"` + blockCID + `"},"at://did:web:a.b/c.d.e/f","see at://a.b"],
			"file":` + blobJSON + `},
		"extra":"\u0061t:\/\/did:web:a.b/c.d.e/g"`)
	got := catalog(t).Validate(everything, key, record)
	require.Equal(t, lexicon.Valid, got.Verdict, got.Problems)
	require.Equal(t, []lexicon.Reference{
		{"/links/0", lexicon.ATURI, postURI, "", true},
		{"/links/1", lexicon.ATURI, "at://a.example/b.c.d/e", "", true},
		{"/strong/uri", lexicon.StrongRef, postURI, blockCID, true},
		{"/formats/did", lexicon.DID, "did:web:a.b", "", true},
		{"/image", lexicon.Blob, blockCID, "", true},
		{"/target", lexicon.Link, blockCID, "", true},
		{"/anything/deep/0/uri", lexicon.StrongRef, postURI, blockCID, false},
		{"/anything/deep/1", lexicon.ATURI, "at://did:web:a.b/c.d.e/f", "", false},
		{"/anything/file", lexicon.Blob, blockCID, "", false},
		{"/extra", lexicon.ATURI, "at://did:web:a.b/c.d.e/g", "", false},
	}, got.References)
	var records []string
	for _, r := range got.References {
		if did, collection, key, ok := r.Record(); ok {
			records = append(records, did+" "+collection+" "+key)
		}
	}
	post := "did:plc:wq4aajammjtxdomz3e23667t app.bsky.feed.post 3mptbypluud2a"
	require.Equal(t, []string{post, post, post, "did:web:a.b c.d.e f", "did:web:a.b c.d.e g"}, records,
		"an account, a handle, a blob and a link are no records")
	require.Equal(t, []lexicon.Text{{"/maybe", "also é"}, {"/text", "written"}}, sortedTexts(got.Texts))
	require.Len(t, got.Unlisted, 1)
	require.Equal(t, "/shade", got.Unlisted[0].Path())
	require.Equal(t, everything+"#strong", got.Root.Field("strong").Definition())

	unknown := catalog(t).Validate("example.weir.nobody", key, record)
	require.Equal(t, lexicon.Unknown, unknown.Verdict)
	require.Len(t, unknown.References, 9, "all but the DID must be found: without a schema it may be any text")
	require.Empty(t, unknown.Texts)
}

func sortedTexts(texts []lexicon.Text) []lexicon.Text {
	return slices.SortedFunc(slices.Values(texts), func(a, b lexicon.Text) int { return strings.Compare(a.Path, b.Path) })
}

func anyCollection(string) bool { return true }
