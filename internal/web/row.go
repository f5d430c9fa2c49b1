package web

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weir-social/weir/internal/ranking"
)

// linkView is one line of the ranking.
type linkView struct {
	ID          int64
	Rank        int
	Shares      string // the address of the link's page
	Href        string
	Title       string
	Site        string
	SiteHref    string // the ranking of this site's links; empty: no link
	Description string
	Image       string
	Sharers     string
	Speed       string // if the ranking is sorted by it
	SharedBy    []Person
	More        int // number of sharers who are not in SharedBy
	Seen        *Timestamp
	CardFrom    string // the post that the title is from
	PageFrom    string // or the page that it is from
}

// newLink describes a link in a view.
func (s *Server) newLink(l *ranking.TrendingLink, now time.Time, in View) (linkView, error) {
	u, ok := parseLink(l.URL)
	if !ok {
		return linkView{}, fmt.Errorf("show the link %q: it is not http or https", l.URL)
	}
	v := linkView{
		ID:          l.ID,
		Shares:      LinkHref(l.ID, in),
		Href:        l.URL,
		Title:       LinkTitle(&l.LinkCard),
		Site:        PlainLine(l.Site, maxSite),
		Description: PlainLine(l.Description, MaxDescription),
		Image:       l.Image,
		Sharers:     grouped(l.Sharers),
		Seen:        NewTimestamp(l.FirstSeen, now),
		CardFrom:    postURL(l.CardFrom),
		PageFrom:    pageURL(l.CardFrom),
		More:        l.Sharers - len(l.Faces),
	}
	if v.Site == "" {
		v.Site = PlainLine(u.Hostname(), maxSite)
	}
	if q := (ranking.Query{Site: l.Site}); ranking.IsDomain(l.Site) {
		v.SiteHref = RankingHref(in.of(q))
	}
	if in.Query.Sort == ranking.Speed {
		v.Speed = say("js_speed", strconv.FormatFloat(l.Speed, 'f', 1, 64))
	}
	for _, face := range l.Faces {
		if face.Withheld {
			v.SharedBy = append(v.SharedBy, Person{Name: say("one_account")})
		} else if p := personOf(face.DID, face.Handle, face.Unverified, face.DisplayName, in); p.Name != "" {
			p.Face = s.images.face(face.DID, face.Avatar)
			v.SharedBy = append(v.SharedBy, p)
		}
	}
	return v, nil
}

// LinkTitle returns the title of a link, or its address if there is none.
func LinkTitle(l *ranking.LinkCard) string {
	if title := PlainLine(l.Title, maxTitle); title != "" {
		return title
	}
	u, ok := parseLink(l.URL)
	if !ok {
		return ""
	}
	return displayURL(u)
}

// version returns a short hash of a page.
func version(of any) (string, error) {
	content, err := json.Marshal(of)
	if err != nil {
		return "", fmt.Errorf("hash a page: %w", err)
	}
	sum := sha256.Sum256(content)
	return base64.RawURLEncoding.EncodeToString(sum[:9]), nil
}

// grouped formats a count with commas between thousands.
func grouped(n int) string {
	digits := strconv.Itoa(n)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}
