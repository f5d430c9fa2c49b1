package e2e

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// newFollows waits until the stream of the second relay requests authors 2 and 3, and no longer author 1.
func newFollows(t *testing.T, nostr *simnet.Nostr) {
	t.Helper()
	eventually.True(t, func() bool {
		return slices.ContainsFunc(nostr.Requests(1), func(r simnet.NostrRequest) bool {
			return slices.Contains(r.Authors, nostr.Key(2)) && slices.Contains(r.Authors, nostr.Key(3)) && !slices.Contains(r.Authors, nostr.Key(1))
		})
	}, 20*time.Millisecond)
}

// TestWatchedNpubBringsItsFollows watches an account of Nostr and one of Bluesky with the real
// binary. The notes of the first account's follows are stored, whether they were written before the
// watch or after it, and no other notes. Unfollowed accounts leave, and an older list of follows
// changes nothing.
func TestWatchedNpubBringsItsFollows(t *testing.T) {
	t.Parallel()
	n := followNetwork(t, 40)
	nostr, err := simnet.NewNostr(simnet.NostrConfig{
		Seed: 6, Authors: 5, Now: time.Now(), Relays: []simnet.NostrRelay{{Page: 20}, {Page: 500, Auth: true}, {Page: 100}},
	})
	require.NoError(t, err)
	t.Cleanup(nostr.Stop)
	now := time.Now().Unix()
	follow := func(at int64, authors ...int) {
		tags := [][]string{{"p", "junk"}, {"p"}}
		for _, author := range authors {
			tags = append(tags, []string{"p", nostr.Key(author), "wss://nowhere.example"})
		}
		nostr.WriteAs(0, []int{0}, at, 3, tags, "")
	}
	note := func(author, relay, age int) {
		nostr.WriteAs(author, []int{relay}, time.Now().Unix()-int64(age), 1, nil, fmt.Sprint("note of ", author, " ", age, " ", relay))
	}
	follow(now-100, 1, 2)
	urls := nostr.URLs()
	deleted := writePast(nostr, now, note)
	url := schematest.NewURL(t)
	pool := open(t, url)
	env := append(follower(n, url), "WEIR_COLLECTIONS=app.bsky.feed.post,nostr.1=0", "WEIR_NOSTR="+urls[0]+","+urls[1],
		"WEIR_NOSTR_AUTHOR_LOOPBACK=true", "WEIR_NOSTR_KEY=0000000000000000000000000000000000000000000000000000000000000007")
	notes := func(author, want int) {
		t.Helper()
		eventually.True(t, func() bool {
			return count(t, pool, `SELECT count(*) FROM records WHERE collection = 'nostr.1' AND did = 'did:nostr:`+nostr.Key(author)+`'`) == want
		}, 10*time.Millisecond, "author %d", author)
	}
	npub := npubOf(t, nostr.Key(0))
	said := succeed(t, env, "watch", "add", npub)
	require.Contains(t, said, "watching "+npub+" (follows): did:nostr:"+nostr.Key(0)+", follows 2 accounts")
	require.Contains(t, succeed(t, env, "watch", "add", "nostr:"+strings.ToUpper(npub)), "already watching "+npub)
	succeed(t, env, "watch", "add", n.Hub().Handle)
	serve := start(t, env, "serve")
	notes(1, 2)
	notes(2, 3) // one note is on a relay that only the author names
	require.Equal(t, 1, count(t, pool, `
		SELECT count(*) FROM accounts WHERE display_name = 'Two 2' AND avatar = 'https://pictures.example/2.png' AND handle IS NULL`))
	note(2, 2, 0)
	readsRelays(t, pool, func() bool {
		return count(t, pool, `SELECT count(*) FROM records WHERE collection = 'nostr.1' AND did = 'did:nostr:`+nostr.Key(2)+`'`) == 4 &&
			count(t, pool, `SELECT count(*) FROM nostr_relays WHERE url = 'ws://10.0.0.1' AND problem LIKE '%not a public address%'`) == 1
	})
	note(1, 0, 0)
	note(1, 1, 30)
	notes(1, 4)

	follow(now-50, 2, 3)
	succeed(t, env, "watch", "sync")
	notes(3, 2)
	newFollows(t, nostr)
	follow(now-90, 1, 4) // an older list that arrives later
	succeed(t, env, "watch", "sync")
	note(1, 1, 0) // nobody follows author 1 any more
	note(2, 1, 1)
	notes(2, 5)
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM watch_members WHERE did LIKE 'did:nostr:%'`))
	require.Equal(t, 4, count(t, pool, `SELECT count(*) FROM records WHERE did = 'did:nostr:`+nostr.Key(1)+`'`),
		"notes of an unfollowed author must not be stored")

	eachNetworkForItself(t, n, nostr)
	require.Zero(t, count(t, pool, `SELECT count(*) FROM dead_letters`))
	eventually.True(t, func() bool {
		return count(t, pool,
			`SELECT count(*) FROM tombstones WHERE rkey = '`+deleted+`' AND NOT EXISTS (SELECT FROM records WHERE rkey = '`+deleted+`')`) == 1
	}, 10*time.Millisecond)
	require.Contains(t, succeed(t, env, "backfill", "add", "--back", "100h", npubOf(t, nostr.Key(2))),
		"backfill of did:nostr:"+nostr.Key(2)+" requested")
	notes(2, 6)
	require.Contains(t, succeed(t, env, "watch", "remove", npub), "no longer watching")
	stopServe(t, serve)
}

// writePast has each of five authors write notes, and one of them delete a note, whose ID it returns.
func writePast(nostr *simnet.Nostr, now int64, note func(author, relay, age int)) (deleted string) {
	urls := nostr.URLs()
	nostr.WriteAs(2, []int{1}, now-100, 0, nil,
		`{"name":"two","display_name":"Two\u202e \n2","picture":"https://pictures.example/2.png","nip05":"two@localhost"}`)
	nostr.WriteAs(2, []int{0}, now-200, 0, nil, `{"display_name":"Old"}`)
	nostr.WriteAs(2, []int{1}, now-100, 10002, [][]string{{"r", urls[2] + "/"}, {"r", urls[0]}, {"r", "ws://10.0.0.1"}}, "")
	note(2, 2, 120)
	for author := range 5 {
		note(author, 0, 7200) // more than the overlap of a connection
		note(author, 1, 3600*3)
		note(author, 1, 3600*72) // before the window of a new follow
	}
	deleted = nostr.WriteAs(3, []int{1}, now-3000, 1, nil, "deleted elsewhere, long ago by the author's clock").ID
	nostr.WriteAs(3, []int{0}, now-100*3600, 5, [][]string{{"e", deleted}}, "")
	return deleted
}

// eachNetworkForItself checks that no relay was asked for all authors, and no service of Bluesky
// for an account of Nostr.
func eachNetworkForItself(t *testing.T, n *simnet.Net, nostr *simnet.Nostr) {
	t.Helper()
	for relay := range nostr.URLs() {
		for _, r := range nostr.Requests(relay) {
			require.NotEmpty(t, r.Authors, "a request without authors asks for everyone")
		}
	}
	for _, c := range n.Calls() {
		require.NotContains(t, fmt.Sprint(c), "did:nostr")
	}
}

// readsRelays has Weir read the relays that accounts name again and again, until done returns true.
func readsRelays(t *testing.T, pool *pgxpool.Pool, done func() bool) {
	t.Helper()
	eventually.True(t, func() bool {
		for _, sql := range []string{`UPDATE nostr_relays SET next_at = now() WHERE problem = ''`, `
SELECT enqueue_job('read_relays', 'network', '{}', '{periodic}')
WHERE NOT EXISTS (SELECT FROM river_job WHERE kind = 'read_relays' AND state IN ('available', 'running', 'retryable'))`} {
			_, err := pool.Exec(t.Context(), sql)
			require.NoError(t, err)
		}
		return done()
	}, 200*time.Millisecond)
}

// npubOf returns the npub of a key. It computes bech32 as BIP-173 specifies.
func npubOf(t *testing.T, key string) string {
	t.Helper()
	const digits = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
	data, err := hex.DecodeString(key)
	require.NoError(t, err)
	var bits strings.Builder
	for _, b := range data {
		fmt.Fprintf(&bits, "%08b", b)
	}
	all := bits.String() + strings.Repeat("0", (5-bits.Len()%5)%5)
	var groups []int
	for at := 0; at < len(all); at += 5 {
		var g int
		_, err := fmt.Sscanf(all[at:at+5], "%b", &g)
		require.NoError(t, err)
		groups = append(groups, g)
	}
	var expanded []int
	for _, c := range "npub" {
		expanded = append(expanded, int(c)>>5)
	}
	expanded = append(expanded, 0)
	for _, c := range "npub" {
		expanded = append(expanded, int(c)&31)
	}
	sum := 1
	for _, v := range append(append(expanded, groups...), 0, 0, 0, 0, 0, 0) {
		top := sum >> 25
		sum = (sum&0x1ffffff)<<5 ^ v
		for i, g := range []int{0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3} {
			if top>>i&1 == 1 {
				sum ^= g
			}
		}
	}
	sum ^= 1
	for i := range 6 {
		groups = append(groups, sum>>(5*(5-i))&31)
	}
	text := "npub1"
	for _, g := range groups {
		text += string(digits[g])
	}
	return text
}

// TestSecretKeysAreRefused shows that secret keys are refused in every argument and variable, and
// never quoted. Names are not looked up at startup, and without relays there is nothing to watch.
func TestSecretKeysAreRefused(t *testing.T) {
	t.Parallel()
	const secret = "nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5"
	env := []string{"DATABASE_URL=" + schematest.NewURL(t)}
	refused := func(env []string, args ...string) {
		t.Helper()
		stdout, stderr, code := weir(t, env, args...)
		require.Equal(t, 1, code, args)
		require.Contains(t, stderr, "this is a secret key (nsec), which Weir never needs")
		require.NotContains(t, strings.ToLower(stdout+stderr), secret[5:20])
	}
	for _, args := range [][]string{{"watch", "add", secret}, {"watch", "add", "--account", "nostr:" + secret}, {"watch", "remove", secret},
		{"watch", secret}, {secret}, {"trace", strings.ToUpper(secret)},
		{"watch", "add", "alice@" + secret + ".example"}, {"backfill", "add", secret[:50]}, {"--" + secret}} {
		refused(env, args...)
	}
	refused(append(env, "WEIR_WATCH=alice.example,"+secret), "config")
	refused(append(env, "WEIR_STREAM="+secret), "serve")

	_, stderr, code := weir(t, env, "watch", "add", strings.Repeat("0a", 32))
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "may be a secret key")
	require.NotContains(t, stderr, "0a0a")
	for _, target := range []string{npubOf(t, strings.Repeat("0a", 32)), "alice@example.com"} {
		_, stderr, code = weir(t, env, "watch", "add", target)
		require.Equal(t, 1, code)
		require.Contains(t, stderr, "set WEIR_NOSTR")
	}
	relays := append(env, "WEIR_NOSTR=ws://127.0.0.1:9", "WEIR_COLLECTIONS=nostr.1")
	_, stderr, code = weir(t, relays, "watch", "add", "--second-degree", "2", npubOf(t, strings.Repeat("0a", 32)))
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "--second-degree must be 1 or more, and requires a handle or DID of Bluesky")
	_, stderr, code = weir(t, relays, "watch", "add", "alice@domain.invalid")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "not watching it: look up alice@domain.invalid")
	_, stderr, code = weir(t, append(relays, "WEIR_WATCH=alice@example.com"), "consume")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "use `weir watch add`, or give the npub")
}
