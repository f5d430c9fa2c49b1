package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestPagesReadAStandby has the page and the API read a streaming replica. While the replica lags, they
// say how old their numbers are; while it is stopped, they read the primary; then the replica again.
// Feeds store what they have shown, in the primary.
func TestPagesReadAStandby(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	primary, err := devpg.Start(t.Context(), devpg.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, primary.Stop(context.Background())) })
	n := calmNetwork(t)
	url := primary.URL("weir")
	succeed(t, []string{"DATABASE_URL=" + url}, "migrate")
	standby, err := devpg.Start(t.Context(), devpg.Options{StandbyOf: primary})
	require.NoError(t, err)
	t.Cleanup(func() { standby.Stop(context.Background()) }) // it may be stopped
	pool, replica := open(t, url), open(t, standby.URL("weir"))
	p := start(t, append(reads(n, url), "WEIR_READ_DATABASE_URL="+standby.URL("weir")), "serve")
	page := p.page(t)
	post := func(link string) {
		t.Helper()
		for i := range 3 {
			_, err := n.PostNow(n.Accounts()[i].DID, "a link", link)
			require.NoError(t, err)
		}
		eventually.True(t, func() bool {
			return count(t, pool, fmt.Sprintf(`SELECT count(*) FROM link_shares WHERE url = '%s'`, link)) == 3
		}, 50*time.Millisecond)
	}
	shows := func(link string) bool { return strings.Contains(readRanking(t, page).text, link) }
	post("https://first.example/a")
	eventually.True(t, func() bool { return shows("https://first.example/a") }, 100*time.Millisecond)
	require.Positive(t, count(t, replica, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'weir' AND pid <> pg_backend_pid()`))
	require.Empty(t, regexp.MustCompile("standby_not_read").FindString(p.stderr.String()))
	_, err = get(page + "feed.atom")
	require.NoError(t, err)
	require.Positive(t, count(t, pool, `SELECT count(*) FROM feeds`))

	_, err = replica.Exec(t.Context(), `SELECT pg_wal_replay_pause()`)
	require.NoError(t, err)
	post("https://second.example/b")
	require.False(t, shows("https://second.example/b"))
	eventually.True(t, func() bool {
		shown := readRanking(t, page)
		return shown.Stream[0].CaughtUp.Before(shown.At.Add(-2 * time.Second))
	}, 100*time.Millisecond)

	require.NoError(t, standby.Crash(t.Context()))
	eventually.True(t, func() bool { return shows("https://second.example/b") }, 100*time.Millisecond)
	require.NotEmpty(t, regexp.MustCompile("standby_not_read").FindString(p.stderr.String()))

	require.NoError(t, standby.Resume(t.Context())) // which ends the pause
	post("https://third.example/c")
	eventually.True(t, func() bool { // once the connections to the primary have ended
		readRanking(t, page)
		return count(t, replica, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'weir' AND pid <> pg_backend_pid()`) > 0
	}, 100*time.Millisecond)
	require.True(t, shows("https://third.example/c"))
}

// shownRanking is what the API says of a ranking, and of how old it is.
type shownRanking struct {
	At     time.Time `json:"generated_at"`
	Stream []struct {
		CaughtUp time.Time `json:"caught_up"`
	} `json:"stream"`
	text string
}

// readRanking reads the ranking of an hour, once the API responds: a connection may have ended with its server.
func readRanking(t *testing.T, page string) (shown shownRanking) {
	t.Helper()
	eventually.True(t, func() bool {
		var err error
		if shown.text, err = get(page + "api/v1/trending?window=1h"); err != nil {
			return false
		}
		return json.Unmarshal([]byte(shown.text), &shown) == nil && len(shown.Stream) > 0
	}, 50*time.Millisecond)
	return shown
}
