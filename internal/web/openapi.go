package web

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// openAPIPath is the address of the description of the API, in OpenAPI 3.1. It is made of the operations of the routes.
const openAPIPath = "/api/v1/openapi.json"

// Operation describes a route to clients.
type Operation struct {
	Name       string
	Summary    string
	Parameters []Parameter    // those of the path too
	Returns    any            // a value of the response's type; nil: text
	Type       string         // the media type of the response; empty: JSON
	Codes      []int          // the codes that it returns besides 200, and 429 and 503, which any may return
	Events     map[string]any // values of the types of server-sent events, by event
}

// Parameter describes a parameter of a route. Its zero values mean: any text, in any length.
type Parameter struct {
	Name     string
	About    string
	Default  any
	Values   []string // one of these
	Several  bool     // or several, separated by commas
	Number   bool     // a whole number from 1 to Most
	Most     int      // 0: there is no limit
	Longest  int      // characters
	Required bool
}

// Names returns the names of parameters.
func Names(of []Parameter) (names []string) {
	for _, p := range of {
		names = append(names, p.Name)
	}
	return names
}

// object is a JSON object.
type object = map[string]any

// schema describes the values of a parameter.
func (p Parameter) schema() object {
	s := object{"type": "string"}
	if p.Number {
		s = object{"type": "integer", "minimum": 1}
	}
	if p.Values != nil {
		s["enum"] = p.Values
	}
	if p.Most > 0 {
		s["maximum"] = p.Most
	}
	if p.Longest > 0 {
		s["maxLength"] = p.Longest
	}
	if p.Several {
		s = object{"type": "array", "items": s, "minItems": 1, "uniqueItems": true}
	}
	if p.Default != nil {
		s["default"] = p.Default
	}
	return s
}

var pathParameter = regexp.MustCompile(`\{(\w+)(\.\.\.)?\}`)

// openAPI returns the description of the routes that have an operation; nil: there is none. A route of the API
// without one is an error.
func (s *Server) openAPI(routes []Route) ([]byte, error) {
	paths, schemas := object{}, schemas{}
	for _, route := range routes {
		path := pathParameter.ReplaceAllString(route.Pattern, "{$1}")
		op := route.Operation
		if op == nil && strings.HasPrefix(path, "/api/") {
			return nil, fmt.Errorf("the route %s has no Operation, which would describe it to clients", route.Pattern)
		}
		if op == nil {
			continue
		}
		request, err := http.NewRequest(http.MethodGet, "http://localhost"+path, nil)
		if err != nil {
			return nil, fmt.Errorf("read the pattern %s: %w", route.Pattern, err)
		}
		paths[path] = object{"get": s.operation(route, schemas, s.apiOf(request).Error)}
	}
	if len(paths) == 0 {
		return nil, nil
	}
	if problem := schemas[""]; problem != nil {
		return nil, fmt.Errorf("describe the API: %v", problem)
	}
	about := []string{say("api_about")}
	for _, api := range s.apis {
		if api.About != "" {
			about = append(about, api.About)
		}
	}
	return json.Marshal(object{
		"openapi": "3.1.0",
		"info":    object{"title": Title, "version": "1", "description": strings.Join(about, " ")},
		"paths":   paths, "components": object{"schemas": schemas},
	})
}

// operation describes a route. problem: the form of its errors; nil: a page.
func (s *Server) operation(route Route, schemas schemas, problem func(int, string) any) object {
	op := route.Operation
	parameters := []object{}
	for _, p := range op.Parameters {
		described := object{"name": p.Name, "in": "query", "description": p.About, "schema": p.schema()}
		if strings.Contains(pathParameter.ReplaceAllString(route.Pattern, "{$1}"), "{"+p.Name+"}") {
			described["in"], p.Required = "path", true
		}
		if p.Required {
			described["required"] = true
		}
		if p.Several {
			described["explode"] = false // separated by commas
		}
		parameters = append(parameters, described)
	}
	media, returned := op.Type, object{"type": "string"}
	if media == "" {
		media = "application/json"
	}
	if op.Returns != nil {
		returned = schemas.of(reflect.TypeOf(op.Returns))
	}
	responses := object{"200": object{"description": http.StatusText(http.StatusOK), "content": object{media: object{"schema": returned}}}}
	for _, code := range append([]int{http.StatusTooManyRequests, http.StatusServiceUnavailable}, op.Codes...) {
		response := object{"description": http.StatusText(code)}
		switch {
		case code < http.StatusBadRequest: // without content
		case problem != nil:
			content := schemas.of(reflect.TypeOf(problem(code, "")))
			response["content"] = object{"application/json": object{"schema": content}}
		default:
			response["content"] = object{"text/html": object{"schema": object{"type": "string"}}}
		}
		responses[strconv.Itoa(code)] = response
	}
	described := object{"operationId": op.Name, "summary": op.Summary, "parameters": parameters, "responses": responses}
	if op.Events != nil {
		events := object{}
		for _, name := range slices.Sorted(maps.Keys(op.Events)) {
			events[name] = schemas.of(reflect.TypeOf(op.Events[name]))
		}
		described["x-events"] = events // the data of each event
	}
	return described
}

// schemas are the JSON schemas of types, by name. The name "" has what is wrong with them.
type schemas map[string]any

// of returns the schema of the JSON that encoding/json writes for a type. It refers to the schemas of structs.
func (d schemas) of(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[json.RawMessage](), t.Kind() == reflect.Interface:
		return object{}
	case t == reflect.TypeFor[time.Time](), t == reflect.TypeFor[Timestamp]():
		return object{"type": "string", "format": "date-time"}
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return d.of(t.Elem())
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int32, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Slice:
		return object{"type": "array", "items": d.of(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": d.of(t.Elem())}
	case reflect.Struct:
		return d.ofStruct(t)
	}
	d[""] = "no schema for " + t.String()
	return object{}
}

func (d schemas) ofStruct(t reflect.Type) object {
	name := strings.TrimSuffix(t.Name(), "JSON")
	name = strings.ToUpper(name[:1]) + name[1:]
	properties, required := object{}, []string{}
	for _, field := range reflect.VisibleFields(t) {
		tag, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous || !field.IsExported() || tag == "-" || tag == "" {
			continue // the fields of an embedded struct are listed themselves
		}
		s := d.of(field.Type)
		if optional := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero"); !optional {
			required = append(required, tag)
			if field.Type.Kind() == reflect.Pointer {
				s = object{"anyOf": []object{s, {"type": "null"}}}
			}
		}
		properties[tag] = s
	}
	schema := object{"type": "object", "properties": properties, "required": required}
	if before := d[name]; before != nil && !reflect.DeepEqual(before, any(schema)) {
		d[""] = "two types are called " + name
	}
	d[name] = schema
	return object{"$ref": "#/components/schemas/" + name}
}

// serveOpenAPI serves a description. It has no data, so that pages of any site may read it.
func (s *Server) serveOpenAPI(document []byte) http.HandlerFunc {
	version, _ := Version(string(document)) // a text can be hashed
	return func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Cross-Origin-Resource-Policy", "cross-origin")
		if NotModified(w, r, `"`+version+`"`) {
			return
		}
		h.Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.Write(document) // the client has gone
	}
}
