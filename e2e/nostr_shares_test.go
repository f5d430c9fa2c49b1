package e2e

import (
	"crypto/sha256"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema/schematest"
	"github.com/weir-social/weir/simnet"
)

// nostrFold is what the events of a network make, by the words of the NIPs: the stored
// records, and what they share.
type nostrFold struct {
	records map[string]*simnet.NostrEvent // by "author kind key"
	shares  []string                      // "author kind key how link"
}

var newsLink = regexp.MustCompile(`https://(news\.example/\d+)`)

// nostrKey returns the key of an event, and whether its kind is stored.
func nostrKey(e *simnet.NostrEvent) (string, bool) {
	switch e.Kind {
	case 1, 6, 16:
		return e.ID, true
	case 30023:
		return nostrAddress(nostrTag(e, "d")), true
	}
	return "", false
}

func nostrAddress(d string) string {
	if d == "" || d[0] == '#' || len(d) > 512 {
		return fmt.Sprintf("#%x", sha256.Sum256([]byte(d)))
	}
	return d
}

func nostrTag(e *simnet.NostrEvent, name string) string {
	for _, tag := range e.Tags {
		if len(tag) > 1 && tag[0] == name {
			return tag[1]
		}
	}
	return ""
}

// foldNostr folds events, all of whose expirations are over.
func foldNostr(events []*simnet.NostrEvent) nostrFold {
	deleted, addresses, vanished := map[string]bool{}, map[string]int64{}, map[string]int64{}
	byID := map[string]*simnet.NostrEvent{}
	for _, e := range events {
		byID[e.ID] = e
		if e.Kind == 62 {
			vanished[e.Author] = max(vanished[e.Author], e.CreatedAt)
		}
		for _, tag := range e.Tags {
			if e.Kind != 5 || len(tag) < 2 {
				continue
			}
			if tag[0] == "e" {
				deleted[e.Author+" "+tag[1]] = true
			} else if d, ok := strings.CutPrefix(tag[1], "30023:"+e.Author+":"); ok && tag[0] == "a" {
				at := e.Author + " 30023 " + nostrAddress(d)
				addresses[at] = max(addresses[at], e.CreatedAt)
			}
		}
	}
	f := nostrFold{records: map[string]*simnet.NostrEvent{}}
	for _, e := range events {
		key, stored := nostrKey(e)
		name := fmt.Sprint(e.Author, " ", e.Kind, " ", key)
		old := f.records[name]
		if stored && (old == nil || e.CreatedAt > old.CreatedAt || e.CreatedAt == old.CreatedAt && e.ID < old.ID) {
			f.records[name] = e
		}
	}
	for name, e := range f.records {
		at, addressed := addresses[name]
		if nostrTag(e, "expiration") != "" || deleted[e.Author+" "+e.ID] && e.Kind != 30023 || addressed && e.CreatedAt <= at || e.CreatedAt <= vanished[e.Author] {
			delete(f.records, name)
		}
	}
	for name, e := range f.records {
		subject := ""
		switch {
		case e.Kind == 16 && nostrTag(e, "a") != "":
			parts := strings.SplitN(nostrTag(e, "a"), ":", 3)
			subject = parts[1] + " 30023 " + nostrAddress(parts[2])
		case e.Kind == 6 || e.Kind == 16:
			subject = byID[nostrTag(e, "e")].Author + " 1 " + nostrTag(e, "e")
		case nostrTag(e, "q") != "":
			subject = byID[nostrTag(e, "q")].Author + " 1 " + nostrTag(e, "q")
		default:
			f.share(name, "post", e)
		}
		if of := f.records[subject]; of != nil {
			f.share(name, map[bool]string{true: "quote", false: "repost"}[e.Kind == 1], of)
		}
	}
	slices.Sort(f.shares)
	return f
}

func (f *nostrFold) share(name, how string, e *simnet.NostrEvent) {
	if found := newsLink.FindStringSubmatch(e.Content); found != nil && nostrTag(e, "q") == "" {
		f.shares = append(f.shares, name+" "+how+" "+found[1])
	}
}

// TestSharesOfNostrEqualTheFold reads four relays that overlap, cut connections and send
// forged events, and kills the process again and again. In the end the records and the
// shares are those of the events, WEIR_NOSTR_EVENTS of them. A date that is wrong by days
// is only found while the past is read, so authors have the right time afterwards.
func TestSharesOfNostrEqualTheFold(t *testing.T) {
	schematest.Long(t)
	parallel(t)
	events := nostrEvents(t)
	n := network(t, 50)
	nostr, err := simnet.NewNostr(simnet.NostrConfig{Seed: 11, Authors: 30, Forged: 0.05, Refer: true, Now: time.Now().Add(-time.Duration(events/8+300) * time.Second),
		Relays: []simnet.NostrRelay{{Page: 100, LostSeam: true}, {Page: 60, Silent: true, CutAt: 300}, {Page: 300, CloseEach: 17}, {Page: 500, Auth: true}}})
	require.NoError(t, err)
	t.Cleanup(nostr.Stop)
	const live = 200
	nostr.Play(events - live)
	nostr.RightClocks()
	url := schematest.NewURL(t)
	pool := open(t, url)
	env := append(reads(n, url), "WEIR_COLLECTIONS=app.bsky.feed.post,nostr.1=0,nostr.6=0,nostr.16=0,nostr.30023=0", "WEIR_NOSTR="+strings.Join(nostr.URLs(), ","),
		"WEIR_NOSTR_KEY=0000000000000000000000000000000000000000000000000000000000000007", "WEIR_BATCH_EVENTS=50")
	seen := func() int {
		n, _ := tryCount(pool, `SELECT count(*) FROM seen`)
		return n
	}
	past := func() bool {
		n, err := tryCount(pool, `SELECT count(*) FROM streams WHERE name LIKE 'nostr:%' AND cursor_kind = 'time'`)
		return err == nil && n == 4
	}
	for part := range 3 { // kills while the past is read
		serve := start(t, env, "serve")
		require.Eventually(t, func() bool { return seen() > part*events/5 || past() }, time.Minute, 5*time.Millisecond)
		serve.kill()
	}
	serve := start(t, env, "serve")
	require.Eventually(t, past, 5*time.Minute, 10*time.Millisecond, serve.stderr.String())
	for range 2 { // and while events arrive
		before := seen()
		nostr.Play(live / 2)
		nostr.Cut()
		require.Eventually(t, func() bool { return seen() > before }, time.Minute, 5*time.Millisecond)
		serve.kill()
		serve = start(t, env, "serve")
	}
	want := foldNostr(nostr.Events())
	require.NotEmpty(t, want.shares)
	names := make([]string, 0, len(want.records))
	for name := range want.records {
		names = append(names, name)
	}
	slices.Sort(names)
	var records, shares []string
	equal := func() bool {
		_, err := pool.Exec(t.Context(), `INSERT INTO river_job (kind, queue, args, max_attempts, state) SELECT 'check_subjects', 'network', '{}', 3, 'available'
			WHERE EXISTS (SELECT FROM expirations WHERE expires_at < now()) AND NOT EXISTS (SELECT FROM river_job WHERE kind = 'check_subjects' AND state IN ('available', 'running', 'scheduled', 'retryable'))`)
		require.NoError(t, err)
		records = sortedRows(t, pool, `SELECT replace(did, 'did:nostr:', '') || ' ' || replace(collection, 'nostr.', '') || ' ' || rkey FROM records WHERE collection LIKE 'nostr.%'`)
		shares = sortedRows(t, pool, `SELECT replace(s.did, 'did:nostr:', '') || ' ' || replace(s.collection, 'nostr.', '') || ' ' || s.rkey || ' ' || s.how || ' ' || l.identity
			FROM living_shares AS s JOIN links AS l ON l.id = s.named_id WHERE s.collection LIKE 'nostr.%'`)
		return slices.Equal(names, records) && slices.Equal(want.shares, shares)
	}
	if !becomesTrue(t, equal) {
		require.Equal(t, names, records)
	}
	require.Equal(t, names, records)
	require.Equal(t, want.shares, shares)
	for _, how := range []string{" post ", " quote ", " repost "} {
		require.True(t, slices.ContainsFunc(shares, func(s string) bool { return strings.Contains(s, how) }), how)
	}
	require.Zero(t, count(t, pool, `SELECT count(*) FROM expirations`))
	require.Positive(t, count(t, pool, `SELECT count(*) FROM dead_letters WHERE wire = 'nostr'`))
	succeed(t, env, "recount", "--check")
}

// becomesTrue reports whether a condition holds within two minutes.
func becomesTrue(t *testing.T, condition func() bool) bool {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(2 * time.Minute); ; {
		if condition() {
			return true
		}
		select {
		case <-tick.C:
		case <-end:
			return false
		}
	}
}

// nostrEvents returns how many events the network writes.
func nostrEvents(t *testing.T) int {
	t.Helper()
	s := os.Getenv("WEIR_NOSTR_EVENTS")
	if s == "" {
		return 600
	}
	events, err := strconv.Atoi(s)
	require.NoError(t, err)
	return events
}

func sortedRows(t *testing.T, pool *pgxpool.Pool, sql string) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	slices.Sort(all)
	return all
}
