package lexicon

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/weir-social/weir/internal/atproto/syntax"
)

// The limits of a schema. Every part of validation takes time proportional to the
// record alone, except blobs and refused values, which are compared with a list in the
// schema.
const (
	maxSchema = 1 << 20 // bytes
	maxNested = 64      // levels of nested types
	maxAccept = 256     // media types per blob
)

// source is a type as a schema file contains it. Members that do not matter for
// validation are ignored.
type source struct {
	Type         string             `json:"type"`
	Key          string             `json:"key"`
	Record       *source            `json:"record"`
	Properties   map[string]*source `json:"properties"`
	Required     []string           `json:"required"`
	Nullable     []string           `json:"nullable"`
	Items        *source            `json:"items"`
	Ref          string             `json:"ref"`
	Refs         []string           `json:"refs"`
	Closed       bool               `json:"closed"`
	Format       string             `json:"format"`
	MinLength    *int64             `json:"minLength"`
	MaxLength    *int64             `json:"maxLength"`
	MinGraphemes *int64             `json:"minGraphemes"`
	MaxGraphemes *int64             `json:"maxGraphemes"`
	Minimum      *int64             `json:"minimum"`
	Maximum      *int64             `json:"maximum"`
	Accept       []string           `json:"accept"`
	MaxSize      *int64             `json:"maxSize"`
	KnownValues  []string           `json:"knownValues"`
	Enum         jsontext.Value     `json:"enum"`
	Const        jsontext.Value     `json:"const"`
}

type file struct {
	Lexicon int                       `json:"lexicon"`
	ID      string                    `json:"id"`
	Defs    map[string]jsontext.Value `json:"defs"`
}

// definition is one definition of a schema file.
type definition struct {
	name    string         // without #main
	typ     typ            // nil: it is not a type of data, such as a query
	is      string         // the type's name in the file
	refs    []*ref         // every reference to other definitions
	content jsontext.Value // canonical, for the hash
	unknown bool           // it needs a type that this version does not know
}

// parse returns the definitions of a schema file, and whose schema it is.
func parse(raw []byte) (id string, definitions []*definition, err error) {
	if len(raw) > maxSchema {
		return "", nil, fmt.Errorf("schema of %d bytes: more than %d", len(raw), maxSchema)
	}
	var f file
	if err := cmp.Or(json.Unmarshal(raw, &f), checkStorable(raw)); err != nil {
		return "", nil, fmt.Errorf("read schema: %w", err)
	}
	if f.Lexicon != 1 || !syntax.IsNSID(f.ID) {
		return "", nil, fmt.Errorf("schema %q of lexicon version %d: need an NSID and version 1", cut(f.ID, maxShown), f.Lexicon)
	}
	for name, content := range f.Defs {
		if name == "" || strings.ContainsAny(name, "#./") {
			return f.ID, nil, fmt.Errorf("schema %s: definition %q: no such name", f.ID, cut(name, maxShown))
		}
		d := &definition{name: f.ID + "#" + name, content: content}
		if name == "main" {
			d.name = f.ID
		}
		if err := d.content.Canonicalize(jsontext.CanonicalizeRawInts(false)); err != nil {
			return f.ID, nil, fmt.Errorf("schema %s: definition %s: %w", f.ID, name, err)
		}
		if err := d.compile(f.ID, name); err != nil {
			return f.ID, nil, fmt.Errorf("schema %s: definition %s: %w", f.ID, name, err)
		}
		definitions = append(definitions, d)
	}
	return f.ID, definitions, nil
}

// checkStorable refuses JSON that Postgres does not take as jsonb: a NUL, and a number beyond its limits.
func checkStorable(raw []byte) error {
	for tokens := jsontext.NewDecoder(bytes.NewReader(raw)); ; {
		token, err := tokens.ReadToken()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case token.Kind() == '"' && strings.Contains(token.String(), "\x00"):
			return fmt.Errorf("a NUL, which Postgres cannot store: %s", tokens.StackPointer())
		case token.Kind() == '0' && !ordinary(token.String()):
			return fmt.Errorf("a number that Postgres cannot store: %s", tokens.StackPointer())
		}
	}
}

// ordinary reports whether a number is a float64, or near one.
func ordinary(number string) bool {
	f, err := strconv.ParseFloat(number, 64)
	return err == nil && len(number) < 1000 && (f != 0 || !strings.ContainsAny(number, "eE"))
}

func (d *definition) compile(id, name string) error {
	var s source
	if err := json.Unmarshal(d.content, &s); err != nil {
		return err
	}
	d.is = s.Type
	c := compiler{id: id, definition: d}
	var err error
	switch s.Type {
	case "query", "procedure", "subscription", "permission-set":
		if name != "main" {
			return fmt.Errorf("a %s is allowed as main only", s.Type)
		}
	case "record":
		if name != "main" {
			return fmt.Errorf("a record is allowed as main only")
		}
		d.typ, err = c.record(&s)
	case "token":
		d.typ = &tokenType{d.name}
	case "ref", "union", "unknown":
		return fmt.Errorf("a %s is not allowed as a definition", s.Type)
	case "object":
		d.typ, err = c.object(&s, 0)
	default:
		d.typ, err = c.typ(&s, 0)
	}
	if errors.Is(err, errUnknownType) {
		d.typ, d.refs, d.unknown, err = nil, nil, true, nil
	}
	if o, ok := d.typ.(*objectType); ok && err == nil {
		o.name = d.name
	}
	return err
}

// errUnknownType is the error of a type that this version does not know. Schemas evolve: only
// records that need the definition are Unknown.
var errUnknownType = errors.New("a type that is not known")

// knownTypes are the types of definitions and of fields.
var knownTypes = set(strings.Fields(`array blob boolean bytes cid-link integer object params permission-set procedure query record
	ref string subscription token union unknown`))

// compiler turns the types of one definition into types that validate.
type compiler struct {
	id         string
	definition *definition
}

func (c *compiler) record(s *source) (typ, error) {
	literal, isLiteral := strings.CutPrefix(s.Key, "literal:")
	switch {
	case isLiteral && syntax.IsRecordKey(literal):
	case s.Key == "tid", s.Key == "nsid", s.Key == "any":
	default:
		return nil, fmt.Errorf("record key %q: need tid, nsid, any or literal", cut(s.Key, maxShown))
	}
	if s.Record == nil || s.Record.Type != "object" {
		return nil, fmt.Errorf("a record must be an object")
	}
	o, err := c.object(s.Record, 0)
	if err != nil {
		return nil, err
	}
	o.name = c.definition.name
	return &recordType{object: o, key: s.Key}, nil
}

// typ returns a type if it is allowed as a field.
func (c *compiler) typ(s *source, depth int) (typ, error) {
	if s == nil {
		return nil, fmt.Errorf("no type")
	}
	if depth > maxNested {
		return nil, fmt.Errorf("types in more than %d others", maxNested)
	}
	switch s.Type {
	case "boolean":
		return c.boolean(s)
	case "integer":
		return c.integer(s)
	case "string":
		return c.string(s)
	case "bytes":
		size, err := bounds(s.MinLength, s.MaxLength)
		return &bytesType{size}, err
	case "cid-link":
		return linkType{}, nil
	case "blob":
		return c.blob(s)
	case "unknown":
		return unknownType{}, nil
	case "ref":
		return c.ref(s.Ref)
	case "object":
		return c.object(s, depth)
	case "union":
		return c.union(s)
	case "array":
		size, err := bounds(s.MinLength, s.MaxLength)
		if err != nil {
			return nil, err
		}
		items, err := c.typ(s.Items, depth+1)
		if err != nil {
			return nil, fmt.Errorf("array: %w", err)
		}
		return &arrayType{items, size}, nil
	}
	if _, known := knownTypes[s.Type]; !known && s.Type != "" {
		return nil, fmt.Errorf("%w: %q", errUnknownType, cut(s.Type, maxShown))
	}
	return nil, fmt.Errorf("type %q is not one of a field", cut(s.Type, maxShown))
}

func (c *compiler) object(s *source, depth int) (*objectType, error) {
	o := &objectType{properties: make(map[string]*property, len(s.Properties)), required: s.Required}
	for name, of := range s.Properties {
		t, err := c.typ(of, depth+1)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", cut(name, maxShown), err)
		}
		if name == "" {
			return nil, fmt.Errorf("a property without a name")
		}
		o.properties[name] = &property{typ: t}
	}
	for _, name := range s.Required {
		p := o.properties[name]
		if p == nil || p.required {
			return nil, fmt.Errorf("required %q: need the names of properties, once each", cut(name, maxShown))
		}
		p.required = true
	}
	for _, name := range s.Nullable {
		if o.properties[name] == nil {
			return nil, fmt.Errorf("nullable %q is not a property", cut(name, maxShown))
		}
		o.properties[name].nullable = true
	}
	return o, nil
}

// ref returns a reference to a definition. The catalog links it.
func (c *compiler) ref(name string) (*ref, error) {
	id, fragment, _ := strings.Cut(name, "#")
	if id == "" {
		id = c.id
	}
	if !syntax.IsNSID(id) || strings.ContainsAny(fragment, "#./") {
		return nil, fmt.Errorf("ref to %q: need an NSID, a fragment or both", cut(name, maxShown))
	}
	name = id
	if fragment != "" && fragment != "main" {
		name += "#" + fragment
	}
	r := &ref{name: name}
	c.definition.refs = append(c.definition.refs, r)
	return r, nil
}

func (c *compiler) union(s *source) (typ, error) {
	u := &unionType{closed: s.Closed, members: make(map[string]*ref, len(s.Refs))}
	for _, name := range s.Refs {
		r, err := c.ref(name)
		if err != nil {
			return nil, err
		}
		u.members[r.name] = r
	}
	if u.closed && len(u.members) == 0 {
		return nil, fmt.Errorf("a closed union without members")
	}
	return u, nil
}

func (c *compiler) boolean(s *source) (typ, error) {
	t := &booleanType{}
	if s.Const != nil {
		t.constant = new(bool)
		return t, json.Unmarshal(s.Const, t.constant)
	}
	return t, nil
}

func (c *compiler) integer(s *source) (typ, error) {
	t := &integerType{minimum: s.Minimum, maximum: s.Maximum}
	if s.Minimum != nil && s.Maximum != nil && *s.Minimum > *s.Maximum {
		return nil, fmt.Errorf("minimum above maximum")
	}
	return t, values(s, &t.enum, &t.constant)
}

func (c *compiler) string(s *source) (typ, error) {
	t := &stringType{format: s.Format, known: set(s.KnownValues)}
	var err error
	if t.size, err = bounds(s.MinLength, s.MaxLength); err != nil {
		return nil, err
	}
	if t.graphemes, err = bounds(s.MinGraphemes, s.MaxGraphemes); err != nil {
		return nil, err
	}
	if err := values(s, &t.enum, &t.constant); err != nil {
		return nil, err
	}
	t.oneOf, t.oneKnown = oneOf(t.enum), oneOf(t.known)
	t.valid = format(s.Format)
	t.text = s.Format == "" && t.known == nil && t.enum == nil && t.constant == nil
	return t, nil
}

func (c *compiler) blob(s *source) (typ, error) {
	if len(s.Accept) > maxAccept {
		return nil, fmt.Errorf("a blob of more than %d media types", maxAccept)
	}
	if s.MaxSize != nil && *s.MaxSize < 1 {
		return nil, fmt.Errorf("a blob of at most %d bytes", *s.MaxSize)
	}
	return &blobType{s.Accept, s.MaxSize, cut(strings.Join(s.Accept, ", "), 8*maxShown)}, nil
}

// values reads the lists of values in a schema.
func values[T comparable](s *source, enum *map[T]struct{}, constant **T) error {
	if s.Enum != nil {
		var list []T
		if err := json.Unmarshal(s.Enum, &list); err != nil {
			return fmt.Errorf("enum: %w", err)
		}
		*enum = set(list)
	}
	if s.Const != nil {
		*constant = new(T)
		if err := json.Unmarshal(s.Const, *constant); err != nil {
			return fmt.Errorf("const: %w", err)
		}
	}
	return nil
}

// set returns the values of a list, or nil if the list is empty: then all are allowed.
func set[T comparable](list []T) map[T]struct{} {
	if len(list) == 0 {
		return nil
	}
	values := make(map[T]struct{}, len(list))
	for _, v := range list {
		values[v] = struct{}{}
	}
	return values
}

// between limits a size. nil means no limit.
type between struct{ least, most *int64 }

func bounds(least, most *int64) (between, error) {
	if least != nil && *least < 0 || most != nil && *most < 0 || least != nil && most != nil && *least > *most {
		return between{}, fmt.Errorf("a size below 0, or a minimum above the maximum")
	}
	return between{least, most}, nil
}

func (b between) holds(size int64) bool {
	return (b.least == nil || size >= *b.least) && (b.most == nil || size <= *b.most)
}

// String returns "5", "at most 5", "at least 5" or "5 to 6".
func (b between) String() string {
	switch {
	case b.least == nil && b.most == nil:
		return "any number of"
	case b.least == nil:
		return "at most " + number(*b.most)
	case b.most == nil:
		return "at least " + number(*b.least)
	case *b.least == *b.most:
		return number(*b.least)
	}
	return number(*b.least) + " to " + number(*b.most)
}
