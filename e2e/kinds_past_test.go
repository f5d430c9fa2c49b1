package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestPastOfANewKind stores notes first, and then reactions too. Their past comes from the relays,
// page by page, also across a kill, or only that of the followed author. What was deleted before
// the kind was stored stays deleted, although a relay still has it. A kind with a retention is read
// as far back as it is kept, once it is requested.
func TestPastOfANewKind(t *testing.T) {
	t.Parallel()
	for _, followed := range []bool{false, true} {
		t.Run(fmt.Sprint("followed ", followed), func(t *testing.T) {
			t.Parallel()
			nostr, err := simnet.NewNostr(simnet.NostrConfig{
				Seed: 5, Authors: 2, Now: time.Now(), Relays: []simnet.NostrRelay{{Page: 20}, {Page: 50, Silent: true}},
			})
			require.NoError(t, err)
			t.Cleanup(nostr.Stop)
			now := time.Now().Unix()
			for i := range 60 {
				nostr.WriteAs(i%2, []int{i / 2 % 2}, now-int64(i/5+2)*86400, 7, nil, fmt.Sprint("reaction ", i))
			}
			gone := nostr.Write(now-30*86400, 7, nil, "deleted")
			nostr.Write(now-29*86400, 5, [][]string{{"e", gone.ID}}, "")
			for author := range 2 {
				nostr.WriteAs(author, nil, now-100, 1, nil, "a note")
				nostr.WriteAs(author, nil, now-50*3600, 1984, nil, "kept")
				nostr.WriteAs(author, nil, now-90*3600, 1984, nil, "too old")
			}
			n, url := network(t, 5), schematest.NewURL(t)
			pool := open(t, url)
			env := append(reads(n, url), "WEIR_NOSTR="+strings.Join(nostr.URLs(), ","), "WEIR_RETENTION=72h", "WEIR_HISTORY=auto", "WEIR_START=tip",
				"WEIR_NOSTR_AUTHOR_RELAYS=0", "WEIR_COLLECTIONS=app.bsky.feed.post,nostr.1=0")
			authors := 2
			if followed {
				authors = 1
				succeed(t, env, "watch", "add", "--account", npubOf(t, nostr.Key(0)))
			}
			stores := func(of string, want int) {
				t.Helper()
				eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM records WHERE collection = '`+of+`'`) == want },
					20*time.Millisecond, of)
			}
			p := start(t, env, "serve")
			stores("nostr.1", authors)
			stopServe(t, p)
			_, err = pool.Exec(t.Context(), `UPDATE watch_members SET added_at = added_at - interval '1 minute'`) // it has settled
			require.NoError(t, err)
			_, refusal, _ := weir(t, env, "backfill", "add", "--collection", "nostr.7")
			require.Contains(t, refusal, "nostr.7 is not stored: name it in WEIR_COLLECTIONS")
			env = append(env, "WEIR_COLLECTIONS=app.bsky.feed.post,nostr.1=0,nostr.7=0,nostr.1984")
			p = start(t, env, "serve")
			eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM records WHERE collection = 'nostr.7'`) > 0 },
				time.Millisecond)
			p.kill()
			p = start(t, env, "serve")
			stores("nostr.7", 30*authors)
			require.Contains(t, succeed(t, env, "backfill", "add", "--collection", "nostr.1984"), "history of nostr.1984 requested")
			stores("nostr.1984", authors)
			eventually.True(t, func() bool {
				return count(t, pool, `
					SELECT count(*) FROM histories WHERE collection IN ('nostr.7', 'nostr.1984') AND completed_at IS NOT NULL AND problem = ''`) == 2
			}, 20*time.Millisecond)
			stopServe(t, p)
			require.Zero(t, count(t, pool, `SELECT count(*) FROM records WHERE record ->> 'content' IN ('deleted', 'too old')`))
		})
	}
}
