package e2e

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

var (
	entry   = regexp.MustCompile(`(?m)^### (.+)\n`)
	quoted  = regexp.MustCompile("(?s)`([^`]+)`")
	command = regexp.MustCompile(`^weir( [a-z]+)+`)
	option  = regexp.MustCompile(`--[a-z]+`)
)

// TestRunbookNamesWhatExists shows that every metric, command and query of an
// entry in docs/operations.md exists, and that each entry names something to
// look at.
func TestRunbookNamesWhatExists(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	raw, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	_, alerts, found := strings.Cut(string(raw), "\n## Alerts\n")
	require.True(t, found)
	n := followNetwork(t, 20)
	database := schematest.NewURL(t)
	// and sends what remains
	n.SetRate(simnet.Rate{Calls: 100_000})
	// the first try fails
	env := append(follower(n, database), "WEIR_DEAD_LETTER_LIMITS=app.bsky.feed.post=100", "WEIR_WATCH="+n.Hub().Handle,
		"WEIR_JETSTREAM=ws://127.0.0.1:1/subscribe,"+n.URL())
	pool := open(t, database)
	at := start(t, env, "serve").opsURL(t)
	settled(t, pool)
	_, err = pool.Exec(t.Context(),
		`INSERT INTO audits (started_at, ended_at, from_at, to_at, accounts, failures, records, missing, extra, stale, score, repaired)
		VALUES (now(), now(), now(), now(), 20, 0, 1000, 0, 0, 0, 1, true)`)
	require.NoError(t, err)

	begins := entry.FindAllStringSubmatchIndex(alerts, -1)
	require.Greater(t, len(begins), 22)
	helped := map[string]string{}
	for i, b := range begins {
		title, text := alerts[b[2]:b[3]], alerts[b[1]:]
		if i+1 < len(begins) {
			text = alerts[b[1]:begins[i+1][0]]
		}
		metrics, looks := 0, 0
		for _, q := range quoted.FindAllStringSubmatch(text, -1) {
			switch is := strings.Join(strings.Fields(q[1]), " "); {
			case strings.HasPrefix(is, "weir_"), strings.HasPrefix(is, "rate(weir_"):
				metrics++
				exists(t, at, title, is)
			case command.MatchString(is):
				looks++
				words := command.FindString(is)
				if helped[words] == "" {
					helped[words] = succeed(t, env, append(strings.Fields(words)[1:], "--help")...)
				}
				require.Contains(t, helped[words], "Usage:\n  "+words, title)
				for _, f := range option.FindAllString(is, -1) {
					require.Contains(t, helped[words], f, "%s: %s", title, is)
				}
			case strings.HasPrefix(is, "SELECT ") && !strings.Contains(is, "…"):
				looks++
				_, err := pool.Exec(t.Context(), is)
				require.NoError(t, err, "%s: %s", title, is)
			}
		}
		require.Positive(t, metrics, "%s names no metric", title)
		if !strings.HasPrefix(title, "Weir") {
			require.True(t, looks > 0 || strings.Contains(text, "the dashboard"), "%s names nothing to look at", title)
		}
	}
}

// exists waits until every metric of an expression is exposed.
func exists(t *testing.T, opsURL, title, expr string) {
	t.Helper()
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		eventually.True(t, func() bool {
			labels := matcher.FindAllStringSubmatch(m[2], -1)
			return slices.ContainsFunc(scrape(t, opsURL), func(s series) bool {
				for _, suffix := range []string{"", "_count"} { // a histogram's
					if s.name == m[1]+suffix && !slices.ContainsFunc(labels, func(l []string) bool {
						return !slices.Contains(strings.Split(l[2], "|"), s.labels[l[1]])
					}) {
						return true
					}
				}
				return false
			})
		}, 50*time.Millisecond, "%s: no series is %s", title, m[0])
	}
}
