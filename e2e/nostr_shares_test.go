package e2e

import (
	"cmp"
	"context"
	"crypto/md5" // Postgres hashes the same way
	"crypto/sha256"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// nostrFold is what the tables must hold after the events of a network, according to the NIPs.
type nostrFold struct {
	latest     map[string]*simnet.NostrEvent // by "author kind key": the stored records
	records    []string                      // "author kind key id hash of the content"
	shares     []string                      // "author kind key how link"
	tombstones map[string]string             // revisions by "author kind key"
	expiring   map[string][]string           // revisions that may leave a tombstone, if the events arrive in time
	erased     []string                      // "author revision"
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

// nostrRevision returns the revision of an event: its date and its inverted id.
func nostrRevision(e *simnet.NostrEvent) string {
	inverted := strings.Map(func(digit rune) rune {
		const digits = "0123456789abcdef"
		return rune(digits[15-strings.IndexRune(digits, digit)])
	}, e.ID)
	return fmt.Sprintf("%016d-%s", e.CreatedAt, inverted)
}

// nostrUntil returns the revision after all revisions of a date.
func nostrUntil(date int64) string { return fmt.Sprintf("%016d-%s", date, strings.Repeat("f", 64)) }

// bury adds a tombstone.
func (f *nostrFold) bury(name, rev string) { f.tombstones[name] = max(f.tombstones[name], rev) }

// foldNostr folds events. All expirations of the events must have passed.
func foldNostr(events []*simnet.NostrEvent) nostrFold {
	f := nostrFold{latest: map[string]*simnet.NostrEvent{}, tombstones: map[string]string{}, expiring: map[string][]string{}}
	vanished, byID := map[string]int64{}, map[string]*simnet.NostrEvent{}
	for _, e := range events {
		byID[e.ID] = e
		f.delete(e)
		if e.Kind == 62 {
			vanished[e.Author] = max(vanished[e.Author], e.CreatedAt)
		}
		key, stored := nostrKey(e)
		if !stored {
			continue
		}
		name := fmt.Sprint(e.Author, " ", e.Kind, " ", key)
		if nostrTag(e, "expiration") != "" {
			f.expiring[name] = append(f.expiring[name], nostrRevision(e))
		}
		if old := f.latest[name]; old == nil || nostrRevision(e) > nostrRevision(old) {
			f.latest[name] = e
		}
	}
	for name, e := range f.latest {
		if nostrTag(e, "expiration") != "" {
			if delete(f.latest, name); e.Kind == 30023 { // a deletion also deletes the versions that the latest one replaced
				f.bury(name, nostrRevision(e))
			}
		} else if f.tombstones[name] >= nostrRevision(e) || f.tombstones[e.Author+" * "+e.ID] != "" && e.Kind != 30023 ||
			e.CreatedAt <= vanished[e.Author] {
			delete(f.latest, name)
		}
	}
	for author, date := range vanished {
		f.erased = append(f.erased, author+" "+nostrUntil(date))
	}
	for name, e := range f.latest {
		f.records = append(f.records, fmt.Sprintf("%s %s %x", name, e.ID, md5.Sum([]byte(strings.ReplaceAll(e.Content, "\x00", "\uFFFD")))))
		f.shareOf(name, e, byID)
	}
	slices.Sort(f.records)
	slices.Sort(f.shares)
	slices.Sort(f.erased)
	return f
}

// delete adds the tombstones of a deletion request. It ignores events of other authors.
func (f *nostrFold) delete(e *simnet.NostrEvent) {
	for _, tag := range e.Tags {
		if e.Kind != 5 || len(tag) < 2 {
			continue
		}
		if tag[0] == "e" && len(tag[1]) == 64 {
			f.bury(e.Author+" * "+tag[1], "~") // the tag does not name the kind
		} else if d, ok := strings.CutPrefix(tag[1], "30023:"+e.Author+":"); ok && tag[0] == "a" {
			f.bury(e.Author+" 30023 "+nostrAddress(d), nostrUntil(e.CreatedAt))
		} else if tag[0] == "a" && tag[1] == "3:"+e.Author+":" { // this kind is not stored now, and may be later
			f.bury(e.Author+" 3 self", nostrUntil(e.CreatedAt))
		}
	}
}

// shareOf adds the links that an event shares: its own, or those of the event that it reposts or
// quotes.
func (f *nostrFold) shareOf(name string, e *simnet.NostrEvent, byID map[string]*simnet.NostrEvent) {
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
	if of := f.latest[subject]; of != nil {
		f.share(name, map[bool]string{true: "quote", false: "repost"}[e.Kind == 1], of)
	}
}

func (f *nostrFold) share(name, how string, e *simnet.NostrEvent) {
	if found := newsLink.FindStringSubmatch(e.Content); found != nil && nostrTag(e, "q") == "" {
		f.shares = append(f.shares, name+" "+how+" "+found[1])
	}
}

// TestSharesOfNostrEqualTheFold reads four relays that overlap, cut connections and send forged
// events, and kills the process again and again. In the end the records, the tombstones and the
// shares are those of the -nostr-events events. A date that is wrong by days is found only
// while the past is read, so authors have the right time afterwards. One relay has more events of a
// second than it sends, which is a gap.
func TestSharesOfNostrEqualTheFold(t *testing.T) {
	t.Parallel()
	events := cmp.Or(*nostrEvents, 600)
	live, tick := max(200, events/100), time.Duration(max(5, events/1000))*time.Millisecond
	n := network(t, 50)
	nostr, err := simnet.NewNostr(simnet.NostrConfig{Seed: 11, Authors: 30, Forged: 0.05, Refer: true,
		Now: time.Now().Add(-time.Duration(events/8+300) * time.Second),
		Relays: []simnet.NostrRelay{
			{Page: 100, LostSeam: true}, {Page: 60, Silent: true, CutAt: 300}, {Page: 300, CloseEach: 17}, {Page: 500, Auth: true},
		}})
	require.NoError(t, err)
	t.Cleanup(nostr.Stop)
	nostr.Play(events - live)
	crowded := time.Now().Add(-30 * 24 * time.Hour).Unix()
	for i := range 70 {
		nostr.WriteAs(0, []int{1, 3}, crowded, 1, nil, fmt.Sprintf("at once %d https://news.example/%d", i, i%50))
	}
	nostr.RightClocks(time.Now().Add(-time.Duration(live/8) * time.Second))
	url := schematest.NewURL(t)
	pool := open(t, url)
	env := append(reads(n, url), "WEIR_COLLECTIONS=app.bsky.feed.post,nostr.1=0,nostr.6=0,nostr.16=0,nostr.30023=0",
		"WEIR_NOSTR="+strings.Join(nostr.URLs(), ","), "WEIR_NOSTR_KEY=0000000000000000000000000000000000000000000000000000000000000007",
		fmt.Sprint("WEIR_BATCH_EVENTS=", min(500, max(50, events/100))))
	seen := func() int {
		n, _ := tryCount(pool, `SELECT count(*) FROM seen`)
		return n
	}
	past := func() bool {
		n, err := tryCount(pool, `SELECT count(*) FROM streams WHERE name LIKE 'nostr:%' AND cursor_kind = 'time'`)
		return err == nil && n == 4
	}
	for _, point := range []string{"commit: position and records written", "commit: after its end"} { // while the past is read
		killed := start(t, append(slices.Clone(env), killAt(3, point)), "serve")
		killed.dies(t)
		rescued(t, pool, killed)
	}
	serve := start(t, env, "serve")
	eventually.True(t, past, tick, serve.stderr.String())
	for range 2 { // kills while events arrive
		before := seen()
		nostr.Play(live / 2)
		nostr.Cut()
		eventually.True(t, func() bool { return seen() > before }, tick)
		serve.kill()
		if *nostrEvents == 0 { // the next process does this to the jobs of a dead one fifteen seconds later
			_, err := pool.Exec(t.Context(), `UPDATE river_job SET state = 'available' WHERE state = 'running'`)
			require.NoError(t, err)
		}
		serve = start(t, env, "serve")
	}
	equalsFold(t, pool, nostr, patience+time.Duration(events)*10*time.Millisecond)
	require.Equal(t, []string{fmt.Sprintf("%s %d", strings.TrimPrefix(nostr.URLs()[1], "ws://"), crowded)}, sortedRows(t, pool, `
SELECT replace(stream, 'nostr:', '') || ' ' || extract(epoch FROM from_at)::bigint FROM gaps
WHERE stream LIKE 'nostr:%' AND to_at = from_at + interval '1 second' AND problem <> '' AND closed_at IS NULL`))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM gaps WHERE stream LIKE 'nostr:%'`))
	require.Positive(t, count(t, pool, `SELECT count(*) FROM dead_letters WHERE wire = 'nostr'`))
	succeed(t, env, "recount", "--check")
}

// equalsFold waits until the tables equal the fold of the network's events.
func equalsFold(t *testing.T, pool *pgxpool.Pool, nostr *simnet.Nostr, within time.Duration) {
	t.Helper()
	want := foldNostr(nostr.Events())
	for _, how := range []string{" post ", " quote ", " repost "} {
		require.True(t, slices.ContainsFunc(want.shares, func(s string) bool { return strings.Contains(s, how) }), how)
	}
	const records, shares = ` FROM records WHERE collection LIKE 'nostr.%'`, ` FROM judged_shares AS s JOIN links AS l ON l.id = ` +
		`s.named_id WHERE s.why IS NULL AND s.collection LIKE 'nostr.%'`
	// The work that is left for these rows.
	const waits = `
SELECT coalesce((SELECT 'jobs ' || jsonb_agg(to_jsonb(j) - 'metadata')::text FROM river_job AS j
    WHERE kind = 'process_posts' AND state <> 'completed'), '')
    || coalesce((SELECT ' expirations ' || jsonb_agg(e)::text FROM expirations AS e), '')
    || (SELECT CASE count(*) WHEN $1 THEN '' ELSE ' records ' || count(*) END` + records +
		`) || (SELECT CASE count(*) WHEN $2 THEN '' ELSE ' shares ' || count(*) END` + shares + `)`
	left := ""
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if !eventually.Loop(ctx, time.Duration(max(20, len(want.records)/500))*time.Millisecond, func() bool {
		_, err := pool.Exec(t.Context(),
			`INSERT INTO river_job (kind, queue, args, max_attempts, state) SELECT k.kind, 'network', '{}', 3, 'available'
			FROM (SELECT 'delete_expired' AS kind WHERE EXISTS (SELECT FROM expirations WHERE expires_at < now())
			      UNION ALL SELECT 'check_subjects' WHERE EXISTS (SELECT FROM changed_subjects)) AS k
			WHERE NOT EXISTS (SELECT FROM river_job AS j WHERE j.kind = k.kind AND j.state IN ('available', 'running', 'scheduled', 'retryable'))`)
		require.NoError(t, err)
		if err := pool.QueryRow(t.Context(), waits, len(want.records), len(want.shares)).Scan(&left); err != nil {
			left = err.Error()
		}
		return left == ""
	}) {
		t.Errorf("of %d records and %d shares: %s", len(want.records), len(want.shares), left)
	}

	const name = `replace(did, 'did:nostr:', '') || ' ' || replace(collection, 'nostr.', '') || ' ' || rkey`
	require.Equal(t, want.records,
		sortedRows(t, pool, `SELECT `+name+` || ' ' || (record ->> 'id') || ' ' || md5(record ->> 'content')`+records))
	require.Equal(t, want.shares, sortedRows(t, pool, `SELECT `+name+` || ' ' || how || ' ' || l.identity`+shares))
	require.Equal(t, want.erased,
		sortedRows(t, pool, `SELECT replace(did, 'did:nostr:', '') || ' ' || erased_rev FROM accounts WHERE erased_rev IS NOT NULL`))

	tombstones := map[string]string{}
	for _, row := range sortedRows(t, pool, `SELECT rev || ' ' || `+name+` FROM tombstones WHERE collection LIKE 'nostr.%'`) {
		rev, name, _ := strings.Cut(row, " ")
		if least := want.tombstones[name]; rev > least && slices.Contains(want.expiring[name], rev) {
			rev = least
		}
		if rev != "" {
			tombstones[name] = rev
		}
	}
	require.Equal(t, want.tombstones, tombstones)
	require.Zero(t, count(t, pool, `SELECT count(*) FROM tombstones WHERE collection LIKE 'nostr.%' AND deleted_at IS NOT NULL`),
		"a tombstone of Nostr must not expire: a relay may send the event at any time")

	real := map[string]bool{}
	for _, e := range nostr.Events() {
		real[e.ID] = true
	}
	var forged []string
	for _, e := range nostr.Forged() {
		if !real[e.ID] {
			forged = append(forged, e.ID[:32])
		}
	}
	require.NotEmpty(t, forged)
	var seen int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM seen WHERE id = ANY ($1::uuid[])`, forged).Scan(&seen))
	require.Zero(t, seen)
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
