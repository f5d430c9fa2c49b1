package web

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/testing/webtest"
)

// deadLetter stores a dead letter and returns its path.
func (r *rig) deadLetter(stage, state, cause, raw string) string {
	r.T.Helper()
	r.Exec(`INSERT INTO dead_letters (key, stage, state, collection, did, rkey, kind, cause, path, expected, received, last_cause,
		raw, raw_bytes, first_seen, last_seen)
		SELECT sha256(convert_to($1 || $2 || $3 || $4, 'UTF8')), $1, $2, $3, $3, $3, CASE $1 WHEN 'job' THEN $3 END, $3, $3, $3, $3, $3,
			convert_to($4, 'UTF8'), length($4), $5, $5`,
		stage, state, cause, raw, r.Now.Add(-time.Hour))
	var id int64
	require.NoError(r.T, r.Pool.QueryRow(r.T.Context(), `SELECT max(id) FROM dead_letters`).Scan(&id))
	return fmt.Sprintf("/deadletters/%d", id)
}

// causes returns the causes of the dead letters on a page.
func (r *rig) causes(target string) (all []string) {
	r.T.Helper()
	for _, n := range webtest.Find(r.Parse(r.Get(target)), webtest.Class("dead-letter")) {
		all = append(all, webtest.Text(webtest.Find(n, func(n *html.Node) bool { return n.Data == "h2" })[0]))
	}
	return all
}

func TestDeadLettersAreListedByStageAndState(t *testing.T) {
	t.Parallel()
	r := newRig(t).asOps("")
	require.Contains(t, r.Get("/deadletters"), "No failed event or job needs attention.")
	r.deadLetter("decode", "open", "a", "")
	r.deadLetter("commit", "retrying", "b", "")
	r.deadLetter("job", "dismissed", "c", "")
	r.deadLetter("job", "open", "d", "")
	r.deadLetter("process", "retried", "e", "")
	require.Equal(t, []string{"d at d", "b at b", "a at a"}, r.causes("/deadletters"))
	require.Equal(t, []string{"d at d"}, r.causes("/deadletters?stage=job"))
	require.Equal(t, []string{"c at c"}, r.causes("/deadletters?stage=job&state=dismissed"))
	require.Equal(t, []string{"e at e"}, r.causes("/deadletters?state=retried"))
	stages := webtest.Find(r.Parse(r.Get("/deadletters?stage=job")), webtest.Class("tabs"))
	require.Equal(t, "all 3 decode 1 verify 0 commit 1 process 0 lexicon 0 rules 0 reference 0 job 1", webtest.Text(stages[0]))
	for _, n := range webtest.Find(r.Parse(r.Get("/deadletters?stage=job")), func(n *html.Node) bool { return n.Data == "a" }) {
		r.Get(webtest.Attr(n, "href"))
	}
}

func TestDeadLetterPageShowsHowToReplayIt(t *testing.T) {
	t.Parallel()
	r := newRig(t).asOps("")
	address := r.deadLetter("commit", "open", "it is too long", `{"did":"x"}`+strings.Repeat(" y", 20000))
	page := webtest.Text(webtest.Find(r.Parse(r.Get(address)), func(n *html.Node) bool { return n.Data == "main" })[0])
	for _, want := range []string{"it is too long", `{"did":"x"} y`, "commit, permanent", "1 time: first 1 h ago",
		"40,011 bytes; only the beginning is shown",
		"weir deadletter retry 1 ", "SELECT retry_dead_letter(1);", "SELECT dismiss_dead_letter(1);"} {
		require.Contains(t, page, want)
	}
	require.Less(t, len(page), 20000, "only a part of the input may be shown")
	for target, code := range map[string]int{
		"/deadletters/2": http.StatusNotFound, "/deadletters/x": http.StatusNotFound,
		"/deadletters/99999999999999999999": http.StatusNotFound, "/deadletters/1/": http.StatusNotFound,
		"/deadletters?stage=jobs": http.StatusBadRequest, "/deadletters?state=": http.StatusBadRequest,
		"/deadletters?stage=job&stage=job": http.StatusBadRequest,
		"/deadletters?page=2":              http.StatusBadRequest, "/deadletters?%zz": http.StatusBadRequest,
	} {
		require.Equal(t, code, r.Do(http.MethodGet, target).Code, target)
	}
}

// TestDeadLetterWithoutARecordShowsItsAccount covers an input that cannot be decoded: at most its
// account is known.
func TestDeadLetterWithoutARecordShowsItsAccount(t *testing.T) {
	t.Parallel()
	r := newRig(t).asOps("")
	address := r.deadLetter("decode", "open", "wrong type", `{}`)
	r.Exec(`UPDATE dead_letters SET did = 'did:plc:aaaaaaaaaaaaaaaaaaaaaaaa', collection = NULL, rkey = NULL`)
	page := webtest.Text(webtest.Find(r.Parse(r.Get(address)), func(n *html.Node) bool { return n.Data == "main" })[0])
	require.Regexp(t, `at://did:plc:aaaaaaaaaaaaaaaaaaaaaaaa(\s|$)`, page)
	require.NotContains(t, page, "aaa//")
}

// TestInputOfADeadLetterStaysText covers the input of a dead letter, which comes from a stranger.
func TestInputOfADeadLetterStaysText(t *testing.T) {
	t.Parallel()
	r := newRig(t).asOps("")
	for _, hostile := range webtest.HostileTexts() {
		hostile = strings.ReplaceAll(hostile, "\x00", "") // Postgres cannot store NUL
		for _, stage := range []string{"commit", "job"} {
			page := r.Get(r.deadLetter(stage, "open", hostile, hostile))
			r.Audit(page)
			require.NotContains(t, page, "\u202e")
			require.NotContains(t, page, "\x1b")
		}
	}
	r.Exec(`INSERT INTO dead_letters (key, stage, cause, raw, raw_bytes, first_seen, last_seen)
		VALUES ('x', 'decode', '', '\x00ff1b80fe', 5, now(), now())`)
	r.Audit(r.Get(fmt.Sprintf("/deadletters/%d", 2*len(webtest.HostileTexts())+1)))
	r.Audit(r.Get("/deadletters"))
	require.Zero(t, r.Log.Count())
}

// TestDeadLetterAPI lists dead letters as JSON, retries and dismisses one. It requires the token, and refuses pages of other sites.
func TestDeadLetterAPI(t *testing.T) {
	t.Parallel()
	r := newRig(t).asOps("token")
	r.deadLetter("lexicon", "open", "a", "")
	r.deadLetter("job", "open", "b", "")
	const list = "/api/v1/deadletters"
	as := []string{"Authorization", "Bearer token"}
	answered := func(method, target string, code int, header ...string) string {
		rec := r.Do(method, target, header...)
		require.Equal(t, code, rec.Code, rec.Body.String())
		require.Equal(t, "no-store", rec.Header().Get("Cache-Control"))
		return rec.Body.String()
	}
	require.Equal(t, http.StatusUnauthorized, r.Do(http.MethodGet, list).Code)
	require.Equal(t, http.StatusUnauthorized, r.Do(http.MethodPost, list+"/1/dismiss").Code)
	require.Equal(t, http.StatusForbidden, r.Do(http.MethodPost, list+"/1/dismiss", append(as, "Sec-Fetch-Site", "cross-site")...).Code)
	require.Equal(t, http.StatusNotFound, r.Do(http.MethodGet, list+"/1/dismiss", as...).Code)
	body := answered(http.MethodGet, list+"?stage=lexicon", http.StatusOK, as...)
	require.Regexp(t, `^{"dead_letters":\[{"id":1,"stage":"lexicon",.*"state":"open".*"cause":"a".*}\],"full":false}`, body)
	require.NotContains(t, body, `"id":2`)
	require.Contains(t, answered(http.MethodGet, list+"?stage=x", http.StatusBadRequest, as...), `{"error":`)

	require.Contains(t, answered(http.MethodPost, list+"/1/dismiss", http.StatusOK, as...), `"state":"dismissed"`)
	require.Contains(t, answered(http.MethodPost, list+"/2/retry", http.StatusOK, as...), `"state":"retrying"`)
	require.Equal(t, []string{"b at b"}, r.asOps("").causes("/deadletters"))
	require.Contains(t, answered(http.MethodPost, list+"/3/retry", http.StatusNotFound), `{"error":"There is no dead letter 3`)
	require.Contains(t, answered(http.MethodPost, list+"/x/retry", http.StatusNotFound), `{"error":"There is no dead letter x`)
}
