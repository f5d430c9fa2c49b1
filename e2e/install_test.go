package e2e

import (
	"encoding/xml"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestLaunchdAgent reads the property list, and runs its command with another one of Weir's than
// serve.
func TestLaunchdAgent(t *testing.T) {
	t.Parallel()
	var plist struct {
		Dict struct {
			Keys     []string `xml:"key"`
			Integers []int    `xml:"integer"`
			Command  []string `xml:"array>string"`
		} `xml:"dict"`
	}
	require.NoError(t, xml.Unmarshal([]byte(read(t, "deploy/launchd/social.weir.plist")), &plist))
	for _, key := range []string{"Label", "RunAtLoad", "KeepAlive", "ExitTimeOut"} {
		require.Contains(t, plist.Dict.Keys, key)
	}
	require.Equal(t, []int{60, 0o77}, plist.Dict.Integers, "time to end the running jobs, and the umask")
	command := plist.Dict.Command
	require.Len(t, command, 3)
	script, ok := strings.CutSuffix(command[2], "/usr/local/bin/weir serve")
	require.True(t, ok, command[2])
	requireCommand(t, "serve")

	home := t.TempDir()
	settings, logs := filepath.Join(home, ".config/weir"), filepath.Join(home, "Library/Logs")
	for _, folder := range []string{settings, logs} {
		require.NoError(t, os.MkdirAll(folder, 0o700))
	}
	run := func() (string, error) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), command[0], command[1], script+binary+" config")
		cmd.Env = []string{"HOME=" + home}
		failed := cmd.Run()
		out, err := os.ReadFile(filepath.Join(logs, "weir.log"))
		require.NoError(t, err)
		return string(out), failed
	}
	out, err := run()
	require.Error(t, err)
	require.Contains(t, out, "weir.env", "the error must name the missing file")
	require.NoError(t, os.WriteFile(filepath.Join(settings, "weir.env"),
		[]byte("DATABASE_URL=postgres://localhost/weir\nWEIR_WORKERS=4\n# a comment\nWEIR_STREAM='of my own'\n"), 0o600))
	out, err = run()
	require.NoError(t, err, out)
	require.Contains(t, out, "of my own")
}

// TestPollerIsImported takes accounts over from a poller with both tables, with one, and with none.
func TestPollerIsImported(t *testing.T) {
	t.Parallel()
	old, database := schematest.NewURL(t), schematest.NewURL(t)
	for schema, rows := range map[string]string{
		"whole": "", "only_polled": "DROP TABLE follows", "only_follows": "DROP TABLE poll_state", "neither": "DROP TABLE follows, poll_state",
	} {
		execute(t, old, `CREATE SCHEMA `+schema+`; SET search_path = `+schema+`;
CREATE TABLE poll_state (user_handle text PRIMARY KEY, last_cursor text, last_polled_at timestamp, posts_fetched_count int DEFAULT 0);
INSERT INTO poll_state (user_handle) VALUES ('Alice.example'), ('@bob.example'), ('carol.example '), ('nobody'),
    ('x''); DROP TABLE watches; --'), (E'\\! false\n`+"`false`"+`');
CREATE TABLE follows (did text PRIMARY KEY, handle text NOT NULL, display_name text,
    added_at timestamp DEFAULT CURRENT_TIMESTAMP, last_seen_at timestamp, backfill_completed boolean DEFAULT false);
INSERT INTO follows VALUES ('did:plc:aaaaaaaaaaaaaaaaaaaaaaaa', 'alice.example', 'Alice'),
    ('did:web:d.example', 'd.example', NULL), ('$do$', '', NULL);`+rows)
	}
	psql, pool := clientTool(t, "psql"), open(t, database)
	imports := func(schema string) (string, error) {
		t.Helper()
		from, err := url.Parse(old)
		require.NoError(t, err)
		q := from.Query()
		q.Set("options", "-csearch_path="+schema)
		from.RawQuery = q.Encode()
		out, err := exec.CommandContext(t.Context(), "/bin/bash", "-o", "pipefail", "-c",
			`"$0" --no-psqlrc "$1" --file="$2" | "$0" --no-psqlrc "$3" --set ON_ERROR_STOP=1`, psql, from.String(),
			filepath.Join(project, "deploy/import-poller.sql"), database).CombinedOutput()
		return string(out), err
	}
	all := []string{"bob.example", "carol.example", "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa", "did:web:d.example"}
	for _, c := range []struct {
		schema  string
		want    []string
		refused []string
	}{
		{"only_follows", all[2:], []string{"?do?"}},
		{"whole", all, []string{"nobody", "drop?table", "?do?", "?false?"}},
		{"whole", all, nil},
		{"only_polled", append([]string{"alice.example"}, all...), []string{"nobody"}},
	} {
		out, err := imports(c.schema)
		require.NoError(t, err, out)
		for _, refused := range c.refused {
			require.Regexp(t, "neither a DID nor a handle: [^\n]*"+regexp.QuoteMeta(refused), out)
		}
		require.Equal(t, c.want, texts(t, pool, `SELECT target FROM watches WHERE kind = 'account' ORDER BY target COLLATE "C"`), c.schema)
	}
	require.Equal(t, 5, count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'sync_follows'`), "every account is read")
	out, err := imports("neither")
	require.Error(t, err)
	require.Contains(t, out, "neither a table follows nor a table poll_state")
}

// TestStartingAnewKeepsWhatWasAsked runs the commands of docs/operations.md, on a database with all that they move and
// on one that has only watches.
func TestStartingAnewKeepsWhatWasAsked(t *testing.T) {
	t.Parallel()
	_, section, _ := strings.Cut(read(t, "docs/operations.md"), "## Starting anew")
	section, _, _ = strings.Cut(section, "\n## ")
	native := regexp.MustCompile(`(?m)^    (psql "\$.*)$`).FindAllStringSubmatch(section, -1)
	compose := regexp.MustCompile(`(?m)^    docker compose exec -T postgres psql -U postgres weir(.*)$`).FindAllStringSubmatch(section, -1)
	require.Len(t, native, 2)
	require.Len(t, compose, 2)
	const asked = `
INSERT INTO watches (target, kind, at_least, synced_at, added_at) VALUES ('alice.example', 'follows', 5, now(), '2026-05-04'),
    (E'it''s\n\\! false', 'second-degree', 3, NULL, now());`
	const more = asked + `
INSERT INTO collections VALUES ('com.example.*', '2 days', true), ('app.bsky.feed.like', NULL, false);
SELECT enqueue_history('site.standard.document'), enqueue_network_backfill('3 days', ARRAY['app.bsky.feed.post']),
    enqueue_backfill('bob.example', '40 days');
INSERT INTO histories (collection, reason) VALUES ('pub.layers.*', 'new');
INSERT INTO histories (collection, reason, cancelled_at) VALUES ('com.example.gone', 'requested', now());
INSERT INTO links (id, identity, url, site, first_seen, merged_into) OVERRIDING SYSTEM VALUE
SELECT 1000 + i, 'https://a.example/' || i, 'https://a.example/' || i, 'a.example', now(), CASE WHEN i IN (2, 3) THEN 1001 END
FROM generate_series(1, 6) AS i;
INSERT INTO link_merges (link_id, into_id, why, merged_at, split_at) VALUES (1003, 1002, 'by hand', now(), NULL),
    (1002, 1001, 'redirect', now(), NULL), (1005, 1004, 'canonical', '2026-05-04', now());
INSERT INTO blocks (kind, target) VALUES ('domain', 'blocked.example'), ('account', 'did:plc:x'), ('link', 'https://a.example/4')`
	const none = `CREATE SCHEMA before;
CREATE TABLE before.watches AS SELECT * FROM watches;
DROP SCHEMA public CASCADE;
ALTER SCHEMA before RENAME TO public`
	for commands, each := range map[string][][]string{"of a database": native, "of Compose": compose} {
		for _, statements := range [][]string{{more}, {asked, none}} {
			old, database := schematest.NewURL(t), schematest.NewURL(t)
			executes(t, old, statements...)
			moved := filepath.Join(t.TempDir(), "moved.sql")
			for i, url := range []string{old, database} {
				line := strings.ReplaceAll(each[i][1], "moved.sql", moved)
				if commands == "of Compose" {
					line = `psql "$URL" --no-psqlrc` + line
				}
				cmd := exec.CommandContext(t.Context(), "/bin/bash", "-ec", line)
				cmd.Dir = project
				cmd.Env = append(os.Environ(), "OLD_URL="+old, "NEW_URL="+database, "URL="+url,
					"PATH="+filepath.Dir(clientTool(t, "psql"))+":"+os.Getenv("PATH"))
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, "%s: %s", line, out)
			}
			before, after := open(t, old), open(t, database)
			same := []string{`SELECT concat_ws(' ', target, kind, at_least, added_at) FROM watches`}
			if len(statements) == 1 {
				same = append(same, `SELECT c::text FROM collections AS c`, `SELECT m::text FROM link_merges AS m`,
					`SELECT l::text FROM links AS l WHERE id <> 1006`, `SELECT kind || target || added_at FROM blocks`,
					`SELECT link_id::text FROM blocked_links`, `SELECT collection FROM histories WHERE reason = 'requested' AND cancelled_at IS NULL`,
					`SELECT from_at::text || collections::text FROM network_backfills`,
					`SELECT args ->> 'account' || date_trunc('hour', (args ->> 'since')::timestamptz + interval '30 minutes') FROM river_job
						WHERE kind = 'request_backfill'`)
			}
			for _, sql := range same {
				want := texts(t, before, sql)
				require.NotEmpty(t, want, sql)
				require.Equal(t, want, texts(t, after, sql), "%s: %s", commands, sql)
			}
			require.Equal(t, 2, count(t, after, `SELECT count(*) FROM river_job WHERE kind = 'sync_follows'`), "the members are read")
			if len(statements) == 1 {
				require.Equal(t, []string{"1006"}, texts(t, after, `INSERT INTO links (identity, url, site, first_seen)
					VALUES ('https://b.example/', 'https://b.example/', 'b.example', now()) RETURNING id::text`))
			}
		}
	}
}
