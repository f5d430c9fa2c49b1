package lexicon_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/lexicon"
)

// layers returns the lexicons of pub.layers in WEIR_TESTDATA, and their folder. They have another
// licence: without the folder these tests do nothing.
func layers(t *testing.T) (c *lexicon.Catalog, dir string, ok bool) {
	t.Helper()
	dir = os.Getenv("WEIR_TESTDATA")
	if dir == "" {
		return nil, "", false
	}
	c, err := lexicon.Load(os.DirFS(dir + "/lexicons"))
	require.NoError(t, err)
	return c, dir, true
}

// TestLayersReferences shows that of records with every field each at-uri path is collected, and no
// others.
func TestLayersReferences(t *testing.T) {
	t.Parallel()
	c, dir, ok := layers(t)
	if !ok {
		return
	}
	raw, err := os.ReadFile(dir + "/layers-refs.json")
	require.NoError(t, err)
	var known map[string][]struct{ Path string }
	require.NoError(t, json.Unmarshal(raw, &known))
	require.Len(t, c.Collections(), 26)
	g := newGenerator(t, os.DirFS(dir+"/lexicons")).seed(1)
	g.full = true
	index := regexp.MustCompile(`\.\d+`)
	for _, collection := range c.Collections() {
		want := map[string]bool{}
		for _, ref := range known[collection] {
			want[ref.Path] = true
		}
		got := c.Validate(collection, key, encode(t, g.record(collection)))
		require.Equal(t, lexicon.Valid, got.Verdict, got.Problems)
		found := map[string]bool{}
		for _, ref := range got.References {
			if ref.Kind == lexicon.ATURI && ref.Declared {
				found[index.ReplaceAllString(strings.ReplaceAll(ref.Path[1:], "/", "."), "[]")] = true
			}
		}
		require.Equal(t, want, found, collection)
	}
}

// A layersCase is a record of pub.layers, and the problems with it.
type layersCase struct{ collection, fields, problems string }

const (
	layer = `"expression":"` + postURI + `","kind":"span","annotations":[]`
	one   = `"expression":"` + postURI + `","kind":"span","annotations":[{"uuid":{"value":"u"}`
	media = `"kind":"image","blob":{"$type":"blob","mimeType":"image/png","size":5,"ref":{"$link":"` + blockCID + `"}}`
	node  = `"nodeType":"entity"`
	entry = `"form":"x"`
)

// agreed returns records that indigo correctly accepts or refuses.
func agreed() []layersCase {
	return []layersCase{
		// accepted, among them unknown slugs, unknown fields and unlisted variants
		{"expression.expression", `"id":"e","kind":"document","text":"naïve"`, ""},
		{"expression.expression", `"id":"e","kind":"a-new-kind","extra":{"a":[null,true]}`, ""},
		{"annotation.annotationLayer", layer, ""},
		{"annotation.annotationLayer", one + `,"anchor":{"externalTarget":{"source":"https://example.com",` +
			`"selector":{"$type":"com.example.selector","x":1}}}}]`, ""},
		{"annotation.annotationLayer", one + `,"anchor":{"externalTarget":{"source":"https://example.com",` +
			`"selector":{"$type":"pub.layers.defs#textPositionSelector","byteStart":1,"byteEnd":2}}}}]`, ""},
		{"segmentation.segmentation", `"expression":"at://a.example","tokenizations":[{"uuid":{"value":"t"},"kind":"word",` +
			`"tokens":[{"tokenIndex":0}]}]`, ""},
		{"corpus.membership", `"corpusRef":"` + postURI + `","expressionRef":"at://a.example/b.c.d"`, ""},
		{"graph.graphNode", node, ""},
		{"graph.graphEdge", `"source":{},"target":{},"edgeType":"anything"`, ""},
		{"media.media", media, ""},
		{"resource.entry", entry, ""},
		{"ontology.typeDef", `"ontologyRef":"` + postURI + `","name":"n","typeKind":"situation-type"`, ""},
		{"persona.persona", `"name":"p","kind":"expert"`, ""},
		// rightly refused
		{"annotation.annotationLayer", `"kind":"span","annotations":[]`, "required /expression"},
		{"annotation.annotationLayer", one + `,"anchor":{"textSpan":{"byteStart":1}}}]`, "required /annotations/0/anchor/textSpan/byteEnd"},
		{"expression.expression", `"id":5,"kind":"x"`, "type /id"},
		{"expression.expression", `"id":"e","kind":null`, "type /kind"},
		{"annotation.annotationLayer", layer + `,"rank":0.5`, "data_model /rank"},
		{"annotation.annotationLayer", one + `,"confidence":1001}]`, "range /annotations/0/confidence"},
		{
			"annotation.annotationLayer", one + `,"anchor":{"textSpan":{"byteStart":-1,"byteEnd":2}}}]`,
			"range /annotations/0/anchor/textSpan/byteStart",
		},
		{"annotation.annotationLayer", `"expression":"` + postURI + `/","kind":"x","annotations":[]`, "format /expression"},
		{"annotation.annotationLayer", `"expression":"` + postURI + `#x","kind":"x","annotations":[]`, "format /expression"},
		{"annotation.annotationLayer", `"kindUri":"at://did:plc:layers/kinds/span",` + layer, "format /kindUri"},
		{"graph.graphNode", node + `,"metadata":{"tool":"t","timestamp":"2026-01-02T03:04:05"}`, "format /metadata/timestamp"},
		{"graph.graphNode", node + `,"metadata":{"tool":"t","timestamp":"2026-01-02T03:04:05z"}`, "format /metadata/timestamp"},
		{"graph.graphNode", node + `,"metadata":{"tool":"t","timestamp":"2026-01-02T03:04:05-00:00"}`, "format /metadata/timestamp"},
		{"graph.graphNode", node + `,"metadata":{"tool":"t","timestamp":"2026-13-02T03:04:05Z"}`, "format /metadata/timestamp"},
		{"graph.graphNode", node + `,"metadata":{}`, "required /metadata/tool"},
		{"graph.graphNode", node + `,"metadata":{"tool":"t","agent":{"did":"did:x"}}`, "format /metadata/agent/did"},
		{"resource.entry", entry + `,"mweKind":"` + strings.Repeat("é", 65) + `"`, "length /mweKind"},
		{"corpus.corpus", `"name":"c","languages":["` + strings.Repeat(`x","`, 128) + `x"]`, "length /languages"},
		{"media.media", `"kind":"image","externalUri":"example.com"`, "format /externalUri"},
		{"annotation.annotationLayer", one + `,"anchor":{"externalTarget":{"source":"https://example.com",` +
			`"selector":{"x":1}}}}]`, "union /annotations/0/anchor/externalTarget/selector"},
		{"annotation.annotationLayer", one + `,"anchor":{"externalTarget":{"source":"https://example.com",` +
			`"selector":{"$type":"pub.layers.defs#textPositionSelector",` +
			`"byteStart":1}}}}]`, "required /annotations/0/anchor/externalTarget/selector/byteEnd"},
		{"media.media", strings.Replace(media, "image/png", "text/html", 1), "blob_type /blob/mimeType"},
		{"media.media", strings.Replace(media, `"size":5`, `"size":104857601`, 1), "blob_size /blob/size"},
		{"media.media", `"kind":"image","blob":{"cid":"` + blockCID + `","mimeType":"image/png"}`, "type /blob"},
		{"resource.entry", `"form":{"$bytes":"AAAA"}`, "type /form"},
		{"resource.entry", entry + `,"other":{"$bytes":5}`, "data_model /other"},
		{"resource.entry", entry + `,"other":{"$link":"x"}`, "data_model /other/$link"},
		{"expression.expression", `"id":"e","kind":"x","text":"` + strings.Repeat("x", 1<<20+1) + `"`, "data_model /text"},
		{"corpus.corpus", `"name":"c","other":[` + list(131_073, "1") + `]`, "data_model /other"},
	}
}

// disagreed returns records that indigo incorrectly accepts or refuses.
func disagreed() []layersCase {
	return []layersCase{
		// wrongly accepted by indigo
		{"annotation.annotationLayer", one + `,"confidence":500.0}]`, "data_model /annotations/0/confidence"},
		{"annotation.annotationLayer", one + `,"confidence":1e2}]`, "data_model /annotations/0/confidence"},
		{"media.media", strings.Replace(media, `"size":5`, `"size":0`, 1), "data_model /blob/size"},
		{"media.media", strings.Replace(media, blockCID, "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", 1), "data_model /blob/ref/$link"},
		{"annotation.annotationLayer", one + `,"anchor":{"externalTarget":{"source":"https://example.com",` +
			`"selector":{"$type":"no name"}}}}]`, "union /annotations/0/anchor/externalTarget/selector/$type"},
		{"resource.entry", `"form":"x","form":"y"`, "json "},
		{"resource.entry", `"form":"` + "\xff" + `"`, "json "},
		{"resource.entry", `"form":"\ud800"`, "json "},
		// wrongly refused by indigo
		{"resource.entry", entry + `,"other":9223372036854775807`, ""},
		{"resource.entry", entry + `,"other":{"$bytes":"AA=="}`, ""},
		{"resource.entry", entry + `,"other":{"cid":"none","mimeType":"x"}`, ""},
		{"annotation.annotationLayer", one + `,"anchor":{"externalTarget":{"source":"https://example.com",` +
			`"selector":{"$type":"pub.layers.graph.graphNode"}}}}]`, ""},
	}
}

// TestLayersVerdicts compares the verdicts with those in the notes on the lexicons.
func TestLayersVerdicts(t *testing.T) {
	t.Parallel()
	c, _, ok := layers(t)
	if !ok {
		return
	}
	for _, test := range append(agreed(), disagreed()...) {
		name := "pub.layers." + test.collection
		got := c.Validate(name, key, []byte(`{"$type":"`+name+`",`+created+`,`+test.fields+`}`))
		require.Equal(t, test.problems, brief(got.Problems), "%s %.300s: %v", name, test.fields, got.Problems)
		require.Equal(t, test.problems == "", got.Verdict == lexicon.Valid)
	}
	node26 := []byte(`{"$type":"pub.layers.graph.graphNode",` + created + `,` + node + `}`)
	require.Equal(t, "record_key ", brief(c.Validate("pub.layers.graph.graphNode", "item-42", node26).Problems))
	require.Equal(t, "record_type /$type",
		brief(c.Validate("pub.layers.graph.graphNode", key, []byte(strings.Replace(string(node26), "graphNode", "graphNode#main", 1))).Problems))
	require.Equal(t, "record_type /$type",
		brief(c.Validate("pub.layers.graph.graphNode", key, []byte(strings.Replace(string(node26), "graphNode", "graphEdge", 1))).Problems))
	require.Equal(t, "collection ", brief(c.Validate("pub.layers.graph.getGraphNode", key, node26).Problems))
}
