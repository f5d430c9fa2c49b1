package rules

import (
	"iter"
	"strings"
	"unicode/utf8"

	"github.com/weir-social/weir/internal/lexicon"
)

// maxChain limits the walk up a chain of parents.
const maxChain = 64

// parents returns the fields that form chains of records of one collection.
func parents(name string) string {
	return map[string]string{
		"expression.expression":      "parentRef",
		"annotation.annotationLayer": "parentLayerRef",
		"ontology.ontology":          "parentRef",
		"ontology.typeDef":           "parentTypeRef",
		"persona.persona":            "parentRef",
		"media.media":                "parentMediaRef",
	}[name]
}

// layersWanted returns the records that the rules of this file read. For an annotation
// layer, the segmentations of its expression may be added to the targets.
func layersWanted(c *check) []string {
	var uris []string
	required, parent := blocking(c.name), parents(c.name)
	for _, v := range c.Root.Items() {
		if _, ok := required[v.Key()]; ok || parent != "" && v.Key() == parent {
			uris = append(uris, v.Text())
		}
	}
	for uri := range compositions(c.Root) {
		uris = append(uris, uri.Text())
	}
	for _, t := range c.Root.Field("tokenizations").Items() {
		if ref := t.Field("expressionRef"); ref.Exists() {
			uris = append(uris, ref.Text())
		}
	}
	for _, j := range c.Root.Field("judgments").Items() {
		if ref := j.Field("item").Field("recordRef"); ref.Exists() && j.Field("textSpan").Exists() {
			uris = append(uris, ref.Text())
		}
	}
	return uris
}

// layersTargets checks the rules between a record and others. All of them are soft.
func layersTargets(c *check) {
	if len(c.Targets) == 0 {
		return
	}
	chain(c)
	switch c.name {
	case "expression.expression":
		if text, ok := c.text(c.Root.Field("parentRef")); ok {
			spanIn(text, c.Root.Field("anchor").Field("textSpan"), lexicon.Value{}).warn(c)
		}
	case "segmentation.segmentation":
		segmentation(c)
	case "annotation.annotationLayer":
		layerIn(c)
	case "resource.templateComposition":
		contains(c)
	case "resource.filling":
		fills(c, c.target(c.Root.Field("templateRef").Text(), "resource.template"))
	case "judgment.judgmentSet":
		judgments(c, c.target(c.Root.Field("experimentRef").Text(), "judgment.experimentDef"))
	}
}

// chain checks that the parents of a record do not lead back to it.
func chain(c *check) {
	field := parents(c.name)
	if field == "" {
		return
	}
	at := c.Root.Field(field)
	self := c.URI()
	for range maxChain {
		uri := at.Text()
		if uri == self {
			c.warn("parent_cycle", c.Root.Field(field), "a parent that is not below the record")
			return
		}
		if at = c.target(uri, c.name).Field(field); !at.Exists() {
			return
		}
	}
}

// compositions yields the references of a composition to others that are its members.
func compositions(composition lexicon.Value) iter.Seq[lexicon.Value] {
	return func(yield func(lexicon.Value) bool) {
		for _, m := range composition.Field("members").Items() {
			if ref := m.Field("compositionRef"); ref.Exists() && !yield(ref) {
				return
			}
		}
	}
}

// contains checks that a composition is not a member of itself, nor of one of its
// members.
func contains(c *check) {
	leadsBack := map[string]bool{c.URI(): true} // each is read once: thousands of members may be the same
	for ref := range compositions(c.Root) {
		uri := ref.Text()
		back, known := leadsBack[uri]
		if !known {
			for inner := range compositions(c.target(uri, c.name)) {
				back = back || inner.Text() == c.URI()
			}
			leadsBack[uri] = back
		}
		if back {
			c.warn("parent_cycle", ref, "a composition that does not contain this one")
		}
	}
}

// text returns the text of the expression that a reference names. Each expression is
// read once, because thousands of judgments may refer to the same one.
func (c *check) text(ref lexicon.Value) (string, bool) {
	uri := ref.Text()
	if text, ok := c.texts[uri]; ok {
		return text, true
	}
	v := c.target(uri, "expression.expression").Field("text")
	if !v.Exists() {
		return "", false
	}
	if c.texts == nil {
		c.texts = map[string]string{}
	}
	text := v.Text()
	c.texts[uri] = text
	return text, true
}

// fault describes what is wrong with a span of a text. The zero fault means that
// nothing is wrong.
type fault struct {
	rule     string
	at       lexicon.Value
	expected string
}

func (f fault) warn(c *check) {
	if f.rule != "" {
		c.warn(f.rule, f.at, f.expected)
	}
}

// spanIn compares a span with its text: it must be inside the text, cut no character,
// and select the quoted text, if there is any.
func spanIn(text string, span, quoted lexicon.Value) fault {
	from, ok := span.Field("byteStart").Int()
	to, okTo := span.Field("byteEnd").Int()
	size := int64(len(text))
	boundary := func(n int64) bool { return n == size || utf8.RuneStart(text[n]) }
	switch {
	case !ok || !okTo || from < 0 || from > to:
		return fault{}
	case to > size:
		return fault{"span_bounds", span.Field("byteEnd"), "at most " + decimal(size) + ", the bytes of the text"}
	case !boundary(from):
		return fault{"span_boundary", span.Field("byteStart"), "the first byte of a character"}
	case !boundary(to):
		return fault{"span_boundary", span.Field("byteEnd"), "the first byte of a character"}
	case quoted.Exists() && text[from:to] != quoted.Text():
		return fault{"span_text", quoted, "what the span selects"}
	}
	return fault{}
}

// segmentation compares tokens with the text. A tokenization may name an expression of
// its own, and the lexicon does not say which text is used then, so either may match.
func segmentation(c *check) {
	whole, hasWhole := c.text(c.Root.Field("expression"))
	for _, t := range c.Root.Field("tokenizations").Items() {
		own, hasOwn := c.text(t.Field("expressionRef"))
		switch {
		case hasOwn && hasWhole && len(tokensIn(whole, t)) == 0:
		case hasOwn:
			warnAll(c, tokensIn(own, t))
		case hasWhole && !t.Field("expressionRef").Exists():
			warnAll(c, tokensIn(whole, t))
		}
	}
}

func tokensIn(text string, tokenization lexicon.Value) (faults []fault) {
	for _, token := range tokenization.Field("tokens").Items() {
		if f := spanIn(text, token.Field("textSpan"), token.Field("text")); f.rule != "" {
			if faults = append(faults, f); len(faults) == maxProblems {
				return faults
			}
		}
	}
	return faults
}

func warnAll(c *check, faults []fault) {
	for _, f := range faults {
		f.warn(c)
	}
}

// layerIn compares annotations with the text of their expression, and with the tokens
// of the tokenization that the layer names.
func layerIn(c *check) {
	text, hasText := c.text(c.Root.Field("expression"))
	tokens, hasTokens := c.tokens()
	for _, a := range c.Root.Field("annotations").Items() {
		if span := a.Field("anchor").Field("textSpan"); hasText && span.Exists() {
			spanIn(text, span, a.Field("text")).warn(c)
		}
		for _, name := range []string{"tokenIndex", "headIndex", "targetIndex"} {
			if index, ok := a.Field(name).Int(); ok && hasTokens && index >= tokens {
				c.warn("token_index", a.Field(name), "less than "+decimal(tokens)+", the tokens")
			}
		}
	}
}

// tokens returns the number of tokens of the tokenization with the layer's
// tokenizationId, in a segmentation of the same expression.
func (c *check) tokens() (count int64, found bool) {
	id, expression := c.Root.Field("tokenizationId").Field("value"), c.Root.Field("expression").Text()
	if !id.Exists() {
		return 0, false
	}
	for _, t := range c.Targets {
		if c.definition(t) != "segmentation.segmentation" || t.Field("expression").Text() != expression {
			continue
		}
		for _, tokenization := range t.Field("tokenizations").Items() {
			if tokenization.Field("uuid").Field("value").Text() == id.Text() {
				count, found = max(count, int64(tokenization.Field("tokens").Len())), true
			}
		}
	}
	return count, found
}

// fills checks that a filling fills slots of its template, including all required
// ones.
func fills(c *check, template lexicon.Value) {
	if !template.Exists() {
		return
	}
	filled, slots := map[string]bool{}, map[string]bool{}
	for _, slot := range template.Field("slots").Items() {
		slots[slot.Field("name").Text()] = true
	}
	for _, f := range c.Root.Field("slotFillings").Items() {
		name := f.Field("slotName")
		filled[name.Text()] = true
		if !slots[name.Text()] {
			c.warn("unknown_slot", name, "a slot of the template")
		}
	}
	var missing []string
	for _, slot := range template.Field("slots").Items() {
		if name := slot.Field("name").Text(); slot.Field("required").IsTrue() && !filled[name] && len(missing) < 8 {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		c.warn("missing_slot", c.Root.Field("slotFillings"), "fillings of "+strings.Join(missing, ", "))
	}
}

// judgments checks that judgments are on the scale of their experiment, and select
// text of the judged record.
func judgments(c *check, experiment lexicon.Value) {
	labels := map[string]bool{}
	for _, label := range experiment.Field("labels").Items() {
		labels[label.Text()] = true
	}
	least, hasLeast := experiment.Field("scaleMin").Int()
	most, hasMost := experiment.Field("scaleMax").Int()
	for _, j := range c.Root.Field("judgments").Items() {
		if v := j.Field("categoricalValue"); v.Exists() && len(labels) > 0 && !labels[v.Text()] {
			c.warn("unknown_label", v, "a label of the experiment")
		}
		v := j.Field("scalarValue")
		if n, ok := v.Int(); ok && hasLeast && n < least {
			c.warn("scale", v, "at least "+decimal(least))
		} else if ok && hasMost && n > most {
			c.warn("scale", v, "at most "+decimal(most))
		}
		if text, ok := c.text(j.Field("item").Field("recordRef")); ok {
			spanIn(text, j.Field("textSpan"), lexicon.Value{}).warn(c)
		}
	}
}
