package simnet

import (
	"errors"
	"slices"

	"github.com/bluesky-social/indigo/api/bsky"
)

// Showcase has accounts that the hub follows share a few links as people do. The links are always
// the same: an article under five addresses and as a gift, for some of whose cards a wall has given
// its own title, and what the share buttons of three sites give. Random events do not change them.
func (n *Net) Showcase() error {
	var sharers []string
	for _, did := range n.Follows(n.hub) {
		if a, ok := n.Account(did); ok && a.Status == "" {
			sharers = append(sharers, did)
		}
	}
	slices.Sort(sharers)
	for _, link := range showcase() {
		if len(sharers) < len(link) {
			return errors.New("the hub follows too few accounts for the showcase")
		}
		for i, card := range link {
			err := n.act(sharers[i], func(m *model, a *person) error {
				a.manual = true
				now := m.clock()
				p := m.text(now, m.remarks[i%len(m.remarks)])
				p.Embed = &bsky.FeedPost_Embed{EmbedExternal: embed(card.url, card.title, "", nil)}
				_, err := m.commit(a, post, p, now)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// shared is what an account shares: an address and a card.
type shared struct{ url, title string }

// showcase returns links, each as several accounts share it.
func showcase() [][]shared {
	const (
		article = "thequay.example/2026/07/the-harbour-that-learned-to-float-31415"
		title   = "The harbour that learned to float"
		wall    = "Are you a robot?"
		video   = "A heron, filmed for an hour"
		song    = "Slow Tide"
		talk    = "Which bird is on your roof today?"
	)
	return [][]shared{
		{
			{"https://" + article, title},
			{"https://www." + article + "/?utm_source=bluesky&utm_medium=social", wall},
			{"http://m." + article, "The Quay - " + wall},
			{"https://" + article + "/amp/", wall},
			{"https://web.archive.org/web/20260704120000/https://" + article, wall + " | The Quay"},
			{"https://" + article + "?gift_token=9f8e7d6c5b4a", title},
		},
		{
			{"https://youtu.be/hEr0nH0ur01?si=Qw3rTy", video},
			{"https://www.youtube.com/shorts/hEr0nH0ur01?feature=share", video},
			{"https://m.youtube.com/watch?v=hEr0nH0ur01&pp=ygU", video + " - YouTube"},
		},
		{
			{"https://open.spotify.com/track/5lowT1deHer0nHarb0ur42?si=1a2b3c", song},
			{"https://open.spotify.com/intl-de/track/5lowT1deHer0nHarb0ur42", song},
		},
		{
			{"https://www.reddit.com/r/birding/comments/1her0n/which_bird/?share_id=x&utm_name=ioscss", talk},
			{"https://old.reddit.com/r/birding/comments/1her0n/", talk},
			{"https://redd.it/1her0n", talk},
		},
	}
}
