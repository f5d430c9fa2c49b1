package records

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/lexicon/records"
	"github.com/weir-social/weir/internal/testing/webtest"
	"github.com/weir-social/weir/internal/web"
)

const (
	treeCollection = "com.example.town.tree"
	aliceDID       = "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa"
	bobDID         = "did:plc:bbbbbbbbbbbbbbbbbbbbbbbb"
)

type rig struct{ *webtest.Rig }

// newRig returns a page that has this part, and others.
func newRig(t *testing.T, others ...web.Part) *rig {
	t.Helper()
	r := &rig{webtest.New(t)}
	var err error
	r.Handler, err = web.Handler(web.Config{
		DB: r.Pool, Now: func() time.Time { return r.Now }, Parts: append(others, Part()), Logger: slog.New(slog.NewJSONHandler(r.Log, nil)),
	})
	require.NoError(t, err)
	return r
}

// plant stores records of two accounts with references, verdicts and texts. The record "one" refers
// to all others, and "two" refers to it.
func (r *rig) plant() {
	r.T.Helper()
	r.Exec(`INSERT INTO accounts (did, handle) VALUES ($1, 'alice.example')`, aliceDID)
	for i, rkey := range []string{"one", "two", "three"} {
		r.Exec(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, indexed_at, record)
			VALUES ($1, $2, $3, '3jzfcijpj2z2a', $4, now(), $5, $6)`,
			treeCollection, aliceDID, rkey, "bafyreiabcdefghijk"+fmt.Sprint(i), r.Now,
			fmt.Sprintf(`{"$type": %q, "height": %d, "near": "at://%s/%s/two"}`, treeCollection, i, aliceDID, treeCollection))
		r.Exec(`INSERT INTO record_texts (collection, did, rkey, text, words) SELECT $1, $2, $3, t, to_tsvector('simple', t)
			FROM (SELECT $4 || ' heron' AS t) AS t`, treeCollection, aliceDID, rkey, rkey)
	}
	r.Exec(`INSERT INTO verdicts (collection, did, rkey, cid, schema_hash, verdict, state, dangling, problems, warnings)
		VALUES ($1, $2, 'one', 'bafyreiabcdefghijk0', 'h', 'invalid', 'refused', true,
			'[{"rule": "length", "path": "/height", "expected": "at most 5", "received": "string \"long\""}]',
				'[{"rule": "slug", "path": "/kind", "expected": "one", "received": "two"}]')`, treeCollection, aliceDID)
	r.Exec(`INSERT INTO tombstones (collection, did, rkey, rev, deleted_at) VALUES ($1, $2, 'gone', '1', now())`, treeCollection, aliceDID)
	r.Exec(`INSERT INTO parked (collection, did, rkey, to_collection, to_did, to_rkey)
		VALUES ($1, $2, 'one', $1, $3, 'later')`, treeCollection, aliceDID, bobDID)
	for i, to := range []string{"two", "three", "gone", "never"} {
		r.refer("one", fmt.Sprintf("/near/%d", i), to)
	}
	r.refer("two", "/near", "one")
	r.Exec(`INSERT INTO record_refs (collection, did, rkey, path, kind, target, declared)
		VALUES ($1, $2, 'one', '/picture', 'blob', 'bafkreiabc', true)`, treeCollection, aliceDID)
}

func (r *rig) refer(from, path, to string) {
	r.T.Helper()
	r.Exec(`INSERT INTO record_refs (collection, did, rkey, path, kind, target, to_collection, to_did, to_rkey, declared)
		VALUES ($1, $2, $3, $4, 'at-uri', $5, $1, $2, $6, true)`,
		treeCollection, aliceDID, from, path, treeURI(to), to)
}

func treeURI(rkey string) string { return "at://" + aliceDID + "/" + treeCollection + "/" + rkey }

// decode reads a JSON response, which must have the given status.
func decode[T any](r *rig, code int, rec *httptest.ResponseRecorder) (v T) {
	r.T.Helper()
	require.Equal(r.T, code, rec.Code, rec.Body.String())
	require.Equal(r.T, "application/json", rec.Header().Get("Content-Type"))
	require.NoError(r.T, json.Unmarshal(rec.Body.Bytes(), &v))
	return v
}

// TestXRPCReadsRecords shows that the protocol's two methods have its response formats and its
// errors.
func TestXRPCReadsRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.plant()
	r.Exec(`INSERT INTO accounts (did, status) VALUES ($1, 'takendown')`, bobDID)
	get, list := "/xrpc/com.atproto.repo.getRecord?collection="+treeCollection+"&repo=",
		"/xrpc/com.atproto.repo.listRecords?collection="+treeCollection+"&repo="
	one := fmt.Sprintf(`{"uri": %q, "cid": "bafyreiabcdefghijk0", "value": {"$type": %q, "height": 0, "near": %q}}`,
		treeURI("one"), treeCollection, treeURI("two"))
	for _, target := range []string{
		get + aliceDID + "&rkey=one", get + "Alice.example&rkey=one",
		get + aliceDID + "&rkey=one&cid=bafyreiabcdefghijk0&else=1",
	} {
		rec := r.Do(http.MethodGet, target)
		require.Equal(t, http.StatusOK, rec.Code, rec.Body.String())
		require.JSONEq(t, one, rec.Body.String())
		require.Equal(t, []string{"*", "cross-origin"}, []string{
			rec.Header().Get("Access-Control-Allow-Origin"), rec.Header().Get("Cross-Origin-Resource-Policy"),
		})
	}
	asked := r.Do(http.MethodOptions, get+aliceDID+"&rkey=one")
	require.Equal(t, http.StatusNoContent, asked.Code)
	require.Equal(t, []string{"*", "GET, HEAD", "*"}, []string{asked.Header().Get("Access-Control-Allow-Origin"),
		asked.Header().Get("Access-Control-Allow-Methods"), asked.Header().Get("Access-Control-Allow-Headers")})
	require.Empty(t, r.Do(http.MethodGet, "/api/v1/records/"+treeCollection).Header().Values("Access-Control-Allow-Origin"),
		"the other methods are only for Weir's own page")
	for target, want := range map[string]xrpcError{
		get + aliceDID + "&rkey=gone":                         {400, "RecordNotFound", "Could not locate record: " + treeURI("gone")},
		get + aliceDID + "&rkey=one&cid=bafyreianothercid":    {400, "RecordNotFound", "Could not locate record: " + treeURI("one")},
		get + aliceDID + "&rkey=a/b":                          {400, "InvalidRequest", "Error: rkey must be a valid Record Key"},
		get + "nobody.example&rkey=one":                       {400, "InvalidRequest", "Could not find repo: nobody.example"},
		get + bobDID + "&rkey=one":                            {400, "RepoTakendown", "Repo is takendown: " + bobDID},
		get + "&rkey=one":                                     {400, "InvalidRequest", "Error: repo must be a valid did or a handle"},
		"/xrpc/com.atproto.repo.getRecord?collection=x.y.z":   {400, "InvalidRequest", `Error: Params must have the property "repo"`},
		"/xrpc/com.atproto.repo.listRecords?repo=" + aliceDID: {400, "InvalidRequest", `Error: Params must have the property "collection"`},
		list + aliceDID + "&limit=101":                        {400, "InvalidRequest", "Error: limit must be from 1 to 100"},
		list + aliceDID + "&limit=x":                          {400, "InvalidRequest", "Error: limit must be an integer"},
		list + aliceDID + "&reverse=1":                        {400, "InvalidRequest", "Error: reverse must be a boolean"},
		list + aliceDID + "&cursor=%00":                       {400, "InvalidRequest", "Error: cursor is not one of this list"},
		"/xrpc/com.atproto.repo.createRecord": {
			501, "MethodNotImplemented", "Method not implemented: com.atproto.repo.createRecord",
		},
	} {
		response := r.Do(http.MethodGet, target)
		require.Equal(t, "*", response.Header().Get("Access-Control-Allow-Origin"), "a page of another site must be able to read errors too")
		got := decode[xrpcError](r, want.code, response)
		got.code = want.code
		require.Equal(t, want, got, target)
	}
	for reverse, want := range map[string][]string{"": {"two", "three", "one"}, "&reverse=true": {"one", "three", "two"}} {
		var got []string
		for cursor := ""; ; {
			page := decode[xrpcRecords](r, http.StatusOK, r.Do(http.MethodGet, list+"alice.example&limit=2"+reverse+cursor))
			for _, found := range page.Records {
				got = append(got, found.URI)
			}
			if page.Cursor == "" {
				break
			}
			cursor = "&cursor=" + page.Cursor
		}
		require.Equal(t, []string{treeURI(want[0]), treeURI(want[1]), treeURI(want[2])}, got)
	}
	require.JSONEq(t, `{"records": []}`, r.Get(list+"did:plc:cccccccccccccccccccccccc"))
}

// TestAPIReadsRecords shows that the API lists records, returns one with its references and
// referrers, searches words, and returns the graph around a record.
func TestAPIReadsRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.plant()
	page := decode[recordsJSON](r, http.StatusOK, r.Do(http.MethodGet, "/api/v1/records/"+treeCollection+"?limit=2"))
	require.Len(t, page.Records, 2)
	page = decode[recordsJSON](r, http.StatusOK, r.Do(http.MethodGet, "/api/v1/records/"+treeCollection+"?cursor="+string(page.Next)))
	require.Equal(t, []string{treeURI("one"), "invalid"}, []string{page.Records[0].URI, page.Records[0].Verdict})
	require.Empty(t, page.Next)
	require.JSONEq(t, `{"collection": "com.example.none", "records": []}`, r.Get("/api/v1/records/com.example.none"))

	base := "/api/v1/records/" + treeCollection + "/" + aliceDID + "/"
	d := decode[records.Detail](r, http.StatusOK, r.Do(http.MethodGet, base+"one?limit=3"))
	require.Equal(t, []any{"invalid", "refused", true, 3, 1}, []any{
		d.Verdict, d.Projection, d.Dangling, len(d.References.List), len(d.Referrers.List),
	})
	require.True(t, d.References.List[2].Dangling)
	rest := decode[records.References](r, http.StatusOK, r.Do(http.MethodGet, base+"one/references?cursor="+string(d.References.Next)))
	require.Equal(t, "missing", rest.List[0].State)
	require.Len(t, rest.List, 2)
	require.Len(t, decode[records.Referrers](r, http.StatusOK, r.Do(http.MethodGet, base+"gone/referrers")).List, 1)

	found := decode[matchesJSON](r, http.StatusOK, r.Do(http.MethodGet, "/api/v1/search?q=Her%C3%B6n+tw&collection="+treeCollection))
	require.Empty(t, found.Records, "two letters are too short for the beginning of a word")
	found = decode[matchesJSON](r, http.StatusOK, r.Do(http.MethodGet, "/api/v1/search?q=HERON+thre&collection="+treeCollection))
	require.Equal(t, []string{treeURI("three"), "three heron"}, []string{found.Records[0].URI, found.Records[0].Text})
	require.Len(t, found.Records, 1)
	r.Exec(`UPDATE record_texts SET words = words || $$'=language=de' '=media=audio'$$::tsvector WHERE rkey = 'two'`)
	found = decode[matchesJSON](r, http.StatusOK, r.Do(http.MethodGet, "/api/v1/search?q=heron&language=de&media=audio"))
	require.Equal(t, []string{treeURI("two")}, []string{found.Records[0].URI})
	require.Len(t, found.Records, 1)

	for _, form := range []string{
		aliceDID + "/" + treeCollection + "/one", url.PathEscape(treeURI("one")),
		"at:/" + aliceDID + "/" + treeCollection + "/one",
	} {
		g := decode[graphJSON](r, http.StatusOK, r.Do(http.MethodGet, "/api/v1/graph/"+form+"?depth=2"))
		require.Equal(t, []any{treeURI("one"), 5, 5, false}, []any{g.URI, len(g.Nodes), len(g.Edges), g.Truncated}, form)
	}
	require.Equal(t, "/api/v1/graph/at:/"+aliceDID+"/"+treeCollection+"/one",
		r.Do(http.MethodGet, "/api/v1/graph/"+treeURI("one")).Header().Get("Location"),
		"the request must be redirected to the form with one slash")
	p := decode[pathsJSON](r, http.StatusOK,
		r.Do(http.MethodGet, "/api/v1/paths?from="+url.QueryEscape(treeURI("two"))+"&to="+url.QueryEscape(treeURI("never"))))
	require.Equal(t, []any{2, 2}, []any{p.Length, len(p.List)}, "two and one refer to each other")

	for target, want := range map[string]string{
		base + "gone": "was deleted", base + "never": "is not stored", base + "one?limit=201": "from 1 to 200",
		base + "one?x=1": "unknown parameter", "/api/v1/records/a%20b": "collection is", "/records/a/alice.example/b": "at-uri",
		"/api/v1/records/" + treeCollection + "/alice.example/one/referrers": "at-uri",
		"/api/v1/records/" + treeCollection + "?cursor=x":                    "cursor", "/api/v1/search": "q is",
		"/api/v1/search?q=" + strings.Repeat("x", 201): "200 characters", "/api/v1/search?q=a%00": "zero character",
		"/api/v1/search?q=a&language=x": "a language", "/api/v1/search?q=a&media=a/": "a media type",
		"/api/v1/graph/alice.example/" + treeCollection + "/one": "at-uri", "/api/v1/graph/x?depth=7": "from 1 to 6",
		"/api/v1/paths?from=x": "at-uri", "/api/v1/graph/" + aliceDID + "/a/b/c": "at-uri",
	} {
		rec := r.Do(http.MethodGet, target)
		require.Contains(t, []int{400, 404}, rec.Code, target)
		require.Contains(t, rec.Body.String(), want, target)
	}
	r.Exec(`UPDATE accounts SET status = 'suspended'`)
	require.Contains(t, r.Do(http.MethodGet, base+"one").Body.String(), "not active")
	require.JSONEq(t, `{"q": "heron", "records": [], "truncated": false}`, r.Get("/api/v1/search?q=heron"))
	require.Contains(t, r.Get("/api/v1/records/"+treeCollection), `"records":[]`)
}

// TestRecordPageLeadsToOthers shows that each reference to a stored record is a link to its page,
// also in the content.
func TestRecordPageLeadsToOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.plant()
	body := r.Get("/records/" + treeCollection + "/" + aliceDID + "/one")
	links := map[string]int{}
	for _, a := range webtest.Find(r.Parse(body), func(n *html.Node) bool { return n.Data == "a" }) {
		links[webtest.Attr(a, "href")]++
	}
	require.Equal(t, 3, links["/records/"+treeCollection+"/"+aliceDID+"/two"], "the content, a reference and a referrer")
	require.Equal(t, 1, links["/records/"+treeCollection+"/"+aliceDID+"/three"])
	require.Equal(t, 1, links["/records/"+treeCollection+"/"+bobDID+"/later"])
	require.Zero(t, links["/records/"+treeCollection+"/"+aliceDID+"/gone"]+links["/records/"+treeCollection+"/"+aliceDID+"/never"],
		"references to records that are not stored must not be links")
	for _, text := range []string{
		"length at /height: expected at most 5", "slug at /kind", "breaks the schema", "was deleted", "not stored",
		"bafkreiabc",
	} {
		require.Contains(t, body, text)
	}
	r.Audit(body)
	require.Equal(t, http.StatusNotFound, r.Do(http.MethodGet, "/records/"+treeCollection+"/"+aliceDID+"/gone").Code)
	for href := range links {
		if strings.HasPrefix(href, "/") && !strings.Contains(href, "later") {
			require.Equal(t, http.StatusOK, r.Do(http.MethodGet, href).Code, href)
		}
	}
}

// TestHostileRecordsStayText shows that whatever strangers write into a record stays text.
func TestHostileRecordsStayText(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.plant()
	for _, text := range webtest.HostileTexts() {
		text = strings.ReplaceAll(text, "\x00", "")
		value, err := json.Marshal(map[string]any{
			"text": text, text: "at://" + text + "/x/y",
			"links": []string{"at://did:plc:aaa/com.example.x.y/1\"><script>", "javascript:alert(1)"},
		})
		require.NoError(t, err)
		r.Exec(`UPDATE records SET record = $1 WHERE rkey = 'one'`, string(value))
		problems, err := json.Marshal([]map[string]string{{"rule": text, "path": text, "expected": text, "received": text}})
		require.NoError(t, err)
		r.Exec(`UPDATE verdicts SET problems = $1, warnings = $1`, string(problems))
		r.Exec(`UPDATE record_refs SET target = $1, path = $1`, text)
		body := r.Get("/records/" + treeCollection + "/" + aliceDID + "/one")
		r.Audit(body)
		require.Less(t, len(body), 100_000, "a long text must be shortened")
		for _, override := range []string{"\u202A", "\u202E", "\u2066", "\u2068"} {
			require.NotContains(t, body, override)
		}
		r.Get("/api/v1/graph/" + aliceDID + "/" + treeCollection + "/one")
	}
}
