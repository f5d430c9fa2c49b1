// Package records serves the stored records and the references between them: as pages, as JSON under
// /api/v1/, and by two methods of XRPC. Nothing of the page knows it, so it can be left out.
package records

import (
	"context"
	"embed"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weir-social/weir/internal/lexicon/records"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/internal/words"
	"github.com/weir-social/weir/schema"
)

// maxKeyPart limits a collection, a DID and a record's key, in bytes.
const maxKeyPart = 2048

//go:embed templates
var templates embed.FS

//go:embed texts.txt
var textFile string

var texts = web.ParseTexts(textFile)

func say(key string, values ...any) string { return texts.Say(key, values...) }

// server serves the addresses of stored records.
type server struct{ *web.Server }

// Part returns the addresses of stored records.
func Part() web.Part {
	return web.Part{
		Routes: routes, Files: templates, Texts: texts,
		API: web.API{Path: "/xrpc/", Error: protocolError, Public: true, About: say("xrpc_about")},
	}
}

func routes(core *web.Server) []web.Route {
	s := &server{core}
	return []web.Route{
		{Pattern: "/records/{collection}/{did}/{rkey}", Handler: s.recordHandler(nil, s.serveRecordPage), Kept: true},
		{Pattern: "/api/v1/records/{collection}", Handler: s.serveRecords, Operation: recordsOperation()},
		{Pattern: "/api/v1/records/{collection}/{did}/{rkey}", Handler: s.recordHandler(recordParameters(), s.serveRecord),
			Operation: recordOperation()},
		{Pattern: "/api/v1/records/{collection}/{did}/{rkey}/references", Handler: s.recordHandler(pageParameters(), s.serveReferences),
			Operation: referencesOperation()},
		{Pattern: "/api/v1/records/{collection}/{did}/{rkey}/referrers", Handler: s.recordHandler(pageParameters(), s.serveReferrers),
			Operation: referrersOperation()},
		{Pattern: "/api/v1/search", Handler: s.serveSearch, Operation: searchOperation()},
		{Pattern: "/api/v1/graph/{uri...}", Handler: s.serveGraph, Operation: graphOperation()},
		{Pattern: "/api/v1/paths", Handler: s.servePaths, Operation: pathsOperation()},
		{Pattern: "/xrpc/com.atproto.repo.getRecord", Handler: s.serveGetRecord},
		{Pattern: "/xrpc/com.atproto.repo.listRecords", Handler: s.serveListRecords},
		{Pattern: "/xrpc/", Handler: s.serveNoMethod},
	}
}

type recordsJSON struct {
	Collection string           `json:"collection"`
	Records    []records.Record `json:"records"`
	Next       records.Cursor   `json:"next,omitempty"`
}

func (s *server) serveRecords(w http.ResponseWriter, r *http.Request) {
	q := parseRecordQuery(r, "limit=50", pageParameters())
	limit := q.number("limit")
	collection := r.PathValue("collection")
	if !validPart(collection) {
		q.wrong("collection", collection, say("expected_collection"))
	}
	s.answer(w, r, &q, func(ctx context.Context) (any, error) {
		page, err := records.List(ctx, s.DB, collection, limit, records.Cursor(q.values.Get("cursor")))
		return recordsJSON{collection, orEmpty(page.Records), page.Next}, err
	})
}

// recordHandler serves requests about a stored record.
func (s *server) recordHandler(
	parameters []web.Parameter, serve func(http.ResponseWriter, *http.Request, schema.Key, *recordQuery),
) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		k := schema.Key{Collection: r.PathValue("collection"), DID: r.PathValue("did"), Rkey: r.PathValue("rkey")}
		q := parseRecordQuery(r, "limit=50", parameters)
		if !validKey(k) {
			q.wrong("record", k.URI(), say("expected_uri"))
		}
		serve(w, r, k, &q)
	}
}

func (s *server) serveRecord(w http.ResponseWriter, r *http.Request, k schema.Key, q *recordQuery) {
	limit := q.number("limit")
	s.answer(w, r, q, func(ctx context.Context) (any, error) {
		d, err := s.record(ctx, k, limit)
		d.References.List, d.Referrers.List = orEmpty(d.References.List), orEmpty(d.Referrers.List)
		return d, err
	})
}

func (s *server) serveReferences(w http.ResponseWriter, r *http.Request, k schema.Key, q *recordQuery) {
	limit := q.number("limit")
	s.answer(w, r, q, func(ctx context.Context) (any, error) {
		if err := s.checkStored(ctx, k); err != nil {
			return nil, err
		}
		page, err := records.ReadReferences(ctx, s.DB, k, limit, records.Cursor(q.values.Get("cursor")))
		page.List = orEmpty(page.List)
		return page, err
	})
}

// serveReferrers lists the records that refer to a record, which need not be stored.
func (s *server) serveReferrers(w http.ResponseWriter, r *http.Request, k schema.Key, q *recordQuery) {
	limit := q.number("limit")
	s.answer(w, r, q, func(ctx context.Context) (any, error) {
		page, err := records.ReadReferrers(ctx, s.DB, k, limit, records.Cursor(q.values.Get("cursor")))
		page.List = orEmpty(page.List)
		return page, err
	})
}

// record reads a record, or returns a *recordStateError.
func (s *server) record(ctx context.Context, k schema.Key, limit int) (d records.Detail, err error) {
	if err := s.checkStored(ctx, k); err != nil {
		return d, err
	}
	d, err = records.Read(ctx, s.DB, k, limit)
	if errors.Is(err, schema.ErrNoRows) { // it was deleted meanwhile
		err = &recordStateError{k, records.Missing}
	}
	return d, err
}

func (s *server) checkStored(ctx context.Context, k schema.Key) error {
	state, err := records.Status(ctx, s.DB, k)
	if err == nil && state != records.Stored {
		err = &recordStateError{k, state}
	}
	return err
}

// recordStateError means that a record cannot be shown.
type recordStateError struct {
	key   schema.Key
	state string
}

func (e *recordStateError) Error() string {
	return say("error_record_"+e.state, web.PlainLine(e.key.URI(), web.MaxDetail))
}

type matchesJSON struct {
	Query     string          `json:"q"`
	Records   []records.Match `json:"records"`
	Truncated bool            `json:"truncated"`
	Next      records.Cursor  `json:"next,omitempty"`
}

func (s *server) serveSearch(w http.ResponseWriter, r *http.Request) {
	q := parseRecordQuery(r, "q=heron", searchParameters())
	limit := q.number("limit")
	text := q.values.Get("q")
	if text == "" || utf8.RuneCountInString(text) > words.MaxText {
		q.wrong("q", text, say("expected_words", words.MaxText))
	}
	search := records.Query{
		Words: words.Query(text), Collection: q.values.Get("collection"), Language: q.values.Get("language"),
		MediaType: q.values.Get("media"),
	}
	if search.Collection != "" && !validPart(search.Collection) {
		q.wrong("collection", search.Collection, say("expected_collection"))
	}
	if search.Language != "" && !records.ValidLanguage(search.Language) {
		q.wrong("language", search.Language, say("expected_language"))
	}
	if search.MediaType != "" && !records.ValidMediaType(search.MediaType) {
		q.wrong("media", search.MediaType, say("expected_media_type"))
	}
	s.answer(w, r, &q, func(ctx context.Context) (any, error) {
		page, err := records.Search(ctx, s.DB, search, limit, records.Cursor(q.values.Get("cursor")))
		return matchesJSON{text, orEmpty(page.Matches), page.Truncated, page.Next}, err
	})
}

type graphJSON struct {
	URI   string `json:"uri"`
	Depth int    `json:"depth"`
	records.Graph
}

func (s *server) serveGraph(w http.ResponseWriter, r *http.Request) {
	q := parseRecordQuery(r, "depth=2", graphParameters())
	depth, limit := q.number("depth"), q.number("limit")
	k := q.uri("uri", r.PathValue("uri"))
	s.answer(w, r, &q, func(ctx context.Context) (any, error) {
		g, err := records.Neighbourhood(ctx, s.DB, k, depth, limit)
		g.Edges = orEmpty(g.Edges)
		return graphJSON{k.URI(), depth, g}, err
	})
}

type pathsJSON struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Depth int    `json:"depth"`
	records.Paths
}

func (s *server) servePaths(w http.ResponseWriter, r *http.Request) {
	q := parseRecordQuery(r, "from=at://…&to=at://…", pathsParameters())
	depth, limit := q.number("depth"), q.number("limit")
	from, to := q.uri("from", q.values.Get("from")), q.uri("to", q.values.Get("to"))
	s.answer(w, r, &q, func(ctx context.Context) (any, error) {
		p, err := records.ShortestPaths(ctx, s.DB, from, to, depth, limit)
		return pathsJSON{from.URI(), to.URI(), depth, p}, err
	})
}

// recordQuery reads the parameters of a request about records. It keeps the first error.
type recordQuery struct {
	parameters []web.Parameter
	values     url.Values
	err        error
}

func parseRecordQuery(r *http.Request, example string, parameters []web.Parameter) (q recordQuery) {
	q.parameters = parameters
	q.values, q.err = web.ParseParameters(r.URL.RawQuery, web.Names(parameters), example)
	for name := range q.values {
		if text := q.values.Get(name); !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			q.wrong(name, text, say("expected_text"))
		}
	}
	return q
}

func (q *recordQuery) wrong(name, value, expected string) {
	if q.err == nil {
		q.err = web.WrongValue(name, value, expected)
	}
}

// number reads a parameter that is a number.
func (q *recordQuery) number(name string) int {
	p := q.parameters[slices.IndexFunc(q.parameters, func(p web.Parameter) bool { return p.Name == name })]
	text := q.values.Get(name)
	if text == "" {
		return p.Default.(int)
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > p.Most {
		q.wrong(name, text, say("expected_number", 1, p.Most))
	}
	return n
}

// uri reads the at-uri of a record, with or without its scheme. In a path, a server
// turns "at://" into "at:/".
func (q *recordQuery) uri(name, text string) schema.Key {
	bare := strings.TrimPrefix(strings.TrimPrefix(text, "at:/"), "/")
	parts := strings.Split(bare, "/")
	if len(parts) == 3 {
		if k := (schema.Key{DID: parts[0], Collection: parts[1], Rkey: parts[2]}); validKey(k) {
			return k
		}
	}
	q.wrong(name, text, say("expected_uri"))
	return schema.Key{}
}

// validKey reports whether a record may have this key.
func validKey(k schema.Key) bool {
	return strings.HasPrefix(k.DID, "did:") && validPart(k.DID) && validPart(k.Collection) && validPart(k.Rkey)
}

func validPart(text string) bool {
	return text != "" && len(text) <= maxKeyPart && utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return r <= ' ' || r == '/'
	})
}

// orEmpty returns an empty list instead of nil, which JSON encodes as null.
func orEmpty[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

// answer writes the result of read as JSON, or the reason why it failed.
func (s *server) answer(w http.ResponseWriter, r *http.Request, q *recordQuery, read func(context.Context) (any, error)) {
	if q.err != nil {
		s.WriteError(w, r, http.StatusBadRequest, q.err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), web.QueryTimeout)
	defer cancel()
	found, err := read(ctx)
	if err != nil {
		s.writeRecordUnreadable(w, r, q, err)
		return
	}
	w.Header().Set("Cache-Control", "no-cache")
	web.WriteJSON(w, http.StatusOK, found)
}

func (s *server) writeRecordUnreadable(w http.ResponseWriter, r *http.Request, q *recordQuery, err error) {
	state, isState := errors.AsType[*recordStateError](err)
	switch {
	case isState:
		s.WriteError(w, r, http.StatusNotFound, state.Error())
	case errors.Is(err, records.ErrCursor):
		s.WriteError(w, r, http.StatusBadRequest, web.WrongValue("cursor", q.values.Get("cursor"), say("expected_next")).Error())
	default:
		s.Log.Error("records_read_failed", "path", web.PlainLine(r.URL.Path, web.MaxDetail), "error", err)
		s.WriteUnavailable(w, r)
	}
}
