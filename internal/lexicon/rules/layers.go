package rules

import (
	"strconv"

	"github.com/weir-social/weir/internal/lexicon"
)

// Layers returns the rules of pub.layers, or of a namespace of the same shape. Offsets
// count bytes of UTF-8.
//
// A rule is soft if an update of another record can break it: for example, the text of
// an expression may become shorter than the spans of its annotations.
func Layers(namespace string) Namespace {
	parts := layersParts()
	return Namespace{
		Name: namespace,
		check: func(c *check) {
			layersReferences(c)
			layersSlugs(c)
			ids := idsOf(c)
			for v := range c.Root.All() {
				if rule := parts[c.definition(v)]; rule != nil {
					rule(c, v)
				}
				if c.full() {
					break
				}
			}
			layersIDs(c, ids)
			layersTargets(c)
		},
		wanted:   layersWanted,
		required: layersRequired,
		searched: searchedOf(layersSearched()),
	}
}

// layersParts returns the rules for a record or a part of one, by its definition.
func layersParts() map[string]func(*check, lexicon.Value) {
	return map[string]func(*check, lexicon.Value){
		"defs#span":                      span,
		"defs#textPositionSelector":      span,
		"defs#temporalSpan":              temporalSpan,
		"defs#spatioTemporalAnchor":      keyframes,
		"defs#anchor":                    anchor,
		"defs#alignmentLink":             alignmentLink,
		"defs#licensing":                 licensing,
		"segmentation.defs#tokenization": tokenization,
		"annotation.annotationLayer":     annotationLayer,
		"annotation.defs#annotation":     annotation,
		"resource.template":              template,
		"resource.filling":               filling,
		"resource.templateComposition":   composition,
		"resource.defs#templateMember":   member,
		"judgment.experimentDef":         experiment,
		"eprint.defs#citation":           citation,
		"eprint.defs#date":               date,
		"media.media":                    media,
	}
}

// blocking returns the references that a record must have to a collection of this
// namespace.
func blocking(name string) map[string]string {
	return map[string]map[string]string{
		"annotation.annotationLayer":    {"expression": "expression.expression"},
		"segmentation.segmentation":     {"expression": "expression.expression"},
		"corpus.membership":             {"corpusRef": "corpus.corpus", "expressionRef": "expression.expression"},
		"resource.collectionMembership": {"collectionRef": "resource.collection", "entryRef": "resource.entry"},
		"resource.filling":              {"templateRef": "resource.template"},
		"ontology.typeDef":              {"ontologyRef": "ontology.ontology"},
		"judgment.judgmentSet":          {"experimentRef": "judgment.experimentDef"},
		"judgment.agreementReport":      {"experimentRef": "judgment.experimentDef"},
	}[name]
}

// layersRequired returns the references that a record must have. They do not include the
// paper of a dataLink, which is on another platform.
func layersRequired(c *check) []string {
	required := blocking(c.name)
	var uris []string
	for _, v := range c.Root.Items() {
		if _, ok := required[v.Key()]; ok || c.name == "changelog.entry" && v.Key() == "subject" {
			uris = append(uris, v.Text())
		}
	}
	return uris
}

// layersReferences checks that a required reference names a record of the right
// collection.
func layersReferences(c *check) {
	required := blocking(c.name)
	for _, v := range c.Root.Items() {
		if name, ok := required[v.Key()]; ok && collectionOf(v.Text()) != c.namespace.Name+"."+name {
			c.reject("reference_collection", v, "a record of "+c.namespace.Name+"."+name)
		}
	}
	if c.name != "changelog.entry" {
		return
	}
	subject, named := c.Root.Field("subject"), c.Root.Field("subjectCollection")
	collection := collectionOf(subject.Text())
	if len(collection) <= len(c.namespace.Name) || collection[:len(c.namespace.Name)+1] != c.namespace.Name+"." {
		c.reject("reference_collection", subject, "a record of "+c.namespace.Name)
	} else if named.Text() != collection {
		c.reject("subject_collection", named, strconv.Quote(collection))
	}
}

// layersSlugs checks that a slug that the schema does not know has a definition beside
// it.
func layersSlugs(c *check) {
	for _, slug := range c.Unlisted {
		if key := slug.Key(); key != "" && !slug.Parent().Field(key+"Uri").Exists() {
			c.warn("unknown_slug", slug, "a value that the schema knows, or "+key+"Uri")
		}
	}
}

// span checks that the start is not after the end. Empty nodes have empty spans.
func span(c *check, v lexicon.Value) {
	start, end := v.Field("byteStart"), v.Field("byteEnd")
	from, _ := start.Int()
	to, _ := end.Int()
	switch {
	case from > to:
		c.reject("span_order", start, "at most byteEnd, "+decimal(to))
	case from == to:
		c.warn("span_empty", start, "less than byteEnd")
	}
	first, has := v.Field("charStart").Int()
	last, hasLast := v.Field("charEnd").Int()
	switch {
	case !has || !hasLast:
	case first > last:
		c.reject("span_order", v.Field("charStart"), "at most charEnd, "+decimal(last))
	case first == last && from < to:
		c.warn("span_empty", v.Field("charStart"), "less than charEnd")
	}
}

func temporalSpan(c *check, v lexicon.Value) {
	start, _ := v.Field("start").Int()
	end, _ := v.Field("ending").Int()
	if start > end {
		c.reject("span_order", v.Field("start"), "at most ending, "+decimal(end))
	}
}

// keyframes checks that keyframes are inside the span of their anchor, in the order of
// time.
func keyframes(c *check, v lexicon.Value) {
	from, _ := v.Field("temporalSpan").Field("start").Int()
	to, _ := v.Field("temporalSpan").Field("ending").Int()
	last := from
	for i, frame := range v.Field("keyframes").Items() {
		at := frame.Field("timeMs")
		ms, _ := at.Int()
		switch {
		case ms < from || ms > to:
			c.reject("keyframe_time", at, decimal(from)+" to "+decimal(to))
		case ms < last:
			c.reject("keyframe_order", at, "at least "+decimal(last))
		case i > 0 && ms == last:
			c.warn("keyframe_order", at, "more than "+decimal(last))
		}
		last = ms
	}
}

func experiment(c *check, v lexicon.Value) {
	least, has := v.Field("scaleMin").Int()
	most, hasMost := v.Field("scaleMax").Int()
	if has && hasMost && least > most {
		c.reject("scale_order", v.Field("scaleMin"), "at most scaleMax, "+decimal(most))
	}
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }
