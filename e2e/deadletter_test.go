package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// listed returns the dead letters that `weir deadletter list` prints.
func listed(t *testing.T, env []string, args ...string) []schema.StoredDeadLetter {
	t.Helper()
	var deadLetters []schema.StoredDeadLetter
	require.NoError(t, json.Unmarshal([]byte(succeed(t, env, append([]string{"deadletter", "list", "--json"}, args...)...)), &deadLetters))
	return deadLetters
}

// retriesEnd waits until no dead letter is being retried.
func retriesEnd(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	eventually.True(t, func() bool {
		left, err := tryCount(pool, `SELECT count(*) FROM dead_letters WHERE state = 'retrying'`)
		return err == nil && left == 0
	}, 20*time.Millisecond)
}

// poisoned returns a database that has ingested a recording with bad input of
// every kind, while a constraint refused the posts of one account.
func poisoned(t *testing.T) (pool *pgxpool.Pool, env []string) {
	t.Helper()
	url := schematest.NewURL(t)
	pool, env = open(t, url), []string{"DATABASE_URL=" + url, "WEIR_RETENTION=0", "WEIR_APPVIEW=http://127.0.0.1:1", "WEIR_LISTEN=127.0.0.1:0"}
	_, err := pool.Exec(t.Context(), `ALTER TABLE posts_default ADD CONSTRAINT strict CHECK (did <> 'did:plc:bbbbbbbbbbbbbbbbbbbbbbbb')`)
	require.NoError(t, err)
	// The stream's position is that of the recording, so later deletions are
	// known.
	_, err = pool.Exec(t.Context(),
		`INSERT INTO streams (name, wire, last_event_at) VALUES ('jetstream', 'jetstream', to_timestamp(1783177260))`)
	require.NoError(t, err)
	recording, err := os.ReadFile(filepath.Join("testdata", "recording.jsonl"))
	require.NoError(t, err)
	recording = append(recording, "{\"did\":\"did:plc:\xff\xfe\x1b[31m\"}\n"...)
	recording = append(recording,
		`{"did":"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa","time_us":1783177260000000,"kind":"commit","commit":{"rev":"3mptbzzzzzz2a",`+
			`"operation":"create",`+
			`"collection":"app.bsky.feed.post","rkey":"3mptbzzzzzz2a","cid":"bafyreib2rxk3rh6kzwq4zqgb3grhqmbe7fnu4j5a2v5rkzyjvn4g2kqxaa",`+
			`"record":{"text":"`+
			strings.Repeat("x", 3<<20)+`"}}}`+"\n"...)
	file := filepath.Join(t.TempDir(), "recording.jsonl")
	require.NoError(t, os.WriteFile(file, recording, 0o600))
	succeed(t, env, "ingest", file)
	return pool, env
}

// TestDeadLettersAreRetriedAfterTheFix uses the command line. Bad input of
// every kind is listed and shown. Before the fix a retry dead-letters it again.
// After the fix valid records are stored and count, and the rest stays
// dead-lettered.
func TestDeadLettersAreRetriedAfterTheFix(t *testing.T) {
	t.Parallel()
	pool, env := poisoned(t)
	decode, commit := listed(t, env, "--stage", "decode"), listed(t, env, "--stage", "commit")
	require.Len(t, decode, 7)
	require.Len(t, commit, 3, "two posts of b.example, and one that is too large")
	require.Empty(t, listed(t, env, "--class", "retryable"))
	require.Len(t, listed(t, env, "--limit", "4"), 4)
	table := succeed(t, env, "deadletter", "list")
	require.Contains(t, table, `violates check constraint "strict"`)
	require.NotContains(t, table, "\x1b")
	refused := commit[0]
	shown := succeed(t, env, "deadletter", "show", strconv.FormatInt(refused.ID, 10))
	require.Contains(t, shown, `violates check constraint "strict"`)
	require.Contains(t, shown, `"did":"did:plc:bbbbbbbbbbbbbbbbbbbbbbbb"`)
	for _, l := range decode {
		require.NotContains(t, succeed(t, env, "deadletter", "show", strconv.FormatInt(l.ID, 10)), "\x1b")
	}
	require.Contains(t, succeed(t, env, "deadletter", "list", "--stage", "job"), "no dead letter")

	work := start(t, env, "work")
	require.Contains(t, succeed(t, env, "deadletter", "retry", strconv.FormatInt(refused.ID, 10)),
		fmt.Sprintf(" retries dead letter %d: ", refused.ID))
	retriesEnd(t, pool)
	require.Equal(t, 1, count(t, pool, `
		SELECT count(*) FROM dead_letters WHERE count = 2 AND state = 'open' AND cause LIKE '%strict%' AND last_cause LIKE '%strict%'`))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM posts WHERE did LIKE '%bbb'`))

	_, err := pool.Exec(t.Context(), `ALTER TABLE posts_default DROP CONSTRAINT strict`)
	require.NoError(t, err)
	require.Contains(t, succeed(t, env, "deadletter", "retry", "--all", "--stage", "commit"), "3 dead letters retrying")
	retriesEnd(t, pool)
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM posts WHERE did LIKE '%bbb'`))
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM dead_letters WHERE state = 'retried' AND cause LIKE '%strict%'`))
	require.Equal(t, 1, count(t, pool, `
		SELECT count(*) FROM dead_letters WHERE state = 'open' AND stage = 'commit' AND cause LIKE 'the record is larger%'
		    AND last_cause LIKE 'only the beginning%'`))
	eventually.True(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM shares WHERE did LIKE '%bbb'`) > 0
	}, 20*time.Millisecond, "its jobs were enqueued with it")

	var id int64
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT retry_dead_letter($1)`, decode[0].ID).Scan(&id), "by SQL")
	retriesEnd(t, pool)
	require.Equal(t, 1, count(t, pool, fmt.Sprintf(`SELECT count(*) FROM river_job WHERE id = %d AND kind = 'retry_dead_letters'`, id)))
	require.Equal(t, int64(2), deadLetterIn(t, listed(t, env), decode[0].ID).Count)
	require.Contains(t, succeed(t, env, "deadletter", "retry", "--all"), "8 dead letters retrying")
	retriesEnd(t, pool)
	for _, before := range decode {
		after := deadLetterIn(t, listed(t, env), before.ID)
		require.Equal(t, []any{before.Cause, before.Path, before.Received, before.FirstSeen, "open"},
			[]any{after.Cause, after.Path, after.Received, after.FirstSeen, after.State})
		require.Greater(t, after.Count, before.Count)
	}

	require.Contains(t, succeed(t, env, "deadletter", "dismiss", strconv.FormatInt(decode[0].ID, 10)), " dismissed\n")
	require.Contains(t, succeed(t, env, "deadletter", "dismiss", "--all", "--stage", "decode"), "6 dead letters dismissed")
	require.Contains(t, succeed(t, env, "deadletter", "retry", "--all", "--stage", "decode"), "0 dead letters")
	require.Len(t, listed(t, env, "--state", "dismissed"), 7)
	require.Len(t, listed(t, env, "--state", "retried"), 2)
	stopServe(t, work)
	require.Contains(t, work.stderr.String(), `"msg":"stopped"`)
}

func deadLetterIn(t *testing.T, deadLetters []schema.StoredDeadLetter, id int64) schema.StoredDeadLetter {
	t.Helper()
	for _, l := range deadLetters {
		if l.ID == id {
			return l
		}
	}
	require.Fail(t, "a dead letter is not listed", "%d", id)
	return schema.StoredDeadLetter{}
}

// TestJobThatEndsWithoutSuccessIsADeadLetter shows that such a job's dead
// letter succeeds in a retry once the cause is gone. A retry that is requested
// while no worker runs waits for one.
func TestJobThatEndsWithoutSuccessIsADeadLetter(t *testing.T) {
	t.Parallel()
	url := schematest.NewURL(t)
	pool, env := open(t, url), []string{"DATABASE_URL=" + url, "WEIR_RETENTION=0", "WEIR_APPVIEW=http://127.0.0.1:1"}
	work := start(t, env, "work")
	_, err := pool.Exec(t.Context(), `SELECT enqueue_backfill_all()`) // fails while nobody is followed
	require.NoError(t, err)
	var deadLetters []schema.StoredDeadLetter
	eventually.True(t, func() bool {
		deadLetters = listed(t, env, "--stage", "job", "--class", "permanent")
		return len(deadLetters) == 1
	}, 20*time.Millisecond)
	require.Equal(t, []string{"request_backfill", "network"}, []string{deadLetters[0].Kind, deadLetters[0].Queue})
	require.Contains(t, deadLetters[0].Cause, "the whole network is followed")
	require.Contains(t, succeed(t, env, "deadletter", "show", strconv.FormatInt(deadLetters[0].ID, 10)), `"all": true`)
	stopServe(t, work)

	_, err = pool.Exec(t.Context(), `
		WITH w AS (INSERT INTO watches (target, kind) VALUES ('did:plc:aaaaaaaaaaaaaaaaaaaaaaaa', 'account') RETURNING id, target)
		INSERT INTO watch_members SELECT id, target FROM w`)
	require.NoError(t, err)
	succeed(t, env, "deadletter", "retry", "--all")
	require.Equal(t, schema.DeadLetterRetrying, listed(t, env)[0].State)
	start(t, env, "work")
	retriesEnd(t, pool)
	require.Equal(t, 1,
		count(t, pool, `SELECT count(*) FROM dead_letters WHERE state = 'retried' AND count = 1 AND cause LIKE '%whole network%'`))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account'`))
}

// TestDeadLetterRefusesWrongArguments shows that wrong arguments are refused in
// one sentence.
func TestDeadLetterRefusesWrongArguments(t *testing.T) {
	t.Parallel()
	env := []string{"DATABASE_URL=" + schematest.NewURL(t)}
	for args, want := range map[string]string{
		"list --stage jobs":         `--stage is "jobs": expected decode, verify, commit, process, lexicon, rules, reference or job`,
		"list --stage=":             `--stage is "": expected decode`,
		"list --class bad":          `--class is "bad": expected permanent or retryable`,
		"list --state x":            `--state is "x": expected open, retrying, retried or dismissed`,
		"list --limit 0":            `--limit is 0: expected 1 to 10000`,
		"show":                      "accepts 1 arg(s)",
		"show x":                    `"x" is not the number of a dead letter`,
		"show 99999999999999999999": "is not the number of a dead letter",
		"show 7":                    "there is no dead letter 7",
		"retry":                     "give the numbers of dead letters or --all",
		"retry 1 --all":             "give the numbers of dead letters or --all",
		"retry 1 -1":                "unknown shorthand flag",
		"retry 0":                   `"0" is not the number of a dead letter`,
		"retry 1 --stage job":       "--stage and --class require --all",
		"retry --all --stage x":     `--stage is "x"`,
		"retry 7":                   "there is no dead letter 7",
		"dismiss":                   "give the numbers of dead letters or --all",
		"dismiss 7":                 "there is no dead letter 7",
	} {
		t.Run(args, func(t *testing.T) {
			_, stderr, code := weir(t, env, append([]string{"deadletter"}, strings.Fields(args)...)...)
			require.Equal(t, 1, code)
			require.Contains(t, stderr, want)
			require.Equal(t, 1, strings.Count(strings.TrimSpace(stderr), "\n")+1, stderr)
		})
	}
}
