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
