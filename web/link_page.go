package web

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
)

// linkPage is the page of a link: every share of it.
type linkPage struct {
	Title    string
	Link     linkView
	Window   window
	Shares   string // how many
	Accounts string
	Counted  string
	Whose    string // "of the accounts that … follows"; empty: of all that count
	Rows     []shareView
	Older    string // the address of the next page
	Back     string
	API      string
	CSS      string
	Icon     string
}

// shareView is a share with sanitised texts.
type shareView struct {
	By   person
	How  string
	At   *timestamp
	Text string
	Href string // the post; empty: there is none to show
	Why  string // it does not count; empty: it counts
}

// linkHref returns the address of the page of a link, with the window and the watch of
// the ranking that leads there.
func linkHref(id int64, v view) string {
	return strings.Replace(pageHref(v.Name, v.query.Watch), "/", "/links/"+strconv.FormatInt(id, 10), 1)
}

// serveLinkPage shows a page of the shares of a link.
func (s *server) serveLinkPage(w http.ResponseWriter, r *http.Request, request linkRequest) error {
	l, err := s.link(r.Context(), request)
	if err != nil {
		return err
	}
	shares, err := s.linkShares(r.Context(), request)
	if err != nil {
		return err
	}
	page, err := s.newLinkPage(request, l, shares)
	if err != nil {
		s.renderFailed(w, err)
		return nil
	}
	w.Header().Set("Cache-Control", "no-cache")
	s.render(w, http.StatusOK, "shares", page)
	return nil
}

func (s *server) newLinkPage(request linkRequest, l ranking.LinkSummary, shares ranking.SharePage) (linkPage, error) {
	shown, err := newLink(&ranking.TrendingLink{LinkCard: l.LinkCard}, l.At, request.view)
	if err != nil {
		return linkPage{}, err
	}
	watch := request.query.Watch
	page := linkPage{
		Title: s.title, Link: shown, Window: request.window, Shares: counted(l.Shares, "share"), Accounts: counted(l.Accounts, "account"), Counted: grouped(l.Sharers),
		Back: pageHref(request.Name, watch), API: strings.Replace(pageHref(request.Name, watch), "/", "/api/v1/links/"+strconv.FormatInt(l.ID, 10)+"/shares", 1),
		CSS: s.assets.url("page.css"), Icon: s.assets.url("icon.svg"),
	}
	if watch != "" {
		page.Whose = targetName(watch)
	}
	for i := range shares.Shares {
		page.Rows = append(page.Rows, newShare(&shares.Shares[i], l.At))
	}
	if shares.Next != "" {
		page.Older = shown.Shares + "&cursor=" + url.QueryEscape(string(shares.Next))
	}
	return page, nil
}

func newShare(s *ranking.LinkShare, now time.Time) shareView {
	v := shareView{At: newTimestamp(s.SharedAt, now), Text: plain(s.Text, maxDescription), Why: whyNot(s.Why), How: map[string]string{"quote": "quoted it", "repost": "reposted it"}[s.How]}
	if v.How == "" {
		v.How = "posted it"
	}
	if s.Why == ranking.Hidden {
		v.By.Name = "a hidden account"
		return v
	}
	v.By = newPerson(s.DID)
	if s.Handle != "" {
		if named := newPerson(s.Handle); named.Name != "" {
			v.By = named
		}
	}
	v.Href = postURL(s.URI)
	if s.How == "repost" && s.Why != ranking.SubjectHidden {
		v.Href = postURL(s.Subject)
	}
	return v
}

// whyNot explains why a share does not count.
func whyNot(why ranking.Reason) string {
	switch why {
	case ranking.Counts:
		return ""
	case ranking.Hidden:
		return "the account is not active"
	case ranking.NotFollowed:
		return "the account is not one of those that count here"
	case ranking.SubjectHidden:
		return "the author of the post is not active"
	case ranking.SubjectGone:
		return "the post was deleted, is not shown, or no longer contains the link"
	case ranking.OutsideWindow:
		return "it is older than the window"
	case ranking.SamePerson:
		return "the account shared it again later"
	case ranking.Waiting:
		return "it waits to be joined with the post"
	}
	return string(why)
}

// counted formats a number with a noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return grouped(n) + " " + noun + "s"
}

// targetName returns the target of a watch as the page shows it.
func targetName(target string) string {
	if _, err := syntax.ParseDID(target); err == nil {
		return abbreviate(target)
	}
	return plain(target, maxSite)
}

// choiceView is a watch that can be chosen.
type choiceView struct {
	Value, Name string
	Current     bool
}

// maxChoices bounds the watches to choose from. Others can be named in the address.
const maxChoices = 200

// choices lists the watches to choose from; none if there is no choice.
func (s *server) choices(ctx context.Context, current string) ([]choiceView, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	targets, err := schema.WatchTargets(ctx, s.db, maxChoices)
	if err != nil {
		s.log.Error("watches_read_failed", "error", err)
		return nil, fmt.Errorf("read the watches to choose from: %w", err)
	}
	if len(targets) < 2 {
		return nil, nil
	}
	all := []choiceView{{"", "all followed accounts", current == ""}}
	found := current == ""
	for _, target := range targets {
		found = found || target == current
		all = append(all, choiceView{target, targetName(target), target == current})
	}
	if !found {
		all = append(all, choiceView{current, targetName(current), true})
	}
	return all, nil
}
