package rules

import (
	"regexp"
	"time"

	"github.com/weir-social/weir/internal/lexicon"
)

var slotName = regexp.MustCompile(`\{([^{}]+)\}`)

// idsOf returns the values with each uuid in the record. It warns of duplicates.
func idsOf(c *check) map[string]lexicon.Value {
	ids := map[string]lexicon.Value{}
	for v := range c.Root.All() {
		if v.Key() != "uuid" || c.definition(v) != "defs#uuid" {
			continue
		}
		id := v.Field("value")
		if _, ok := ids[id.Text()]; ok {
			c.warn("duplicate_id", id, "an ID of its own")
			continue
		}
		ids[id.Text()] = v.Parent()
	}
	return ids
}

// layersIDs checks that references to parts of the record name existing parts, and
// that no annotation is its own ancestor.
func layersIDs(c *check, ids map[string]lexicon.Value) {
	names := func(id lexicon.Value) {
		if _, ok := ids[id.Field("value").Text()]; id.Exists() && !ok {
			c.warn("unknown_id", id.Field("value"), "the uuid of a part of this record")
		}
	}
	for v := range c.Root.All() {
		switch c.definition(v) {
		case "defs#objectRef":
			objectRef(c, v)
			names(v.Field("localId"))
		case "annotation.defs#annotation":
			names(v.Field("parentId"))
			for _, child := range v.Field("childIds").Items() {
				names(child)
			}
		}
	}
	if c.name == "annotation.annotationLayer" {
		parentCycles(c, ids)
	}
}

// objectRef checks that a reference names something, and that it names an object in a
// record only together with the record.
func objectRef(c *check, v lexicon.Value) {
	switch {
	case v.Field("objectId").Exists() && !v.Field("recordRef").Exists():
		c.warn("object_without_record", v.Field("objectId"), "recordRef beside objectId")
	case !v.Field("recordRef").Exists() && !v.Field("localId").Exists() && !v.Field("knowledgeRef").Exists():
		c.warn("empty_reference", v, "recordRef, localId or knowledgeRef")
	}
}

// parentCycles visits each annotation once. An annotation that was visited from
// another start is known to lead to an end.
func parentCycles(c *check, ids map[string]lexicon.Value) {
	visited := make(map[string]int, len(ids)) // the annotation at which the visit began
	for i, start := range c.Root.Field("annotations").Items() {
		for v := start; v.Exists(); {
			id := v.Field("uuid").Field("value").Text()
			if began, ok := visited[id]; ok {
				if began == i {
					c.warn("parent_cycle", v.Field("parentId"), "a parent that is not below the annotation")
				}
				break
			}
			visited[id] = i
			parent := v.Field("parentId").Field("value")
			if !parent.Exists() {
				break
			}
			v = ids[parent.Text()]
		}
	}
}

// tokenization checks that tokens are numbered upwards, and begin in the order of the
// text. They may overlap, because a word may be several tokens.
func tokenization(c *check, v lexicon.Value) {
	last, lastStart := int64(-1), int64(-1)
	for _, token := range v.Field("tokens").Items() {
		index, _ := token.Field("tokenIndex").Int()
		if index <= last {
			c.reject("token_order", token.Field("tokenIndex"), "more than "+decimal(last))
		}
		last = index
		start := token.Field("textSpan").Field("byteStart")
		if from, ok := start.Int(); ok {
			if from < lastStart {
				c.reject("token_order", start, "at least "+decimal(lastStart))
			}
			lastStart = from
		}
	}
}

// annotationLayer checks that tags of tokens name the tokens.
func annotationLayer(c *check, v lexicon.Value) {
	if v.Field("kind").Text() != "token-tag" {
		return
	}
	if !v.Field("tokenizationId").Exists() {
		c.warn("token_tag", v, "tokenizationId")
	}
	for _, a := range v.Field("annotations").Items() {
		at := a.Field("anchor")
		if !a.Field("tokenIndex").Exists() && !at.Field("tokenRef").Exists() && !at.Field("tokenRefSequence").Exists() {
			c.warn("token_tag", a, "tokenIndex, or an anchor with tokens")
		}
	}
}

func annotation(c *check, v lexicon.Value) {
	head, has := v.Field("headIndex").Int()
	if has && head < -1 {
		c.warn("head_index", v.Field("headIndex"), "-1 or the index of a token")
	}
	if target, ok := v.Field("targetIndex").Int(); ok && has && head == target {
		c.warn("head_index", v.Field("headIndex"), "another token than targetIndex")
	}
}

func anchor(c *check, v lexicon.Value) {
	for _, name := range []string{"textSpan", "tokenRef", "tokenRefSequence", "temporalSpan", "spatioTemporalAnchor", "pageAnchor",
		"externalTarget"} {
		if v.Field(name).Exists() {
			return
		}
	}
	c.warn("empty_anchor", v, "a place in the source")
}

func alignmentLink(c *check, v lexicon.Value) {
	if v.Field("sourceIndices").Len() == 0 && v.Field("targetIndices").Len() == 0 {
		c.warn("empty_link", v, "sourceIndices or targetIndices")
	}
}

// licensing checks that several licences have an expression that combines them.
func licensing(c *check, v lexicon.Value) {
	if v.Field("licenses").Len() != 1 && !v.Field("expression").Exists() {
		c.warn("licence_expression", v, "expression, unless there is one licence")
	}
}

// template checks that the text names each slot, and that each name in it is a slot.
func template(c *check, v lexicon.Value) {
	text := v.Field("text")
	named := map[string]bool{}
	for _, match := range slotName.FindAllStringSubmatch(text.Text(), -1) {
		named[match[1]] = true
	}
	slots := map[string]bool{}
	for _, slot := range v.Field("slots").Items() {
		name := slot.Field("name")
		slots[name.Text()] = true
		if !named[name.Text()] {
			c.warn("template_slot", name, "a name that the text has in braces")
		}
	}
	for name := range named {
		if !slots[name] {
			c.warn("template_slot", text, "a slot for each name in braces")
			return
		}
	}
}

func filling(c *check, v lexicon.Value) {
	filled := map[string]bool{}
	for _, f := range v.Field("slotFillings").Items() {
		name := f.Field("slotName")
		if filled[name.Text()] {
			c.warn("duplicate_slot", name, "each slot once")
		}
		filled[name.Text()] = true
		if !f.Field("entryRef").Exists() && !f.Field("literalValue").Exists() {
			c.warn("empty_slot", f, "entryRef or literalValue")
		}
	}
}

func composition(c *check, v lexicon.Value) {
	ordinals := map[int64]bool{}
	for _, m := range v.Field("members").Items() {
		n, _ := m.Field("ordinal").Int()
		if ordinals[n] {
			c.warn("duplicate_ordinal", m.Field("ordinal"), "a place of its own")
		}
		ordinals[n] = true
	}
}

func member(c *check, v lexicon.Value) {
	if v.Field("templateRef").Exists() == v.Field("compositionRef").Exists() {
		c.warn("template_member", v, "either templateRef or compositionRef")
	}
}

func citation(c *check, v lexicon.Value) {
	if !v.Field("raw").Exists() && !v.Field("title").Exists() {
		c.warn("empty_citation", v, "raw or title")
	}
}

// date checks that the day exists in its month. Without a year, February has 29 days.
func date(c *check, v lexicon.Value) {
	day, has := v.Field("day").Int()
	month, hasMonth := v.Field("month").Int()
	if !has || !hasMonth || month < 1 || month > 12 {
		return
	}
	year, hasYear := v.Field("year").Int()
	if !hasYear || year < 1 || year > 9999 {
		year = 2000
	}
	days := time.Date(int(year), time.Month(month)+1, 0, 0, 0, 0, 0, time.UTC).Day()
	if day < 1 || day > int64(days) {
		c.warn("date", v.Field("day"), "1 to "+decimal(int64(days)))
	}
}

func media(c *check, v lexicon.Value) {
	if !v.Field("blob").Exists() && !v.Field("externalUri").Exists() {
		c.warn("empty_media", v, "blob or externalUri")
	}
	if v.Field("startOffsetMs").Exists() && !v.Field("parentMediaRef").Exists() {
		c.warn("media_offset", v.Field("startOffsetMs"), "parentMediaRef beside it")
	}
}
