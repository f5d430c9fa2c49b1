package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// followedDatabase returns the oracle of a network in which a, which is shown, and
// b, which is hidden, are followed, and a database that holds what it expects.
func followedDatabase(t *testing.T) (followedOracle, *pgxpool.Pool) {
	t.Helper()
	edited := wrote("a", "1", "r2", time.Hour, "https://b.example")
	edited.Operation = "update"
	entries := []*simnet.Entry{
		wrote("a", "0", "r0", 30*time.Hour, "https://old.example"),
		wrote("a", "1", "r1", 2*time.Hour, "https://a.example"), edited,
		wrote("a", "2", "r3", time.Hour, "https://c.example"), removed("a", "2", "r4"),
		wrote("a", "3", "r5", time.Hour, "https://d.example"),
		wrote("b", "1", "r1", time.Hour, "https://d.example"), {Kind: "account", DID: "b", Status: "deactivated"},
		wrote("c", "1", "r1", time.Hour, "https://d.example"),
	}
	day := oracleEnd.Add(-24 * time.Hour)
	tr := foldFollowed(entries, map[string]time.Time{"a": day, "b": day})
	pool := schematest.New(t)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if err := tr.store(t.Context(), tx); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), `
WITH w AS (INSERT INTO watches (target, kind) VALUES ('hub.example', 'follows') RETURNING id)
INSERT INTO watch_members (watch_id, did) SELECT id, did FROM w, (VALUES ('a'), ('b')) AS v (did)`)
		return err
	}))
	return tr, pool
}

const ofA3 = `collection = 'app.bsky.feed.post' AND did = 'a' AND rkey = '3'`

func TestOracleOfFollowedAccountsAllowsOptionalRows(t *testing.T) {
	t.Parallel()
	tr, pool := followedDatabase(t)
	for name, sql := range map[string]string{
		"everything as in the stream":                    `SELECT 1`,
		"a post from a listing":                          `UPDATE records SET rev = '222' WHERE ` + ofA3,
		"an edit with the revision before it":            `UPDATE records SET rev = 'r1' WHERE did = 'a' AND rkey = '1'`,
		"a post with a later revision of its repository": `UPDATE records SET rev = 'r5' WHERE did = 'a' AND rkey = '1'`,
		"an edit from a listing, with the first version's time": `
			WITH r AS (
			    UPDATE records SET rev = '222', created_at = created_at - interval '1 h' WHERE did = 'a' AND rkey = '1' RETURNING created_at
			)
			UPDATE shares SET shared_at = r.created_at FROM r WHERE did = 'a' AND rkey = '1'`,
		"no post from before the window": `
			WITH s AS (DELETE FROM shares WHERE did = 'a' AND rkey = '0') DELETE FROM records WHERE did = 'a' AND rkey = '0'`,
		"nothing of a hidden account":                `WITH s AS (DELETE FROM shares WHERE did = 'b') DELETE FROM records WHERE did = 'b'`,
		"nothing of an account that is not followed": `WITH s AS (DELETE FROM shares WHERE did = 'c') DELETE FROM records WHERE did = 'c'`,
		"no tombstone of a post deleted in a hole":   `DELETE FROM tombstones`,
		"a hidden account that no listing named":     `DELETE FROM watch_members WHERE did = 'b'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			problems, ranked := differencesAfter(t, tr, pool, sql)
			require.Empty(t, problems)
			shared := map[string]bool{}
			for key := range ranked.shares {
				shared[key.did] = true
			}
			require.Equal(t, map[string]bool{"a": true}, shared, "only accounts that are followed and shown count")
		})
	}
}

func TestOracleOfFollowedAccountsReportsEveryBreakage(t *testing.T) {
	t.Parallel()
	tr, pool := followedDatabase(t)
	for _, b := range followedBreakages() {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			problems, _ := differencesAfter(t, tr, pool, b.sql)
			requireProblems(t, b.want, problems)
		})
	}
}

// followedBreakages are what the oracle must notice.
func followedBreakages() []breakage {
	const insert = `INSERT INTO records (collection, did, rkey, rev, cid, created_at, record) VALUES ('app.bsky.feed.post', `
	return []breakage{
		{
			name: "a post is lost", sql: `DELETE FROM records WHERE ` + ofA3,
			want: []string{"records: app.bsky.feed.post/a/3: expected rev r5...found no row"},
		},
		{
			name: "a post is doubled", sql: insert + `'a', '9', 'r5', 'cid-r5', now(), '{}')`,
			want: []string{"records: app.bsky.feed.post/a/9: expected no row, found"},
		},
		{
			name: "a deleted post is back", sql: insert + `'a', '2', 'r3', 'cid-r3', now(), '{}')`,
			want: []string{"records: app.bsky.feed.post/a/2: expected no row, found"},
		},
		{name: "a post lacks its edit", sql: `UPDATE records SET rev = 'r1', cid = 'cid-r1' WHERE did = 'a' AND rkey = '1'`,
			want: []string{
				`records: app.bsky.feed.post/a/1: rev: expected "r2", found "r1"`,
				`records: app.bsky.feed.post/a/1: cid: expected "cid-r2", found "cid-r1"`,
			}},
		{name: "a post from a listing lacks its edit", sql: `UPDATE records SET rev = '222', cid = 'cid-r1' WHERE did = 'a' AND rkey = '1'`,
			want: []string{`records: app.bsky.feed.post/a/1: cid: expected "cid-r2", found "cid-r1"`}},
		{name: "a post has the text from before its edit", sql: `UPDATE records SET record = '{"text":"r1"}' WHERE did = 'a' AND rkey = '1'`,
			want: []string{`records: app.bsky.feed.post/a/1: record.text: expected "r2", found "r1"`}},
		{
			name: "a listed post outlives its deletion", sql: `UPDATE records SET rev = 'r6' WHERE ` + ofA3,
			want: []string{`records: app.bsky.feed.post/a/3: rev: expected "r5", found "r6"`},
		},
		{
			name: "an old post has another version", sql: `UPDATE records SET cid = 'bafy' WHERE did = 'a' AND rkey = '0'`,
			want: []string{`records: app.bsky.feed.post/a/0: cid: expected`},
		},
		{
			name: "a share is lost", sql: `DELETE FROM shares WHERE ` + ofA3,
			want: []string{"shares: app.bsky.feed.post/a/3 of https://d.example: expected how post...found no row"},
		},
		{name: "a share is doubled", sql: `
			INSERT INTO shares (collection, did, rkey, link_id, named_id, how, shared_at)
			SELECT 'app.bsky.feed.post', 'a', '3', id, id, 'post', now() FROM links WHERE url = 'https://b.example'`,
			want: []string{"shares: app.bsky.feed.post/a/3 of https://b.example: expected no row, found"}},
		{name: "an invented share of an account that is not followed", sql: `
			INSERT INTO shares (collection, did, rkey, link_id, named_id, how, shared_at)
			SELECT 'app.bsky.feed.post', 'c', '1', id, id, 'post', now() FROM links WHERE url = 'https://b.example'`,
			want: []string{"shares: app.bsky.feed.post/c/1 of https://b.example: expected no row, found"}},
		{
			name: "an invented post of an account that is not followed", sql: `UPDATE records SET cid = 'bafy' WHERE did = 'c'`,
			want: []string{"records: app.bsky.feed.post/c/1: expected no row, found"},
		},
		{
			name: "an invented post of a hidden account", sql: `UPDATE records SET cid = 'bafy' WHERE did = 'b'`,
			want: []string{"records: app.bsky.feed.post/b/1: expected no row, found"},
		},
		{name: "a tombstone of an existing post", sql: `
			INSERT INTO tombstones (collection, did, rkey, rev, deleted_at) VALUES ('app.bsky.feed.post', 'a', '3', 'r5', now())`,
			want: []string{"tombstones: app.bsky.feed.post/a/3: expected no row, found"}},
		{
			name: "an account is not followed", sql: `DELETE FROM watch_members WHERE did = 'a'`,
			want: []string{"watch_members: a: expected one, found no row"},
		},
		{
			name: "a stranger is followed", sql: `INSERT INTO watch_members (watch_id, did) SELECT id, 'c' FROM watches`,
			want: []string{"watch_members: c: expected no row, found one"},
		},
		{
			name: "a hidden account is shown", sql: `UPDATE accounts SET status = 'active' WHERE did = 'b'`,
			want: []string{"accounts: b: expected it to be shown: false, found it active"},
		},
		{
			name: "a shown account is hidden", sql: `INSERT INTO accounts (did, status) VALUES ('a', 'hidden')`,
			want: []string{"accounts: a: expected it to be shown: true, found it hidden"},
		},
		{name: "a dead letter", sql: putDeadLetter, want: []string{"dead_letters: rows: expected 0, found 1"}},
	}
}

// differencesAfter returns what the oracle finds after a statement, which is then
// rolled back.
func differencesAfter(t *testing.T, tr followedOracle, pool *pgxpool.Pool, sql string) (problems []string, ranked oracle) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background()) // it is rolled back
	tag, err := tx.Exec(t.Context(), sql)
	require.NoError(t, err)
	require.Positive(t, tag.RowsAffected())
	problems, ranked, err = tr.differences(t.Context(), tx)
	require.NoError(t, err)
	return problems, ranked
}

func TestOracleExpectsAGapOverEachHole(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	at := func(minutes int) time.Time { return oracleEnd.Add(time.Duration(minutes) * time.Minute) }
	holes := []hole{{at(1), at(2)}, {at(11), at(12)}}
	both := [][2]int{{0, 3}, {11, 12}}
	for _, c := range []struct {
		name   string
		gaps   [][2]int // minutes
		closed bool
		want   []string
	}{
		{"both are recorded", both, true, nil},
		{"one is missing", both[:1], true, []string{
			"gaps: expected one over what the server forgot, 2026-07-04T15:11:00Z to 2026-07-04T15:12:00Z, found 0",
		}},
		{"one is too short", [][2]int{{0, 3}, {10, 11}}, true, []string{
			"gaps: expected one over...found 0", "gaps: one where nothing was forgotten: s 2026-07-04 15:10:00",
		}},
		{"one is invented", append(both, [2]int{20, 21}), true, []string{"gaps: one where nothing was forgotten: s 2026-07-04 15:20:00"}},
		{"one is recorded twice", append(both, [2]int{10, 12}), true, []string{"gaps: expected one over...found 2"}},
		{"they are open", both, false, []string{"gaps: expected closed to be true: s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tx, err := pool.Begin(t.Context())
			require.NoError(t, err)
			defer tx.Rollback(context.Background()) // it is rolled back
			for _, g := range c.gaps {
				_, err := tx.Exec(t.Context(), `
					INSERT INTO gaps (stream, from_at, to_at, reason, opened_at, closed_at)
					VALUES ('s', $1, $2, 'too old', now(), CASE WHEN $3 THEN now() END)`, at(g[0]), at(g[1]), c.closed)
				require.NoError(t, err)
			}
			_, err = tx.Exec(t.Context(), `SET LOCAL TimeZone = 'UTC'`)
			require.NoError(t, err)
			problems, err := holeProblems(t.Context(), tx, holes, true)
			require.NoError(t, err)
			requireProblems(t, c.want, problems)
			require.Equal(t, len(c.want) == 0, len(problems) == 0, problems)
		})
	}
}
