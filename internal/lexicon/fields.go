package lexicon

// A Field is a property that the schema of a collection declares.
type Field struct {
	Name string `json:"name"`
	Type string `json:"type"` // "boolean", "integer", "string", "datetime", "cid-link", or "": anything else
}

// Fields returns the properties of a collection's records, sorted by name. It returns
// none for a collection without a schema.
func (c *Catalog) Fields(collection string) []Field {
	r := c.records[collection]
	if r == nil {
		return nil
	}
	fields := make([]Field, 0, len(r.object.properties))
	for _, name := range sorted(r.object.properties) {
		fields = append(fields, Field{name, columnType(r.object.properties[name].typ)})
	}
	return fields
}

// columnType returns the type of a field whose values fit into a column.
func columnType(t typ) string {
	if r, ok := t.(*ref); ok {
		t = r.target
	}
	switch t := t.(type) {
	case *booleanType:
		return "boolean"
	case *integerType:
		return "integer"
	case linkType:
		return "cid-link"
	case *tokenType:
		return "string"
	case *stringType:
		if t.format == "datetime" {
			return "datetime"
		}
		return "string"
	}
	return ""
}
