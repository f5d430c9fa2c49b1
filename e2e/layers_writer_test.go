package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

// layersTexts are the fields of a record of each of the 26 collections. <name> stands
// for the at-uri of a record of that collection, <any> for one of any.
func layersTexts() map[string][]string {
	const text = `"id":"x","kind":"document","text":"a text of many words, of which some are annotated"`
	const span = `"textSpan":{"byteStart":2,"byteEnd":6}`
	return map[string][]string{
		"expression.expression": {text, text + `,"parentRef":"<expression.expression>"`},
		"segmentation.segmentation": {
			`"expression":"<expression.expression>","tokenizations":[{"uuid":{"value":"t"},"kind":"word","tokens":[{"tokenIndex":0,` + span + `}]}]`,
		},
		"annotation.annotationLayer": {
			`"expression":"<expression.expression>","kind":"span","annotations":[{"uuid":{"value":"u"},"ontologyTypeRef":"<ontology.typeDef>",` +
				`"anchor":{` + span + `}}]`,
		},
		"annotation.clusterSet": {
			`"kind":"coreference","layerRef":"<annotation.annotationLayer>","clusters":[{"uuid":{"value":"c"},` +
				`"members":[{"recordRef":"<annotation.annotationLayer>"}]}]`,
		},
		"ontology.ontology": {`"name":"o"`},
		"ontology.typeDef": {
			`"ontologyRef":"<ontology.ontology>","name":"t","typeKind":"entity-type"`,
			`"ontologyRef":"<ontology.ontology>","name":"t","typeKind":"entity-type","parentTypeRef":"<ontology.typeDef>"`,
		},
		"corpus.corpus":                 {`"name":"c"`, `"name":"c","ontologyRefs":["<ontology.ontology>","<ontology.ontology>"]`},
		"corpus.membership":             {`"corpusRef":"<corpus.corpus>","expressionRef":"<expression.expression>"`},
		"resource.entry":                {`"form":"f"`},
		"resource.collection":           {`"name":"c"`},
		"resource.collectionMembership": {`"collectionRef":"<resource.collection>","entryRef":"<resource.entry>"`},
		"resource.template":             {`"text":"{a}","slots":[{"name":"a"}]`},
		"resource.filling":              {`"templateRef":"<resource.template>","slotFillings":[{"slotName":"a","entryRef":"<resource.entry>"}]`},
		"resource.templateComposition": {
			`"compositionType":"sequence","members":[{"ordinal":1,"templateRef":"<resource.template>"},{"ordinal":2,` +
				`"compositionRef":"<resource.templateComposition>"}]`,
		},
		"judgment.experimentDef":   {`"name":"e","scaleMin":1,"scaleMax":5`},
		"judgment.judgmentSet":     {`"experimentRef":"<judgment.experimentDef>","judgments":[{"item":{"recordRef":"<any>"},"scalarValue":3}]`},
		"judgment.agreementReport": {`"experimentRef":"<judgment.experimentDef>","judgmentSetRefs":["<judgment.judgmentSet>"]`},
		"alignment.alignment": {
			`"kind":"translation","source":{"recordRef":"<any>"},"target":{"recordRef":"<any>"},"links":[{"sourceIndices":[1],"targetIndices":[1]}]`,
		},
		"graph.graphNode": {`"nodeType":"concept"`},
		"graph.graphEdge": {`"source":{"recordRef":"<graph.graphNode>"},"target":{"recordRef":"<any>"},"edgeType":"same-as"`},
		"graph.graphEdgeSet": {
			`"edges":[{"uuid":{"value":"u"},"edgeType":"same-as","source":{"recordRef":"<any>"},"target":{"recordRef":"<graph.graphNode>"}}]`,
		},
		"persona.persona": {`"name":"p"`, `"name":"p","parentRef":"<persona.persona>"`},
		"media.media": {
			`"kind":"image","externalUri":"https://example.com/a"`,
			`"kind":"image","externalUri":"https://example.com/a","parentMediaRef":"<media.media>"`,
		},
		"eprint.eprint": {`"eprintIdentifier":"10.1/2","linkType":"describes","expressionRefs":["<expression.expression>"]`},
		"eprint.dataLink": {
			`"eprintUri":"at://did:plc:elsewhere/com.example.paper/1","dataKind":"corpus","expressionRefs":["<expression.expression>"]`,
		},
		"changelog.entry": {`"subject":"<any>","subjectCollection":"<its collection>","summary":"s","sections":[]`},
	}
}

// breakings returns variants of a record's fields that violate its lexicon or a rule.
func breakings(kind, fields string) []string {
	all := []string{strings.Replace(fields, `"`, `"x-`, 1)} // rename the first field, which is required
	if name, rest, ok := strings.Cut(fields, `":"`); ok {
		_, after, _ := strings.Cut(rest, `"`)
		all = append(all, strings.Replace(name+`":7`+after, "<its collection>", layersName+"media.media", 1))
	}
	switch kind {
	case "corpus.membership", "ontology.typeDef", "resource.filling": // their first field is a required reference
		all = append(all, strings.Replace(fields, "<", "<graph.graphNode><", 1))
	case "annotation.annotationLayer", "segmentation.segmentation":
		all = append(all, strings.Replace(fields, `"byteStart":2`, `"byteStart":9`, 1))
	case "judgment.experimentDef":
		all = append(all, strings.Replace(fields, `"scaleMin":1`, `"scaleMin":6`, 1))
	case "changelog.entry":
		all = append(all, strings.Replace(fields, `<its collection>`, layersName+`media.mediums`, 1))
	}
	return all
}

const layersName = "pub.layers."

// A layersChange changes a record or an account at a second of the plan.
type layersChange struct {
	at     float64
	uri    string // the record's at-uri, or an account's DID if status is set
	record string // empty for a deletion
	status string // the new status of the account
}

// layersPlan plans what accounts write, in an order that ignores which record refers to which.
type layersPlan struct {
	random   *rand.Rand
	texts    map[string][]string
	kinds    []string
	dids     []string // the last account's records are in its repository, but no stream sends them
	uris     map[string][]string
	withheld map[string][]string
	serial   int
	early    []layersChange // within the first minute
	late     []layersChange // after all missing records were requested
}

// newLayersPlan plans the changes of this many records.
func newLayersPlan(seed uint64, dids []string, records int) *layersPlan {
	// not for security
	p := &layersPlan{
		random: rand.New(rand.NewPCG(seed, 1)), texts: layersTexts(), dids: dids, uris: map[string][]string{}, withheld: map[string][]string{},
	}
	for kind := range p.texts {
		p.kinds = append(p.kinds, kind)
	}
	slices.Sort(p.kinds)
	for i := range records {
		kind := p.kinds[i%len(p.kinds)]
		p.uris[kind] = append(p.uris[kind], p.uri(kind, p.one(dids[:len(dids)-1])))
	}
	// these collections require no other records
	for _, kind := range []string{"ontology.ontology", "expression.expression", "corpus.corpus"} {
		for range 3 {
			uri := p.uri(kind, dids[len(dids)-1])
			p.withheld[kind] = append(p.withheld[kind], uri)
			p.early = append(p.early, layersChange{uri: uri, record: p.record(kind, strings.ReplaceAll(p.texts[kind][0], "<", ""), false)})
		}
	}
	for _, kind := range p.kinds {
		for i, uri := range p.uris[kind] {
			p.history(kind, uri, i)
		}
	}
	for i, kind := range slices.Repeat([]string{"ontology.typeDef", "corpus.membership", "changelog.entry"}, 2) {
		p.early = append(p.early,
			layersChange{at: float64(i), uri: p.uri(kind, p.one(dids[:len(dids)-3])), record: p.record(kind, p.texts[kind][0], true)})
		p.late = append(p.late,
			layersChange{at: float64(100 + i), uri: p.uri(kind, p.one(dids[:len(dids)-3])), record: p.record(kind, p.texts[kind][0], true)})
	}
	p.early = append(p.early, layersChange{at: 30, uri: dids[len(dids)-2], status: "deleted"})
	// this account's records are all written by then
	p.late = append(p.late, layersChange{at: 130, uri: dids[len(dids)-3], status: "deleted"},
		layersChange{at: 161, uri: dids[0], status: "takendown"})
	for _, changes := range [][]layersChange{p.early, p.late} {
		slices.SortStableFunc(changes, func(a, b layersChange) int { return cmp.Compare(a.at, b.at) })
	}
	return p
}

// history plans the changes of a record. The dependents of a record that is written late may come
// up to a minute earlier.
func (p *layersPlan) history(kind, uri string, number int) {
	chance := func(percent int) bool { return p.random.IntN(100) < percent }
	write := func(at float64) layersChange {
		fields := p.one(p.texts[kind])
		switch wrong := breakings(kind, fields); { // at least two of each kind are broken
		case number < 2:
			fields = wrong[(len(wrong)-1)*(1-number)]
		case chance(1):
			fields = p.one(wrong)
		}
		return layersChange{at: at, uri: uri, record: p.record(kind, p.filled(fields, at >= 100), false)}
	}
	at := p.random.Float64() * 60
	if chance(4) {
		p.late = append(p.late, write(100+at))
		return
	}
	p.early = append(p.early, write(at))
	if chance(20) {
		at += p.random.Float64() * (60 - at)
		p.early = append(p.early, write(at))
	}
	if chance(10) {
		at += p.random.Float64() * (60 - at)
		if p.early = append(p.early, layersChange{at: at, uri: uri}); chance(70) {
			return
		}
		p.early = append(p.early, write(60))
	}
	switch late := 100 + p.random.Float64()*60; {
	case chance(10):
		p.late = append(p.late, write(late))
	case chance(10):
		p.late = append(p.late, layersChange{at: late, uri: uri})
	}
}

// filled replaces the placeholders in fields by at-uris. Some name records that no stream sends,
// and some name records that do not exist.
func (p *layersPlan) filled(fields string, late bool) string {
	for {
		before, rest, found := strings.Cut(fields, "<")
		kind, after, _ := strings.Cut(rest, ">")
		if !found {
			return fields
		}
		for strings.HasPrefix(after, "<") { // the placeholder of a wrong collection comes before the right one
			_, after, _ = strings.Cut(after, ">")
		}
		if kind == "any" {
			kind = p.one(p.kinds)
		}
		uri := p.one(p.uris[kind])
		switch n := p.random.IntN(100); {
		case late: // a record that was requested in vain is not requested again
		case n < 4:
			uri = p.uri(kind, p.one(p.dids))
		case n < 8 && p.withheld[kind] != nil:
			uri = p.one(p.withheld[kind])
		}
		after = strings.ReplaceAll(after, "<its collection>", layersName+kind)
		fields = before + uri + after
	}
}

// record returns a record. If alone is true, the records that it refers to do not exist.
func (p *layersPlan) record(kind, fields string, alone bool) string {
	for alone && strings.Contains(fields, "<") {
		before, rest, _ := strings.Cut(fields, "<")
		target, after, _ := strings.Cut(rest, ">")
		if target == "any" {
			target = "media.media"
		}
		fields = before + p.uri(target, p.dids[1]) + strings.ReplaceAll(after, "<its collection>", layersName+target)
	}
	return `{"$type":"` + layersName + kind + `","createdAt":"2026-01-02T03:04:05Z",` + fields + `}`
}

// uri returns a new at-uri.
func (p *layersPlan) uri(kind, did string) string {
	const digits = "234567abcdefghijklmnopqrstuvwxyz"
	p.serial++
	key := []byte("3lbcdefghij22")
	for at, n := len(key)-1, p.serial; n > 0; at, n = at-1, n/len(digits) {
		key[at] = digits[n%len(digits)]
	}
	return "at://" + did + "/" + layersName + kind + "/" + string(key)
}

func (p *layersPlan) one(of []string) string { return of[p.random.IntN(len(of))] }

// happen makes the changes. Accounts that are gone write nothing.
func happen(t *testing.T, n *simnet.Net, changes []layersChange) {
	t.Helper()
	for _, c := range changes {
		parts := strings.Split(strings.TrimPrefix(c.uri, "at://"), "/")
		account, known := n.Account(parts[0])
		require.True(t, known, c.uri)
		var err error
		switch {
		case account.Status != "":
		case c.status == "deleted":
			err = n.Delete(c.uri)
		case c.status != "":
			err = n.TakeDown(c.uri)
		case c.record == "":
			err = n.DeleteRecord(c.uri)
		default:
			_, err = n.PutRecord(parts[0], parts[1], parts[2], json.RawMessage(c.record))
		}
		require.NoError(t, err, fmt.Sprint(c))
	}
}
