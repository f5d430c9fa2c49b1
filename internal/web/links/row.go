package links

import (
	"strconv"
	"strings"
	"time"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
)

// linkView is one line of the ranking.
type linkView struct {
	ID     int64
	Rank   int
	Shares string // the address of the link's page
	Href   string
	cardView
	Site     string
	SiteHref string // the ranking of this site's links; empty: no link
	Sharers  string
	Speed    string // if the ranking is sorted by it
	SharedBy []web.Person
	More     int // number of sharers who are not in SharedBy
	Seen     *web.Timestamp
}

// cardView is a link's card.
type cardView struct {
	Title       string
	Description string
	Image       string
	CardFrom    string // the post that the title is from
	PageFrom    string // or the page that it is from
}

// newLink describes a link in a view.
func (s *Server) newLink(l *ranking.TrendingLink, now time.Time, in View) linkView {
	v := linkView{
		ID:     l.ID,
		Shares: LinkHref(l.ID, in),
		Href:   l.URL,
		cardView: cardView{Title: LinkTitle(&l.LinkCard), Description: web.PlainLine(l.Description, web.MaxDescription), Image: l.Image,
			CardFrom: s.postURL(l.CardFrom), PageFrom: pageURL(l.CardFrom)},
		Site:    web.PlainLine(l.Site, web.MaxSite),
		Sharers: web.Grouped(l.Sharers),
		Seen:    web.NewTimestamp(l.FirstSeen, now),
		More:    l.Sharers - len(l.Faces),
	}
	if u, ok := parseLink(l.URL); ok && v.Site == "" {
		v.Site = web.PlainLine(u.Hostname(), web.MaxSite)
	}
	if q := (ranking.Query{Site: l.Site}); ranking.IsDomain(l.Site) {
		v.SiteHref = RankingHref(in.of(q))
	}
	if in.Query.Sort == ranking.Speed {
		v.Speed = say("js_speed", strconv.FormatFloat(l.Speed, 'f', 1, 64))
	}
	for _, face := range l.Faces {
		if face.Withheld {
			v.SharedBy = append(v.SharedBy, web.Person{Name: say("one_account")})
		} else if p := s.personOf(face.DID, face.Handle, face.Unverified, face.DisplayName, in); p.Name != "" {
			p.Face = s.face(p, face)
			v.SharedBy = append(v.SharedBy, p)
		}
	}
	return v
}

// face returns the URL of an account's picture, or "" if there is none or its address has no content
// identifier. The picture always comes from the configured host, wherever the stored address leads. That
// host has no pictures of other networks.
func (s *Server) face(p web.Person, of ranking.Face) string {
	if p.Network != "" {
		return ""
	}
	cid, _, _ := strings.Cut(of.Avatar[strings.LastIndexByte(of.Avatar, '/')+1:], "@")
	return s.Image("blob:" + of.DID + "/" + cid)
}

// LinkTitle returns the title of a link, or its address if there is none.
func LinkTitle(l *ranking.LinkCard) string {
	if title := web.PlainLine(l.Title, maxTitle); title != "" {
		return title
	}
	u, ok := parseLink(l.URL)
	if !ok {
		return ""
	}
	return displayURL(u)
}
