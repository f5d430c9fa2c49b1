package links

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
)

// counted returns the links of a response as "path sharers", in order.
func (r *rig) counted(query string) (all []string, next ranking.Cursor) {
	r.T.Helper()
	var response trendingJSON
	require.NoError(r.T, json.Unmarshal([]byte(r.Get("/api/v1/trending?"+query)), &response))
	for _, l := range response.Links {
		all = append(all, fmt.Sprintf("%s %d", strings.TrimPrefix(l.URL, "https://"), l.Sharers))
	}
	return all, response.Next
}

// shareBy is share with another kind of share.
func (r *rig) shareBy(how, url, did string, ago time.Duration) {
	r.T.Helper()
	r.Share(url, did, ago)
	r.Exec(`UPDATE shares SET how = $1 WHERE did = $2 AND link_id = (SELECT id FROM links WHERE url = $3)`, how, did, url)
}

// watch adds a watch with members, and returns its id.
func (r *rig) watch(kind, target string, members ...string) (id int64) {
	r.T.Helper()
	require.NoError(r.T, r.Pool.QueryRow(r.T.Context(),
		`INSERT INTO watches (kind, target, at_least) VALUES ($1, $2, 3) RETURNING id`, kind, target).Scan(&id))
	r.Exec(`INSERT INTO watch_members (watch_id, did) SELECT $1, unnest($2::text[])`, id, members)
	return id
}

func TestAPIHasEveryOption(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillOptions()
	for query, want := range map[string][]string{
		"":                                  {"a.example/ 3", "b.example/ 2"},
		"window=24h":                        {"a.example/ 3", "b.example/ 2", "c.example/ 1"},
		"window=24h&sort=newest":            {"c.example/ 1", "b.example/ 2", "a.example/ 3"},
		"window=24h&sort=speed":             {"b.example/ 2", "a.example/ 3", "c.example/ 1"},
		"window=24h&at_least=2":             {"a.example/ 3", "b.example/ 2"},
		"at_least=3":                        {"a.example/ 3"},
		"ways=post":                         {"a.example/ 2", "b.example/ 1"},
		"ways=quote,repost":                 {"b.example/ 1", "a.example/ 1"},
		"ways=repost,quote,post":            {"a.example/ 3", "b.example/ 2"},
		"window=24h&domain=c.example":       {"c.example/ 1"},
		"window=24h&domain=WWW.C.Example.":  {"c.example/ 1"},
		"domain=other.example":              nil,
		"window=24h&text=c.example":         {"c.example/ 1"},
		"text=nothing+like+it":              nil,
		"by=did:plc:a":                      {"a.example/ 3", "b.example/ 2"},
		"by=@B.example&ways=quote":          {"b.example/ 1"},
		"by=did:plc:d":                      nil,
		"window=24h&by=did:plc:d":           {"c.example/ 1"},
		"by=nobody.example":                 nil,
		"by=&domain=&text=&degree=both":     {"a.example/ 3", "b.example/ 2"},
		"by=did:plc:c&watch=alice.example":  {"a.example/ 2"},
		"watch=":                            {"a.example/ 3", "b.example/ 2"},
		"watch=alice.example":               {"b.example/ 2", "a.example/ 2"},
		"watch=alice.example&degree=both":   {"b.example/ 2", "a.example/ 2"},
		"watch=alice.example&degree=second": {"b.example/ 1", "a.example/ 1"},
		"watch=@bob.example":                {"a.example/ 1"},
		"watch=bob.example&degree=second":   nil,
		"window=24h&watch=alice.example&at_least=1&sort=sharers&ways=post&degree=first&limit=2": {"b.example/ 1", "a.example/ 1"},
	} {
		got, next := r.counted(query)
		require.Equal(t, want, got, query)
		require.Equal(t, strings.Contains(query, "limit=2"), next != "", query)
	}
	rec := r.Do(http.MethodGet, "/api/v1/trending?watch=carol.example")
	require.Equal(t, http.StatusBadRequest, rec.Code)
	require.JSONEq(t, `{"error":"watch is \"carol.example\": send the target of a watch: alice.example, bob.example"}`, rec.Body.String())
	require.Zero(t, r.Log.Count(), "a wrong request must not be logged as a failure")
}

// TestPagesFollowEachOther shows that the pages of a ranking follow each other, whatever is shared
// meanwhile and whatever the order.
func TestPagesFollowEachOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 23 {
		for n := range 1 + i%5 {
			r.Share(fmt.Sprintf("https://%02d.example/", i), fmt.Sprintf("did:plc:%d", n), time.Duration(1+i)*time.Minute)
		}
	}
	for _, sort := range []string{"sharers", "speed", "newest"} {
		whole, next := r.counted("limit=200&sort=" + sort)
		require.Len(t, whole, 23)
		require.Empty(t, next)
		got, next := r.counted("limit=4&sort=" + sort)
		for next != "" {
			var page []string
			r.Now = r.Now.Add(time.Minute) // the pages have the window of the first one
			page, next = r.counted("limit=4&sort=" + sort + "&cursor=" + string(next))
			got = append(got, page...)
		}
		require.Equal(t, whole, got, sort)
		r.Now = r.Now.Add(-5 * time.Minute)
	}
}

// TestForeignCursorsAreRefused covers cursors that are invalid, of another view or of another time.
func TestForeignCursorsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 3 {
		r.Share(fmt.Sprintf("https://%d.example/", i), "did:plc:a", time.Minute)
	}
	r.watch("follows", "alice.example", "did:plc:a")
	_, next := r.counted("limit=1")
	require.NotEmpty(t, next)
	got, _ := r.counted("limit=2&window=6h&sort=sharers&cursor=" + string(next))
	require.Len(t, got, 2, "the same view with its defaults spelt out")
	refused := func(query string) {
		t.Helper()
		rec := r.Do(http.MethodGet, "/api/v1/trending?"+query)
		require.Equal(t, http.StatusBadRequest, rec.Code, query)
		require.Contains(t, rec.Body.String(), "cursor is", query)
		require.Less(t, rec.Body.Len(), 400)
	}
	for _, other := range []string{
		"window=24h", "sort=speed", "sort=newest", "at_least=2", "ways=post", "domain=a.example", "text=a.example",
		"by=did:plc:a", "watch=alice.example",
	} {
		refused(other + "&cursor=" + string(next))
	}
	raw, err := base64.RawURLEncoding.DecodeString(string(next))
	require.NoError(t, err)
	parts := strings.Fields(string(raw))
	require.Len(t, parts, 6)
	for i, values := range map[int][]string{
		1: {"0", "-1", "9223372036854775807", "-9223372036854775808", "99999999999999999999"},
		2: {"-1", "2147483648", "x"},
		3: {"-1", "2147483648", "9223372036854775807", "1e3"},
		4: {"9223372036854775807", "-9223372036854775808", "x"},
		5: {"-1", "99999999999999999999", "1 2"},
	} {
		for _, value := range values {
			forged := append([]string{}, parts...)
			forged[i] = value
			refused("cursor=" + base64.RawURLEncoding.EncodeToString([]byte(strings.Join(forged, " "))))
		}
	}
	for _, nonsense := range []string{
		"%00", "====", strings.Repeat("A", 10_000), string(next) + "A", string(next)[1:], url.QueryEscape("<script>"), "-1",
	} {
		refused("cursor=" + nonsense)
	}
	r.Now = r.Now.Add(ranking.CursorAge + time.Second)
	refused("cursor=" + string(next))
	require.Zero(t, r.Log.Count(), "a wrong request must not be logged as a failure")
}
