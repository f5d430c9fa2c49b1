package lexicon_test

import (
	"encoding/json"
	"io/fs"
	"syscall"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atdata"
	indigo "github.com/bluesky-social/indigo/atproto/lexicon"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/lexicon"
)

// counterpart is indigo's catalog of the same schemas.
func counterpart(t testing.TB, folder fs.FS) *indigo.BaseCatalog {
	t.Helper()
	c := indigo.NewBaseCatalog()
	for _, file := range schemas(t, folder) {
		var s indigo.SchemaFile
		require.NoError(t, json.Unmarshal(encode(t, file), &s))
		require.NoError(t, c.AddSchemaFile(s))
	}
	return c
}

func indigoAccepts(c *indigo.BaseCatalog, collection string, record []byte) error {
	data, err := atdata.UnmarshalJSON(record)
	if err != nil {
		return err
	}
	return indigo.ValidateRecord(c, data, collection, 0)
}

// agree compares a generated record, and the same record after some damage, with indigo.
func agree(t testing.TB, g *generator, ours *lexicon.Catalog, theirs *indigo.BaseCatalog, note string) (refused int) {
	t.Helper()
	for _, collection := range g.collections() {
		record := g.record(collection)
		raw := encode(t, record)
		got := ours.Validate(collection, key, raw)
		require.NoError(t, indigoAccepts(theirs, collection, raw), "%s: generated: %s", note, raw)
		require.Equal(t, lexicon.Valid, got.Verdict, "%s: %v: %s", note, got.Problems, raw)
		for range 4 {
			g.damage(record)
			raw := encode(t, record)
			err := indigoAccepts(theirs, collection, raw)
			got := ours.Validate(collection, key, raw)
			require.Equal(t, err == nil, got.Verdict == lexicon.Valid, "%s: indigo: %v, we: %v: %s", note, err, got.Problems, raw)
			if err != nil {
				refused++
			}
		}
	}
	return refused
}

// TestAgreesWithIndigo covers valid and damaged records of every collection.
func TestAgreesWithIndigo(t *testing.T) {
	t.Parallel()
	for name, folder := range folders() {
		ours, err := lexicon.Load(folder)
		require.NoError(t, err)
		theirs := counterpart(t, folder)
		refused, g := 0, newGenerator(t, folder)
		for seed := range 25 {
			refused += agree(t, g.seed(uint64(seed)), ours, theirs, name+", "+seedName(seed))
		}
		require.Greater(t, refused, 50, "too few damaged records were refused")
	}
}

// FuzzAgainstIndigo generates records from the seed.
func FuzzAgainstIndigo(f *testing.F) {
	folder := folders()["own"]
	ours, err := lexicon.Load(folder)
	require.NoError(f, err)
	theirs := counterpart(f, folder)
	g := newGenerator(f, folder)
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		agree(t, g.seed(seed), ours, theirs, seedName(int(seed)))
	})
}

// FuzzRecord checks that validation of any record ends without a panic, reads JSON as the library
// does, and returns results within the limits.
func FuzzRecord(f *testing.F) {
	folder := folders()["own"]
	ours, err := lexicon.Load(folder)
	require.NoError(f, err)
	strict := ours.Strictly(anyCollection)
	all := newGenerator(f, folder)
	for seed := range 5 {
		g := all.seed(uint64(seed))
		for _, collection := range g.collections() {
			f.Add(encode(f, g.record(collection)))
		}
	}
	for _, text := range []string{`{"a":"\ud83d\ude00\u0000"}`, `[1e5,-0.0,{"":[]}]`, `{"a":1,"\u0061":2}`, `"\ud800"`, "\xff", `{"$link":{}}`,
		`{"$bytes":"A=="}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, record []byte) {
		for _, collection := range append(ours.Collections(), "a.b.c") {
			catalog := ours
			if len(record)%2 == 0 {
				catalog = strict
			}
			got := catalog.Validate(collection, key, record)
			require.LessOrEqual(t, len(got.Problems), 20)
			require.LessOrEqual(t, len(got.References)+len(got.Texts), 128<<10)
			require.Equal(t, got.Verdict == lexicon.Invalid, len(got.Problems) > 0)
			for v := range got.Root.All() {
				v.Path()
				v.Text()
			}
		}
		got := ours.Validate("a.b.c", key, record)
		notJSON := len(got.Problems) > 0 && got.Problems[0].Rule == "json" || len(got.Problems) > 1 &&
			got.Problems[len(got.Problems)-1].Rule == "json"
		if len(got.Problems) == 0 || got.Problems[0].Rule != "depth" && got.Problems[0].Rule != "record_size" && got.More == 0 {
			require.Equal(t, jsontext.Value(record).IsValid(), !notJSON, "%v", got.Problems)
		}
	})
}

// FuzzSchema checks that any schema is refused or used, without a panic.
func FuzzSchema(f *testing.F) {
	for _, file := range schemas(f, folders()["own"]) {
		f.Add(encode(f, file), with(`"node":{"children":[{}]}`))
	}
	f.Add([]byte(`{"lexicon":1,"id":"a.b.c","defs":{"main":{"type":"record","key":"any","record":{"type":"object",`+
		`"properties":{"a":{"type":"array","items":null}}}}}}`), []byte(`{"$type":"a.b.c"}`))
	f.Fuzz(func(t *testing.T, schema, record []byte) {
		c, err := lexicon.New(schema)
		if err != nil {
			return
		}
		c = c.Strictly(anyCollection)
		for _, collection := range c.Collections() {
			c.Validate(collection, key, record)
		}
	})
}

// cpu returns the CPU time that the process has used.
func cpu(b *testing.B) time.Duration {
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// benchmarked returns records of one shape each, of our own lexicons.
func benchmarked() map[string][2]string {
	const expression = `"expression":"` + postURI + `"`
	annotations := func(more string) string {
		anchor := `"anchor":{"textSpan":{"byteStart":10,"byteEnd":25}}`
		annotation := `{"uuid":{"value":"annotation-%d"},"label":"PERSON",` + anchor + more + `}`
		return `"kind":"span",` + expression + `,"annotations":[` + times(200, annotation) + `]`
	}
	return map[string][2]string{
		"a membership": {"corpus.membership", `"corpusRef":"` + postURI + `","expressionRef":"` + postURI + `"`},
		"200 tokens": {"segmentation.segmentation", expression + `,"tokenizations":[{"uuid":{"value":"t"},` +
			`"kind":"word","tokens":[` + times(200, `{"tokenIndex":%d,"text":"word","textSpan":{"byteStart":10,"byteEnd":14}}`) + `]}]`},
		"200 annotations":                     {"annotation.annotationLayer", annotations("")},
		"200 annotations with an at-uri each": {"annotation.annotationLayer", annotations(`,"ontologyTypeRef":"` + postURI + `"`)},
	}
}

// BenchmarkBesideIndigo validates the same records with both: generated ones of every collection,
// and some of one shape. The ratio is our CPU time to indigo's. Both start from the JSON. Ours also
// collects references and texts.
func BenchmarkBesideIndigo(b *testing.B) {
	for name, folder := range folders() {
		var records [][2]string
		all := newGenerator(b, folder)
		for seed := range 50 {
			g := all.seed(uint64(seed))
			for _, collection := range g.collections() {
				records = append(records, [2]string{collection, string(encode(b, g.record(collection)))})
			}
		}
		b.Run("generated "+name, func(b *testing.B) { besideIndigo(b, folder, records) })
	}
	for name, record := range benchmarked() {
		collection := "example.weir." + record[0]
		raw := `{"$type":"` + collection + `",` + created + `,` + record[1] + `}`
		b.Run(name, func(b *testing.B) { besideIndigo(b, folders()["own"], [][2]string{{collection, raw}}) })
	}
}

func besideIndigo(b *testing.B, folder fs.FS, records [][2]string) {
	ours, err := lexicon.Load(folder)
	require.NoError(b, err)
	theirs := counterpart(b, folder)
	bytes := 0
	for _, r := range records {
		bytes += len(r[1])
		got := ours.Validate(r[0], key, []byte(r[1]))
		require.Equal(b, lexicon.Valid, got.Verdict, got.Problems)
	}
	rounds := max(1, 200/len(records)) // between two readings of the CPU time
	var we, they time.Duration
	for b.Loop() {
		start := cpu(b)
		for range rounds {
			for _, r := range records {
				ours.Validate(r[0], key, []byte(r[1]))
			}
		}
		middle := cpu(b)
		for range rounds {
			for _, r := range records {
				if err := indigoAccepts(theirs, r[0], []byte(r[1])); err != nil {
					b.Fatal(err)
				}
			}
		}
		we += middle - start
		they += cpu(b) - middle
	}
	n := float64(rounds * b.N * len(records))
	b.ReportMetric(float64(we.Nanoseconds())/n, "ns/record")
	b.ReportMetric(float64(they.Nanoseconds())/n, "indigo-ns/record")
	b.ReportMetric(float64(we)/float64(they), "of-indigo")
	b.ReportMetric(float64(bytes)/float64(len(records)), "bytes/record")
}
