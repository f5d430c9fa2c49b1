package e2e

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-social/weir/internal/testing/simnet"
)

// layersFold computes the expected state of the records of pub.layers, from the accounts' final
// records and from their servers' responses. It shares no code with Weir: the rules for records are
// written here a second time.
type layersFold struct {
	records map[string]*simnet.Entry // by at-uri: the records that streams or servers sent
	gone    map[string]bool          // deleted records
	deleted map[string]bool          // deleted accounts
	invain  map[string]bool          // records that the servers were asked for and did not have
}

func foldLayers(entries []*simnet.Entry, calls []simnet.Call) *layersFold {
	f := &layersFold{records: map[string]*simnet.Entry{}, gone: map[string]bool{}, deleted: map[string]bool{}, invain: map[string]bool{}}
	given := map[string]bool{}
	for _, c := range calls {
		for _, uri := range c.URIs {
			given[uri] = given[uri] || c.Status == http.StatusOK
			f.invain[uri] = f.invain[uri] || c.Status == http.StatusBadRequest
		}
	}
	for _, e := range entries {
		uri := "at://" + e.DID + "/" + e.Collection + "/" + e.Rkey
		switch {
		case e.Kind == "account":
			f.deleted[e.DID] = e.Status == "deleted"
		case e.Kind != "commit" || e.Withheld && !given[uri]:
		case e.Operation == "delete":
			delete(f.records, uri)
			f.gone[uri] = true
		default:
			delete(f.gone, uri)
			f.records[uri] = e
		}
	}
	return f
}

// states returns a line for each record of an account that is not deleted.
func (f *layersFold) states() (lines []string) {
	for uri, e := range f.records {
		if kind, ok := strings.CutPrefix(e.Collection, layersName); ok && !f.deleted[e.DID] {
			lines = append(lines, uri+" "+e.CID+" "+f.state(kind, e.Record))
		}
	}
	slices.Sort(lines)
	return lines
}

func (f *layersFold) state(kind string, raw []byte) string {
	var record map[string]any
	if err := json.Unmarshal(raw, &record); err != nil {
		return err.Error()
	}
	switch {
	case !ofLexicon(kind, record):
		return "invalid refused letter:lexicon"
	case !ofRules(kind, record):
		return "valid refused letter:rules"
	}
	state, dangling := "projected", ""
	for _, uri := range requiredOf(kind, record) {
		switch {
		case f.dangles(uri):
			dangling = " dangling"
		case f.records[uri] != nil:
		case f.invain[uri]:
			state = "missing"
		case state == "projected":
			state = "parked"
		}
	}
	switch state {
	case "missing":
		return "valid missing letter:reference"
	case "parked":
		return "valid parked"
	}
	var references []string
	f.references("", record, &references)
	slices.Sort(references)
	if len(references) > 0 {
		dangling += " refs:" + strings.Join(references, ",")
	}
	return "valid projected" + dangling
}

// dangles reports whether the record that an at-uri names was deleted.
func (f *layersFold) dangles(uri string) bool {
	did, rest, _ := strings.Cut(strings.TrimPrefix(uri, "at://"), "/")
	return strings.HasPrefix(rest, layersName) && (f.deleted[did] || f.gone[uri])
}

// references collects the paths of the at-uris in a value.
func (f *layersFold) references(at string, value any, found *[]string) {
	switch v := value.(type) {
	case map[string]any:
		for name, field := range v {
			f.references(at+"/"+name, field, found)
		}
	case []any:
		for i, item := range v {
			f.references(at+"/"+strconv.Itoa(i), item, found)
		}
	case string:
		if strings.HasPrefix(v, "at://") {
			if f.dangles(v) {
				at += "!"
			}
			*found = append(*found, at)
		}
	}
}

// mustHave returns the fields that the lexicons require: text, list or object.
func mustHave(kind string) map[string]string {
	return map[string]map[string]string{
		"expression.expression":         {"id": "text", "kind": "text"},
		"segmentation.segmentation":     {"expression": "text", "tokenizations": "list"},
		"annotation.annotationLayer":    {"expression": "text", "kind": "text", "annotations": "list"},
		"annotation.clusterSet":         {"kind": "text", "clusters": "list"},
		"ontology.ontology":             {"name": "text"},
		"ontology.typeDef":              {"ontologyRef": "text", "name": "text", "typeKind": "text"},
		"corpus.corpus":                 {"name": "text"},
		"corpus.membership":             {"corpusRef": "text", "expressionRef": "text"},
		"resource.entry":                {"form": "text"},
		"resource.collection":           {"name": "text"},
		"resource.collectionMembership": {"collectionRef": "text", "entryRef": "text"},
		"resource.template":             {"text": "text", "slots": "list"},
		"resource.filling":              {"templateRef": "text", "slotFillings": "list"},
		"resource.templateComposition":  {"compositionType": "text", "members": "list"},
		"judgment.experimentDef":        {"name": "text"},
		"judgment.judgmentSet":          {"experimentRef": "text", "judgments": "list"},
		"judgment.agreementReport":      {"experimentRef": "text"},
		"alignment.alignment":           {"kind": "text", "links": "list"},
		"graph.graphNode":               {"nodeType": "text"},
		"graph.graphEdge":               {"source": "object", "target": "object", "edgeType": "text"},
		"graph.graphEdgeSet":            {"edges": "list"},
		"persona.persona":               {"name": "text"},
		"media.media":                   {"kind": "text"},
		"eprint.eprint":                 {"eprintIdentifier": "text", "linkType": "text"},
		"eprint.dataLink":               {"eprintUri": "text", "dataKind": "text"},
		"changelog.entry":               {"subject": "text", "subjectCollection": "text", "summary": "text", "sections": "list"},
	}[kind]
}

// ofLexicon reports whether a record has the fields that its lexicon requires, with the right
// types.
func ofLexicon(kind string, record map[string]any) bool {
	for name, want := range mustHave(kind) {
		if typeOf(record[name]) != want {
			return false
		}
	}
	return namedByText(record)
}

// namedByText reports whether references and identifiers within a record are strings.
func namedByText(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		for name, field := range v {
			if (name == "recordRef" || name == "value") && typeOf(field) != "text" || !namedByText(field) {
				return false
			}
		}
	case []any:
		return !slices.ContainsFunc(v, func(item any) bool { return !namedByText(item) })
	}
	return true
}

func typeOf(value any) string {
	switch value.(type) {
	case string:
		return "text"
	case []any:
		return "list"
	case map[string]any:
		return "object"
	case float64:
		return "number"
	}
	return "none"
}

// blockingFields returns the references without which a record is of no use, and the collection
// that each must name.
func blockingFields(kind string) map[string]string {
	return map[string]map[string]string{
		"annotation.annotationLayer":    {"expression": "expression.expression"},
		"segmentation.segmentation":     {"expression": "expression.expression"},
		"corpus.membership":             {"corpusRef": "corpus.corpus", "expressionRef": "expression.expression"},
		"resource.collectionMembership": {"collectionRef": "resource.collection", "entryRef": "resource.entry"},
		"resource.filling":              {"templateRef": "resource.template"},
		"ontology.typeDef":              {"ontologyRef": "ontology.ontology"},
		"judgment.judgmentSet":          {"experimentRef": "judgment.experimentDef"},
		"judgment.agreementReport":      {"experimentRef": "judgment.experimentDef"},
	}[kind]
}

func requiredOf(kind string, record map[string]any) (uris []string) {
	for name := range blockingFields(kind) {
		uris = append(uris, record[name].(string))
	}
	if kind == "changelog.entry" {
		uris = append(uris, record["subject"].(string))
	}
	return uris
}

// ofRules reports whether a record keeps the hard rules: references name the right collections, and
// spans and scales are in order.
func ofRules(kind string, record map[string]any) bool {
	collectionOf := func(name string) string { return strings.Split(record[name].(string)+"///", "/")[3] }
	for name, want := range blockingFields(kind) {
		if collectionOf(name) != layersName+want {
			return false
		}
	}
	if kind == "changelog.entry" && collectionOf("subject") != record["subjectCollection"] {
		return false
	}
	least, most := record["scaleMin"], record["scaleMax"]
	return (least == nil || least.(float64) <= most.(float64)) && spansInOrder(record)
}

func spansInOrder(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		from, has := v["byteStart"].(float64)
		if has && from > v["byteEnd"].(float64) {
			return false
		}
		for _, field := range v {
			if !spansInOrder(field) {
				return false
			}
		}
	case []any:
		return !slices.ContainsFunc(v, func(item any) bool { return !spansInOrder(item) })
	}
	return true
}
