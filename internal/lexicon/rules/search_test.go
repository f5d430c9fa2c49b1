package rules_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/lexicon"
)

// nested returns a record with one string at a field; an asterisk in the field means an array.
func nested(field, value string) string {
	text := fmt.Sprintf("%q", value)
	parts := strings.Split(field, "/")
	for i := len(parts) - 1; i >= 0; i-- {
		if parts[i] == "*" {
			text = "[" + text + "]"
		} else {
			text = fmt.Sprintf(`{%q:%s}`, parts[i], text)
		}
	}
	return text
}

// TestLayersSearchedFields covers names, contents, and fields that are not searched. The schema
// declares each field as a text.
func TestLayersSearchedFields(t *testing.T) {
	t.Parallel()
	for _, s := range spaces(t) {
		for _, c := range []struct{ collection, called, others, not string }{
			{"expression.expression", "id", "text features/entries/*/value", "features/entries/*/key"},
			{"annotation.annotationLayer", "", "annotations/*/label annotations/*/value annotations/*/text labelSet", "annotations/*/uuid/value"},
			{"annotation.clusterSet", "", "clusters/*/canonicalLabel", "clusters/*/uuid/value"},
			{"ontology.ontology", "name", "description", "version"},
			{"ontology.typeDef", "name", "gloss allowedRoles/*/roleName allowedValues/*", "allowedRoles/*/defaultValue"},
			{"corpus.corpus", "name", "description", "version"},
			{"resource.entry", "form lemma", "components/*/form", "features/entries/*/value"},
			{"resource.collection", "name", "description", "version"},
			{"resource.template", "name", "text slots/*/name", "slots/*/defaultValue"},
			{"resource.filling", "", "renderedText", "slotFillings/*/literalValue"},
			{"judgment.experimentDef", "name", "description guidelines labels/*", "presentation/maskChar"},
			{"judgment.judgmentSet", "", "judgments/*/freeText judgments/*/categoricalValue", "agent/name"},
			{"graph.graphNode", "label", "properties/entries/*/value", "properties/entries/*/key"},
			{"persona.persona", "name", "description guidelines", "features/entries/*/value"},
			{"media.media", "title", "description", "mimeType"},
			{
				"eprint.eprint", "eprintIdentifier citation/title",
				"description citation/abstract citation/creators/*/family citation/creators/*/given citation/creators/*/literal", "citation/doi",
			},
			{"eprint.dataLink", "", "description paperSection", "features/entries/*/value"},
			{"changelog.entry", "", "summary sections/*/items/*/description", "sections/*/items/*/fieldPath"},
			{"segmentation.segmentation", "", "", "tokenizations/*/tokens/*/text"},
			{"graph.graphEdge", "", "", "label"},
		} {
			collection := s.name + "." + c.collection
			if s.catalog.Hash(collection) == "" {
				require.Equal(t, "example.weir", s.name, "every collection of pub.layers has a schema")
				continue
			}
			find := func(field string) (called, others []lexicon.Text) {
				record := strings.Replace(nested(field, "a heron"), "{", fmt.Sprintf(`{"$type":%q,`, collection), 1)
				result := s.catalog.Validate(collection, key, []byte(record))
				path := "/" + strings.ReplaceAll(field, "*", "0")
				if s.name == "pub.layers" { // our own lexicons have only some of the fields
					require.Equal(t, []lexicon.Text{{Path: path, Value: "a heron"}}, result.Texts, "%s %s", collection, field)
				}
				return s.rules.Searched(collection, []lexicon.Text{{Path: path, Value: "a heron"}})
			}
			for _, field := range strings.Fields(c.called) {
				called, others := find(field)
				require.Len(t, called, 1, "%s %s", collection, field)
				require.Empty(t, others)
			}
			for _, field := range strings.Fields(c.others) {
				called, others := find(field)
				require.Empty(t, called)
				require.Len(t, others, 1, "%s %s", collection, field)
			}
			called, others := find(c.not)
			require.Empty(t, append(called, others...), "%s %s", collection, c.not)
		}
		called, others := s.rules.Searched("com.example.note", []lexicon.Text{{Path: "/a"}, {Path: "/b/0"}})
		require.Empty(t, called)
		require.Len(t, others, 2, "all texts of an unknown collection must be found")
	}
}
