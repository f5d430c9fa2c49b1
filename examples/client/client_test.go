// Package client has examples of programs that read the API.
package client

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/evanw/esbuild/pkg/api"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/internal/web/links"
	"github.com/weir-social/weir/internal/web/links/linkstest"
)

func TestMain(m *testing.M) { schematest.Main(m) }

func TestPythonPrintsTheRanking(t *testing.T) {
	t.Parallel()
	requireRanking(t, "links.py", "python3", "links.py")
}

// TestTypeScriptPrintsTheRanking takes the types away, as newer versions of Node do by themselves.
func TestTypeScriptPrintsTheRanking(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("links.ts")
	require.NoError(t, err)
	built := api.Transform(string(source), api.TransformOptions{Loader: api.LoaderTS, Sourcefile: "links.ts"})
	require.Empty(t, built.Errors)
	program := filepath.Join(t.TempDir(), "links.mjs")
	require.NoError(t, os.WriteFile(program, built.Code, 0o600))
	requireRanking(t, "links.ts", "node", program)
}

// requireRanking runs a program with a real server, and shows what it prints: the links, or what is wrong.
func requireRanking(t *testing.T, source string, program ...string) {
	require.FileExists(t, source) // otherwise Go would not run the test again when it changes
	r := linkstest.New(t)
	handler, err := web.Handler(web.Config{
		Parts: []web.Part{links.Part("")}, DB: r.Pool, Now: func() time.Time { return r.Now }, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	defer server.Close()
	run := func(args ...string) (output, problem string) {
		c := exec.CommandContext(t.Context(), program[0], append(program[1:], args...)...)
		var out, failed bytes.Buffer
		c.Stdout, c.Stderr = &out, &failed
		err := c.Run()
		require.Equal(t, failed.Len() == 0, err == nil, "run make languages if it is missing: %v %s", err, failed.String())
		return out.String(), failed.String()
	}
	r.Share("https://a.example/?q=1&r=2", "did:plc:aaa", time.Minute)
	r.Share("https://b.example/", "did:plc:aaa", time.Minute)
	r.Share("https://b.example/", "did:plc:bbb", time.Minute)
	r.Exec(`UPDATE links SET title = E'News\x1b[31m\nof \u202ethe day' WHERE url = 'https://b.example/'`)
	for _, want := range []struct {
		args            []string
		output, problem string
	}{
		{
			[]string{"window=24h"},
			"1\t2\tNews [31m of  the day\thttps://b.example/\n2\t1\tTitle of https://a.example/?q=1&r=2\thttps://a.example/?q=1&r=2\n", "",
		},
		{[]string{"limit=1", "domain=site.example"}, "1\t2\tNews [31m of  the day\thttps://b.example/\n", ""},
		{[]string{"text=nothing of the=kind"}, "", ""},
		{[]string{"limit=0"}, "", "limit is \"0\": send a whole number from 1 to 200\n"},
	} {
		output, problem := run(append([]string{server.URL}, want.args...)...)
		require.Equal(t, []string{want.output, want.problem}, []string{output, problem}, want.args)
	}
	r.Pool.Close()
	_, problem := run(server.URL)
	require.Contains(t, problem, "The database does not respond")
	require.Contains(t, problem, "try again in a moment. (in 5 s)\n")
	server.Close()
	_, problem = run(server.URL)
	require.Contains(t, problem, server.URL+" does not respond: ")
}
