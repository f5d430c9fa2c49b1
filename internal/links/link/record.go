package link

import (
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// record holds the fields of a post that InPost reads. Each type reads a value of a
// wrong type as its zero value, so that a wrong field affects only itself.
type record struct {
	Text   str               `json:"text"`
	Facets list[facet]       `json:"facets"`
	Embed  object[embedding] `json:"embed"`

	BridgedFrom str `json:"bridgyOriginalUrl"` // written by Bridgy Fed
}

type facet struct {
	Index    object[index] `json:"index"`
	Features list[feature] `json:"features"`
}

type index struct {
	Start integer `json:"byteStart"`
	End   integer `json:"byteEnd"`
}

type feature struct {
	Type str `json:"$type"`
	URI  str `json:"uri"`
}

type embedding struct {
	Type     str              `json:"$type"`
	External object[external] `json:"external"`
	Media    object[media]    `json:"media"`
	Record   object[quoted]   `json:"record"`
}

type media struct {
	Type     str              `json:"$type"`
	External object[external] `json:"external"`
}

type external struct {
	URI         str          `json:"uri"`
	Title       str          `json:"title"`
	Description str          `json:"description"`
	Thumb       object[blob] `json:"thumb"`
}

type blob struct {
	Ref object[reference] `json:"ref"`
}

type reference struct {
	Link str `json:"$link"`
}

// str is a string; a value of another type reads as "".
type str string

// UnmarshalJSONFrom reads a value of any type.
func (s *str) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	*s = ""
	if d.PeekKind() != '"' {
		return d.SkipValue()
	}
	token, err := d.ReadToken()
	if err != nil {
		return err
	}
	*s = str(token.String())
	return nil
}

// integer is a whole number; ok is false for any other value.
type integer struct {
	ok    bool
	value int
}

// UnmarshalJSONFrom reads a value of any type.
func (n *integer) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	*n = integer{}
	if d.PeekKind() != '0' {
		return d.SkipValue()
	}
	token, err := d.ReadToken()
	if err != nil {
		return err
	}
	value, err := strconv.Atoi(token.String())
	*n = integer{err == nil, value}
	return nil
}

// object is a JSON object; a value of another type reads as the zero value.
type object[T any] struct{ fields T }

// UnmarshalJSONFrom reads a value of any type.
func (o *object[T]) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	*o = object[T]{}
	if d.PeekKind() != '{' {
		return d.SkipValue()
	}
	return json.UnmarshalDecode(d, &o.fields)
}

// list holds the objects among the first maxList elements of a JSON array.
type list[T any] []T

// UnmarshalJSONFrom reads a value of any type.
func (l *list[T]) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	*l = nil
	n := 0
	return elements(d, func() error {
		if n++; n > maxList || d.PeekKind() != '{' {
			return d.SkipValue()
		}
		var element T
		err := json.UnmarshalDecode(d, &element)
		*l = append(*l, element)
		return err
	})
}
