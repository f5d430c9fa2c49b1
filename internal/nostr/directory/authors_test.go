package directory_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/nostr/directory"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

func nostrAccount(digit string) string { return "did:nostr:" + strings.Repeat(digit, 64) }

// TestOlderFollowListIsNotApplied covers relays that send follow lists in any order.
func TestOlderFollowListIsNotApplied(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for _, c := range []struct {
		rev    string
		newest bool
	}{{"5", true}, {"5", true}, {"4", false}, {"6", true}, {"5", false}} {
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			newest, err := directory.RecordFollowList(t.Context(), tx, nostrAccount("a"), c.rev)
			require.Equal(t, c.newest, newest, c.rev)
			return err
		}))
	}
}

// TestOlderListsChangeNothing covers relays that send profiles and lists in any order. A name is a
// handle while its domain confirms it.
func TestOlderListsChangeNothing(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a, b := nostrAccount("a"), nostrAccount("b")
	execute(t, pool, `INSERT INTO watches (target) VALUES ('npub')`)
	execute(t, pool, `INSERT INTO watch_members (watch_id, did) VALUES (1, '`+a+`'), (1, '`+b+`'), (1, 'did:plc:c')`)
	now := time.Now()
	unread := func(since time.Time) []string {
		t.Helper()
		dids, err := directory.UnreadAuthors(t.Context(), pool, since, 10)
		require.NoError(t, err)
		return dids
	}
	require.Equal(t, []string{a, b}, unread(now))
	require.NoError(t, directory.AddRelayHints(t.Context(), pool, b, []string{"wss://hint.example"}))
	store := func(at time.Time, all ...directory.AuthorLists) (moved []string) {
		t.Helper()
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
			moved, err = directory.StoreAuthors(t.Context(), tx, all, at)
			return err
		}))
		return moved
	}
	moved := store(now, directory.AuthorLists{
		DID: a, ProfileRev: "2", DisplayName: "A two", Avatar: "https://x/2", Name: "a@example.com", RelaysRev: "2",
		Relays: []string{"wss://two.example"},
	}, directory.AuthorLists{DID: b})
	require.Equal(t, []string{a}, moved)
	require.Empty(t, unread(now))
	require.Equal(t, []string{a, b}, unread(now.Add(time.Minute)))
	profile := func() string {
		return column(t, pool, `SELECT concat_ws(' ', display_name, avatar, coalesce(handle, '-')) FROM accounts WHERE did = $1`, a)[0]
	}
	relays := func() []string {
		all, err := directory.RelaysOf(t.Context(), pool, []string{a, b})
		require.NoError(t, err)
		return all
	}
	require.Equal(t, []string{"wss://hint.example", "wss://two.example"}, relays())
	require.Equal(t, "A two https://x/2 -", profile())
	confirm := func(name string, check directory.NameCheck) {
		t.Helper()
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return directory.RecordName(t.Context(), tx, directory.UncheckedName{DID: a, Name: name}, check, now)
		}))
	}
	names := func() []directory.UncheckedName {
		all, err := directory.UncheckedNames(t.Context(), pool, now, 10)
		require.NoError(t, err)
		return all
	}
	require.Equal(t, []directory.UncheckedName{{DID: a, Name: "a@example.com"}}, names())
	confirm("other@example.com", directory.Confirmed)
	require.Equal(t, "A two https://x/2 -", profile(), "the profile claims another name meanwhile")
	confirm("a@example.com", directory.Confirmed)
	require.Equal(t, "A two https://x/2 a@example.com", profile())
	require.Empty(t, names())
	confirm("a@example.com", directory.Unasked)
	require.Equal(t, "A two https://x/2 a@example.com", profile(), "the domain is away")

	store(now, directory.AuthorLists{
		DID: a, ProfileRev: "1", DisplayName: "A one", Avatar: "https://x/1", RelaysRev: "1", Relays: []string{"wss://one.example"},
	})
	require.Equal(t, "A two https://x/2 a@example.com", profile())
	require.Equal(t, []string{"wss://hint.example", "wss://two.example"}, relays())
	execute(t, pool, `UPDATE accounts SET status = 'hidden'`)
	watch, err := schema.FindWatch(t.Context(), pool, 1)
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { // a follow list names nobody
		_, err := schema.SetMembers(t.Context(), tx, watch, []schema.Member{{DID: a}, {DID: b}}, nil, now)
		return err
	}))
	require.Equal(t, "A two https://x/2 a@example.com", profile())
	require.Empty(t, store(now, directory.AuthorLists{DID: a, ProfileRev: "3", DisplayName: "A three", Name: "b@example.com", RelaysRev: "3"}))
	require.Equal(t, "A three -", profile(), "the new name is not confirmed")
	require.Equal(t, []string{"wss://hint.example"}, relays())
	confirm("b@example.com", directory.Confirmed)
	confirm("b@example.com", directory.Denied)
	require.Equal(t, "A three -", profile(), "the name was confirmed, and no longer is")
}

// TestVanishedAuthorHasNoName shows that a demand to vanish erases the name, the picture, the handle
// and the relays of an author, and that relays do not bring them back. What the author says later is
// stored.
func TestVanishedAuthorHasNoName(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a, now := nostrAccount("a"), time.Now()
	execute(t, pool, `INSERT INTO watches (target) VALUES ('npub')`)
	execute(t, pool, `INSERT INTO watch_members (watch_id, did) VALUES (1, '`+a+`')`)
	store := func(rev string) string {
		t.Helper()
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := directory.StoreAuthors(t.Context(), tx,
				[]directory.AuthorLists{{DID: a, ProfileRev: rev, DisplayName: "A", Avatar: "https://x/", Name: "a@example.com",
					RelaysRev: rev, Relays: []string{"wss://a.example"}}}, now)
			return err
		}))
		return column(t, pool, `
SELECT concat_ws(' ', a.display_name, a.avatar, a.handle, nullif(n.name, ''), n.relays)
FROM accounts AS a
JOIN nostr_authors AS n ON n.did = a.did
WHERE a.did = $1`, a)[0]
	}
	erase := func(rev string) {
		t.Helper()
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := (&schema.Batch{
				Committer: schema.Committer{Hooks: []schema.Hook{directory.Hook()}}, Erasures: []schema.Erasure{{DID: a, Rev: rev, At: now}},
			}).Apply(t.Context(), tx, schema.Lease{})
			return err
		}))
	}
	const all, none = "A https://x/ a@example.com {wss://a.example}", "{}"
	require.Equal(t, all, store("2"))
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return directory.RecordName(t.Context(), tx, directory.UncheckedName{DID: a, Name: "a@example.com"}, directory.Confirmed, now)
	}))
	erase("2")
	require.Equal(t, none, store("2"))
	execute(t, pool, `DELETE FROM nostr_authors`) // nobody followed the author for a while
	require.Equal(t, none, store("1"))
	require.Empty(t, column(t, pool, `SELECT did FROM accounts WHERE coalesce(display_name, avatar, handle) IS NOT NULL`))
	require.Equal(t, all, store("3"))
	erase("1")
	require.Equal(t, all, store("3"), "an older demand")
}

// TestUnwatchedAuthorsAreForgotten shows that they are, unless they are the target of a watch whose
// list was read.
func TestUnwatchedAuthorsAreForgotten(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO watches (target) VALUES ('npub')`)
	execute(t, pool, `INSERT INTO watch_members (watch_id, did) VALUES (1, 'did:nostr:a')`)
	execute(t, pool, `
INSERT INTO nostr_authors (did, read_at)
VALUES ('did:nostr:a', now()), ('did:nostr:b', now()), ('did:nostr:c', NULL), ('did:nostr:d', now())`)
	n, err := directory.ForgetAuthors(t.Context(), pool, []string{"did:nostr:d"}, time.Now().Add(time.Minute), 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, []string{"did:nostr:a", "did:nostr:c", "did:nostr:d"},
		column(t, pool, `SELECT did FROM nostr_authors WHERE did IN ('did:nostr:a', 'did:nostr:c', 'did:nostr:d') ORDER BY did`))
}

// TestRelaysOfMostAccountsAreRead shows that the relays named by most accounts are read, up to a
// number, without the configured ones. A relay that fails for long loses its place.
func TestRelaysOfMostAccountsAreRead(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a, b, c := nostrAccount("a"), nostrAccount("b"), nostrAccount("c")
	execute(t, pool, `INSERT INTO watches (target) VALUES ('npub')`)
	execute(t, pool, `INSERT INTO watch_members (watch_id, did) VALUES (1, '`+a+`'), (1, '`+b+`')`)
	execute(t, pool, `
INSERT INTO nostr_authors (did, relays)
VALUES ('`+a+`', '{wss://1,wss://2,wss://own}'), ('`+b+`', '{wss://2,wss://3,wss://own}'), ('`+c+`', '{wss://4,wss://3}')`)
	choose := func(most int) []string {
		t.Helper()
		require.NoError(t, directory.ChooseRelays(t.Context(), pool, []string{"wss://own"}, most))
		all, err := schema.All(t.Context(), pool, "", pgx.RowTo[string], `SELECT url FROM nostr_relays WHERE chosen ORDER BY url`)
		require.NoError(t, err)
		return all
	}
	require.Equal(t, []string{"wss://1", "wss://2"}, choose(2))
	require.Equal(t, []string{"wss://1", "wss://2", "wss://3"}, choose(9))
	due := func() directory.Relay {
		t.Helper()
		relay, err := directory.DueRelay(t.Context(), pool)
		require.NoError(t, err)
		return relay
	}
	now := time.Now().Truncate(time.Microsecond)
	require.NoError(t, directory.RecordRelay(t.Context(), pool, "wss://1", &now, now.Add(time.Hour), ""))
	for range 8 {
		require.NoError(t, directory.RecordRelay(t.Context(), pool, "wss://2", nil, now.Add(time.Hour), "away"))
	}
	require.Equal(t, directory.Relay{URL: "wss://3", Accounts: []string{b}}, due(), "c is not followed")
	require.NoError(t, directory.RecordRelay(t.Context(), pool, "wss://3", nil, now.Add(time.Hour), "away"))
	require.Empty(t, due().URL)
	for range 2 {
		require.Equal(t, []string{"wss://1", "wss://3"}, choose(2), "the failing relay must not be chosen again")
	}
	execute(t, pool, `UPDATE nostr_relays SET next_at = now() - interval '8 days' WHERE url = 'wss://2'`)
	require.Equal(t, []string{"wss://1", "wss://2"}, choose(2), "the failing relay must get another chance later")
	require.Equal(t, 8, due().Failures)
	require.NoError(t, directory.RecordRelay(t.Context(), pool, "wss://2", nil, now.Add(time.Hour), "away"))
	require.Equal(t, []string{"wss://1", "wss://3"}, choose(2))
	execute(t, pool, `UPDATE nostr_relays SET next_at = now() - interval '1 s' * length(problem)`)
	require.Equal(t, 1, due().Failures, "of wss://3, which has the longest problem of the chosen ones")
	require.NoError(t, directory.RecordRelay(t.Context(), pool, "wss://3", nil, now.Add(time.Hour), "away"))
	relay := due()
	require.Equal(t, "wss://1", relay.URL)
	require.True(t, relay.ReadTo.Equal(now))
	require.Empty(t, choose(0))
	require.Equal(t, []string{"wss://1", "wss://3"}, choose(2))
	execute(t, pool, `UPDATE nostr_relays SET next_at = now()`)
	relay = due()
	require.Equal(t, "wss://1", relay.URL)
	require.True(t, relay.ReadTo.Equal(now), "the time up to which the relay was read must be kept")
	execute(t, pool, `DELETE FROM watch_members WHERE did = '`+a+`'`)
	choose(2)
	left, err := schema.All(t.Context(), pool, "", pgx.RowTo[string], `SELECT url FROM nostr_relays ORDER BY url`)
	require.NoError(t, err)
	require.Equal(t, []string{"wss://2", "wss://3"}, left, "no account names wss://1 any more")
}
