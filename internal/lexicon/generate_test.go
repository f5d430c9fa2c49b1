package lexicon_test

import (
	"encoding/json"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// generator makes records from schema files, which it reads with its own code.
type generator struct {
	*rand.Rand
	defs map[string]map[string]any // by full name, including main definitions
	full bool                      // generate every field and at least one element
}

func newGenerator(t testing.TB, folder fs.FS) *generator {
	t.Helper()
	g := &generator{defs: map[string]map[string]any{}}
	for id, file := range schemas(t, folder) {
		for name, def := range file["defs"].(map[string]any) {
			g.defs[id+"#"+name] = def.(map[string]any)
		}
	}
	return g
}

// seed returns a generator of the same schemas that makes the records of
// another seed.
func (g *generator) seed(seed uint64) *generator {
	return &generator{Rand: rand.New(rand.NewPCG(seed, 1)), defs: g.defs}
}

// schemas returns the schema files in a folder by their NSID, without the
// string formats that indigo cannot load.
func schemas(t testing.TB, folder fs.FS) map[string]map[string]any {
	t.Helper()
	files := map[string]map[string]any{}
	require.NoError(t, fs.WalkDir(folder, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".json") {
			return err
		}
		raw, err := fs.ReadFile(folder, path)
		require.NoError(t, err)
		var file map[string]any
		require.NoError(t, json.Unmarshal([]byte(strings.Replace(string(raw), `, "format": "a-format-of-the-future"`, "", 1)), &file))
		files[file["id"].(string)] = file
		return nil
	}))
	return files
}

// folders returns the lexicons that the tests compare with: our own, and those
// in WEIR_TESTDATA.
func folders() map[string]fs.FS {
	all := map[string]fs.FS{"own": os.DirFS("testdata/lexicons")}
	if dir := os.Getenv("WEIR_TESTDATA"); dir != "" {
		all["layers"] = os.DirFS(dir + "/lexicons")
	}
	return all
}

// collections returns the names of the records, sorted.
func (g *generator) collections() []string {
	var names []string
	for name, def := range g.defs {
		if def["type"] == "record" {
			names = append(names, strings.TrimSuffix(name, "#main"))
		}
	}
	slices.Sort(names)
	return names
}

// record returns a valid record.
func (g *generator) record(collection string) map[string]any {
	object := g.object(collection, g.defs[collection+"#main"]["record"].(map[string]any), 0)
	object["$type"] = collection
	return object
}

func (g *generator) object(id string, def map[string]any, depth int) map[string]any {
	made := map[string]any{}
	properties, _ := def["properties"].(map[string]any)
	required, _ := def["required"].([]any)
	nullable, _ := def["nullable"].([]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		switch {
		case !g.full && !slices.Contains(required, any(name)) && (depth > 4 || g.IntN(2) == 0):
		case slices.Contains(nullable, any(name)) && g.IntN(3) == 0:
			made[name] = nil
		default:
			if value, ok := g.value(id, properties[name].(map[string]any), depth); ok {
				made[name] = value
			}
		}
	}
	if g.IntN(8) == 0 {
		made["undeclared"] = map[string]any{"x": []any{1, "at://a.example/b.c.d/e", nil}}
	}
	return made
}

// value returns a value of a type, and false if indigo does not support the
// type.
func (g *generator) value(id string, def map[string]any, depth int) (any, bool) {
	switch def["type"] {
	case "boolean":
		if constant, ok := def["const"]; ok {
			return constant, true
		}
		return g.IntN(2) == 0, true
	case "integer":
		return g.integer(def), true
	case "string":
		return g.string(def), true
	case "bytes":
		return map[string]any{"$bytes": strings.Repeat("A", 4*int(max(1, bound(def, "minLength", 1)/3)))}, true
	case "cid-link":
		return map[string]any{"$link": blockCID}, true
	case "blob":
		return g.blob(def), true
	case "unknown":
		return map[string]any{"a": []any{1, map[string]any{"b": nil}}}, true
	case "array":
		return g.array(id, def, depth), true
	case "object":
		return g.object(id, def, depth+1), true
	case "ref":
		return g.ref(id, def["ref"].(string), depth)
	case "union":
		return g.union(id, def, depth)
	}
	panic("no type " + def["type"].(string))
}

func bound(def map[string]any, name string, otherwise int64) int64 {
	if n, ok := def[name].(float64); ok {
		return int64(n)
	}
	return otherwise
}

func (g *generator) integer(def map[string]any) any {
	if constant, ok := def["const"]; ok {
		return constant
	}
	if enum, ok := def["enum"].([]any); ok {
		return enum[g.IntN(len(enum))]
	}
	least := bound(def, "minimum", -100)
	return least + g.Int64N(min(bound(def, "maximum", least+5000)-least, 5000)+1)
}

func (g *generator) string(def map[string]any) any {
	if constant, ok := def["const"]; ok {
		return constant
	}
	if enum, ok := def["enum"].([]any); ok {
		return enum[g.IntN(len(enum))]
	}
	if known, ok := def["knownValues"].([]any); ok && g.IntN(4) > 0 {
		return known[g.IntN(len(known))]
	}
	name, _ := def["format"].(string)
	if formats, ok := map[string][]string{
		"at-uri": {postURI, "at://a.example/b.c.d/e", "at://did:web:a.b"}, "at-identifier": {"a.example", "did:web:a.b"},
		"cid": {blockCID}, "datetime": {"2026-01-02T03:04:05Z", "2026-02-28T23:59:59.999999+05:30"},
		"did":    {"did:web:a.b", "did:plc:wq4aajammjtxdomz3e23667t"},
		"handle": {"a.example"}, "nsid": {"a.b.c", "com.example.a1"}, "tid": {key}, "record-key": {"self", "a:b~c"},
		"uri": {"https://example.com/a?b#c", "did:web:a"}, "language": {"en", "pt-BR"},
	}[name]; ok {
		return formats[g.IntN(len(formats))]
	}
	least := max(bound(def, "minLength", 0), bound(def, "minGraphemes", 0))
	most := min(bound(def, "maxLength", 40), bound(def, "maxGraphemes", 40)*4, 40)
	text := strings.Repeat("a", int(least))
	for _, c := range []string{"b", "é", "~", "\"", "\\", "日", "🙂", "\n", "/"} {
		if g.IntN(3) == 0 && int64(len(text+c)) <= most && int64(len([]rune(text+c))) <= bound(def, "maxGraphemes", 40) {
			text += c
		}
	}
	return text
}

func (g *generator) blob(def map[string]any) any {
	media := "text/plain"
	if accept, ok := def["accept"].([]any); ok {
		media = strings.Replace(accept[g.IntN(len(accept))].(string), "*", "x", 1)
	}
	return map[string]any{"$type": "blob", "ref": map[string]any{"$link": blockCID}, "mimeType": media,
		"size": 1 + g.Int64N(bound(def, "maxSize", 5000))}
}

func (g *generator) array(id string, def map[string]any, depth int) any {
	made := []any{}
	least := bound(def, "minLength", 0)
	if g.full {
		least = max(least, 1)
	}
	for range least + g.Int64N(min(bound(def, "maxLength", least+3), least+3)-least+1) {
		if value, ok := g.value(id, def["items"].(map[string]any), depth+1); ok {
			made = append(made, value)
		}
	}
	return made
}

func (g *generator) ref(id, name string, depth int) (any, bool) {
	file, fragment, _ := strings.Cut(name, "#")
	if file == "" {
		file = id
	}
	if fragment == "" {
		fragment = "main"
	}
	def := g.defs[file+"#"+fragment]
	if def == nil || def["type"] == "token" || def["type"] == "record" || depth > 6 && !g.full {
		return nil, false
	}
	return g.value(file, def, depth)
}

func (g *generator) union(id string, def map[string]any, depth int) (any, bool) {
	refs := def["refs"].([]any)
	name := refs[g.IntN(len(refs))].(string)
	value, ok := g.ref(id, name, depth)
	if ok {
		if strings.HasPrefix(name, "#") {
			name = id + name
		}
		value.(map[string]any)["$type"] = name
	}
	return value, ok
}

// damage replaces or removes one value somewhere in a record.
func (g *generator) damage(in any) {
	others := []any{nil, true, int64(7), "x", []any{}, map[string]any{}}
	switch v := in.(type) {
	case map[string]any:
		names := slices.Sorted(maps.Keys(v))
		if len(names) == 0 {
			return
		}
		name := names[g.IntN(len(names))]
		switch {
		case g.IntN(3) > 0 && nested(v[name]):
			g.damage(v[name])
		case g.IntN(4) == 0:
			delete(v, name)
		case name == "$type": // indigo accepts any string in an open union
			v[name] = others[g.IntN(3)]
		default:
			v[name] = others[g.IntN(len(others))]
		}
	case []any:
		if len(v) == 0 {
			return
		}
		if at := g.IntN(len(v)); nested(v[at]) {
			g.damage(v[at])
		} else {
			v[at] = others[g.IntN(len(others))]
		}
	}
}

func nested(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) > 0
	case []any:
		return len(v) > 0
	}
	return false
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return raw
}

func seedName(seed int) string { return "seed " + strconv.Itoa(seed) }
