package simnet

import (
	"encoding/base32"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	comatproto "github.com/bluesky-social/indigo/api/atproto"
	"github.com/bluesky-social/indigo/api/bsky"
	"github.com/bluesky-social/indigo/lex/util"
	"github.com/ipfs/go-cid"
)

// Collections that the model writes.
const (
	post    = "app.bsky.feed.post"
	like    = "app.bsky.feed.like"
	repost  = "app.bsky.feed.repost"
	follow  = "app.bsky.graph.follow"
	block   = "app.bsky.graph.block"
	profile = "app.bsky.actor.profile"
	foreign = "fm.teal.alpha.actor.status"
)

// draft is a record before it is written, with its links and its claims about them.
type draft struct {
	record any
	links  []string
	claims []Claim
}

func (d *draft) claim(s *story, c Claim) {
	d.links, d.claims = append(d.links, s.url), append(d.claims, c)
}

// cidOf generates a content identifier for something that does not exist: a blob, or a
// version of a record that was referred to.
func (m *model) cidOf(codec byte) string {
	raw := make([]byte, 36)
	raw[0], raw[1], raw[2], raw[3] = 1, codec, 0x12, 0x20
	for i := 4; i < len(raw); i += 8 {
		n := m.rng.Uint64()
		for j := range 8 {
			raw[i+j] = byte(n >> (8 * j))
		}
	}
	return "b" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(raw))
}

const (
	dagCBOR = 0x71
	rawData = 0x55
)

func (m *model) blob(kind string) *util.LexBlob {
	id, err := cid.Decode(m.cidOf(rawData))
	if err != nil {
		panic(fmt.Sprintf("simnet made an invalid CID: %v", err)) // a bug in this file
	}
	return &util.LexBlob{Ref: util.LexLink(id), MimeType: kind, Size: int64(20000 + m.rng.IntN(400000))}
}

func (m *model) marshal(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("simnet made an invalid record: %v", err))
	}
	return data
}

// text returns a plain post.
func (m *model) text(at time.Time, text string) *bsky.FeedPost {
	return &bsky.FeedPost{LexiconTypeID: post, CreatedAt: at.UTC().Format("2006-01-02T15:04:05.000Z"), Langs: []string{"en"}, Text: text}
}

// writePost drafts a post.
func (m *model) writePost(at time.Time) draft {
	switch n := m.rng.IntN(100); {
	case n < 40:
		return draft{record: m.text(at, pick(m.rng, m.chatter))}
	case n < 55:
		return draft{record: m.reply(at)}
	case n < 64:
		return draft{record: m.pictures(at)}
	case n < 67:
		return draft{record: m.gif(at)}
	case n < 71:
		return draft{record: m.quote(at)}
	case n < 86:
		return m.external(at)
	case n < 93:
		return m.faceted(at)
	case n < 97:
		return m.bare(at)
	default:
		return m.quoteWithLink(at)
	}
}

func (m *model) reply(at time.Time) *bsky.FeedPost {
	p := m.text(at, pick(m.rng, m.chatter))
	parent := m.anyPost()
	p.Reply = &bsky.FeedPost_ReplyRef{Parent: parent, Root: parent}
	return p
}

func (m *model) pictures(at time.Time) *bsky.FeedPost {
	p := m.text(at, pick(m.rng, m.chatter))
	p.Embed = &bsky.FeedPost_Embed{EmbedImages: &bsky.EmbedImages{LexiconTypeID: "app.bsky.embed.images",
		Images: []*bsky.EmbedImages_Image{{Alt: "a photograph", Image: m.blob("image/jpeg")}}}}
	return p
}

// gif returns a post with an animated picture, which the network represents as
// an external of its host.
func (m *model) gif(at time.Time) *bsky.FeedPost {
	p := m.text(at, "")
	uri := fmt.Sprintf("https://media.tenor.com/%s/cat.gif?hh=280&ww=498", m.cidOf(rawData)[8:24])
	p.Embed = &bsky.FeedPost_Embed{EmbedExternal: embed(uri, "a cat falls off a sofa", "ALT: a cat falls off a sofa", m.blob("image/jpeg"))}
	return p
}

func (m *model) quote(at time.Time) *bsky.FeedPost {
	p := m.text(at, pick(m.rng, m.chatter))
	p.Embed = &bsky.FeedPost_Embed{EmbedRecord: &bsky.EmbedRecord{LexiconTypeID: "app.bsky.embed.record", Record: m.anyPost()}}
	return p
}

// external returns a post with a card, often with a facet too.
func (m *model) external(at time.Time) draft {
	s := m.story()
	uri, spelling := m.variant(s)
	p := m.text(at, pick(m.rng, m.remarks))
	if m.rng.IntN(2) == 0 {
		m.link(p, uri)
	}
	d := draft{record: p}
	p.Embed = &bsky.FeedPost_Embed{EmbedExternal: m.card(&d, s, uri, spelling)}
	return d
}

// card returns a card and adds its claims to a draft. Clients and authors make
// different claims about the same page.
func (m *model) card(d *draft, s *story, uri, spelling string) *bsky.EmbedExternal {
	title, summary, picture := s.title, s.summary, s.picture
	switch m.rng.IntN(8) {
	case 0, 1:
		title += " | News"
	case 2:
		title = "BREAKING: " + title
	}
	switch m.rng.IntN(6) {
	case 0:
		summary, picture = "", m.blob("image/jpeg")
	case 1:
		picture = nil
	}
	e := embed(uri, title, summary, picture)
	c := Claim{URL: spelling, Title: title, Description: summary}
	if picture != nil {
		c.Picture = picture.Ref.String()
	}
	d.claim(s, c)
	return e
}

func embed(uri, title, summary string, picture *util.LexBlob) *bsky.EmbedExternal {
	return &bsky.EmbedExternal{LexiconTypeID: "app.bsky.embed.external", External: &bsky.EmbedExternal_External{
		Uri: uri, Title: title, Description: summary, Thumb: picture}}
}

// link appends the shortened link that clients show, and its facet.
func (m *model) link(p *bsky.FeedPost, uri string) {
	_, shown, _ := strings.Cut(uri, "://")
	shown = strings.TrimPrefix(shown, "www.")
	if len(shown) > 27 {
		shown = shown[:27] + "..."
	}
	start := len(p.Text)
	if start > 0 {
		p.Text += " "
		start++
	}
	p.Text += shown
	p.Facets = append(p.Facets, &bsky.RichtextFacet{
		Index: &bsky.RichtextFacet_ByteSlice{ByteStart: int64(start), ByteEnd: int64(len(p.Text))},
		Features: []*bsky.RichtextFacet_Features_Elem{
			{RichtextFacet_Link: &bsky.RichtextFacet_Link{LexiconTypeID: "app.bsky.richtext.facet#link", Uri: uri}},
		},
	})
}

// faceted returns a post with one or two links and no card.
func (m *model) faceted(at time.Time) draft {
	p := m.text(at, pick(m.rng, m.remarks))
	s := m.story()
	d := draft{record: p}
	link := func(s *story) {
		uri, spelling := m.variant(s)
		m.link(p, uri)
		d.claim(s, Claim{URL: spelling})
	}
	link(s)
	if other := m.story(); m.rng.IntN(4) == 0 && other != s {
		link(other)
	}
	return d
}

// bare returns a post with a link but no facet.
func (m *model) bare(at time.Time) draft {
	s := m.story()
	uri, spelling := m.variant(s)
	d := draft{record: m.text(at, pick(m.rng, m.remarks)+" "+uri)}
	d.claim(s, Claim{URL: spelling})
	return d
}

func (m *model) quoteWithLink(at time.Time) draft {
	s := m.story()
	p := m.text(at, pick(m.rng, m.remarks))
	uri, spelling := m.variant(s)
	d := draft{record: p}
	p.Embed = &bsky.FeedPost_Embed{EmbedRecordWithMedia: &bsky.EmbedRecordWithMedia{
		LexiconTypeID: "app.bsky.embed.recordWithMedia",
		Record:        &bsky.EmbedRecord{LexiconTypeID: "app.bsky.embed.record", Record: m.anyPost()},
		Media:         &bsky.EmbedRecordWithMedia_Media{EmbedExternal: m.card(&d, s, uri, spelling)},
	}}
	return d
}

// writeOther drafts a record that is not a post.
func (m *model) writeOther(collection string, at time.Time) any {
	created := at.UTC().Format("2006-01-02T15:04:05.000Z")
	switch collection {
	case like:
		return &bsky.FeedLike{LexiconTypeID: like, CreatedAt: created, Subject: m.anyPost()}
	case repost:
		return &bsky.FeedRepost{LexiconTypeID: repost, CreatedAt: created, Subject: m.anyPost()}
	case follow:
		return &bsky.GraphFollow{LexiconTypeID: follow, CreatedAt: created, Subject: m.anyAccount().did}
	case block:
		return &bsky.GraphBlock{LexiconTypeID: block, CreatedAt: created, Subject: m.anyAccount().did}
	case profile:
		name := pick(m.rng, m.chatter)
		return &bsky.ActorProfile{LexiconTypeID: profile, CreatedAt: &created, DisplayName: &name}
	}
	return map[string]any{"$type": collection, "item": map[string]any{"trackName": pick(m.rng, m.remarks)}, "expiry": created}
}

// anyPost returns a reference to a recent post.
func (m *model) anyPost() *comatproto.RepoStrongRef {
	if len(m.recent) == 0 {
		return &comatproto.RepoStrongRef{Uri: "at://" + m.accounts[0].did + "/" + post + "/" + m.tid(m.now), Cid: m.cidOf(dagCBOR)}
	}
	r := pick(m.rng, m.recent)
	return &comatproto.RepoStrongRef{Uri: "at://" + r.account.did + "/" + post + "/" + r.rkey, Cid: m.cidOf(dagCBOR)}
}
