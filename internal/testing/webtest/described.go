package webtest

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

// openAPISchema is the schema of OpenAPI 3.1 documents, as it is published. Its licence is beside it.
//
//go:embed openapi/schema.json
var openAPISchema string

// Requests are what RequireDescribed needs to know beyond the description.
type Requests struct {
	Only   string              // the paths that begin so; empty: all
	Values map[string][]string // valid values of parameters, by name; the first one of a required parameter is in every request
	Beside map[string]string   // by parameter: what a request that has it also needs
	Also   []string            // further requests
	Change func()              // changes what a stream shows
}

// contract is the description of an API, and what a server has responded.
type contract struct {
	*Rig
	Requests
	url    string
	client http.Client

	compiler *jsonschema.Compiler
	paths    map[string]operation
	seen     map[string]map[string]bool // the codes that were returned, and whether events were, by path
}

type operation struct {
	Parameters []parameter
	Responses  map[string]struct{ Content map[string]any }
	Events     map[string]any `json:"x-events"`
}

type parameter struct {
	Name, In string
	Required bool
	Schema   struct {
		Type             string
		Enum             []string
		Items            struct{ Enum []string }
		Minimum, Maximum int
		MaxLength        int
		Default          any
	}
}

const openAPIPath = "/api/v1/openapi.json"

// RequireDescribed shows that the server's description of its API is true: it follows OpenAPI's schema; each
// parameter is read, with the described limits, and there is no other; and each response, also each error, has the
// described form and nothing else. It asks for every path, each with every parameter: valid, at its limits and beyond
// them. The database is not reachable afterwards.
func (r *Rig) RequireDescribed(requests Requests) {
	r.T.Helper()
	server := httptest.NewServer(r.Handler)
	defer server.Close()
	c := &contract{Rig: r, Requests: requests, url: server.URL, seen: map[string]map[string]bool{}}
	c.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.client.Timeout = time.Minute
	c.read()
	for path := range c.paths {
		c.checkOperation(path)
	}
	for _, target := range requests.Also {
		c.ask(c.pathOf(target), target)
	}
	c.checkLimit()
	r.Pool.Close()
	r.Now = r.Now.Add(time.Hour) // nothing that was kept is still fresh
	for path := range c.paths {
		query := ""
		if values := c.Values["watch"]; len(values) > 0 && c.has(path, "watch") {
			query = "watch=" + values[0]
		}
		require.Equal(r.T, http.StatusServiceUnavailable, c.ask(path, c.target(path, query)).StatusCode, path)
	}
	for path, op := range c.paths {
		for code := range op.Responses {
			require.True(r.T, c.seen[path][code], "%s never returned %s", path, code)
		}
	}
}

// read reads the description and checks that it is one.
func (c *contract) read() {
	body := c.Get(openAPIPath)
	decode := func(text string) (v any) {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		require.NoError(c.T, err)
		return v
	}
	c.compiler = jsonschema.NewCompiler()
	c.compiler.AssertFormat()
	require.NoError(c.T, c.compiler.AddResource("https://spec.openapis.org/oas/3.1/schema/2022-10-07", decode(openAPISchema)))
	whole, err := c.compiler.Compile("https://spec.openapis.org/oas/3.1/schema/2022-10-07")
	require.NoError(c.T, err)
	require.NoError(c.T, whole.Validate(decode(body)))
	var document struct {
		Paths map[string]struct{ Get operation }
	}
	require.NoError(c.T, json.Unmarshal([]byte(body), &document))
	c.paths = map[string]operation{}
	for path, methods := range document.Paths {
		if strings.HasPrefix(path, c.Only) {
			c.paths[path], c.seen[path] = methods.Get, map[string]bool{}
		}
	}
	require.NotEmpty(c.T, c.paths)
	closed := decode(body).(map[string]any) // no response may have what is not described
	for _, s := range closed["components"].(map[string]any)["schemas"].(map[string]any) {
		s.(map[string]any)["additionalProperties"] = false
	}
	require.NoError(c.T, c.compiler.AddResource("api.json", closed))
}

// validate checks a JSON value against the schema at a place in the description.
func (c *contract) validate(value, what string, place ...string) {
	pointer := "api.json#"
	for _, name := range place {
		pointer += "/" + url.PathEscape(strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
	}
	schema, err := c.compiler.Compile(pointer)
	require.NoError(c.T, err, pointer)
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(value))
	require.NoError(c.T, err, value)
	require.NoError(c.T, schema.Validate(v), "%s returned %s", what, value)
}

// response is what a server responded, with its body.
type response struct {
	*http.Response
	body string
}

// ask requests a target, whose response must be as described. It follows redirects.
func (c *contract) ask(path, target string, header ...string) response {
	c.T.Helper()
	request, err := http.NewRequestWithContext(c.T.Context(), http.MethodGet, c.url+target, nil)
	require.NoError(c.T, err)
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	got, err := c.client.Do(request)
	require.NoError(c.T, err)
	defer got.Body.Close()
	code := strconv.Itoa(got.StatusCode)
	described, ok := c.paths[path].Responses[code]
	require.True(c.T, ok, "%s returned %s, which is not described", target, code)
	c.seen[path][code] = true
	r := response{Response: got}
	if got.StatusCode == http.StatusFound || got.StatusCode == http.StatusTemporaryRedirect {
		return c.ask(path, got.Header.Get("Location"))
	}
	if described.Content == nil {
		return r
	}
	media, _, _ := strings.Cut(got.Header.Get("Content-Type"), ";")
	require.Contains(c.T, described.Content, media, target)
	if media == "text/event-stream" {
		c.readEvents(path, target, got.Body)
		return r
	}
	body, err := io.ReadAll(got.Body)
	require.NoError(c.T, err)
	r.body = string(body)
	if strings.HasSuffix(media, "json") {
		c.validate(r.body, target, "paths", path, "get", "responses", code, "content", media, "schema")
	}
	return r
}

// readEvents reads one event of each kind of a stream, the first time.
func (c *contract) readEvents(path, target string, body io.Reader) {
	left := c.paths[path].Events
	if c.seen[path]["events"] {
		return
	}
	c.seen[path]["events"] = true
	lines, kind := bufio.NewScanner(body), ""
	for seen := map[string]bool{}; len(seen) < len(left) && lines.Scan(); {
		name, isKind := strings.CutPrefix(lines.Text(), "event: ")
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case isKind:
			require.Contains(c.T, left, name)
			kind = name
		case isData:
			c.validate(data, target, "paths", path, "get", "x-events", kind)
			if kind == "snapshot" {
				c.Change()
			}
			seen[kind] = true
		}
	}
	require.NoError(c.T, lines.Err())
}

// target returns the address of a path, with the first valid value of each required parameter.
func (c *contract) target(path, query string) string {
	target, queries := path, []string{}
	for _, p := range c.paths[path].Parameters {
		if !p.Required || strings.HasPrefix(query, p.Name+"=") {
			continue
		}
		require.NotEmpty(c.T, c.Values[p.Name], "no value of %s is known", p.Name)
		value := c.Values[p.Name][0]
		if p.In == "path" {
			target = strings.ReplaceAll(target, "{"+p.Name+"}", url.PathEscape(value))
		} else {
			queries = append(queries, p.Name+"="+url.QueryEscape(value))
		}
	}
	if query != "" {
		queries = append(queries, query)
	}
	if len(queries) > 0 {
		target += "?" + strings.Join(queries, "&")
	}
	return target
}

func (c *contract) has(path, name string) bool {
	return slices.ContainsFunc(c.paths[path].Parameters, func(p parameter) bool { return p.Name == name })
}

// pathOf returns the described path of a target.
func (c *contract) pathOf(target string) string {
	target, _, _ = strings.Cut(target, "?")
	part := regexp.MustCompile(`\\\{\w+\\\}`)
	for path := range c.paths {
		if regexp.MustCompile("^" + part.ReplaceAllString(regexp.QuoteMeta(path), "[^/]+") + "$").MatchString(target) {
			return path
		}
	}
	require.Fail(c.T, "no path is described for "+target)
	return ""
}

func (c *contract) checkOperation(path string) {
	c.T.Helper()
	first := c.ask(path, c.target(path, ""))
	require.Equal(c.T, http.StatusOK, first.StatusCode, "%s: %s", path, first.body)
	if etag := first.Header.Get("ETag"); etag != "" {
		require.Equal(c.T, http.StatusNotModified, c.ask(path, c.target(path, ""), "If-None-Match", etag).StatusCode, path)
	}
	var names []string
	for _, p := range c.paths[path].Parameters {
		if p.In == "path" {
			c.checkPathParameter(path, p)
			continue
		}
		names = append(names, p.Name)
		c.checkParameter(path, p)
	}
	if c.has(path, "cursor") {
		var page struct{ Next string }
		if body := c.ask(path, c.target(path, "limit=1")).body; json.Unmarshal([]byte(body), &page) == nil {
			require.NotEmpty(c.T, page.Next, "%s has one page", path)
		}
		require.Equal(c.T, http.StatusOK, c.ask(path, c.target(path, "limit=1&cursor="+page.Next)).StatusCode, path)
	}
	unknown := c.ask(path, c.target(path, "unknown=1"))
	require.Equal(c.T, http.StatusBadRequest, unknown.StatusCode, path)
	known := regexp.MustCompile(`send any of ([a-z_, ]*)`).FindStringSubmatch(unknown.body)
	require.NotNil(c.T, known, unknown.body)
	require.ElementsMatch(c.T, names, strings.Split(known[1], ", "), "the parameters of %s", path)
}

// checkParameter asks with valid and invalid values of a parameter.
func (c *contract) checkParameter(path string, p parameter) {
	c.T.Helper()
	ask := func(values ...string) response {
		var query []string
		for _, value := range values {
			query = append(query, p.Name+"="+url.QueryEscape(value))
		}
		if beside := c.Beside[p.Name]; beside != "" {
			query = append(query, beside)
		}
		return c.ask(path, c.target(path, strings.Join(query, "&")))
	}
	valid, invalid := slices.Clone(c.Values[p.Name]), []string{"\xff"}
	switch s := p.Schema; {
	case s.Type == "integer":
		require.NotZero(c.T, s.Maximum, p.Name)
		valid = append(valid, strconv.Itoa(s.Minimum), strconv.Itoa(s.Maximum))
		invalid = append(invalid, strconv.Itoa(s.Minimum-1), strconv.Itoa(s.Maximum+1), "x", "1.5")
	case s.Type == "array":
		valid = append(slices.Concat(valid, s.Items.Enum), strings.Join(s.Items.Enum, ","))
		invalid = append(invalid, "else", s.Items.Enum[0]+","+s.Items.Enum[0])
	case s.Enum != nil:
		valid, invalid = append(valid, s.Enum...), append(invalid, "else")
	case s.MaxLength > 0:
		valid, invalid = append(valid, strings.Repeat("a", s.MaxLength)), append(invalid, strings.Repeat("a", s.MaxLength+1))
	}
	if p.Name != "cursor" {
		require.NotEmpty(c.T, valid, "no value of %s is known", p.Name)
	}
	for _, value := range valid {
		got := ask(value)
		require.Equal(c.T, http.StatusOK, got.StatusCode, "%s with %s=%s: %s", path, p.Name, value, got.body)
	}
	for _, value := range invalid {
		got := ask(value)
		require.Equal(c.T, http.StatusBadRequest, got.StatusCode, "%s with %s=%q: %s", path, p.Name, value, got.body)
		require.Contains(c.T, got.body, p.Name)
	}
	value := append(valid, "x")[0]
	require.Equal(c.T, http.StatusBadRequest, ask(value, value).StatusCode, "%s with %s twice", path, p.Name)
	if p.Required {
		require.Equal(c.T, http.StatusBadRequest, ask("").StatusCode, "%s without %s", path, p.Name)
	}
	if d := p.Schema.Default; d != nil {
		require.Equal(c.T, c.ask(path, c.target(path, c.Beside[p.Name])).body, ask(strings.TrimSuffix(toText(d), ".0")).body,
			"%s with the default of %s", path, p.Name)
	}
}

func toText(v any) string {
	text, _ := json.Marshal(v) // it was read from JSON
	return strings.Trim(string(text), `"`)
}

// checkPathParameter asks with invalid values of a parameter, and with a number that nothing has.
func (c *contract) checkPathParameter(path string, p parameter) {
	c.T.Helper()
	values := map[string]int{strings.Repeat("a", 3000): http.StatusBadRequest}
	if p.Schema.Type == "integer" {
		values = map[string]int{
			"0": http.StatusBadRequest, "x": http.StatusBadRequest, "01": http.StatusBadRequest, strconv.Itoa(math.MaxInt64): http.StatusNotFound,
		}
	}
	for value, code := range values {
		before := c.Values[p.Name]
		c.Values[p.Name] = []string{value}
		target := c.target(path, "")
		c.Values[p.Name] = before
		require.Equal(c.T, code, c.ask(path, target).StatusCode, "%s with %s=%s", path, p.Name, value)
	}
}

// leaving is a client that leaves as soon as it has read something: a stream would not end otherwise.
type leaving struct {
	*httptest.ResponseRecorder
	leave func()
}

func (l leaving) Write(p []byte) (int, error) {
	defer l.leave()
	return l.ResponseRecorder.Write(p)
}

// checkLimit has a client send too many requests.
func (c *contract) checkLimit() {
	c.T.Helper()
	ask := func(target string) *httptest.ResponseRecorder {
		ctx, leave := context.WithCancel(c.T.Context())
		defer leave()
		request, rec := httptest.NewRequestWithContext(ctx, http.MethodGet, target, nil), httptest.NewRecorder()
		request.RemoteAddr = "203.0.113.9:1000"
		c.Handler.ServeHTTP(leaving{rec, leave}, request)
		return rec
	}
	for path, op := range c.paths {
		rec := ask(c.target(path, ""))
		for rec.Code == http.StatusOK { // the client may ask again after a moment
			for ask(openAPIPath).Code == http.StatusOK {
			}
			rec = ask(c.target(path, ""))
		}
		require.Equal(c.T, http.StatusTooManyRequests, rec.Code)
		media, _, _ := strings.Cut(rec.Header().Get("Content-Type"), ";")
		require.Contains(c.T, op.Responses["429"].Content, media)
		if media == "application/json" {
			c.validate(rec.Body.String(), path, "paths", path, "get", "responses", "429", "content", media, "schema")
		}
		c.seen[path]["429"] = true
	}
}
