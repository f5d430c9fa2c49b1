package nostr

import (
	"testing"

	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/collection"
)

// TestRelaysOfOneHostAreStreams shows that each relay has a stream named with its path. A relay
// without a path has the name of its host.
func TestRelaysOfOneHostAreStreams(t *testing.T) {
	t.Parallel()
	core := feature.Core{Registry: collection.Of(collection.Entry{Pattern: "nostr.1", Explicit: true})}
	v := Variables{Relays: []string{"wss://relay.example", "wss://relay.example/one", "wss://relay.example/two/", "ws://other.example:8080/"}}
	all, err := v.relays(core)
	require.NoError(t, err)
	require.Equal(t, []string{"nostr:relay.example", "nostr:relay.example/one", "nostr:relay.example/two", "nostr:other.example:8080"},
		all.Streams())
	for _, name := range append(all.Streams(), "nostr.1", "did:nostr:00") {
		require.True(t, all.Has(name), "the archive of another network would close gaps of %s", name)
	}
	require.False(t, all.Has("jetstream") || all.Has("app.bsky.feed.post") || all.Has("did:plc:a"))
	for _, again := range []string{"ws://relay.example/", "wss://relay.example/one/"} {
		_, err := (&Variables{Relays: append([]string{again}, v.Relays...)}).relays(core)
		require.ErrorContains(t, err, "occurs twice", again)
	}
}

// TestTagsOfJobs shows that a job that runs out of tries leaves no dead letter: the next run does the same work.
func TestTagsOfJobs(t *testing.T) {
	t.Parallel()
	for _, args := range []river.JobArgsWithInsertOpts{ReadAuthorsArgs{}, ReadRelaysArgs{}, AuditRelaysArgs{}} {
		require.Equal(t, []string{"periodic"}, args.InsertOpts().Tags, args)
	}
}
