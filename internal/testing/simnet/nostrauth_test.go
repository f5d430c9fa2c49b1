package simnet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRelayKnowsOnlyWhoSigns shows that the relay accepts only a signed
// response to its challenge, for this relay and with the current time.
func TestRelayKnowsOnlyWhoSigns(t *testing.T) {
	t.Parallel()
	n, err := NewNostr(NostrConfig{Seed: 3, Authors: 2, Now: time.Now(), Relays: []NostrRelay{{Page: 10, Auth: true}}})
	require.NoError(t, err)
	t.Cleanup(n.Stop)
	now := time.Now()
	relay, challenge := []string{"relay", n.URLs()[0]}, []string{"challenge", "who is there"}
	answer := func(author, kind int, at time.Time, tags ...[]string) *nostrAnswer {
		e := n.sign(n.authors[author], at.Unix(), kind, tags, "")
		return &nostrAnswer{e.ID, e.Author, e.CreatedAt, e.Kind, e.Tags, e.Content, e.Sig}
	}
	for author := range 2 {
		require.Empty(t, n.relays[0].recognise(answer(author, 22242, now, relay, challenge), now))
	}
	copied, altered := answer(0, 22242, now, relay, challenge), answer(0, 22242, now, relay, challenge)
	copied.Author = n.Key(1)
	copied.ID = (&NostrEvent{Author: copied.Author, CreatedAt: copied.CreatedAt, Kind: copied.Kind, Tags: copied.Tags}).hash()
	altered.Content = "more"
	for want, a := range map[string]*nostrAnswer{
		"another kind":             answer(0, 1, now, relay, challenge),
		"another challenge":        answer(0, 22242, now, relay, []string{"challenge", "who was there"}),
		"of another relay":         answer(0, 22242, now, []string{"relay", "wss://other.example"}, challenge),
		"not of now":               answer(0, 22242, now.Add(-time.Hour), relay, challenge),
		"not the id of the event":  altered,
		"not signed by its author": copied,
	} {
		require.Equal(t, "invalid: "+want, n.relays[0].recognise(a, now))
	}
}
