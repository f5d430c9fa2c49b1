//go:build losstable

package e2e

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// contender is one of the programs that the loss table compares, with its own Postgres.
type contender struct {
	name, version string
	server        *devpg.Server
	pool          *pgxpool.Pool
	members       []*member
	records       string            // the query of the posts that it shows: did, collection, rkey, cid
	handed        string            // the query of what it handed to the application: "did/collection/rkey", and how often
	early         []string          // statements that bring forward what it has scheduled for later
	cannot        map[string]string // faults that it cannot face, and why
	followed      map[string]bool
	comparison
}

// comparison is how a contender compares with the log.
type comparison struct {
	compared   bool
	found      int
	was, wrong map[recordKey]string
	took       time.Duration // for the backlog
	spent      time.Duration // of processor time, for the backlog
}

// member is one of its processes, which is started again when it ends, as systemd does.
type member struct {
	program string
	env     []string
	args    []string
	up      bool
	begun   time.Time
	*process
	ended time.Duration // the processor time of its runs before this one
	peaks []func() float64
}

func contenders(t *testing.T, n *simnet.Net, followed []string) []*contender {
	t.Helper()
	tools, tapVersion := buildLossTools(t)
	weir := &contender{name: "Weir", version: "this one",
		records: `SELECT r.did, r.collection, r.rkey, r.cid FROM records AS r LEFT JOIN accounts AS a USING (did)
			WHERE r.collection = 'app.bsky.feed.post' AND coalesce(a.status, 'active') <> 'deleted'`,
		handed: `SELECT record, count(*) FROM river_job, jsonb_array_elements_text(args -> 'records') AS record
			WHERE kind = 'process_posts' GROUP BY 1`,
		early: []string{dueResyncs, `SELECT retry_dead_letters('verify', 'retryable')`}}
	database := weir.open(t)
	env := append(append(alone(n, database), readsRelay(n)...), "WEIR_VERIFY=chained", "WEIR_COLLECTIONS="+schema.PostCollection,
		"WEIR_API_INTERVAL=0s") // tap has no limit of its calls either
	succeed(t, env, "migrate")
	for _, did := range followed {
		_, err := weir.pool.Exec(t.Context(), `INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
		require.NoError(t, err)
	}
	weir.members = []*member{{program: binary, env: env, args: []string{"serve"}}}

	const shown = `SELECT did, collection, rkey, cid FROM records`
	const handed = `SELECT concat_ws('/', did, collection, rkey), count(*) FROM handed GROUP BY 1`
	tap := &contender{name: "tap", version: tapVersion, records: shown, handed: handed,
		early: []string{`UPDATE repos SET retry_after = 0 WHERE retry_after > 0`}}
	database, at := tap.open(t), freeAddress(t)
	tap.members = []*member{
		{program: tools + "/tap", args: []string{"run"}, env: []string{"TAP_DATABASE_URL=" + database, "TAP_BIND=" + at,
			"TAP_RELAY_URL=http://" + n.Address(), "TAP_PLC_URL=" + withoutHandles(t, n),
			"TAP_COLLECTION_FILTERS=" + schema.PostCollection, "TAP_RETRY_TIMEOUT=10s", "TAP_LOG_LEVEL=warn"}},
		{program: tools + "/tapreader", env: []string{"TAP=ws://" + at + "/channel", "DATABASE_URL=" + database}},
	}
	tap.tracks(t, at, followed)

	naive := &contender{name: "a naive consumer", version: "e2e/losstable/naive", records: shown, handed: handed,
		cannot: map[string]string{}}
	for _, f := range lossFaults() {
		if f.relay != "" {
			naive.cannot[f.name] = f.relay
		}
	}
	filter := url.Values{"wantedCollections": {schema.PostCollection}, "wantedDids": followed}
	naive.members = []*member{{program: tools + "/naive",
		env: []string{"DATABASE_URL=" + naive.open(t), "JETSTREAM=" + n.URL() + "?" + filter.Encode()}}}
	all := []*contender{weir, tap, naive}
	for _, c := range all {
		c.followed = map[string]bool{}
		for _, did := range followed {
			c.followed[did] = true
		}
	}
	return all
}

// open starts its Postgres.
func (c *contender) open(t *testing.T) (database string) {
	c.server = schematest.Server(t)
	database = c.server.URL("weir")
	c.pool = open(t, database)
	return database
}

// tracks tells tap which accounts to read, as its README says, and stops it again.
func (c *contender) tracks(t *testing.T, at string, followed []string) {
	c.members[0].start(t)
	body := `{"dids": ["` + strings.Join(followed, `", "`) + `"]}`
	eventually.True(t, func() bool {
		response, err := http.Post("http://"+at+"/repos/add", "application/json", strings.NewReader(body))
		return err == nil && response.Body.Close() == nil && response.StatusCode == http.StatusOK
	}, 100*time.Millisecond)
	c.kill()
}

// withoutHandles is the network's directory with documents that declare no handle. The network's handles end in .example,
// and tap reads no account whose handle it refuses to look up.
func withoutHandles(t *testing.T, n *simnet.Net) string {
	directory, err := url.Parse(n.DirectoryURL())
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(directory)
	proxy.ModifyResponse = func(response *http.Response) error {
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		body = handleDeclared.ReplaceAll(body, []byte(`"alsoKnownAs":[]`))
		response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		response.Header.Set("Content-Length", strconv.Itoa(len(body)))
		return nil
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server.URL
}

var handleDeclared = regexp.MustCompile(`"alsoKnownAs":\[[^]]*\]`)

func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func (m *member) start(t *testing.T) {
	m.up, m.begun = true, time.Now()
	m.process = startProgram(t, m.program, m.env, m.args...)
	m.peaks = append(m.peaks, watchMemory(m.cmd.Process.Pid))
}

func (c *contender) start(t *testing.T) {
	for _, m := range c.members {
		m.start(t)
	}
}

// supervise starts what ended by itself, once a second.
func (c *contender) supervise(t *testing.T) {
	for _, m := range c.members {
		if !m.up || time.Since(m.begun) < time.Second {
			continue
		}
		select {
		case <-m.exited:
			m.bury()
			m.start(t)
		default:
		}
	}
}

func (c *contender) kill() {
	for _, m := range c.members {
		if m.up {
			m.process.kill()
			m.bury()
		}
	}
}

// bury keeps what a run has cost.
func (m *member) bury() {
	m.up = false
	m.ended += m.cmd.ProcessState.UserTime() + m.cmd.ProcessState.SystemTime()
}

const tickOfKernel = 10 * time.Millisecond

// cpu is the processor time of its processes so far, and of its Postgres since that started.
func (c *contender) cpu() (all time.Duration) {
	for _, m := range c.members {
		all += m.ended
		if m.up {
			p, _ := parseProcess(m.cmd.Process.Pid) // zero if it has just ended
			all += time.Duration(p.own) * tickOfKernel
		}
	}
	postmaster, _ := parseProcess(c.server.PID())
	ticks := postmaster.own + postmaster.ended
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			if p, err := parseProcess(pid); err == nil && p.parent == c.server.PID() {
				ticks += p.own
			}
		}
	}
	return all + time.Duration(ticks)*tickOfKernel
}

// peak is the largest memory of each of its processes, together, in MB. It kills them.
func (c *contender) peak() (sum float64) {
	c.kill()
	for _, m := range c.members {
		most := 0.0
		for _, peak := range m.peaks {
			most = max(most, peak())
		}
		m.peaks = nil
		sum += most
	}
	return sum
}

// forward brings forward what it would do later.
func (c *contender) forward() {
	for _, sql := range c.early {
		c.pool.Exec(context.Background(), sql) // Postgres may be down, and is asked again
	}
}

// read returns the CIDs of what it shows.
func (c *contender) read(ctx context.Context) (map[recordKey]string, error) {
	rows, err := c.pool.Query(ctx, c.records)
	if err != nil {
		return nil, err
	}
	found := map[recordKey]string{}
	var k recordKey
	var cid string
	_, err = pgx.ForEachRow(rows, []any{&k.did, &k.collection, &k.rkey, &cid}, func() error {
		if c.followed[k.did] {
			found[k] = cid
		}
		return nil
	})
	return found, err
}

// compare finds what is wrong in its table. Accounts that are hidden now are left out.
func (c *contender) compare(r *lossRun) error {
	c.compared = false
	found, err := c.read(r.t.Context())
	if err != nil {
		return err
	}
	hidden := map[string]bool{}
	for _, did := range r.followed {
		a, _ := r.net.Account(did)
		hidden[did] = a.Status != "" && a.Status != "deleted"
	}
	wrong := map[recordKey]string{}
	for key, cid := range r.want {
		switch got, ok := found[key]; {
		case hidden[key.did]:
		case !ok:
			wrong[key] = "lost"
		case got != cid:
			wrong[key] = "stale"
		}
	}
	for key := range found {
		if _, ok := r.want[key]; ok || hidden[key.did] {
			continue
		}
		wrong[key] = "forged"
		if r.ever[key] > 0 {
			wrong[key] = "resurrected"
		}
	}
	c.compared, c.found, c.wrong = true, len(found), wrong
	return nil
}

// lossKinds are the ways in which a row can be wrong.
func lossKinds() []string { return []string{"lost", "stale", "resurrected", "forged"} }

// cell says what is wrong since a fault, in the order of lossKinds.
func (c *contender) cell(fault string) string {
	if why := c.cannot[fault]; why != "" {
		return "– (" + string(why[0]) + ")"
	}
	counts := map[string]int{}
	for key, how := range c.wrong {
		if c.was[key] != how {
			counts[how]++
		}
	}
	if len(counts) == 0 {
		return "0"
	}
	var parts []string
	for _, how := range lossKinds() {
		parts = append(parts, strconv.Itoa(counts[how]))
	}
	return strings.Join(parts, " / ")
}

// doubled is how often it handed a record to the application beyond the number of the record's events.
func (c *contender) doubled(r *lossRun) (times int) {
	rows, err := c.pool.Query(r.t.Context(), c.handed)
	require.NoError(r.t, err)
	var name string
	var often int
	_, err = pgx.ForEachRow(rows, []any{&name, &often}, func() error {
		part := strings.Split(name, "/")
		key := recordKey{part[1], part[0], part[2]}
		if c.followed[key.did] && key.collection == schema.PostCollection {
			times += max(0, often-r.ever[key])
		}
		return nil
	})
	require.NoError(r.t, err)
	return times
}
