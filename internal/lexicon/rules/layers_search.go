package rules

// layersSearched returns the searched fields of the records of pub.layers, by the
// collection within the namespace. An asterisk stands for any element of an array. The
// fields before the empty string contain what a record is called; the fields after it
// contain its text.
//
// Words that repeat another record, such as those of the tokens of a text, and values for
// programs are not searched.
func layersSearched() map[string][]string {
	return map[string][]string{
		"alignment.alignment":        {},
		"annotation.annotationLayer": {"", "annotations/*/label", "annotations/*/value", "annotations/*/text", "labelSet"},
		"annotation.clusterSet":      {"", "clusters/*/canonicalLabel"},
		"changelog.entry":            {"", "summary", "sections/*/items/*/description"},
		"corpus.corpus":              {"name", "", "description"},
		"corpus.membership":          {},
		"eprint.dataLink":            {"", "description", "paperSection"},
		"eprint.eprint": {"eprintIdentifier", "citation/title", "", "description", "citation/abstract",
			"citation/creators/*/family", "citation/creators/*/given", "citation/creators/*/literal"},
		"expression.expression":         {"id", "", "text", "features/entries/*/value"},
		"graph.graphEdge":               {},
		"graph.graphEdgeSet":            {},
		"graph.graphNode":               {"label", "", "properties/entries/*/value"},
		"judgment.agreementReport":      {},
		"judgment.experimentDef":        {"name", "", "description", "guidelines", "labels/*"},
		"judgment.judgmentSet":          {"", "judgments/*/freeText", "judgments/*/categoricalValue"},
		"media.media":                   {"title", "", "description"},
		"ontology.ontology":             {"name", "", "description"},
		"ontology.typeDef":              {"name", "", "gloss", "allowedRoles/*/roleName", "allowedValues/*"},
		"persona.persona":               {"name", "", "description", "guidelines"},
		"resource.collection":           {"name", "", "description"},
		"resource.collectionMembership": {},
		"resource.entry":                {"form", "lemma", "", "components/*/form"},
		"resource.filling":              {"", "renderedText"},
		"resource.template":             {"name", "", "text", "slots/*/name"},
		"resource.templateComposition":  {},
		"segmentation.segmentation":     {},
	}
}
