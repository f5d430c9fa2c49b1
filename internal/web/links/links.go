package links

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
)

// linkParameters are the parameters of a link, shareParameters those of its shares.
func linkParameters() []string  { return []string{"window", "watch", "degree"} }
func shareParameters() []string { return append(linkParameters(), "limit", "cursor") }

// linkWindow is the default window of a link: all stored shares.
const linkWindow = "7d"

// sharesJSON is the response of GET /api/v1/links/{id}/shares.
type sharesJSON struct {
	ID          int64               `json:"id"`
	Window      string              `json:"window"`
	GeneratedAt time.Time           `json:"generated_at"`
	Shares      []ranking.LinkShare `json:"shares"`
	Next        ranking.Cursor      `json:"next,omitempty"`
}

// linkRequest is a request for a link.
type linkRequest struct {
	View
	query ranking.LinkQuery
}

// linkHandler serves requests about a link that may have the named parameters.
func (s *Server) linkHandler(names []string, serve func(http.ResponseWriter, *http.Request, linkRequest) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		request, err := s.parseLinkRequest(r, names)
		if err != nil {
			s.WriteError(w, r, http.StatusBadRequest, err.Error())
			return
		}
		if err := serve(w, r, request); err != nil {
			s.writeLinkUnreadable(w, r, request, err)
		}
	}
}

// parseLinkRequest reads the id and the parameters.
func (s *Server) parseLinkRequest(r *http.Request, names []string) (l linkRequest, err error) {
	text := r.PathValue("id")
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 || strconv.FormatInt(id, 10) != text {
		return l, web.WrongValue("id", text, say("expected_id"))
	}
	if l.View, err = parseView(r.URL.RawQuery, "window=24h&watch=alice.example", names, linkWindow); err != nil {
		return l, err
	}
	q := l.View.Query
	l.query = ranking.LinkQuery{ID: id, At: s.Now(), Window: q.Window, Watch: q.Watch, Degree: q.Degree}
	return l, nil
}

func (s *Server) serveLink(w http.ResponseWriter, r *http.Request, request linkRequest) error {
	l, err := s.link(r.Context(), request)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-cache")
	web.WriteJSON(w, http.StatusOK, l)
	return nil
}

func (s *Server) serveLinkShares(w http.ResponseWriter, r *http.Request, request linkRequest) error {
	page, err := s.linkShares(r.Context(), request)
	if err != nil {
		return err
	}
	response := sharesJSON{ID: request.query.ID, Window: request.Name, GeneratedAt: page.At.UTC(), Shares: page.Shares, Next: page.Next}
	if response.Shares == nil {
		response.Shares = []ranking.LinkShare{}
	}
	for i := range response.Shares {
		response.Shares[i].SharedAt = response.Shares[i].SharedAt.UTC()
	}
	w.Header().Set("Cache-Control", "no-cache")
	web.WriteJSON(w, http.StatusOK, response)
	return nil
}

// link reads a link and its counts.
func (s *Server) link(ctx context.Context, request linkRequest) (ranking.LinkSummary, error) {
	ctx, cancel := context.WithTimeout(ctx, web.QueryTimeout)
	defer cancel()
	l, err := ranking.ReadLink(ctx, s.DB, request.query)
	if err != nil {
		return l, err
	}
	if !s.Show(&l.LinkCard) {
		return l, ranking.ErrLink
	}
	l.Gift = giftHref(l.Gift)
	l.FirstSeen, l.At = l.FirstSeen.UTC(), l.At.UTC()
	l.FirstShared, l.LastShared = utc(l.FirstShared), utc(l.LastShared)
	l.HistoryFrom, l.KeptAt = utc(l.HistoryFrom), utc(l.KeptAt)
	return l, nil
}

// giftHref returns the address of a gift; empty if it is not https.
func giftHref(raw string) string {
	if u, ok := parseLink(raw); !ok || u.Scheme != "https" {
		return ""
	}
	return raw
}

func (s *Server) linkShares(ctx context.Context, request linkRequest) (ranking.SharePage, error) {
	ctx, cancel := context.WithTimeout(ctx, web.QueryTimeout)
	defer cancel()
	return ranking.LinkShares(ctx, s.DB, request.query, request.View.Query.Limit, request.View.Query.After)
}

// writeLinkUnreadable reports why a link could not be read.
func (s *Server) writeLinkUnreadable(w http.ResponseWriter, r *http.Request, request linkRequest, err error) {
	merged, isMerged := errors.AsType[*ranking.MergedError](err)
	switch {
	case isMerged: // not permanently, because a merge can be undone
		moved := *r.URL
		moved.Path = strings.Replace(moved.Path, fmt.Sprintf("/links/%d", merged.Link), fmt.Sprintf("/links/%d", merged.Into), 1)
		http.Redirect(w, r, moved.RequestURI(), http.StatusTemporaryRedirect)
	case errors.Is(err, ranking.ErrLink):
		s.WriteError(w, r, http.StatusNotFound, say("error_link", strconv.FormatInt(request.query.ID, 10)))
	case isRequest(err):
		s.WriteUnreadable(w, r, request.View, err)
	default:
		s.Log.Error("link_read_failed", "link", request.query.ID, "error", err)
		s.WriteUnavailable(w, r)
	}
}
