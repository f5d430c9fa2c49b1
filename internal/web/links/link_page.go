package links

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
)

// linkPage is the page of a link: its counts, and every share of it.
type linkPage struct {
	web.Frame
	Now     string
	Link    linkView
	Windows []choice // with the number of sharers in each
	Gift    string   // a gift: an address for readers who have not paid; empty: none
	linkCounts
	Chart     *chartView
	Gaps      []gapView
	Titles    []ranking.Given
	Spellings []ranking.Given
	Threads   []thread
	Back      string
	Latest    string // address of the first page; empty on that page
	Older     string // address of the next page
	API       string
}

// linkCounts are the numbers of a link's shares, in words.
type linkCounts struct {
	Words      string // describes the window
	Shares     string // number of shares
	Accounts   string
	Counted    string
	Verb       string // "counts in …"
	Whose      string // "of the accounts that … leads to"; empty: of all accounts that count
	Kept       string // how many accounts shared it when shares expired; empty: the link is not kept
	KeptAt     *web.Timestamp
	Complete   *web.Timestamp // all shares since then are stored; nil: since the window began
	NotCounted []string
}

// thread is a post with its quotes and reposts on the page.
type thread struct {
	Post    *shareView // nil: the post is not on this page
	By      web.Person // author of the post, if Post is nil
	Href    string
	Text    string
	Through []shareView
}

// shareView is a share with sanitised texts.
type shareView struct {
	By   web.Person
	How  string
	At   *web.Timestamp
	Text string
	Href string // address of the post; empty: there is none to show
	Why  string // why the share does not count; empty: it counts
	Note string // why the account is not named; empty: it is
}

// serveLinkPage shows a page of the shares of a link.
func (s *Server) serveLinkPage(w http.ResponseWriter, r *http.Request, request linkRequest) error {
	id := strconv.FormatInt(request.query.ID, 10)
	if web.Redirected(w, r, linkPages().Address("/links/"+id, request.View)) {
		return nil
	}
	l, err := s.link(r.Context(), request)
	if err != nil {
		return err
	}
	shares, err := s.linkShares(r.Context(), request)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), web.QueryTimeout)
	defer cancel()
	gaps, err := schema.OpenGaps(ctx, s.DB, request.query.At.Add(-request.Length), request.query.At)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-cache")
	s.Render(w, http.StatusOK, "shares", s.newLinkPage(request, l, shares, gaps))
	return nil
}

func (s *Server) newLinkPage(request linkRequest, l ranking.LinkSummary, shares ranking.SharePage, gaps []schema.Gap) linkPage {
	v := request.View
	shown := s.newLink(&ranking.TrendingLink{LinkCard: l.LinkCard, FirstSeen: l.FirstSeen}, l.At, v)
	first := v.with(func(*View) {})
	page := linkPage{
		Frame: s.NewFrame().Scripted(s.Server, "page.js"), Now: l.At.Format(time.RFC3339), Link: shown,
		Back: RankingHref(first), API: apiHref("/api/v1/links/"+strconv.FormatInt(l.ID, 10)+"/shares", first),
		linkCounts: linkCounts{Words: v.Words, Shares: say("shares_n", l.Shares), Accounts: say("accounts_n", l.Accounts),
			Counted: web.Grouped(l.Sharers), Verb: say("counts_in", l.Sharers, v.Words), NotCounted: notCounted(l)},
		Gift: l.Gift, Chart: newChart(l), Gaps: newGaps(coverage{gaps: gaps}, l.At),
		Titles: plainGiven(l.OtherTitles), Spellings: plainGiven(l.OtherURLs),
	}
	if l.KeptAt != nil {
		page.Kept, page.KeptAt = say("kept_sharers", l.KeptSharers), web.NewTimestamp(*l.KeptAt, l.At)
	}
	if l.CompleteSince != nil {
		page.Complete = web.NewTimestamp(*l.CompleteSince, l.At)
	}
	if watch := request.query.Watch; watch != "" {
		page.Whose = say("of_watch", web.TargetName(watch))
	}
	for _, w := range windows() {
		page.Windows = append(page.Windows,
			choice{Name: w.Name, Value: web.Grouped(l.Windows[w.Name]), Title: say("sharer_window", w.Words, l.Windows[w.Name]),
				Current: w == v.window,
				Href:    LinkHref(l.ID, first.with(func(v *View) { v.window = w }))})
	}
	page.Threads = s.newThreads(shares.Shares, l, v)
	if v.Query.After != "" {
		page.Latest = linkPages().Address("/links/"+strconv.FormatInt(l.ID, 10), first)
	}
	if shares.Next != "" {
		page.Older = linkPages().Address("/links/"+strconv.FormatInt(l.ID, 10), v.with(func(v *View) { v.Query.After = shares.Next }))
	}
	return page
}

// plainGiven returns texts that sharers gave, each on one line.
func plainGiven(all []ranking.Given) []ranking.Given {
	shown := make([]ranking.Given, len(all))
	for i, given := range all {
		shown[i] = ranking.Given{Text: web.PlainLine(given.Text, maxTitle), Accounts: given.Accounts}
	}
	return shown
}

// notCounted describes how many shares do not count, by reason.
func notCounted(l ranking.LinkSummary) (all []string) {
	for _, why := range ranking.Reasons() {
		if n := l.NotCounted[why]; n > 0 {
			all = append(all, say("not_counted", n, whyNot(why)))
		}
	}
	return all
}

// newThreads puts quotes and reposts under their post. The thread with the latest share
// comes first.
func (s *Server) newThreads(shares []ranking.LinkShare, l ranking.LinkSummary, v View) (all []thread) {
	at := make(map[string]int)       // the thread of a post
	under := make(map[string]string) // the post that a share on the page quotes or reposts
	for i := range shares {
		under[shares[i].URI] = shares[i].Subject
	}
	for i := range shares {
		share := &shares[i]
		root, view := share.URI, s.newShare(share, l, v)
		for depth := 0; under[root] != "" && depth < len(shares); depth++ {
			root = under[root]
		}
		n, ok := at[root]
		if !ok {
			n = len(all)
			at[root] = n
			all = append(all, thread{})
		}
		if t := &all[n]; root == share.URI {
			t.Post = &view
		} else {
			if share.Subject == root {
				s.describe(t, share, v)
			}
			if share.How == "repost" {
				view.Text = "" // the text is the post's
			}
			t.Through = append(t.Through, view)
		}
	}
	return all
}

// describe names the post of a thread by one of its shares, unless the author is
// hidden or withheld.
func (s *Server) describe(t *thread, share *ranking.LinkShare, v View) {
	if share.Why == ranking.SubjectHidden {
		t.By = web.Person{Name: say("hidden_account")}
		return
	}
	if share.SubjectWithheld {
		t.By = web.Person{Name: say("one_account")}
		return
	}
	t.By, t.Href = s.subjectAuthor(share, v), s.postURL(share.Subject)
	if share.How == "repost" {
		t.Text = web.PlainLine(share.Text, web.MaxDescription)
	}
}

// subjectAuthor returns the author of the post that a share quotes or reposts.
func (s *Server) subjectAuthor(share *ranking.LinkShare, v View) web.Person {
	name := share.SubjectBy
	if name == "" {
		name, _, _ = strings.Cut(strings.TrimPrefix(share.Subject, "at://"), "/")
	}
	return in(v, s.NewPerson(name), name)
}

func (s *Server) newShare(share *ranking.LinkShare, l ranking.LinkSummary, in View) shareView {
	v := shareView{
		At: web.NewTimestamp(share.SharedAt, l.At), Text: web.PlainLine(share.Text, web.MaxDescription), Why: whyNot(share.Why),
		How: say("how_" + share.How),
	}
	if share.Why == ranking.Hidden {
		v.By.Name = say("hidden_account")
		return v
	}
	v.By, v.Href = s.personOf(share.DID, share.Handle, share.Unverified, share.DisplayName, in), s.postURL(share.URI)
	if share.Withheld {
		v.By, v.Href, v.Note = web.Person{Name: say("one_account")}, "", say("why_withheld")
	}
	if share.How == "repost" && share.Why != ranking.SubjectHidden && !share.SubjectWithheld {
		v.Href = s.postURL(share.Subject)
	}
	return v
}

// whyNot explains why a share does not count; empty: it counts.
func whyNot(why ranking.Reason) string {
	if why == ranking.Counts {
		return ""
	}
	return say("why_" + string(why))
}
