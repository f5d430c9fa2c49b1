package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/commands"
	"github.com/weir-social/weir/internal/ops/trace"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestTrace traces one post and its link in every state.
func TestTrace(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n, pool, env, _ := followedForLong(t)
	database := strings.TrimPrefix(env[0], "DATABASE_URL=")
	did, _ := someoneBusy(t, n, pool, 1)
	e, err := n.PostNow(did, "read this", "https://story.example/a?utm_source=somewhere")
	require.NoError(t, err)
	uri := "at://" + did + "/app.bsky.feed.post/" + e.Rkey
	where := fmt.Sprintf(` WHERE did = '%s' AND rkey = '%s'`, did, e.Rkey)
	eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM shares`+where) == 1 }, 20*time.Millisecond)
	settled(t, pool)
	record := func(name string) (tracedRecord, string) { return traced[tracedRecord](t, env, name) }
	page := func(name string) (commands.Link, string) { return traced[commands.Link](t, env, name) }

	// The post counts.
	r, text := record(uri)
	require.Equal(t, "It counts in 1h, 3h, 6h, 12h, 24h, 7d.", r.Message)
	require.Equal(t, e.Rev, r.Stored.Rev)
	require.Equal(t, e.CID, r.Stored.CID)
	require.True(t, r.Account.Followed)
	require.Len(t, r.Shares, 1)
	require.Equal(t, "https://story.example/a", r.Shares[0].URL)
	require.Equal(t, "process_posts", r.Jobs[0].Kind)
	require.Equal(t, "completed", r.Jobs[0].State)
	require.Equal(t, "backfill_account", r.Jobs[len(r.Jobs)-1].Kind)
	require.Contains(t, text, "stream      jetstream at")
	a, _ := n.Account(did)
	byHandle, _ := record("https://bsky.app/profile/" + a.Handle + "/post/" + e.Rkey)
	require.Equal(t, r.URI, byHandle.URI)
	l, text := page("HTTPS://Story.example:443/a?utm_source=elsewhere")
	require.Equal(t, "https://story.example/a", l.URL)
	require.Contains(t, l.Message, "ranked in 6 of 6 windows; 0 of its 1")
	require.Positive(t, l.Ranks[0].Rank)
	require.Contains(t, text, "counts in 1h")

	// The post does not count, because of its account, its follow or its age.
	executes(t, database,
		fmt.Sprintf(`INSERT INTO accounts (did, status) VALUES ('%s', 'takendown') ON CONFLICT (did) DO UPDATE SET status = 'takendown'`, did))
	r, _ = record(uri)
	require.Equal(t, "It does not count in any window: its account is takendown.", r.Message)
	l, text = page("https://story.example/a")
	require.Contains(t, l.Message, "ranked in 0 of 6 windows; 1 of its 1")
	require.Contains(t, text, "does not count: its account is takendown")
	executes(t, database, `UPDATE accounts SET status = 'active'`, `CREATE TABLE aside AS SELECT * FROM watch_members WHERE did = '`+did+`'`,
		`DELETE FROM watch_members WHERE did = '`+did+`'`)
	r, _ = record(uri)
	require.Equal(t, "It does not count in any window: no watch includes its account.", r.Message)
	missing, _ := record("at://" + did + "/app.bsky.feed.post/" + "3k2222222222a")
	require.Equal(t, "It is not stored: no watch includes its account.", missing.Message)
	executes(t, database, `INSERT INTO watch_members SELECT * FROM aside`, `UPDATE shares SET shared_at = now() - interval '2 hours'`+where)
	r, _ = record(uri)
	require.Equal(t, "It counts in 3h, 6h, 12h, 24h, 7d.", r.Message)
	executes(t, database, `UPDATE shares SET shared_at = now() - interval '170 hours'`+where)
	r, _ = record(uri)
	require.Contains(t, r.Message, "It does not count in any window: it was shared 170h0m")

	traceTheUnprocessed(t, database, did, e.Rkey, record)

	// The post was deleted.
	require.NoError(t, n.DeleteRecord(uri))
	eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM tombstones`+where) == 1 }, 20*time.Millisecond)
	r, text = record(uri)
	require.Nil(t, r.Stored)
	require.Equal(t, "It does not count: it was deleted, and its tombstone is stored.", r.Message)
	require.Contains(t, text, "tombstone   rev ")
	traceTheUnstored(t, env, did)
}

// traceTheUnprocessed traces a post whose job waits, then has failed. Text by strangers is harmless.
func traceTheUnprocessed(t *testing.T, database, did, rkey string, trace func(name string) (tracedRecord, string)) {
	t.Helper()
	uri := "at://" + did + "/app.bsky.feed.post/" + rkey
	executes(t, database, fmt.Sprintf(`DELETE FROM shares WHERE did = '%s' AND rkey = '%s'`, did, rkey), fmt.Sprintf(`
		INSERT INTO river_job (kind, args, max_attempts, priority, queue, state, scheduled_at, attempt, errors)
		VALUES ('process_posts', '{"posts": ["%s/%s"]}', 25, 1, 'process', 'scheduled', now() + interval '1 hour', 3,
		    ARRAY['{"error": "it broke"}'::jsonb])`, did, rkey))
	r, text := trace(uri)
	require.Regexp(t, `^It does not count yet: job \d+ is scheduled, at attempt 3 of 25.$`, r.Message)
	require.Contains(t, text, "it broke")
	executes(t, database, `DELETE FROM river_job WHERE state = 'scheduled'`,
		fmt.Sprintf(`INSERT INTO dead_letters (key, stage, collection, did, rkey, cause, raw, raw_bytes, first_seen, last_seen)
		VALUES ('k', 'process', 'app.bsky.feed.post', '%s', '%s', E'no\x1b[31m links', '', 0, now(), now())`, did, rkey))
	r, text = trace(uri)
	require.Contains(t, r.Message, "it could not be processed")
	require.NotContains(t, text, "\x1b")
	require.Contains(t, text, "[31m links")
	executes(t, database, `DELETE FROM dead_letters`)
	r, _ = trace(uri)
	require.Contains(t, r.Message, "It shares a link, but has no share")
	key := strings.Repeat("ab", 32)
	executes(t, database, fmt.Sprintf(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record) VALUES
		('nostr.1', 'did:nostr:%[1]s', '%[1]s', 'r', 'c', now(), '{"content": "https://news.example/a"}')`, key))
	r, _ = trace("at://did:nostr:" + key + "/nostr.1/" + key)
	require.Contains(t, r.Message, "It shares a link, but has no share")
}

// tracedRecord is a record with its shares.
type tracedRecord struct {
	trace.Record
	Shares []commands.Share `json:"shares"`
}

// traced is what `weir trace` prints of a record or a link, as JSON and as text.
func traced[T any](t *testing.T, env []string, name string) (found T, text string) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(succeed(t, env, "trace", "--json", name)), &found))
	return found, succeed(t, env, "trace", name)
}

// traceTheUnstored traces posts and a link that are not stored: too new, too old,
// or missing without a reason, until an audit and a gap give one.
func traceTheUnstored(t *testing.T, env []string, did string) {
	t.Helper()
	database := strings.TrimPrefix(env[0], "DATABASE_URL=")
	hours := func(h int) string {
		return syntax.NewTID(time.Now().Add(time.Duration(h)*time.Hour).UnixMicro(), 3).String()
	}
	ago, ahead := "at://"+did+"/app.bsky.feed.post/"+hours(-2), "at://"+did+"/app.bsky.feed.post/"+hours(2)
	r, text := traced[trace.Record](t, env, ago)
	require.Contains(t, r.Message, "the reason is unknown")
	require.Contains(t, text, "completed jobs are removed after an hour")
	r, _ = traced[trace.Record](t, env, ahead)
	require.Contains(t, r.Message, "the stream has not reached it")
	executes(t, database, `
		INSERT INTO audits (started_at, ended_at, from_at, to_at, accounts, failures, records, missing, extra, stale, repaired)
		VALUES (now(), now(), now(), now(), 1, 0, 1, 1, 0, 0, false)`,
		`INSERT INTO audit_faults (audit_id, did, collection, rkey, fault) SELECT id, '`+did+`', 'app.bsky.feed.post', '`+
			ago[strings.LastIndex(ago, "/")+1:]+`', 'missing' FROM audits`,
		`
			INSERT INTO gaps (stream, from_at, to_at, reason, opened_at)
			VALUES ('jetstream', now() - interval '3 hours', now() - interval '1 hour', 'the test says so', now())`,
		`UPDATE gaps SET closed_at = NULL, how_closed = NULL`)
	r, text = traced[trace.Record](t, env, ago)
	require.Contains(t, text, "the test says so")
	require.Len(t, r.Gaps, 1)
	require.Len(t, r.Faults, 1)
	l, _ := traced[commands.Link](t, env, "https://nobody.example/shared/this")
	require.Nil(t, l.Stored)
	require.Contains(t, l.Message, "It is not ranked")
	old, _, _ := weir(t, append(env, "WEIR_RETENTION=24h"), "trace", "at://"+did+"/app.bsky.feed.post/"+hours(-48))
	require.Contains(t, old, "older than the retention of its collection")
}

// TestTraceRefusesWrongArguments shows that wrong arguments are refused in one
// sentence.
func TestTraceRefusesWrongArguments(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"nonsense", "did:", "@-", "https://bsky.app/profile/-", "at://did:plc:x", "at://did:plc:aaaaaaaaaaaaaaaaaaaaaaaa/post/3k",
		"at://not a did/app.bsky.feed.post/3k", "https://bsky.app/profile/-/post/3k", "ftp://x.example/",
	} {
		_, stderr, code := weir(t, nil, "trace", name)
		require.Equal(t, 1, code, name)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		require.NotContains(t, stderr, "DATABASE_URL", "arguments are checked before the configuration")
	}
}
