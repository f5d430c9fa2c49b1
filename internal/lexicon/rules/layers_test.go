package rules_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/lexicon"
	"github.com/weir-social/weir/internal/lexicon/rules"
)

const (
	key = "3mptbypluud2a"
	did = "did:web:a.b"
)

// space is a namespace with the lexicons of its collections.
type space struct {
	name    string
	catalog *lexicon.Catalog
	rules   rules.Rules
}

// spaces returns our own lexicons and, with WEIR_TESTDATA, those of pub.layers. The rules must find
// the same problems in both.
func spaces(t testing.TB) []space {
	t.Helper()
	own, err := lexicon.Load(os.DirFS("../testdata/lexicons"))
	require.NoError(t, err)
	all := []space{{"example.weir", own, rules.Rules{rules.Layers("example.weir")}}}
	if dir := os.Getenv("WEIR_TESTDATA"); dir != "" {
		theirs, err := lexicon.Load(os.DirFS(dir + "/lexicons"))
		require.NoError(t, err)
		all = append(all, space{"pub.layers", theirs, rules.Standard()})
	}
	return all
}

// uri returns an at-uri of a collection; NS stands for the namespace.
func uri(collection string) string { return "at://" + did + "/NS." + collection + "/" + key }

// record validates a record of a collection.
func (s space) record(t testing.TB, collection, fields string) rules.Record {
	t.Helper()
	fields = strings.ReplaceAll(fields, "NS", s.name)
	name := s.name + "." + collection
	raw := `{"$type":"` + name + `","createdAt":"2026-01-02T03:04:05Z",` + fields + `}`
	result := s.catalog.Validate(name, key, []byte(raw))
	require.Equal(t, lexicon.Valid, result.Verdict, "%v: %s", result.Problems, raw)
	return rules.Record{DID: did, Collection: name, Key: key, Result: result, Targets: map[string]lexicon.Value{}}
}

func brief(problems []lexicon.Problem) string {
	var parts []string
	for _, p := range problems {
		parts = append(parts, p.Rule+" "+p.Path)
	}
	return strings.Join(parts, ", ")
}

const a = `{"uuid":{"value":"u1"}` // an annotation without its closing bracket

// layer returns an annotation layer with these annotations.
func layer(annotations string) string {
	return `"expression":"` + uri("expression.expression") + `","kind":"span","annotations":[` + annotations + `]`
}

func segmentation(tokens string) string {
	return `"expression":"` + uri("expression.expression") +
		`","tokenizations":[{"uuid":{"value":"t"},"kind":"word","kindUri":"at://a.example","tokens":[` + tokens + `]}]`
}

// A ruleCase is a record and the problems that the rules find.
type ruleCase struct{ collection, fields, hard, soft string }

const annotations = "annotation.annotationLayer"

// orders returns cases of spans, times and scales.
func orders() []ruleCase {
	const judgments = `"experimentRef":"at://did:web:a.b/NS.judgment.experimentDef/3mptbypluud2a",` +
		`"judgments":[{"item":{"recordRef":"at://a.example/b.c.d/e"}`
	span := func(s string) string { return layer(a + `,"anchor":{"textSpan":{` + s + `}}}`) }
	video := func(s string) string { return layer(a + `,"anchor":{"spatioTemporalAnchor":{` + s + `}}}`) }
	frames := func(ms ...int) string {
		var list []string
		for _, m := range ms {
			list = append(list, `{"timeMs":`+strconv.Itoa(m)+`,"bbox":{"x":0,"y":0,"width":1,"height":1}}`)
		}
		return video(`"temporalSpan":{"start":10,"ending":20},"keyframes":[` + strings.Join(list, ",") + `]`)
	}
	return []ruleCase{
		// spans
		{annotations, span(`"byteStart":1,"byteEnd":2`), "", ""},
		{annotations, span(`"byteStart":2,"byteEnd":1`), "span_order /annotations/0/anchor/textSpan/byteStart", ""},
		{annotations, span(`"byteStart":2,"byteEnd":2`), "", "span_empty /annotations/0/anchor/textSpan/byteStart"},
		{annotations, span(`"byteStart":1,"byteEnd":2,"charStart":3,"charEnd":2`), "span_order /annotations/0/anchor/textSpan/charStart", ""},
		{annotations, span(`"byteStart":1,"byteEnd":2,"charStart":3,"charEnd":3`), "", "span_empty /annotations/0/anchor/textSpan/charStart"},
		{annotations, span(`"byteStart":2,"byteEnd":2,"charStart":3,"charEnd":3`), "", "span_empty /annotations/0/anchor/textSpan/byteStart"},
		{annotations, span(`"byteStart":1,"byteEnd":2,"charStart":3`), "", ""},
		{
			"segmentation.segmentation", segmentation(`{"tokenIndex":0,"textSpan":{"byteStart":5,"byteEnd":4}}`),
			"span_order /tokenizations/0/tokens/0/textSpan/byteStart", "",
		},
		{"expression.expression", `"id":"e","kind":"word","anchor":{"textSpan":{"byteStart":5,` +
			`"byteEnd":4}}`, "span_order /anchor/textSpan/byteStart", ""},
		{"expression.expression", `"id":"e","kind":"word","anchor":{"pageAnchor":{"page":1,"textSpan":{"byteStart":5,` +
			`"byteEnd":4}}}`, "span_order /anchor/pageAnchor/textSpan/byteStart", ""},
		{"expression.expression", `"id":"e","kind":"word","anchor":{"externalTarget":{"source":"https://example.com",` +
			`"selector":{"$type":"NS.defs#textPositionSelector","byteStart":5,` +
			`"byteEnd":4}}}`, "span_order /anchor/externalTarget/selector/byteStart", ""},
		{"expression.expression", `"id":"e","kind":"word","undeclared":{"textSpan":{"byteStart":5,"byteEnd":4}}`, "", ""},
		{"judgment.judgmentSet", judgments + `,"textSpan":{"byteStart":5,"byteEnd":4}}]`, "span_order /judgments/0/textSpan/byteStart", ""},
		{annotations, layer(a + `,"anchor":{"temporalSpan":{"start":5,"ending":5}}}`), "", ""},
		{annotations, layer(a + `,"anchor":{"temporalSpan":{"start":6,"ending":5}}}`), "span_order /annotations/0/anchor/temporalSpan/start", ""},
		{annotations, frames(10, 15, 20), "", ""},
		{annotations, frames(9), "keyframe_time /annotations/0/anchor/spatioTemporalAnchor/keyframes/0/timeMs", ""},
		{annotations, frames(21), "keyframe_time /annotations/0/anchor/spatioTemporalAnchor/keyframes/0/timeMs", ""},
		{annotations, frames(15, 12), "keyframe_order /annotations/0/anchor/spatioTemporalAnchor/keyframes/1/timeMs", ""},
		{annotations, frames(12, 12), "", "keyframe_order /annotations/0/anchor/spatioTemporalAnchor/keyframes/1/timeMs"},
		{"judgment.experimentDef", `"name":"n","scaleMin":1,"scaleMax":1`, "", ""},
		{"judgment.experimentDef", `"name":"n","scaleMin":2,"scaleMax":1`, "scale_order /scaleMin", ""},
		{"judgment.experimentDef", `"name":"n","scaleMin":2`, "", ""},
	}
}

// references returns cases of references to the right collection, and to others.
func references() []ruleCase {
	const (
		change = `"summary":"s","sections":[],"subject":`
		eprint = `"eprintIdentifier":"x","linkType":"`
	)
	return []ruleCase{
		{annotations, `"expression":"` + uri("media.media") + `","kind":"span","annotations":[]`, "reference_collection /expression", ""},
		{annotations, `"expression":"at://a.example/NS.expression.expression/x","kind":"span","annotations":[]`, "", ""},
		{annotations, `"expression":"at://a.example","kind":"span","annotations":[]`, "reference_collection /expression", ""},
		{
			annotations, `"expression":"at://a.example/NS.expression.expression","kind":"span","annotations":[]`, "reference_collection /expression",
			"",
		},
		{
			"corpus.membership", `"corpusRef":"` + uri("expression.expression") + `","expressionRef":"` + uri("corpus.corpus") + `"`,
			"reference_collection /corpusRef, reference_collection /expressionRef", "",
		},
		{
			"resource.collectionMembership", `"collectionRef":"` + uri("resource.collection") + `","entryRef":"` + uri("resource.entry") + `"`, "",
			"",
		},
		{
			"ontology.typeDef", `"ontologyRef":"` + uri("ontology.typeDef") + `","name":"n","typeKind":"entity-type"`,
			"reference_collection /ontologyRef", "",
		},
		{"judgment.agreementReport", `"experimentRef":"` + uri("judgment.judgmentSet") + `"`, "reference_collection /experimentRef", ""},
		{"eprint.dataLink", `"eprintUri":"at://a.example/com.example.paper/x","dataKind":"corpus"`, "", ""},
		{"changelog.entry", change + `"` + uri("corpus.corpus") + `","subjectCollection":"NS.corpus.corpus"`, "", ""},
		{
			"changelog.entry", change + `"` + uri("corpus.corpus") + `","subjectCollection":"NS.media.media"`,
			"subject_collection /subjectCollection", "",
		},
		{
			"changelog.entry", change + `"at://a.example/com.example.paper/x","subjectCollection":"com.example.paper"`,
			"reference_collection /subject", "",
		},
		{
			"changelog.entry", change + `"at://a.example/NSx.corpus.corpus/x","subjectCollection":"NSx.corpus.corpus"`,
			"reference_collection /subject", "",
		},
	}
}

// parts returns cases of parts of a record that match or do not match.
func parts() []ruleCase {
	const (
		edge    = `"edgeType":"same-as","source":{"recordRef":"at://a.example/b.c.d/e"},"target":`
		fill    = `"templateRef":"at://did:web:a.b/NS.resource.template/3mptbypluud2a","slotFillings":[`
		picture = `"kind":"image","externalUri":"https://example.com"`
		eprint  = `"eprintIdentifier":"x","linkType":"`
	)
	return []ruleCase{
		{"graph.graphEdge", edge + `{"knowledgeRef":{"source":"wikidata","identifier":"Q1"}}`, "", ""},
		{"graph.graphEdge", edge + `{}`, "", "empty_reference /target"},
		{"graph.graphEdge", edge + `{"objectId":{"value":"u"}}`, "", "object_without_record /target/objectId"},
		{"graph.graphEdge", edge + `{"localId":{"value":"u"}}`, "", "unknown_id /target/localId/value"},
		{annotations, layer(a + `,"arguments":[{"role":"r","target":{"localId":{"value":"u1"}}}]}`), "", ""},
		{annotations, layer(a + `},{"uuid":{"value":"u1"}}`), "", "duplicate_id /annotations/1/uuid/value"},
		{annotations, layer(a + `,"parentId":{"value":"u2"}},{"uuid":{"value":"u2"}}`), "", ""},
		{
			annotations, layer(a + `,"parentId":{"value":"u3"},"childIds":[{"value":"u1"},{"value":"u4"}]}`), "",
			"unknown_id /annotations/0/parentId/value, unknown_id /annotations/0/childIds/1/value",
		},
		{annotations, layer(a + `,"parentId":{"value":"u1"}}`), "", "parent_cycle /annotations/0/parentId"},
		{
			annotations,
			layer(`{"uuid":{"value":"u0"},"parentId":{"value":"u1"}},` + a +
				`,"parentId":{"value":"u2"}},{"uuid":{"value":"u2"},"parentId":{"value":"u1"}}`),
			"", "parent_cycle /annotations/1/parentId",
		},
		{annotations, layer(a + `,"headIndex":-1,"targetIndex":0}`), "", ""},
		{annotations, layer(a + `,"headIndex":3,"targetIndex":3}`), "", "head_index /annotations/0/headIndex"},
		{annotations, layer(a + `,"anchor":{}}`), "", "empty_anchor /annotations/0/anchor"},
		{annotations, strings.Replace(layer(a+`,"tokenIndex":0},{"uuid":{"value":"u2"},"anchor":{"tokenRef":{"tokenizationId":{"value":"t"},`+
			`"tokenIndex":0}}}`), `"span"`, `"token-tag","tokenizationId":{"value":"t"}`, 1), "", ""},
		{annotations, strings.Replace(layer(a+`}`), `"span"`, `"token-tag"`, 1), "", "token_tag , token_tag /annotations/0"},
		{"segmentation.segmentation", segmentation(`{"tokenIndex":0,"textSpan":{"byteStart":0,"byteEnd":4}},{"tokenIndex":1,` +
			`"textSpan":{"byteStart":0,"byteEnd":2}}`), "", ""},
		{"segmentation.segmentation", segmentation(`{"tokenIndex":1},{"tokenIndex":1}`), "token_order /tokenizations/0/tokens/1/tokenIndex", ""},
		{"segmentation.segmentation", segmentation(`{"tokenIndex":0,"textSpan":{"byteStart":3,"byteEnd":4}},{"tokenIndex":1},{"tokenIndex":2,` +
			`"textSpan":{"byteStart":2,"byteEnd":4}}`), "token_order /tokenizations/0/tokens/2/textSpan/byteStart", ""},
		{"alignment.alignment", `"kind":"translation","kindUri":"at://a.example",` +
			`"links":[{"sourceIndices":[1]},{"targetIndices":[1]},{"sourceIndices":[]}]`, "", "empty_link /links/2"},
		{"resource.template", `"text":"{a} and {b}","slots":[{"name":"a"},{"name":"b"}]`, "", ""},
		{"resource.template", `"text":"{a} and {b}","slots":[{"name":"a"}]`, "", "template_slot /text"},
		{"resource.template", `"text":"{a}","slots":[{"name":"a"},{"name":"b"}]`, "", "template_slot /slots/1/name"},
		{"resource.filling", fill + `{"slotName":"a","literalValue":"x"},{"slotName":"a",` +
			`"entryRef":"at://a.example"}]`, "", "duplicate_slot /slotFillings/1/slotName"},
		{"resource.filling", fill + `{"slotName":"a"}]`, "", "empty_slot /slotFillings/0"},
		{"resource.templateComposition", `"compositionType":"sequence","members":[{"ordinal":1,"templateRef":"at://a.example"},{"ordinal":2,` +
			`"compositionRef":"at://a.example"}]`, "", ""},
		{"resource.templateComposition", `"compositionType":"sequence","members":[{"ordinal":1,"templateRef":"at://a.example",` +
			`"compositionRef":"at://a.example"},{"ordinal":1}]`, "",
			"duplicate_ordinal /members/1/ordinal, template_member /members/0, template_member /members/1"},
		{"corpus.corpus", `"name":"n","licensing":{"licenses":[{"spdx":"MIT"}]}`, "", ""},
		{"corpus.corpus", `"name":"n","licensing":{"licenses":[{"spdx":"MIT"},{"spdx":"custom"}]}`, "", "licence_expression /licensing"},
		{"corpus.corpus", `"name":"n","licensing":{"expression":"MIT OR custom","licenses":[{"spdx":"MIT"},{"spdx":"custom"}]}`, "", ""},
		{"media.media", picture, "", ""},
		{"media.media", `"kind":"image"`, "", "empty_media "},
		{"media.media", picture + `,"startOffsetMs":5`, "", "media_offset /startOffsetMs"},
		{"media.media", picture + `,"startOffsetMs":5,"parentMediaRef":"at://a.example"`, "", ""},
		{"eprint.eprint", eprint + `my-link","linkTypeUri":"at://a.example","citation":{"raw":"x"}`, "", ""},
		{"eprint.eprint", eprint + `my-link","citation":{}`, "", "unknown_slug /linkType, empty_citation /citation"},
		{"eprint.eprint", eprint + `my-link","linkTypeUri":"at://a.example","citation":{"title":"x","issued":{"year":2024,"month":2,` +
			`"day":29}}`, "", ""},
		{"eprint.eprint", eprint + `my-link","linkTypeUri":"at://a.example","citation":{"title":"x","issued":{"year":2023,"month":2,` +
			`"day":29}}`, "", "date /citation/issued/day"},
		{"eprint.eprint", eprint + `my-link","linkTypeUri":"at://a.example","citation":{"title":"x","issued":{"month":2,"day":29}}`, "", ""},
	}
}

// TestLayersRulesOfOneRecord covers each rule, kept and broken.
func TestLayersRulesOfOneRecord(t *testing.T) {
	t.Parallel()
	all := spaces(t)
	for _, test := range slices.Concat(orders(), references(), parts()) {
		for _, s := range all {
			hard, soft := s.rules.Check(s.record(t, test.collection, test.fields))
			require.Equal(t, test.hard, brief(hard), "%s %s %s", s.name, test.collection, test.fields)
			require.Equal(t, test.soft, brief(soft), "%s %s %s", s.name, test.collection, test.fields)
		}
	}
}

// A pairCase is a record, another one that it refers to, and the problems that the rules find.
type pairCase struct{ collection, fields, targetOf, target, soft string }

// pairs returns cases about the text "naïve 日本", which has 13 bytes: ï is the third and fourth, 日
// the eighth to tenth.
func pairs() []pairCase {
	const text = `"id":"e","kind":"document","text":"naïve 日本"`
	span := func(from, to, quoted string) string {
		if quoted != "" {
			quoted = `,"text":"` + quoted + `"`
		}
		return `"textSpan":{"byteStart":` + from + `,"byteEnd":` + to + `}` + quoted
	}
	token := func(index, rest string) string { return `{"tokenIndex":` + index + `,` + rest + `}` }
	anchored := func(from, to, quoted string) string {
		s, q, has := strings.Cut(span(from, to, quoted), `},"text"`)
		if !has {
			return a + `,"anchor":{` + s + `}}`
		}
		return a + `,"anchor":{` + s + `}},"text"` + q + `}`
	}
	own := func(tokens string) string {
		return strings.Replace(segmentation(tokens), `"kind"`, `"expressionRef":"`+uri("expression.part")+`","kind"`, 1)
	}
	return append(recordPairs(text), []pairCase{
		{
			"segmentation.segmentation", segmentation(token("0", span("0", "6", "naïve")) + "," + token("1", span("7", "13", "日本"))),
			"expression.expression", text, "",
		},
		{"segmentation.segmentation", segmentation(token("0", span("0", "5", "naïv"))), "expression.expression", text, ""},
		{
			"segmentation.segmentation", segmentation(token("0", span("0", "5", "naïve"))), "expression.expression", text,
			"span_text /tokenizations/0/tokens/0/text",
		},
		{
			"segmentation.segmentation", segmentation(token("0", span("7", "14", ""))), "expression.expression", text,
			"span_bounds /tokenizations/0/tokens/0/textSpan/byteEnd",
		},
		{
			"segmentation.segmentation", segmentation(token("0", span("3", "4", ""))), "expression.expression", text,
			"span_boundary /tokenizations/0/tokens/0/textSpan/byteStart",
		},
		{
			"segmentation.segmentation", segmentation(token("0", span("7", "9", ""))), "expression.expression", text,
			"span_boundary /tokenizations/0/tokens/0/textSpan/byteEnd",
		},
		{"segmentation.segmentation", segmentation(token("0", span("7", "99", ""))), "expression.expression", `"id":"e","kind":"document"`, ""},
		{
			"segmentation.segmentation", segmentation(token("0", span("7", "99", ""))), "media.media",
			`"kind":"image","externalUri":"https://example.com"`, "",
		},
		// A tokenization with an expression of its own: it may match either text.
		{"segmentation.segmentation", own(token("0", span("0", "3", "日"))), "expression.part", `"id":"p","kind":"word","text":"日本"`, ""},
		{"segmentation.segmentation", own(token("0", span("0", "2", "bc"))), "expression.part", `"id":"p","kind":"word","text":"x"`, ""},
		{
			"segmentation.segmentation", own(token("0", span("0", "7", ""))), "expression.part", `"id":"p","kind":"word","text":"日本"`,
			"span_bounds /tokenizations/0/tokens/0/textSpan/byteEnd",
		},
		{"segmentation.segmentation", own(token("0", span("0", "99", ""))), "expression.expression", text, ""},
		{"annotation.annotationLayer", layer(anchored("7", "13", "日本")), "expression.expression", text, ""},
		{"annotation.annotationLayer", layer(anchored("7", "10", "本")), "expression.expression", text, "span_text /annotations/0/text"},
		{
			"annotation.annotationLayer", layer(anchored("13", "14", "")), "expression.expression", text,
			"span_bounds /annotations/0/anchor/textSpan/byteEnd",
		},
		{
			"expression.expression",
			`"id":"w","kind":"word","parentRef":"` + uri("expression.part") + `","anchor":{"textSpan":{"byteStart":0,"byteEnd":14}}`,
			"expression.part", text, "span_bounds /anchor/textSpan/byteEnd",
		},
		{
			"annotation.annotationLayer", strings.Replace(layer(a+`,"tokenIndex":1}`), `"kind"`, `"tokenizationId":{"value":"t"},"kind"`, 1),
			"segmentation.segmentation", segmentation(`{"tokenIndex":0}`), "token_index /annotations/0/tokenIndex",
		},
		{
			"annotation.annotationLayer", strings.Replace(layer(a+`,"tokenIndex":0}`), `"kind"`, `"tokenizationId":{"value":"t"},"kind"`, 1),
			"segmentation.segmentation", segmentation(`{"tokenIndex":0}`), "",
		},
		{
			"annotation.annotationLayer", strings.Replace(layer(a+`,"tokenIndex":1}`), `"kind"`, `"tokenizationId":{"value":"other"},"kind"`, 1),
			"segmentation.segmentation", segmentation(`{"tokenIndex":0}`), "",
		},
	}...)
}

// recordPairs returns cases of records that refer to others as a whole. text is that of pairs.
func recordPairs(text string) []pairCase {
	experiment := `"name":"n","labels":["yes","no"],"scaleMin":1,"scaleMax":5`
	judgment := func(j string) string {
		return `"experimentRef":"` + uri("judgment.experimentDef") + `","judgments":[{"item":{"recordRef":"` + uri("expression.expression") +
			`"},` + j + `}]`
	}
	filling := func(f string) string {
		return `"templateRef":"` + uri("resource.template") + `","slotFillings":[` + f + `]`
	}
	composed := func(of string) string {
		return `"compositionType":"sequence","members":[{"ordinal":1,"compositionRef":"` + uri(of) + `"}]`
	}
	headed := func(head, target string) string {
		return `"tokenizationId":{"value":"t"},` + layer(a+`,"headIndex":`+head+`,"targetIndex":`+target+`}`)
	}
	return []pairCase{
		{
			"resource.filling", filling(`{"slotName":"a","literalValue":"x"}`), "resource.template",
			`"text":"{a}{b}","slots":[{"name":"a","required":true},{"name":"b","required":false}]`, "",
		},
		{
			"resource.filling", filling(`{"slotName":"c","literalValue":"x"}`), "resource.template",
			`"text":"{a}","slots":[{"name":"a","required":true}]`, "unknown_slot /slotFillings/0/slotName, missing_slot /slotFillings",
		},
		{"judgment.judgmentSet", judgment(`"categoricalValue":"yes","scalarValue":5`), "judgment.experimentDef", experiment, ""},
		{
			"judgment.judgmentSet", judgment(`"categoricalValue":"maybe","scalarValue":6`), "judgment.experimentDef", experiment,
			"unknown_label /judgments/0/categoricalValue, scale /judgments/0/scalarValue",
		},
		{"judgment.judgmentSet", judgment(`"scalarValue":0`), "judgment.experimentDef", experiment, "scale /judgments/0/scalarValue"},
		{
			"judgment.judgmentSet", judgment(`"textSpan":{"byteStart":1,"byteEnd":3}`), "expression.expression", text,
			"span_boundary /judgments/0/textSpan/byteEnd",
		},
		{
			"ontology.typeDef",
			`"ontologyRef":"` + uri("ontology.ontology") + `","name":"n","typeKind":"entity-type","parentTypeRef":"` + uri("ontology.typeDef") + `"`,
			"ontology.ontology", `"name":"n"`, "parent_cycle /parentTypeRef",
		},
		{
			"ontology.ontology", `"name":"n","parentRef":"` + uri("ontology.above") + `"`, "ontology.above",
			`"name":"a","parentRef":"` + uri("ontology.ontology") + `"`, "parent_cycle /parentRef",
		},
		{
			"resource.templateComposition", composed("resource.above"), "resource.above", composed("resource.templateComposition"),
			"parent_cycle /members/0/compositionRef",
		},
		{
			"resource.templateComposition", composed("resource.templateComposition"), "resource.templateComposition", composed("resource.above"),
			"parent_cycle /members/0/compositionRef",
		},
		{"resource.templateComposition", composed("resource.above"), "resource.above", composed("resource.above"), ""},
		{annotations, headed("1", "0"), "segmentation.segmentation", segmentation(`{"tokenIndex":0}`), "token_index /annotations/0/headIndex"},
		{annotations, headed("-1", "1"), "segmentation.segmentation", segmentation(`{"tokenIndex":0}`), "token_index /annotations/0/targetIndex"},
		{annotations, headed("-1", "0"), "segmentation.segmentation", segmentation(`{"tokenIndex":0}`), ""},
		{
			"ontology.ontology", `"name":"n","parentRef":"` + uri("ontology.above") + `"`, "ontology.above",
			`"name":"a","parentRef":"` + uri("ontology.above") + `"`, "",
		},
	}
}

func TestLayersRulesBetweenRecords(t *testing.T) {
	t.Parallel()
	all := spaces(t)
	for _, test := range pairs() {
		for _, s := range all {
			record := s.record(t, test.collection, test.fields)
			is := strings.NewReplacer("expression.part", "expression.expression", "ontology.above", "ontology.ontology", "resource.above",
				"resource.templateComposition").Replace(test.targetOf)
			target := strings.ReplaceAll(uri(test.targetOf), "NS", s.name)
			record.Targets[target] = s.record(t, is, test.target).Root
			if test.targetOf == "expression.part" && test.collection == "segmentation.segmentation" {
				record.Targets[strings.ReplaceAll(uri("expression.expression"), "NS", s.name)] = s.record(t, is,
					`"id":"e","kind":"document","text":"bc"`).Root
			}
			hard, soft := s.rules.Check(record)
			require.Empty(t, hard, "a problem with another record must not be hard")
			require.Equal(t, test.soft, brief(soft), "%s %s %s: %v", s.name, test.collection, test.fields, soft)
			if test.targetOf != "segmentation.segmentation" && test.targetOf != "media.media" {
				require.True(t, slices.Contains(s.rules.Wanted(record), target), "%s %s", test.collection, target)
			}
			record.Targets = nil
			_, soft = s.rules.Check(record)
			require.Empty(t, soft, "a record that is not stored must break no rule")
		}
	}
}

func TestRulesNeedAValidRecordOfTheirNamespace(t *testing.T) {
	t.Parallel()
	s := spaces(t)[0]
	record := s.record(t, "judgment.experimentDef", `"name":"n","scaleMin":2,"scaleMax":1`)
	hard, _ := s.rules.Check(record)
	require.Equal(t, []lexicon.Problem{{Rule: "scale_order", Path: "/scaleMin", Expected: "at most scaleMax, 1", Received: "2"}}, hard)

	// A target is read only if the reference is to that kind of record: a template has a text too.
	layer := s.record(t, "annotation.annotationLayer", layer(a+`,"anchor":{"textSpan":{"byteStart":0,"byteEnd":9}}}`))
	layer.Targets[layer.Root.Field("expression").Text()] = s.record(t, "resource.template", `"text":"short","slots":[]`).Root
	_, soft := s.rules.Check(layer)
	require.Empty(t, soft)

	hard, soft = rules.Standard().Check(record)
	require.Empty(t, append(hard, soft...), "another namespace")
	// A field without a name is not the parent of a record without one.
	nameless := s.record(t, "corpus.membership",
		`"corpusRef":"`+uri("corpus.corpus")+`","expressionRef":"`+uri("expression.expression")+`","":"`+uri("corpus.membership")+`"`)
	require.Len(t, s.rules.Wanted(nameless), 2)
	nameless.Targets[strings.ReplaceAll(uri("corpus.corpus"), "NS", s.name)] = s.record(t, "corpus.corpus", `"name":"n"`).Root
	_, soft = s.rules.Check(nameless)
	require.Empty(t, soft)

	record.Verdict = lexicon.Unknown
	hard, soft = s.rules.Check(record)
	require.Empty(t, append(hard, soft...))
	require.Empty(t, s.rules.Wanted(record))
}

// TestProblemsOfARecordAreBounded also shows that the work grows only with the record's size: with
// twenty thousand annotations that all have the same ID, or with a chain of that length.
func TestProblemsOfARecordAreBounded(t *testing.T) {
	t.Parallel()
	s := spaces(t)[0]
	var same, chained []string
	for i := range 20_000 {
		same = append(same, a+`,"parentId":{"value":"u9"},"anchor":{"textSpan":{"byteStart":2,"byteEnd":1}}}`)
		chained = append(chained, `{"uuid":{"value":"`+strconv.Itoa(i)+`"},"parentId":{"value":"`+strconv.Itoa(i+1)+`"}}`)
	}
	hard, soft := s.rules.Check(s.record(t, "annotation.annotationLayer", layer(strings.Join(same[:12_000], ","))))
	require.Len(t, hard, 20)
	require.Len(t, soft, 20)
	long := s.record(t, "expression.expression", `"id":"e","kind":"document","text":"`+strings.Repeat(`\n`, 900_000)+`"`)
	item := `{"item":{"recordRef":"` + uri("expression.expression") + `"},"textSpan":{"byteStart":1,"byteEnd":2}}`
	judged := s.record(t, "judgment.judgmentSet",
		`"experimentRef":"`+uri("judgment.experimentDef")+`","judgments":[`+strings.TrimSuffix(strings.Repeat(item+",", 8000), ",")+`]`)
	judged.Targets[long.URI()] = long.Root
	_, soft = s.rules.Check(judged)
	require.Empty(t, soft)
	_, soft = s.rules.Check(s.record(t, "annotation.annotationLayer", layer(strings.Join(chained, ","))))
	require.Equal(t, "unknown_id /annotations/19999/parentId/value", brief(soft))
}
