package schema_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

func nostrAccount(digit string) string { return "did:nostr:" + strings.Repeat(digit, 64) }

// TestSecretKeyIsNoTarget shows that a secret key is refused as a target, also by SQL.
func TestSecretKeyIsNoTarget(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	const secret = "nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5"
	for _, target := range []string{secret, "nostr:" + strings.ToUpper(secret), secret + "@example.com"} {
		_, err := pool.Exec(t.Context(), `INSERT INTO watches (target) VALUES ($1)`, target)
		require.ErrorContains(t, err, "name the public key (npub)")
		require.NotContains(t, strings.ToLower(err.Error()), secret[5:20])
	}
	do(t, pool, `INSERT INTO watches (target) VALUES ('nsec1.example')`)
	_, err := pool.Exec(t.Context(), `UPDATE watches SET target = $1`, secret)
	require.ErrorContains(t, err, "secret key")
}

// TestOlderFollowListIsNotApplied covers relays that send follow lists in any order.
func TestOlderFollowListIsNotApplied(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for _, c := range []struct {
		rev    string
		newest bool
	}{{"5", true}, {"5", true}, {"4", false}, {"6", true}, {"5", false}} {
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			newest, err := schema.RecordFollowList(t.Context(), tx, nostrAccount("a"), c.rev)
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
	do(t, pool, `INSERT INTO watches (target) VALUES ('npub')`)
	do(t, pool, `INSERT INTO watch_members (watch_id, did) VALUES (1, '`+a+`'), (1, '`+b+`'), (1, 'did:plc:c')`)
	now := time.Now()
	unread := func(since time.Time) []string {
		t.Helper()
		dids, err := schema.UnreadAuthors(t.Context(), pool, since, 10)
		require.NoError(t, err)
		return dids
	}
	require.Equal(t, []string{a, b}, unread(now))
	require.NoError(t, schema.AddRelayHints(t.Context(), pool, b, []string{"wss://hint.example"}))
	store := func(at time.Time, all ...schema.AuthorLists) (moved []string) {
		t.Helper()
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
			moved, err = schema.StoreAuthors(t.Context(), tx, all, at)
			return err
		}))
		return moved
	}
	moved := store(now, schema.AuthorLists{DID: a, ProfileRev: "2", DisplayName: "A two", Avatar: "https://x/2", Name: "a@example.com", RelaysRev: "2", Relays: []string{"wss://two.example"}}, schema.AuthorLists{DID: b})
	require.Equal(t, []string{a}, moved)
	require.Empty(t, unread(now))
	require.Equal(t, []string{a, b}, unread(now.Add(time.Minute)))
	profile := func() string {
		t.Helper()
		return ask[string](t, pool, `SELECT concat_ws(' ', display_name, avatar, coalesce(handle, '-')) FROM accounts WHERE did = '`+a+`'`)
	}
	relays := func() []string {
		t.Helper()
		all, err := schema.RelaysOf(t.Context(), pool, []string{a, b})
		require.NoError(t, err)
		return all
	}
	require.Equal(t, []string{"wss://hint.example", "wss://two.example"}, relays())
	require.Equal(t, "A two https://x/2 -", profile())
	confirm := func(name string, confirmed, unknown bool) {
		t.Helper()
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return schema.RecordName(t.Context(), tx, schema.UncheckedName{DID: a, Name: name}, confirmed, unknown, now)
		}))
	}
	names := func() []schema.UncheckedName {
		t.Helper()
		all, err := schema.UncheckedNames(t.Context(), pool, now, 10)
		require.NoError(t, err)
		return all
	}
	require.Equal(t, []schema.UncheckedName{{DID: a, Name: "a@example.com"}}, names())
	confirm("other@example.com", true, false)
	require.Equal(t, "A two https://x/2 -", profile(), "the profile claims another name meanwhile")
	confirm("a@example.com", true, false)
	require.Equal(t, "A two https://x/2 a@example.com", profile())
	require.Empty(t, names())
	confirm("a@example.com", false, true)
	require.Equal(t, "A two https://x/2 a@example.com", profile(), "the domain is away")

	store(now, schema.AuthorLists{DID: a, ProfileRev: "1", DisplayName: "A one", Avatar: "https://x/1", RelaysRev: "1", Relays: []string{"wss://one.example"}})
	require.Equal(t, "A two https://x/2 a@example.com", profile())
	require.Equal(t, []string{"wss://hint.example", "wss://two.example"}, relays())
	do(t, pool, `UPDATE accounts SET status = 'hidden'`)
	watch, err := schema.FindWatch(t.Context(), pool, 1)
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { // a follow list names nobody
		_, err := schema.SetMembers(t.Context(), tx, watch, []schema.Member{{DID: a}, {DID: b}}, nil, now)
		return err
	}))
	require.Equal(t, "A two https://x/2 a@example.com", profile())
	require.Empty(t, store(now, schema.AuthorLists{DID: a, ProfileRev: "3", DisplayName: "A three", Name: "b@example.com", RelaysRev: "3"}))
	require.Equal(t, "A three -", profile(), "the new name is not confirmed")
	require.Equal(t, []string{"wss://hint.example"}, relays())
	confirm("b@example.com", true, false)
	confirm("b@example.com", false, false)
	require.Equal(t, "A three -", profile(), "the name was confirmed, and no longer is")
}

// TestUnwatchedAuthorsAreForgotten shows that they are, unless they are the target of a watch whose
// list was read.
func TestUnwatchedAuthorsAreForgotten(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	do(t, pool, `INSERT INTO watches (target) VALUES ('npub')`)
	do(t, pool, `INSERT INTO watch_members (watch_id, did) VALUES (1, 'did:nostr:a')`)
	do(t, pool, `INSERT INTO nostr_authors (did, read_at) VALUES ('did:nostr:a', now()), ('did:nostr:b', now()), ('did:nostr:c', NULL), ('did:nostr:d', now())`)
	n, err := schema.ForgetAuthors(t.Context(), pool, []string{"did:nostr:d"}, time.Now().Add(time.Minute), 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, 3, ask[int](t, pool, `SELECT count(*)::int FROM nostr_authors WHERE did IN ('did:nostr:a', 'did:nostr:c', 'did:nostr:d')`))
}

// TestGapsConcernTheirNetwork shows that a gap of one network's stream does not wait for accounts
// of the other. Audits and histories only read repositories.
func TestGapsConcernTheirNetwork(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	do(t, pool, `INSERT INTO watches (target) VALUES ('x')`)
	do(t, pool, `INSERT INTO watch_members (watch_id, did, added_at) SELECT 1, d, now() - interval '1 day' FROM unnest(ARRAY['did:plc:a', 'did:plc:b', '`+nostrAccount("a")+`', '`+nostrAccount("b")+`']) AS d`)
	do(t, pool, `INSERT INTO accounts (did, status, feed_since) SELECT did, CASE WHEN did ~ 'b$' THEN 'hidden' ELSE 'active' END, now() - interval '1 day' FROM watch_members`)
	for stream, want := range map[string]string{"jetstream": "did:plc:a", "nostr:relay.example": nostrAccount("a")} {
		do(t, pool, `INSERT INTO gaps (stream, from_at, to_at, reason, problem, opened_at) VALUES ('`+stream+`', now() - interval '1 hour', now(), 'a test', '', now())`)
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			started, open, err := schema.StartGap(t.Context(), tx, ask[int64](t, pool, `SELECT max(id) FROM gaps`), time.Now())
			require.True(t, open)
			require.Equal(t, []string{want}, started.DIDs)
			require.Equal(t, 1, started.Later)
			return err
		}))
	}
	sample, pending, err := schema.AuditSample(t.Context(), pool, 10)
	require.NoError(t, err)
	require.Len(t, sample, 1)
	require.Equal(t, "did:plc:a", sample[0].DID)
	require.Zero(t, pending)
}

// TestPurgedEventsMayComeAgain shows that purged events can be stored again if their author is
// followed again.
func TestPurgedEventsMayComeAgain(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	gone, kept := nostrAccount("a"), nostrAccount("b")
	do(t, pool, `INSERT INTO watches (target) VALUES ('x')`)
	do(t, pool, `INSERT INTO watch_members (watch_id, did) VALUES (1, '`+gone+`'), (1, '`+kept+`')`)
	lease := take(t, pool, "me")
	var b schema.Batch
	for i, did := range []string{gone, kept} {
		id := strings.Repeat(string("12"[i]), 64)
		b.Writes = append(b.Writes, schema.Write{Key: schema.Key{Collection: "nostr.1", DID: did, Rkey: id}, Rev: "1", CreatedAt: time.Now(), Record: []byte(`{"id":"` + id + `"}`)})
		b.Seen = append(b.Seen, [16]byte{0: byte(0x11 * (i + 1))})
	}
	for i := range b.Seen {
		for j := range b.Seen[i] {
			b.Seen[i][j] = byte(0x11 * (i + 1))
		}
	}
	_, err := apply(t.Context(), pool, lease, b)
	require.NoError(t, err)
	require.Equal(t, 2, ask[int](t, pool, `SELECT count(*)::int FROM seen`))
	do(t, pool, `DELETE FROM watch_members WHERE did = '`+gone+`'`)
	for _, did := range []string{gone, kept} {
		_, err = schema.PurgeRecords(t.Context(), pool, did, []schema.KeepRule{{Pattern: "nostr.1"}}, 10)
		require.NoError(t, err)
	}
	require.Equal(t, kept, ask[string](t, pool, `SELECT did FROM records`))
	left, err := schema.SeenIDs(t.Context(), pool, b.Seen)
	require.NoError(t, err)
	require.Equal(t, b.Seen[1:], left)
}

// TestRelaysOfMostAccountsAreRead shows that the relays named by most accounts are read, up to a
// number, without the configured ones. A relay that fails for long loses its place.
func TestRelaysOfMostAccountsAreRead(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a, b, c := nostrAccount("a"), nostrAccount("b"), nostrAccount("c")
	do(t, pool, `INSERT INTO watches (target) VALUES ('npub')`)
	do(t, pool, `INSERT INTO watch_members (watch_id, did) VALUES (1, '`+a+`'), (1, '`+b+`')`)
	do(t, pool, `INSERT INTO nostr_authors (did, relays) VALUES ('`+a+`', '{wss://1,wss://2,wss://own}'), ('`+b+`', '{wss://2,wss://3,wss://own}'), ('`+c+`', '{wss://4,wss://3}')`)
	choose := func(most int) []string {
		t.Helper()
		require.NoError(t, schema.ChooseRelays(t.Context(), pool, []string{"wss://own"}, most))
		all, err := schema.All(t.Context(), pool, "", pgx.RowTo[string], `SELECT url FROM nostr_relays WHERE chosen ORDER BY url`)
		require.NoError(t, err)
		return all
	}
	require.Equal(t, []string{"wss://1", "wss://2"}, choose(2))
	require.Equal(t, []string{"wss://1", "wss://2", "wss://3"}, choose(9))
	due := func() schema.Relay {
		t.Helper()
		relay, err := schema.DueRelay(t.Context(), pool)
		require.NoError(t, err)
		return relay
	}
	now := time.Now().Truncate(time.Microsecond)
	require.NoError(t, schema.RecordRelay(t.Context(), pool, "wss://1", &now, now.Add(time.Hour), ""))
	for range 8 {
		require.NoError(t, schema.RecordRelay(t.Context(), pool, "wss://2", nil, now.Add(time.Hour), "away"))
	}
	require.Equal(t, schema.Relay{URL: "wss://3", Accounts: []string{b}}, due(), "c is not followed")
	require.NoError(t, schema.RecordRelay(t.Context(), pool, "wss://3", nil, now.Add(time.Hour), "away"))
	require.Empty(t, due().URL)
	for range 2 {
		require.Equal(t, []string{"wss://1", "wss://3"}, choose(2), "the failing relay must not be chosen again")
	}
	do(t, pool, `UPDATE nostr_relays SET next_at = now() - interval '8 days' WHERE url = 'wss://2'`)
	require.Equal(t, []string{"wss://1", "wss://2"}, choose(2), "the failing relay must get another chance later")
	require.Equal(t, 8, due().Failures)
	require.NoError(t, schema.RecordRelay(t.Context(), pool, "wss://2", nil, now.Add(time.Hour), "away"))
	require.Equal(t, []string{"wss://1", "wss://3"}, choose(2))
	do(t, pool, `UPDATE nostr_relays SET next_at = now() - interval '1 s' * length(problem)`)
	require.Equal(t, 1, due().Failures, "of wss://3, which has the longest problem of the chosen ones")
	require.NoError(t, schema.RecordRelay(t.Context(), pool, "wss://3", nil, now.Add(time.Hour), "away"))
	relay := due()
	require.Equal(t, "wss://1", relay.URL)
	require.True(t, relay.ReadTo.Equal(now))
	require.Empty(t, choose(0))
	require.Equal(t, []string{"wss://1", "wss://3"}, choose(2))
	do(t, pool, `UPDATE nostr_relays SET next_at = now()`)
	relay = due()
	require.Equal(t, "wss://1", relay.URL)
	require.True(t, relay.ReadTo.Equal(now), "the time up to which the relay was read must be kept")
	do(t, pool, `DELETE FROM watch_members WHERE did = '`+a+`'`)
	choose(2)
	left, err := schema.All(t.Context(), pool, "", pgx.RowTo[string], `SELECT url FROM nostr_relays ORDER BY url`)
	require.NoError(t, err)
	require.Equal(t, []string{"wss://2", "wss://3"}, left, "no account names wss://1 any more")
}
