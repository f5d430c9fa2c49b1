package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

const oraclePost = "app.bsky.feed.post"

var oracleEnd = time.Date(2026, 7, 4, 15, 0, 0, 0, time.UTC)

// oracleDatabase returns an oracle of two thousand events, and a database that
// holds what it expects.
func oracleDatabase(t *testing.T) (oracle, *pgxpool.Pool) {
	t.Helper()
	n, err := simnet.New(simnet.Config{Seed: 11, Accounts: 60, History: 2000, Mix: simnet.MixPosts, Start: oracleEnd})
	require.NoError(t, err)
	tr := fold(n.Log().Entries())
	pool := schematest.New(t)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return tr.store(t.Context(), tx) }))
	return tr, pool
}

// store stores what the oracle expects, and a completed job.
func (tr oracle) store(ctx context.Context, tx pgx.Tx) error {
	q := &pgx.Batch{}
	for k, r := range tr.records {
		q.Queue(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
			k.collection, k.did, k.rkey, r.rev, r.cid, r.createdAt, json.RawMessage(r.record))
	}
	for k, r := range tr.tombstones {
		q.Queue(`INSERT INTO tombstones (collection, did, rkey, rev, deleted_at) VALUES ($1, $2, $3, $4, now())`, k.collection, k.did, k.rkey,
			r.rev)
	}
	for k, r := range tr.accounts {
		q.Queue(`INSERT INTO accounts (did, handle, status) VALUES ($1, nullif($2, ''), $3)`, string(k), r.handle, r.status)
	}
	for k, s := range tr.shares {
		q.Queue(`INSERT INTO links (identity, url, site, first_seen) VALUES (substr($1, 9), $1, 'a site', now()) ON CONFLICT DO NOTHING`, k.url)
		if s.through == "" {
			q.Queue(`
WITH c AS (
    INSERT INTO claims (link_id, hash, url, site, title, description, image)
    SELECT id, sha256(convert_to($7 || $8 || $9 || $10, 'UTF8')), $7, 'a site', $8, $9, $10 FROM links WHERE url = $6
    ON CONFLICT (link_id, hash) DO UPDATE SET url = excluded.url
    RETURNING link_id, id
)
INSERT INTO shares (collection, did, rkey, link_id, named_id, how, shared_at, claim_id) SELECT $1, $2, $3, link_id, link_id, $4, $5, id
FROM c`,
				k.collection, k.did, k.rkey, s.how, s.at, k.url, s.claim.URL, s.claim.Title, s.claim.Description, s.claim.Picture)
			continue
		}
		subject, _ := subjectOf(k.recordKey, tr.records[k.recordKey].record)
		q.Queue(`INSERT INTO subjects AS u (did, collection, rkey, links) SELECT $1, $2, $3, ARRAY[id] FROM links WHERE url = $4
			ON CONFLICT (did, collection, rkey) DO UPDATE SET links = u.links || excluded.links`, subject.did, subject.collection, subject.rkey,
			k.url)
		q.Queue(`
			INSERT INTO shares (collection, did, rkey, link_id, named_id, how, shared_at, subject_did, subject_rkey)
			SELECT $1, $2, $3, id, id, $4, $5, $7, $8 FROM links WHERE url = $6`,
			k.collection, k.did, k.rkey, s.how, s.at, k.url, subject.did, subject.rkey)
	}
	q.Queue(putJob, "process_posts", "completed")
	return tx.SendBatch(ctx, q).Close()
}

const (
	putJob = `
INSERT INTO river_job (kind, state, args, max_attempts, finalized_at)
VALUES ($1, $2::river_job_state, '{}', 25, CASE WHEN $2 IN ('completed', 'discarded', 'cancelled') THEN now() END)`
	putDeadLetter = `
INSERT INTO dead_letters (key, stage, did, rkey, cause, raw, raw_bytes, first_seen, last_seen)
VALUES ('\x00', 'process', 'did:plc:a', 'r', 'it is broken', '', 0, now(), now())`
	putGap = `
		INSERT INTO gaps (stream, from_at, to_at, reason, opened_at, closed_at)
		VALUES ('s', now() - interval '1 h', now(), 'too old', now(), now())`
)

func TestOracleFindsNoProblemInACorrectDatabase(t *testing.T) {
	t.Parallel()
	tr, pool := oracleDatabase(t)
	problems, err := tr.problems(t.Context(), pool, oracleEnd)
	require.NoError(t, err)
	require.Empty(t, problems)
	require.Greater(t, len(tr.records), 1500)
	require.Greater(t, len(tr.tombstones), 50)
	require.Greater(t, len(tr.accounts), 10)
	require.Greater(t, len(tr.shares), 400)
	require.Greater(t, len(tr.ranking(oracleEnd, time.Hour, 0)), 5)
}

// breakage changes one row of a correct database.
type breakage struct {
	name string
	sql  string
	args []any
	want []string // the problems, as requireProblems takes them
}

// TestOracleReportsEveryBreakage breaks one row at a time, and requires that
// the oracle reports it and no other table.
func TestOracleReportsEveryBreakage(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	tr, pool := oracleDatabase(t)
	for _, b := range slices.Concat(brokenRecords(t, tr), brokenShares(t, tr), brokenAccounts(t, tr), brokenWork()) {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			tx, err := pool.Begin(t.Context())
			require.NoError(t, err)
			defer tx.Rollback(context.Background()) // the breakage is discarded
			tag, err := tx.Exec(t.Context(), b.sql, b.args...)
			require.NoError(t, err)
			require.EqualValues(t, 1, tag.RowsAffected(), "the statement must change one row")
			problems, err := tr.compare(t.Context(), tx, oracleEnd)
			require.NoError(t, err)
			requireProblems(t, b.want, problems)
		})
	}
}

const whereKey = ` WHERE collection = $1 AND did = $2 AND rkey = $3`

func keyArgs(k recordKey, more ...any) []any {
	return append([]any{k.collection, k.did, k.rkey}, more...)
}

func brokenRecords(t *testing.T, tr oracle) []breakage {
	t.Helper()
	record := first(t, tr.records, func(_ recordKey, r recordRow) bool { return len(r.links) > 0 })
	deleted := first(t, tr.tombstones, func(recordKey, tombstoneRow) bool { return true })
	in, of, gone := "records: "+record.String(), tr.records[record], "tombstones: "+deleted.String()
	const update, bury = `UPDATE records SET `, `UPDATE tombstones SET `
	return []breakage{
		{"a record is missing", `DELETE FROM records` + whereKey, keyArgs(record),
			[]string{in + ": expected rev " + of.rev + ", cid " + of.cid + "..., found no row"}},
		{"a record has an old revision", update + `rev = '222'` + whereKey, keyArgs(record),
			[]string{in + `: rev: expected "` + of.rev + `", found "222"`}},
		{"a record has another cid", update + `cid = 'bafy'` + whereKey, keyArgs(record),
			[]string{in + `: cid: expected "` + of.cid + `", found "bafy"`}},
		{"a record has another creation time", update + `created_at = created_at + interval '1 ms'` + whereKey, keyArgs(record),
			[]string{in + `: created_at: expected "` + of.createdAt.UTC().Format(time.RFC3339Nano) + `", found "`}},
		{"a record has another text", update + `record = jsonb_set(record, '{text}', '"not this"')` + whereKey, keyArgs(record),
			[]string{in + `: record.text: expected "...", found "not this"`}},
		{"a record has an additional field", update + `record = record || '{"more": null}'` + whereKey, keyArgs(record),
			[]string{in + `: record.more: expected none, found null`}},
		{"a record lost a field", update + `record = record - 'langs'` + whereKey, keyArgs(record),
			[]string{in + `: record.langs: expected ["en"], found none`}},
		{"a deleted record is back",
			`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record) VALUES ($1, $2, $3, '222', 'bafy', now(), '{}')`,
			keyArgs(deleted), []string{"records: " + deleted.String() + ": expected no row, found rev 222"}},
		{"a record is of a collection that is not stored", update + `collection = 'app.bsky.feed.like'` + whereKey, keyArgs(record),
			[]string{in + ": expected rev", "records: app.bsky.feed.like/" + record.did + "/" + record.rkey + ": expected no row"}},
		{"a tombstone is missing", `DELETE FROM tombstones` + whereKey, keyArgs(deleted),
			[]string{gone + ": expected rev " + tr.tombstones[deleted].rev + ", found no row"}},
		{"a tombstone has another revision", bury + `rev = '222'` + whereKey, keyArgs(deleted),
			[]string{gone + `: rev: expected "` + tr.tombstones[deleted].rev + `", found "222"`}},
		{"a tombstone covers a record", `INSERT INTO tombstones VALUES ($1, $2, $3, '222', now())`, keyArgs(record),
			[]string{"tombstones: " + record.String() + ": expected no row, found rev 222"}},
	}
}

func brokenShares(t *testing.T, tr oracle) []breakage {
	t.Helper()
	lone := first(t, tr.shares, func(k shareKey, s shareRow) bool { return s.through == "" && tr.countsAlone(k, s) })
	through := first(t, tr.shares, func(k shareKey, s shareRow) bool { return s.through != "" && tr.countsAlone(k, s) })
	subject, _ := subjectOf(through.recordKey, tr.records[through.recordKey].record)
	other := first(t, tr.shares, func(k shareKey, _ shareRow) bool { return k.url != lone.url })
	bare := first(t, tr.records, func(k recordKey, r recordRow) bool {
		return k.collection == oraclePost && len(r.links) == 0 && tr.visible(k.did) && !tr.hasShared(k.did, lone.url)
	})
	how, at := tr.shares[lone].how, tr.shares[lone].at.UTC().Format(time.RFC3339Nano)
	otherHow := map[string]string{"post": "quote", "quote": "post"}[how]
	in := "shares: " + lone.String()
	const update = `UPDATE shares SET `
	return []breakage{
		{"a share is missing", `DELETE FROM shares` + whereKey, keyArgs(lone.recordKey),
			[]string{in + ": expected how " + how + ", shared_at " + at + ", found no row", "ranking: 24 h to"}},
		{"an additional share", `
			INSERT INTO shares (collection, did, rkey, link_id, named_id, how, shared_at) SELECT $1, $2, $3, id, id, 'post', $4 FROM links
			WHERE url = $5`,
			keyArgs(bare, oracleEnd.Add(-time.Minute), lone.url),
			[]string{"shares: " + bare.String() + " of " + lone.url + ": expected no row, found how post",
				"ranking: 1 h to", "ranking: 3 h to", "ranking: 6 h to", "ranking: 12 h to", "ranking: 24 h to"}},
		{"a share of another link", update + `(link_id, named_id) = (SELECT id, id FROM links WHERE url = $4)` + whereKey,
			keyArgs(lone.recordKey, other.url),
			[]string{in + ": expected", "shares: " + lone.recordKey.String() + " of " + other.url + ": expected no row", "ranking: 24 h to"}},
		{"a share has another kind", update + `how = $4` + whereKey, keyArgs(lone.recordKey, otherHow),
			[]string{in + `: how: expected "` + how + `", found "` + otherHow}},
		{"a share names another claim", `
WITH c AS (INSERT INTO claims (link_id, hash, url, site, title) SELECT id, '', url, site, 'False' FROM links WHERE url = $4 RETURNING id)
` + update + `claim_id = (SELECT id FROM c)` + whereKey, keyArgs(lone.recordKey, lone.url),
			[]string{in + ": claim: expected..." + "False"}},
		{"a share has another time", update + `shared_at = shared_at - interval '2 days'` + whereKey, keyArgs(lone.recordKey),
			[]string{in + `: shared_at: expected "` + at + `", found`, "ranking: 24 h to"}},
		{"the post that was reposted is unknown", `DELETE FROM subjects` + whereKey, keyArgs(subject),
			[]string{"shares: " + through.String() + ": expected how " + tr.shares[through].how + "..., found no row", "ranking: 24 h to"}},
		{"a link and its shares are missing", `
			WITH s AS (DELETE FROM shares WHERE link_id = (SELECT id FROM links WHERE url = $1)) DELETE FROM links WHERE url = $1`, []any{lone.url},
			[]string{"links: " + lone.url + ": expected a row, found no row", "shares: ", "ranking: "}},
		{"a link that nobody ever shared", `
			INSERT INTO links (identity, url, site, first_seen) VALUES ('invented.example', 'https://invented.example', '', now())`, nil,
			[]string{"links: https://invented.example: expected no row, found a row"}},
	}
}

func brokenAccounts(t *testing.T, tr oracle) []breakage {
	t.Helper()
	hidden := accountKey(first(t, tr.shares, func(k shareKey, _ shareRow) bool { return !tr.visible(k.did) }).did)
	named := first(t, tr.accounts, func(k accountKey, a accountRow) bool { return a.handle != "" && !a.stranger && tr.visible(string(k)) })
	in := "accounts: " + string(named)
	return []breakage{
		{"the status of an account is stale", `UPDATE accounts SET status = 'active' WHERE did = $1`, []any{string(hidden)},
			[]string{"accounts: " + string(hidden) + `: status: expected "` + tr.accounts[hidden].status + `", found "active"`, "ranking: 24 h to"}},
		{"the handle of an account is stale", `UPDATE accounts SET handle = 'old.example' WHERE did = $1`, []any{string(named)},
			[]string{in + `: handle: expected "` + tr.accounts[named].handle + `", found "old.example"`}},
		{"the handle of an account is unknown", `UPDATE accounts SET handle = NULL WHERE did = $1`, []any{string(named)},
			[]string{in + `: handle: expected "` + tr.accounts[named].handle + `", found ""`}},
		{"an account is missing", `DELETE FROM accounts WHERE did = $1`, []any{string(named)},
			[]string{in + `: expected handle "` + tr.accounts[named].handle + `"..., found no row`}},
		{"an account was invented", `INSERT INTO accounts (did) VALUES ('did:plc:nobody')`, nil,
			[]string{`accounts: did:plc:nobody: expected no row, found handle "", status active`}},
	}
}

func brokenWork() []breakage {
	all := []breakage{
		{"a job of another kind waits", putJob, []any{"expire", "available"}, nil},
		{"a dead letter", putDeadLetter, nil, []string{
			"dead_letters: rows: expected 0, found 1...process permanent open did:plc:a/r it is broken",
		}},
		{"a closed gap", putGap, nil, []string{"gaps: rows: expected 0, found 1...too old"}},
	}
	for _, state := range []string{"available", "pending", "scheduled", "running", "retryable", "discarded", "cancelled"} {
		all = append(all, breakage{"a job is " + state, putJob, []any{"process_posts", state},
			[]string{"queue: job ...: expected completed, found " + state + " after 0 attempts"}})
	}
	return all
}

// requireProblems requires a problem for every description in want, where "..."
// matches any text, and no problem in another table.
func requireProblems(t *testing.T, want, problems []string) {
	t.Helper()
	tables := map[string]bool{}
	for _, w := range want {
		table, _, _ := strings.Cut(w, ": ")
		tables[table] = true
		begin, end, _ := strings.Cut(w, "...")
		describes := func(p string) bool { return strings.HasPrefix(p, begin) && strings.Contains(p[len(begin):], end) }
		require.True(t, slices.ContainsFunc(problems, describes), "no problem is %q:\n%s", w, strings.Join(problems, "\n"))
	}
	for _, p := range problems {
		table, _, _ := strings.Cut(p, ": ")
		require.True(t, tables[table], "a problem in a table that was not changed: %s", p)
	}
}

func (tr oracle) hasShared(did, url string) bool {
	for k := range tr.shares {
		if k.did == did && k.url == url {
			return true
		}
	}
	return false
}

func (tr oracle) visible(did string) bool {
	a, ok := tr.accounts[accountKey(did)]
	return !ok || a.status == "active"
}

// countsAlone reports whether a share is the only one of its post, by an
// account that shared the link in no other post. Without it the ranking is
// wrong.
func (tr oracle) countsAlone(key shareKey, s shareRow) bool {
	for k := range tr.shares {
		if k != key && (k.recordKey == key.recordKey || k.did == key.did && k.url == key.url) {
			return false
		}
	}
	return tr.counts(key, s)
}

// first returns the first key, in the order of their texts, of a wanted row.
func first[K comparable, R any](t *testing.T, rows map[K]R, wanted func(K, R) bool) K {
	t.Helper()
	keys := slices.SortedFunc(maps.Keys(rows), func(a, b K) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	for _, key := range keys {
		if wanted(key, rows[key]) {
			return key
		}
	}
	require.Fail(t, "the network has no such row: choose another seed")
	panic("unreachable")
}
