package nostr

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/guard/guardtest"
	"github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/nostr/wellknown"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// rig is a database.
type rig struct {
	t    *testing.T
	pool *pgxpool.Pool
}

func (r *rig) execute(sql string, args ...any) {
	r.t.Helper()
	_, err := r.pool.Exec(r.t.Context(), sql, args...)
	require.NoError(r.t, err)
}

func (r *rig) count(sql string, args ...any) (n int) {
	r.t.Helper()
	require.NoError(r.t, r.pool.QueryRow(r.t.Context(), sql, args...).Scan(&n))
	return n
}

// TestNamesAreShownOnceTheirDomainsConfirmThem covers profiles, which can claim any name.
func TestNamesAreShownOnceTheirDomainsConfirmThem(t *testing.T) {
	t.Parallel()
	n, err := simnet.NewNostr(simnet.NostrConfig{Seed: 4, Authors: 4, Now: time.Now(), Relays: []simnet.NostrRelay{{Page: 100}}})
	require.NoError(t, err)
	t.Cleanup(n.Stop)
	web := guardtest.New(t, true, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"names":{"_":%q,"bob":%q}}`, n.Key(0), n.Key(1))
	})
	r := &rig{t: t, pool: schematest.New(t)}
	r.execute(`INSERT INTO watches (target) VALUES ('npub')`)
	for author := range 4 {
		r.execute(`INSERT INTO watch_members (watch_id, did) VALUES (1, $1)`, "did:nostr:"+n.Key(author))
	}
	claim := func(author int, at int64, name string) {
		n.WriteAs(author, nil, at, 0, nil, fmt.Sprintf(`{"name":"author %d","nip05":%q}`, author, name))
	}
	claim(0, 100, "example.com")
	claim(1, 100, "Bob@example.com")
	claim(2, 100, "bob@example.com") // author 1's name
	claim(3, 100, "no name")
	w := &ReadAuthors{patience: time.Hour, relays: reads(t, r.pool, n.URLs(), "nostr.1")}
	// only in a test
	w.names = wellknown.New(wellknown.Config{
		Guard: web.Guard, Port: web.Port, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: web.Roots}},
	})
	work := func() {
		t.Helper()
		require.NoError(t, w.Work(t.Context(), &river.Job[ReadAuthorsArgs]{JobRow: &rivertype.JobRow{}}))
	}
	handles := func() (all []string) {
		t.Helper()
		for author := range 4 {
			var handle string
			require.NoError(t, r.pool.QueryRow(t.Context(), `
SELECT display_name || ' ' || coalesce(handle, '-')
FROM accounts
WHERE did = $1`, "did:nostr:"+n.Key(author)).Scan(&handle))
			all = append(all, handle)
		}
		return all
	}
	work()
	require.Equal(t, []string{"author 0 _@example.com", "author 1 bob@example.com", "author 2 -", "author 3 -"}, handles())
	require.Len(t, web.Asked(), 3)
	work()
	require.Len(t, web.Asked(), 3, "a domain is asked once a day")

	claim(1, 200, "else@example.com")
	claim(0, 50, "old@example.com")
	r.execute(`UPDATE nostr_authors SET read_at = now() - interval '7 hours'`)
	work()
	require.Equal(t, []string{"author 0 _@example.com", "author 1 -", "author 2 -", "author 3 -"}, handles())
}

// TestListsAreReadWhereTheirAuthorsWrite reads a profile from a relay that its author names. It
// also reads the follow list of a watch's owner, who is not followed. A list that is already known
// is kept.
func TestListsAreReadWhereTheirAuthorsWrite(t *testing.T) {
	t.Parallel()
	n, err := simnet.NewNostr(simnet.NostrConfig{Seed: 4, Authors: 3, Now: time.Now(), Relays: []simnet.NostrRelay{{Page: 100}, {Page: 100}}})
	require.NoError(t, err)
	t.Cleanup(n.Stop)
	own, other := n.URLs()[0], n.URLs()[1]
	owner, member := "did:nostr:"+n.Key(0), "did:nostr:"+n.Key(1)
	key, _ := nostr.ParseKey(n.Key(0))
	r := &rig{t: t, pool: schematest.New(t)}
	r.execute(`INSERT INTO watches (target) VALUES ($1)`, nostr.Npub(key))
	r.execute(`INSERT INTO watch_members (watch_id, did) VALUES (1, $1)`, member)
	r.execute(`INSERT INTO nostr_authors (did, follows_rev, read_at) VALUES ($1, '5', now() - interval '1 day')`, owner)
	r.execute(`INSERT INTO nostr_authors (did, relays) VALUES ($1, ARRAY[$2])`, member, other)
	r.execute(`INSERT INTO nostr_relays (url, next_at, read_to) VALUES ($1, now(), now())`, other)
	n.WriteAs(1, []int{0}, 100, 0, nil, `{"name":"old"}`)
	n.WriteAs(1, []int{1}, 200, 0, nil, `{"name":"new"}`)
	n.WriteAs(0, []int{0}, 100, 10002, [][]string{{"r", other}}, "")
	n.WriteAs(0, []int{0}, 100, 3, [][]string{{"p", n.Key(1)}}, "")
	n.WriteAs(0, []int{1}, 200, 3, [][]string{{"p", n.Key(2)}}, "")

	relays := reads(t, r.pool, []string{own}, "nostr.1")
	w := &ReadAuthors{patience: time.Hour, relays: relays}
	require.NoError(t, w.Work(t.Context(), &river.Job[ReadAuthorsArgs]{JobRow: &rivertype.JobRow{}}))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM accounts WHERE did = $1 AND display_name = 'new'`, member))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM nostr_authors WHERE did = $1 AND follows_rev = '5'`, owner))

	members, _, err := relays.Listing(t.Context(), workers.Target{DID: owner}, schema.WatchFollows)
	require.NoError(t, err)
	require.Equal(t, []schema.Member{{DID: "did:nostr:" + n.Key(2)}}, members)
}

// TestProfilesOfStrangersArePlain shows that names have one line and a limited length, and that
// pictures have a valid address.
func TestProfilesOfStrangersArePlain(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"  A\n\tB\u202e\x00\x1b[31m ": "A B[31m", strings.Repeat("é", 300): strings.Repeat("é", 100),
		"\u200b": "", "a\xff": "a"} {
		require.Equal(t, want, shownName(name))
	}
	for address, want := range map[string]string{"https://x.example/a.png?b": "https://x.example/a.png?b", "http://x.example/a": "",
		"javascript:alert(1)": "", "data:image/png;base64,AA": "", "https://a:b@x.example/": "",
		"https:///a": "", "https://x.example/" + strings.Repeat("a", 3000): "", "": ""} {
		require.Equal(t, want, picture(address), address)
	}
}
