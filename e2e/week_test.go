package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

const (
	weekDays    = 10                            // tombstones stay for seven
	weekStep    = 12*time.Hour + 10*time.Minute // keeps events away from the edge of a window
	weekFollows = 300                           // at most
	weekStrange = 20                            // accounts that nobody follows and whose posts are reposted
)

// week is two networks and an instance that reads them. All clocks are stepped together.
type week struct {
	t      *testing.T
	random *rand.Rand
	later  time.Duration
	clock  wallClock
	pool   *pgxpool.Pool
	env    []string
	serve  *process

	net       *simnet.Net
	nostr     *simnet.Nostr
	authors   int      // followed authors of Nostr
	follows   []string // followed accounts of Bluesky
	strangers []string
	acts      []*act
	written   int
	patience  time.Duration
}

// act is an action of an account that may share a link.
type act struct {
	who, network string
	author       int // the author's number in Nostr
	followed     bool
	at           time.Time
	link         string
	own          bool // the link is in the act's own text, not in that of its subject
	name         string
	event        *simnet.NostrEvent
	subject      *act
	gone         bool
}

func (w *week) now() time.Time { return time.Now().Add(w.later) }

func (w *week) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.pool.Exec(w.t.Context(), sql, args...)
	require.NoError(w.t, err)
}

// newWeek follows this many accounts, a fifth of them in Nostr.
func newWeek(t *testing.T, follows int) *week {
	t.Helper()
	authors := follows / 5
	w := &week{t: t, authors: authors, random: rand.New(rand.NewPCG(3, 3)), clock: newWallClock(t)}
	var err error
	w.net, err = simnet.New(simnet.Config{
		Seed: 14, Accounts: 400, Follows: follows - authors, History: 50, HistorySpan: time.Hour, Start: time.Now().Add(-48 * time.Hour),
	})
	require.NoError(t, err)
	startNetwork(t, w.net)
	w.nostr, err = simnet.NewNostr(simnet.NostrConfig{
		Seed: 9, Authors: authors + 1, Now: time.Now(), Relays: []simnet.NostrRelay{{Page: 100}, {Page: 60, Silent: true}},
	})
	require.NoError(t, err)
	t.Cleanup(w.nostr.Stop)
	var tags [][]string
	for author := range authors {
		tags = append(tags, []string{"p", w.nostr.Key(author + 1)})
	}
	w.nostr.WriteAs(0, nil, time.Now().Unix()-1000, 3, tags, "")
	hub := w.net.Hub()
	w.follows = w.net.Follows(hub.DID)
	for _, a := range w.net.Accounts() {
		if len(w.strangers) < weekStrange && a.DID != hub.DID && !slices.Contains(w.follows, a.DID) {
			w.strangers = append(w.strangers, a.DID)
		}
	}

	database := schematest.NewURL(t)
	w.pool = open(t, database)
	w.exec(steppedClock)
	w.pool.Reset()
	w.env = append(keeping(follower(w.net, database)), w.clock.env(),
		"WEIR_COLLECTIONS=app.bsky.feed.post,app.bsky.feed.repost,nostr.1,nostr.6", "WEIR_RETENTION=24h", "WEIR_SHARE_RETENTION=48h",
		"WEIR_NOSTR="+strings.Join(w.nostr.URLs(), ","), "WEIR_START=oldest")
	succeed(t, w.env, "watch", "add", npubOf(t, w.nostr.Key(0)))
	succeed(t, w.env, "watch", "add", hub.Handle)
	return w
}

// steppedClock has the database's clock follow a row, column defaults included.
const steppedClock = steppableClock + `;
DO $$ DECLARE c record; BEGIN
    FOR c IN SELECT a.attrelid::regclass AS t, a.attname AS name, pg_get_expr(d.adbin, d.adrelid) AS expr
             FROM pg_attrdef AS d JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
             JOIN pg_class AS r ON r.oid = a.attrelid AND r.relkind IN ('r', 'p') AND r.relnamespace = 'public'::regnamespace
             WHERE a.attgenerated = '' AND pg_get_expr(d.adbin, d.adrelid) ~ 'now\(\)' LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s', c.t, c.name, replace(c.expr, 'now()', 'stepped.now()'));
    END LOOP;
END $$`

// travel stops the process and sets all clocks ahead.
func (w *week) travel(by time.Duration) {
	w.t.Helper()
	if w.serve != nil {
		w.serve.signal(syscall.SIGTERM)
		require.Zero(w.t, w.serve.wait(w.t, patience), w.serve.stderr.String())
	}
	w.later += by
	w.net.Travel(w.later)
	w.clock.step(w.later)
	w.exec(`UPDATE stepped.clock SET by = $1`, w.later)
}

// live starts the process.
func (w *week) live() {
	w.t.Helper()
	program, err := steppable()
	require.NoError(w.t, err)
	w.serve = startProgram(w.t, program, w.env, "serve")
}

// recent returns a random act of the last day in a network that can be referred to, or nil.
func (w *week) recent(network string, fits func(*act) bool) *act {
	var all []*act
	for _, a := range w.acts {
		if a.network == network && !a.gone && a.own && w.now().Sub(a.at) < 24*time.Hour && fits(a) {
			all = append(all, a)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[w.random.IntN(len(all))]
}

// link returns one of a few links that both networks share, or a new one.
func (w *week) link() string {
	if w.random.IntN(2) == 0 {
		return fmt.Sprintf("https://news.example/%d", w.random.IntN(25))
	}
	return fmt.Sprintf("https://news.example/once/%d", w.written)
}

// play has accounts of both networks post, repost, quote and delete.
func (w *week) play(count int) {
	w.t.Helper()
	for range count {
		w.written++
		if w.random.IntN(3) == 0 {
			w.actNostr(w.random.IntN(20))
		} else {
			w.actBluesky(w.random.IntN(20))
		}
	}
}

func (w *week) actBluesky(dice int) {
	who, followed := w.follows[w.random.IntN(len(w.follows))], true
	if dice == 0 {
		who, followed = w.strangers[w.random.IntN(len(w.strangers))], false
	}
	a := &act{network: "bluesky", who: who, followed: followed, at: w.now()}
	var e *simnet.Entry
	var err error
	switch subject := w.recent("bluesky", func(s *act) bool { return s.who != who }); {
	case dice >= 17: // deletes an act of a followed account
		w.forget("bluesky", func(a *act) { require.NoError(w.t, w.net.DeleteRecord(a.name)) })
		return
	case dice >= 12 && subject != nil && dice%2 == 0:
		a.subject, a.link = subject, subject.link
		e, err = w.net.RepostNow(who, subject.name)
	case dice >= 12 && subject != nil:
		a.subject, a.link = subject, subject.link
		e, err = w.net.QuoteNow(who, subject.name, fmt.Sprint("look ", w.written))
	default:
		a.own, a.link = true, w.link()
		e, err = w.net.PostNow(who, fmt.Sprint("post ", w.written), a.link)
	}
	require.NoError(w.t, err)
	a.name = "at://" + e.DID + "/" + e.Collection + "/" + e.Rkey
	w.acts = append(w.acts, a)
}

func (w *week) actNostr(dice int) {
	author := 1 + w.random.IntN(w.authors)
	a := &act{network: "nostr", who: w.nostr.Key(author), author: author, followed: true, at: w.now().Truncate(time.Second)}
	write := func(kind int, tags [][]string, content string) {
		a.event = w.nostr.WriteAs(author, nil, a.at.Unix(), kind, tags, content)
		w.acts = append(w.acts, a)
	}
	switch subject := w.recent("nostr", func(s *act) bool { return s.who != a.who }); {
	case dice >= 17:
		w.forget("nostr", func(a *act) {
			w.nostr.WriteAs(a.author, nil, w.now().Unix(), 5, [][]string{{"e", a.event.ID}}, "")
		})
	case dice >= 12 && subject != nil && dice%2 == 0:
		a.subject, a.link = subject, subject.link
		// Two reposts of one note in the same second would be the same event.
		write(6, [][]string{{"e", subject.event.ID}, {"p", subject.who}, {"alt", fmt.Sprint("repost ", w.written)}}, "")
	case dice >= 12 && subject != nil:
		a.subject, a.link = subject, subject.link
		write(1, [][]string{{"q", subject.event.ID, "", subject.who}}, fmt.Sprint("look ", w.written))
	default:
		a.own, a.link = true, w.link()
		write(1, nil, fmt.Sprint("note ", w.written, " ", a.link))
	}
}

// forget deletes a random act of a followed account.
func (w *week) forget(network string, do func(*act)) {
	var all []*act
	for _, a := range w.acts {
		if a.network == network && a.followed && !a.gone && w.now().Sub(a.at) < 24*time.Hour {
			all = append(all, a)
		}
	}
	if len(all) > 0 {
		a := all[w.random.IntN(len(all))]
		do(a)
		a.gone = true
	}
}

// want returns how many accounts share each link.
func (w *week) want(window time.Duration, network string) map[string]int {
	people := map[string]map[string]bool{}
	for _, a := range w.acts {
		if a.gone || !a.followed || a.subject != nil && a.subject.gone || w.now().Sub(a.at) >= window || network != "" && network != a.network {
			continue
		}
		if people[a.link] == nil {
			people[a.link] = map[string]bool{}
		}
		people[a.link][a.who] = true
	}
	counts := map[string]int{}
	for link, who := range people {
		counts[link] = len(who)
	}
	return counts
}

// found returns the ranking that the API returns.
func (w *week) found(query string) map[string]int {
	counts, cursor := map[string]int{}, ""
	for {
		text, err := get(w.serve.page(w.t) + "api/v1/trending?limit=200&" + query + cursor)
		require.NoError(w.t, err)
		var page struct {
			Next  string
			Links []struct {
				URL     string `json:"url"`
				Sharers int    `json:"sharers"`
			} `json:"links"`
		}
		require.NoError(w.t, json.Unmarshal([]byte(text), &page), text)
		for _, l := range page.Links {
			counts[l.URL] = l.Sharers
		}
		if cursor = "&cursor=" + url.QueryEscape(page.Next); page.Next == "" {
			return counts
		}
	}
}

// equal waits until every ranking is that of the acts.
func (w *week) equal() {
	w.t.Helper()
	var problems []string
	ctx, cancel := context.WithTimeout(w.t.Context(), w.patience)
	defer cancel()
	require.True(w.t, eventually.Loop(ctx, 400*time.Millisecond, func() bool {
		w.exec(`SELECT enqueue_job('check_subjects', 'network', '{}', '{periodic}')
		WHERE EXISTS (SELECT FROM changed_subjects UNION ALL SELECT FROM subjects WHERE fetch_at <= now())
			AND NOT EXISTS (SELECT FROM river_job WHERE kind = 'check_subjects' AND state IN ('available', 'running'))`)
		for _, network := range []string{"", "bluesky", "nostr"} {
			for _, hours := range []int{1, 3, 6, 12, 24} {
				query := fmt.Sprintf("window=%dh", hours)
				if network != "" {
					query += "&network=" + network
				}
				if differ := differences(w.want(time.Duration(hours)*time.Hour, network), w.found(query)); len(differ) > 0 {
					problems = append([]string{query}, differ...)
					return false
				}
			}
		}
		return true
	}), "after %s: %q", w.later, &problems)
}

// differences names the links that two rankings count differently.
func differences(want, found map[string]int) (all []string) {
	links := map[string]int{}
	maps.Copy(links, want)
	maps.Copy(links, found)
	for _, link := range slices.Sorted(maps.Keys(links)) {
		if want[link] != found[link] {
			all = append(all, fmt.Sprintf("%s by %d, found %d", link, want[link], found[link]))
		}
	}
	return all
}

// sizes expires due rows, waits until everything is counted, and returns the number of rows of each
// table that may not grow. The counter first runs a second after the process has started, which is
// longer than most steps take.
func (w *week) sizes() map[string]int {
	w.t.Helper()
	w.exec(`
		SELECT enqueue_job('expire', 'maintenance', '{}', '{periodic}')
		WHERE NOT EXISTS (SELECT FROM river_job WHERE kind = 'expire' AND finalized_at IS NULL)`)
	finishes(w.t, 50*time.Millisecond, func() (int, error) {
		return tryCount(w.pool, `SELECT count(*) FROM river_job WHERE kind IN ('expire', 'process_posts') AND state IN ('available', 'running')`)
	}, "jobs are left")
	finishes(w.t, 50*time.Millisecond, func() (int, error) { return tryCount(w.pool, `SELECT count(*) FROM pending_counts`) },
		"not everything is counted")
	finishes(w.t, 50*time.Millisecond, func() (int, error) { return tryCount(w.pool, `SELECT count(*) FROM listing_members`) },
		"rows of a listing are left")
	all := map[string]int{}
	for _, table := range texts(w.t, w.pool, `
		SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
		    AND relname NOT LIKE 'river_%'`) {
		all[table] = count(w.t, w.pool, `SELECT count(*) FROM `+table)
	}
	all["tombstones"] = count(w.t, w.pool, `SELECT count(*) FROM tombstones WHERE deleted_at IS NOT NULL`)
	return all
}

// TestWeekOfTwoNetworks plays ten days with -week-events events a day, by up to 300 followed
// accounts of both networks. Twice a day the ranking is that of the acts, for both networks
// together and for each. Records expire after a day, shares after two and tombstones after seven.
// So no table has more rows on the last two days than on the fifth and sixth, except the seen ids
// of Nostr and its tombstones, which stay.
func TestWeekOfTwoNetworks(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	each := *weekEvents
	w := newWeek(t, min(weekFollows, each*3/4))
	w.patience = patience + time.Duration(each)*100*time.Millisecond
	var sizes []map[string]int // by day
	for step := range 2 * weekDays {
		w.travel(weekStep)
		w.play(each / 4) // while the process is down
		w.live()
		w.play(each / 4)
		w.equal()
		if step%2 == 1 {
			sizes = append(sizes, w.sizes())
			t.Logf("day %d: %v", len(sizes), sizes[len(sizes)-1])
		}
	}
	// pending_counts holds what has not been counted yet
	stays := []string{"seen", "audits", "audit_faults", "relay_audits", "pending_counts", "tombstones"}
	for table, rows := range sizes[weekDays-1] {
		if !slices.Contains(stays, table) { // a table that kept everything would have grown by four of six days
			before := sizes[4][table] + sizes[5][table]
			require.LessOrEqual(t, sizes[weekDays-2][table]+rows, before+before*15/100+40, table)
		}
	}
	require.Zero(t, count(t, w.pool, `SELECT count(*) FROM tombstones WHERE deleted_at < now() - interval '8 days'`),
		"tombstones must expire after seven days")
	require.Zero(t, count(t, w.pool, `SELECT count(*) FROM dead_letters`))
	require.Zero(t, count(t, w.pool, `SELECT count(*) FROM gaps WHERE closed_at IS NULL`))
	succeed(t, w.env, "recount", "--check")
	stopServe(t, w.serve)
}
