package links

import (
	"net/http"
	"time"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
)

const (
	DefaultLimit = 50
	maxLimit     = 200
)

// trendingJSON is the response of GET /api/v1/trending. Times are in UTC. The texts
// of links come from strangers: a client must escape them.
type trendingJSON struct {
	Window      string                 `json:"window"`
	GeneratedAt time.Time              `json:"generated_at"`
	Stream      []streamJSON           `json:"stream"`
	Gaps        []gapJSON              `json:"gaps"`                     // open gaps that overlap the window
	Complete    *time.Time             `json:"complete_since,omitempty"` // all shares are stored; absent: since the window began
	Links       []ranking.TrendingLink `json:"links"`
	Next        ranking.Cursor         `json:"next,omitempty"` // cursor of the next page; absent on the last one
}

type streamJSON struct {
	Name       string     `json:"name"`
	Host       string     `json:"host"`
	State      string     `json:"state"`  // as in schema; "not connected" also if the consumer's lease expired
	Detail     string     `json:"detail"` // the state in a sentence, as on the page
	StateSince time.Time  `json:"state_since"`
	LastEvent  *time.Time `json:"last_event"`
	CaughtUp   *time.Time `json:"caught_up"` // the latest time with nothing unread
}

type gapJSON struct {
	Stream string    `json:"stream"`
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
	Reason string    `json:"reason"`
}

func (s *Server) serveTrending(w http.ResponseWriter, r *http.Request) {
	v, err := parseView(r.URL.RawQuery, "window=6h&limit=50", ranking.ParameterNames(), ranking.DefaultWindow)
	if err != nil {
		s.WriteError(w, r, http.StatusBadRequest, err.Error())
		return
	}
	data, err := s.pageData(r.Context(), v)
	if err != nil {
		s.WriteUnreadable(w, r, v, err)
		return
	}
	if web.NotModified(w, r, data.etag) {
		return
	}
	web.WriteJSON(w, http.StatusOK, data.json())
}

func (data *pageData) json() trendingJSON {
	response := trendingJSON{
		Window: data.view.Name, GeneratedAt: data.at, Complete: data.complete, Links: data.links, Next: data.next,
		Stream: make([]streamJSON, 0, len(data.streams)), Gaps: make([]gapJSON, 0, len(data.gaps)),
	}
	for _, st := range data.streams {
		response.Stream = append(response.Stream, streamJSON{
			Name: st.Name, Host: st.Host, State: st.Current(), Detail: web.NewStatus(st).Detail,
			StateSince: st.StateSince.UTC(), LastEvent: utc(st.LastEvent), CaughtUp: utc(st.CaughtUp),
		})
	}
	for _, g := range data.gaps {
		response.Gaps = append(response.Gaps, gapJSON{Stream: g.Stream, From: g.From.UTC(), To: g.To.UTC(), Reason: g.Reason})
	}
	return response
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}
