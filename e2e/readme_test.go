package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestWaysIn runs the commands of the README's three ways in, on a simulated network, and looks at what
// they promise: a ranking, records, an archive.
func TestWaysIn(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	for heading, check := range map[string]func(t *testing.T, w wayIn){
		"The links that your network shares": func(t *testing.T, w wayIn) {
			require.Regexp(t, `follows +`+w.net.Hub().Handle, w.run(t, "weir watch list"))
			eventually.True(t, func() bool { return strings.Contains(w.run(t, "weir trending"), "1. ") }, 100*time.Millisecond)
		},
		"The records of a lexicon in Postgres": func(t *testing.T, w wayIn) {
			pool := open(t, w.address)
			_, err := w.net.PutRecord(w.net.Hub().DID, "pub.layers.expression.expression", "a",
				[]byte(`{"text":"a","createdAt":"2026-11-01T00:00:00Z"}`))
			require.NoError(t, err)
			stored := func() (n int) {
				require.NoError(t,
					pool.QueryRow(t.Context(), `SELECT count(*) FROM records WHERE collection = 'pub.layers.expression.expression'`).Scan(&n))
				return n
			}
			eventually.True(t, func() bool { return stored() == 1 }, 50*time.Millisecond)
			require.Contains(t, w.run(t, "weir collection list"), "com.example.*")
		},
		"An archive of a collection, or of Nostr": func(t *testing.T, w wayIn) {
			require.Regexp(t, `[1-9]\d* records`, w.run(t, "weir archive verify"))
		},
	} {
		t.Run(heading, func(t *testing.T) {
			t.Parallel()
			_, text, found := strings.Cut(read(t, "README.md"), "### "+heading+"\n")
			require.True(t, found)
			text, _, _ = strings.Cut(text, "\n#")
			w := newWayIn(t)
			ran := 0
			for line := range strings.Lines(text) {
				command, found := strings.CutPrefix(line, "    ")
				if !found {
					continue
				}
				command, _, _ = strings.Cut(command, " #")
				ran++
				switch command = strings.TrimSpace(command); {
				case strings.HasSuffix(command, "weir dev"):
					w.dev(t, command)
				case strings.HasSuffix(command, "archive verify"):
					eventually.True(t, func() bool {
						files, err := os.ReadDir(filepath.Join(w.folder, "archive"))
						require.NoError(t, err)
						return len(files) > 0
					}, 100*time.Millisecond)
					fallthrough
				default:
					w.run(t, strings.ReplaceAll(command, "alice.bsky.social", w.net.Hub().Handle))
				}
			}
			require.Greater(t, ran, 2)
			check(t, w)
		})
	}
}

// wayIn is a folder in which a person runs commands.
type wayIn struct {
	folder, address string
	net             *simnet.Net
	env             []string
}

func newWayIn(t *testing.T) wayIn {
	t.Helper()
	n := network(t, 2000)
	w := wayIn{folder: t.TempDir(), net: n}
	require.NoError(t, os.Mkdir(filepath.Join(w.folder, "bin"), 0o755))
	require.NoError(t, os.Symlink(binary, filepath.Join(w.folder, "bin", "weir")))
	w.env = []string{"PATH=" + filepath.Join(w.folder, "bin") + ":" + os.Getenv("PATH"),
		"WEIR_HOME=" + filepath.Join(w.folder, ".weir"), "WEIR_JETSTREAM=" + n.URL(), "WEIR_START=oldest",
		"WEIR_LISTEN=127.0.0.1:0",
		"WEIR_RELAYS=" + n.RelayURL(), "WEIR_APPVIEW=" + n.AppViewURL(), "WEIR_DIRECTORY=" + n.DirectoryURL(), "WEIR_API_INTERVAL=0s",
		"WEIR_RETENTION=0", "WEIR_HISTORY=manual", "WEIR_ARCHIVE_INTERVAL=1s"}
	return w
}

// run runs a command to its end. It must not fail.
func (w wayIn) run(t *testing.T, command string) string {
	t.Helper()
	p := startIn(t, w.folder, "bash", w.env, "-c", "exec "+command)
	require.Zero(t, p.wait(t, patience), p.stderr.String())
	return p.stdout.String()
}

// dev starts weir dev and waits until it has printed its addresses.
func (w *wayIn) dev(t *testing.T, command string) {
	t.Helper()
	p := startIn(t, w.folder, "bash", w.env, "-c", "exec "+command)
	eventually.True(t, func() bool {
		_, after, found := strings.Cut(p.stdout.String(), "psql ")
		w.address, _, _ = strings.Cut(after, "\n")
		return found && w.address != ""
	}, 20*time.Millisecond)
	p.page(t)
}
