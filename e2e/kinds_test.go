package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestEveryKindIsArchivedAndForgotten archives everything of two relays and stores only notes. What
// authors delete is forgotten, of whatever kind. A rebuilt database knows what is archived.
func TestEveryKindIsArchivedAndForgotten(t *testing.T) {
	t.Parallel()
	nostr, err := simnet.NewNostr(simnet.NostrConfig{
		Seed: 5, Authors: 2, Now: time.Now(), Relays: []simnet.NostrRelay{{Page: 20}, {Page: 20}},
	})
	require.NoError(t, err)
	t.Cleanup(nostr.Stop)
	date := time.Now().Unix() - 100
	write := func(author, kind int, content string, tags ...[]string) *simnet.NostrEvent {
		return nostr.WriteAs(author, nil, date, kind, tags, content)
	}
	d := []string{"d", "settings"}
	for author := range 2 {
		for _, kind := range []int{0, 1, 3, 7, 1999} {
			write(author, kind, fmt.Sprint("kept by ", author))
		}
		write(author, 30078, fmt.Sprint("kept by ", author), []string{"d", "other"})
	}
	reaction, zap, app := write(1, 7, "deleted"), write(1, 1999, "deleted"), write(1, 30078, "deleted", d)
	write(0, 20001, "ephemeral")
	write(0, 7, "expiring", []string{"expiration", fmt.Sprint(time.Now().Unix() + 100_000)})
	write(0, 7, "expired", []string{"expiration", fmt.Sprint(date)})
	nostr.Put(0, nostr.Forge(0, date, 7, nil, "forged"))

	n, url := network(t, 5), schematest.NewURL(t)
	settings := []string{"WEIR_COLLECTIONS=nostr.1=0", "WEIR_NOSTR=" + strings.Join(nostr.URLs(), ","), "WEIR_ARCHIVE=dir:" + t.TempDir(),
		"WEIR_ARCHIVE_SCOPE=everything", "WEIR_ARCHIVE_INTERVAL=1s", "WEIR_ARCHIVE_FORGET=1s", "TMPDIR=" + t.TempDir()}
	env := append(reads(n, url), settings...)
	pool := open(t, url)
	archived := func(want int) {
		t.Helper()
		eventually.True(t, func() bool {
			n, err := tryCount(pool, `SELECT coalesce(sum(records), 0) FROM segments WHERE stream LIKE 'nostr%' AND synced_at IS NOT NULL`)
			return err == nil && n == want
		}, 50*time.Millisecond)
	}
	p := start(t, env, "serve")
	archived(15)
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM records`), "two notes")
	require.Equal(t, 15, count(t, pool, `SELECT count(*) FROM seen`), "each event is verified and archived once")
	write(1, 5, "", []string{"e", reaction.ID}, []string{"e", zap.ID}, []string{"a", "30078:" + app.Author + ":settings"})
	write(0, 62, "", []string{"relay", "ALL_RELAYS"})
	archived(8) // without six events of the author who vanished and three deleted ones, with both requests
	nostr.WriteAs(0, nil, date, 7, nil, "sent late")
	nostr.WriteAs(1, nil, date+1, 7, nil, "last")
	eventually.True(t, func() bool { // it is archived, and compared again
		n, err := tryCount(pool, `SELECT coalesce(sum(records), 0) FROM segments WHERE stream LIKE 'nostr%' AND synced_at IS NOT NULL`)
		seen, failed := tryCount(pool, `SELECT count(*) FROM seen`)
		return err == nil && failed == nil && n == 9 && seen == 19
	}, 50*time.Millisecond)
	stopServe(t, p)

	var kept []string
	for line := range strings.Lines(succeed(t, env, "archive", "export")) {
		var e struct {
			Kind    *int
			Content string
		}
		if json.Unmarshal([]byte(line), &e) == nil && e.Kind != nil {
			kept = append(kept, fmt.Sprint(*e.Kind, " ", e.Content))
		}
	}
	require.ElementsMatch(t,
		[]string{"0 kept by 1", "1 kept by 1", "3 kept by 1", "7 kept by 1", "1999 kept by 1", "30078 kept by 1", "5 ", "62 ", "7 last"}, kept)

	second := schematest.NewURL(t)
	succeed(t, append(reads(n, second), settings...), "archive", "rebuild", "--database")
	rebuilt := open(t, second)
	require.Equal(t, 9, count(t, rebuilt, `SELECT count(*) FROM seen`))
	require.Equal(t, 1, count(t, rebuilt, `SELECT count(*) FROM records`))
	require.Equal(t, 1, count(t, rebuilt, `SELECT count(*) FROM tombstones WHERE rkey = '`+reaction.ID+`'`))
}
