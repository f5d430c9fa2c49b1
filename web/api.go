package web

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/weir-social/weir/ranking"
)

const (
	defaultLimit = 50
	maxLimit     = 200
)

// trendingJSON is the answer of GET /api/v1/trending. Times are UTC. The texts
// of links are as strangers wrote them: escape them where they are shown.
type trendingJSON struct {
	Window      string                 `json:"window"`
	GeneratedAt time.Time              `json:"generated_at"`
	Stream      []streamJSON           `json:"stream"`
	Gaps        []gapJSON              `json:"gaps"` // open ones that overlap the window
	Links       []ranking.TrendingLink `json:"links"`
}

type streamJSON struct {
	Name       string     `json:"name"`
	Host       string     `json:"host"`
	State      string     `json:"state"`  // schema's words, or "no consumer is running"; "not connected" also where the consumer fell silent
	Detail     string     `json:"detail"` // the state in a sentence, as the page says it
	StateSince time.Time  `json:"state_since"`
	LastEvent  *time.Time `json:"last_event"`
	CaughtUp   *time.Time `json:"caught_up"` // the latest moment with nothing unread
}

type gapJSON struct {
	Stream string    `json:"stream"`
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
	Reason string    `json:"reason"`
}

func (s *server) serveTrending(w http.ResponseWriter, r *http.Request) {
	window, limit, err := parseTrending(r.URL.RawQuery)
	if err != nil {
		s.refuse(w, r, http.StatusBadRequest, err.Error())
		return
	}
	snap, err := s.snapshot(r.Context(), window, limit)
	if err != nil {
		s.unavailable(w, r)
		return
	}
	if unchanged(w, r, snap.etag) {
		return
	}
	writeJSON(w, http.StatusOK, snap.json())
}

// parseTrending reads the API's parameters. A misspelt one is an error: it
// would silently give the answer to another question.
func parseTrending(raw string) (window, int, error) {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return window{}, 0, fmt.Errorf("the query cannot be read: send one like window=6h&limit=50")
	}
	for name := range query {
		if name != "window" && name != "limit" {
			return window{}, 0, fmt.Errorf("there is no parameter %q: send window and limit, or nothing", shorten(name, 40))
		}
	}
	w, err := parseWindow(query)
	if err != nil {
		return window{}, 0, err
	}
	text, err := single(query, "limit", strconv.Itoa(defaultLimit))
	if err != nil {
		return window{}, 0, err
	}
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 1 || limit > maxLimit {
		return window{}, 0, fmt.Errorf("limit is %q: send a whole number from 1 to %d", shorten(text, 40), maxLimit)
	}
	return w, limit, nil
}

func (snap *snapshot) json() trendingJSON {
	answer := trendingJSON{
		Window: snap.window.Name, GeneratedAt: snap.at, Links: snap.links,
		Stream: make([]streamJSON, 0, len(snap.streams)), Gaps: make([]gapJSON, 0, len(snap.gaps)),
	}
	for _, st := range snap.streams {
		answer.Stream = append(answer.Stream, streamJSON{
			Name: st.Name, Host: st.Host, State: st.Current(), Detail: describe(st).Says,
			StateSince: st.StateSince.UTC(), LastEvent: utc(st.LastEvent), CaughtUp: utc(st.CaughtUp),
		})
	}
	for _, g := range snap.gaps {
		answer.Gaps = append(answer.Gaps, gapJSON{Stream: g.Stream, From: g.From.UTC(), To: g.To.UTC(), Reason: g.Reason})
	}
	return answer
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(v) //nolint:errcheck // the client has gone
}
