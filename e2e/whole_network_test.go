package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// mostRequested is how many accounts one connection can request.
const mostRequested = 10_000

// crossing is a network with 100 followed accounts that write. Accounts that never write are
// followed too, as many as a test needs to cross mostRequested. Feeds are not read, so events that
// the stream loses stay lost.
type crossing struct {
	t        *testing.T
	net      *simnet.Net
	pool     *pgxpool.Pool
	env      []string
	followed []string // the followed accounts that write
}

func newCrossing(t *testing.T) *crossing {
	t.Helper()
	c := &crossing{t: t, net: network(t, 6000)}
	database := schematest.NewURL(t)
	c.pool = open(t, database)
	c.env = append(reads(c.net, database), "WEIR_APPVIEW=http://127.0.0.1:1", "WEIR_JOB_TIMEOUT=1m", "WEIR_RESCUE_AFTER=5m")
	c.exec(`INSERT INTO river_queue (name, paused_at, updated_at) VALUES ('backfill', now(), now()), ('network', now(), now())`)
	c.exec(`INSERT INTO watches (target) VALUES ('somebody.example')`)
	for _, a := range c.net.Accounts()[:100] {
		c.followed = append(c.followed, a.DID)
	}
	c.follow(c.followed...)
	return c
}

func (c *crossing) exec(sql string, args ...any) {
	c.t.Helper()
	_, err := c.pool.Exec(c.t.Context(), sql, args...)
	require.NoError(c.t, err)
}

func (c *crossing) follow(dids ...string) {
	c.t.Helper()
	c.exec(`INSERT INTO watch_members (watch_id, did) SELECT 1, unnest($1::text[])`, dids)
}

// total follows or unfollows accounts that never write, until this many accounts are followed.
func (c *crossing) total(accounts int) {
	c.t.Helper()
	silent := accounts - count(c.t, c.pool, `SELECT count(*) FROM watch_members WHERE did NOT LIKE 'did:plc:silent%'`)
	c.exec(`DELETE FROM watch_members WHERE did LIKE 'did:plc:silent%' AND substr(did, 15)::int > $1`, silent)
	c.exec(`
		INSERT INTO watch_members (watch_id, did) SELECT 1, 'did:plc:silent' || n FROM generate_series(1, $1::int) AS n ON CONFLICT DO NOTHING`,
		silent)
}

// requested waits until the last filter that a client sent has this many accounts; 0 means the
// whole network.
func (c *crossing) requested(accounts int) {
	c.t.Helper()
	eventually.True(c.t, func() bool {
		sizes := c.net.FilterSizes()
		return len(sizes) > 0 && sizes[len(sizes)-1] == accounts
	}, 20*time.Millisecond, "no filter of %d accounts", accounts)
}

// equal waits until the tables equal the log of the accounts that were always followed. The job
// that processes edits of reposted and quoted posts is in a paused queue, so equal enqueues it in
// another one. The job finds no stranger's post to fetch.
func (c *crossing) equal() {
	c.t.Helper()
	var problems []string
	eventually.True(c.t, func() bool {
		c.exec(`UPDATE subjects SET fetch_at = now() + interval '1 day' WHERE fetch_at <= now()`)
		c.exec(`SELECT enqueue_job('check_subjects', 'maintenance', '{}', '{periodic}') WHERE EXISTS (SELECT FROM changed_subjects)
			AND NOT EXISTS (SELECT FROM river_job WHERE kind = 'check_subjects' AND queue = 'maintenance' AND state IN ('available', 'running'))`)
		entries := slices.DeleteFunc(c.net.Log().Entries(), func(e *simnet.Entry) bool { return !slices.Contains(c.followed, e.DID) })
		var err error
		problems, err = fold(entries).problems(c.t.Context(), c.pool, time.Now().Truncate(time.Second).Add(time.Second).UTC())
		return err == nil && len(problems) == 0
	}, time.Second, "%v", &problems) // the jobs of a killed process are processed again after half a minute
}

// has waits until exactly these of the known posts are stored.
func (c *crossing) has(posts []string, known map[string]bool) {
	c.t.Helper()
	eventually.True(c.t, func() bool {
		return slices.Equal(posts, slices.DeleteFunc(stored(c.t, c.pool), func(post string) bool { return !known[post] }))
	}, 100*time.Millisecond, "posts are missing or not deleted")
}

// more waits for further posts.
func (c *crossing) more() {
	c.t.Helper()
	posts := count(c.t, c.pool, `SELECT count(*) FROM posts`)
	eventually.True(c.t, func() bool { return count(c.t, c.pool, `SELECT count(*) FROM posts`) > posts+20 }, 20*time.Millisecond)
}

// TestLimitCrossedWhileDownLosesNothing crosses the limit between two processes: the followed
// accounts become more than a connection can request, or few enough again. The second process reads
// what the first did not, also for accounts that were followed since.
//
// It fails if the second process begins at the tip because its filter is new, or if events of
// strangers are kept.
func TestLimitCrossedWhileDownLosesNothing(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	for name, above := range map[string]bool{"above": true, "below": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrossing(t)
			before, after := mostRequested, 0
			if c.total(mostRequested); !above {
				c.total(mostRequested + 1)
				before, after = 0, mostRequested*9/10
			}
			first := start(t, c.env, "serve")
			c.requested(before)
			c.equal()
			first.kill()
			rescued(t, c.pool, first)
			c.env = append(c.env, "WEIR_START=tip")

			offset := len(c.net.Log().Entries())
			c.net.Play(1500)
			sent := len(c.net.FilterSizes())
			if !above {
				c.total(mostRequested*9/10 - 20)
			}
			var late []string
			for _, a := range c.net.Accounts()[100:120] {
				late = append(late, a.DID)
			}
			c.follow(late...)
			second := start(t, c.env, "serve")
			c.has(standing(t, c.net.Log().Entries(), c.followed))
			c.has(standing(t, c.net.Log().Entries()[offset:], late))
			c.requested(after)
			require.Equal(t, []int{after}, slices.Compact(c.net.FilterSizes()[sent:]))
			require.Zero(t, count(t, c.pool, `SELECT count(*) FROM gaps`))
			require.Zero(t, count(t, c.pool, `
				SELECT count(*) FROM posts AS p WHERE NOT EXISTS (SELECT FROM watch_members AS w WHERE w.did = p.did)`))
			stopServe(t, second)
		})
	}
}

// TestLimitCrossedWhileTheyPost crosses the limit again and again, in two processes that share the
// stream. The holder of the lease is killed before some of the changes.
func TestLimitCrossedWhileTheyPost(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	c := newCrossing(t)
	c.total(mostRequested)
	processes := []*process{start(t, c.env, "serve"), start(t, c.env, "serve")}
	c.requested(mostRequested)
	stop := live(t, c.net, 150)
	defer stop()
	c.more()
	c.env = append(c.env, "WEIR_START=tip")
	for i := range 3 {
		if i > 0 {
			processes = c.killHolder(processes)
		}
		c.total(mostRequested + 1)
		c.requested(0)
		c.more()
		c.total(mostRequested*9/10 + 1) // the process requests the whole network until the number has fallen to nine tenths of the limit
		c.more()
		c.requested(0)
		if i > 1 {
			processes = c.killHolder(processes)
		}
		c.total(mostRequested * 9 / 10)
		c.requested(mostRequested * 9 / 10)
		c.more()
		c.total(mostRequested)
		c.requested(mostRequested)
	}
	stop()
	c.equal()
	require.Zero(t, count(t, c.pool, `SELECT count(*) FROM gaps`))
	for _, p := range processes {
		stopServe(t, p)
		require.NotContains(t, p.stderr.String(), `"level":"ERROR"`)
	}
	require.Equal(t, 1, count(t, c.pool, `SELECT count(*) FROM streams WHERE lease_owner IS NULL AND state = 'stopped'`))
	c.equal()
}

// killHolder kills the process that holds the stream's lease, and starts another one, which waits
// for the lease.
func (c *crossing) killHolder(processes []*process) []*process {
	c.t.Helper()
	holder := -1
	eventually.True(c.t, func() bool {
		owner := texts(c.t, c.pool, `SELECT coalesce(lease_owner, '') FROM streams`)[0]
		holder = slices.IndexFunc(processes, func(p *process) bool { return strings.Contains(owner, fmt.Sprintf("/%d/", p.cmd.Process.Pid)) })
		return holder >= 0
	}, 20*time.Millisecond)
	processes[holder].kill()
	rescued(c.t, c.pool, processes[holder])
	return append(slices.Delete(processes, holder, holder+1), start(c.t, c.env, "serve"))
}

// standing returns the posts of some accounts that a part of the log created and did not delete,
// sorted. known contains all posts of these accounts that it created. Posts of accounts that are
// not active at the end are in neither.
func standing(t *testing.T, entries []*simnet.Entry, dids []string) (posts []string, known map[string]bool) {
	t.Helper()
	gone := map[string]bool{}
	for _, e := range entries {
		if e.Kind == "account" {
			gone[e.DID] = !e.Active
		}
	}
	known, deleted := map[string]bool{}, map[string]bool{}
	for _, e := range entries {
		key := e.DID + "/" + e.Rkey
		switch {
		case e.Kind != "commit" || e.Collection != schema.PostCollection || gone[e.DID] || !slices.Contains(dids, e.DID):
		case e.Operation == "create":
			known[key], deleted[key] = true, false
		case e.Operation == "delete" && known[key]:
			deleted[key] = true
		}
	}
	require.NotEmpty(t, known, "the test needs posts")
	for post := range known {
		if !deleted[post] {
			posts = append(posts, post)
		}
	}
	slices.Sort(posts)
	return posts, known
}
