//go:build losstable

package e2e

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

var lossFaultsPlayed = flag.Int("loss-faults", 0, "how many faults TestLossTable injects; 0: all")

// lossRun is one run of the loss table: Weir, tap with a consumer, and a naive consumer of Jetstream read the posts of
// the same accounts of one network, each into a Postgres of its own, and meet the same faults at the same moments.
type lossRun struct {
	t        *testing.T
	net      *simnet.Net
	random   *rand.Rand
	followed []string // the accounts to read
	scripted []string // those of them that only do what the faults script
	before   map[string][]*simnet.Entry
	all      []*contender

	want   map[recordKey]string // CIDs; of the first folded entries of the log
	ever   map[recordKey]int    // the events of each record
	folded int
}

const (
	lossAccounts = 300
	lossFollowed = 60
	lossScripted = 8
	lossRate     = 200 // events a second during a fault
	lossCatchUp  = 20_000
)

// TestLossTable counts what Weir, tap and a naive consumer lose. It judges nobody: it fails only if Weir does not keep
// what it promises, and prints what comes out.
func TestLossTable(t *testing.T) {
	s := cmp.Or(*chaosSeed, 1)
	r := newLossRun(t, s)
	r.start()
	r.settle("the start", lossStill)
	r.live(600) // so that everybody has a cursor
	r.settle("the first events", lossStill)
	faults := lossFaults()
	last := len(faults) - 1 // it may end a reader for good
	if *lossFaultsPlayed > 0 {
		last = min(last, *lossFaultsPlayed)
	}
	var rows [][]string
	for _, f := range faults[:last] {
		rows = append(rows, r.meet(f))
	}
	r.catchUp()
	if *lossFaultsPlayed == 0 {
		rows = append(rows, r.meet(faults[last]))
	}
	r.publish(s, rows)
	require.Empty(t, r.all[0].wrong, "Weir")
}

// meet injects a fault and returns the table's line of it.
func (r *lossRun) meet(f lossFault) []string {
	r.kill() // so that no fault is blamed for what an earlier one has left in memory
	r.start()
	r.settle("a restart", lossStill/2)
	for _, c := range r.all {
		c.was = c.wrong
	}
	began := time.Now()
	f.do(r)
	r.everyoneWrites("after: " + f.name)
	took := r.settle(f.name, lossStill)
	row := []string{f.name}
	for _, c := range r.all {
		row = append(row, c.cell(f.name))
	}
	r.t.Logf("%v, the fault lasted %s, the repair %s", row, took.Sub(began).Round(time.Second), time.Since(took).Round(time.Second))
	return row
}

func newLossRun(t *testing.T, s uint64) *lossRun {
	t.Helper()
	n, err := simnet.New(simnet.Config{Seed: s, Accounts: lossAccounts, History: 3000, HistorySpan: time.Hour})
	require.NoError(t, err)
	startNetwork(t, n)
	r := &lossRun{t: t, net: n, random: rand.New(rand.NewPCG(s, s)), before: map[string][]*simnet.Entry{}}
	for _, a := range n.Accounts() {
		if a.Status == "" && len(r.followed) < lossFollowed && len(current(n, []string{a.DID})) > 0 {
			r.followed = append(r.followed, a.DID)
		}
	}
	require.Len(t, r.followed, lossFollowed)
	r.scripted = r.followed[:lossScripted]
	for _, did := range r.scripted {
		leaveAlone(t, n, did)
	}
	r.all = contenders(t, n, r.followed)
	r.everyoneWrites("before the first fault")
	return r
}

func (r *lossRun) live(events int) { r.liveAt(lossRate, events) }

// liveAt generates events at a steady rate per second, and starts processes that ended.
func (r *lossRun) liveAt(rate time.Duration, events int) {
	const each = 10
	tick := time.NewTicker(time.Second * each / rate)
	defer tick.Stop()
	for range events / each {
		<-tick.C
		r.net.Play(each)
		r.supervise()
	}
}

func (r *lossRun) each(do func(c *contender)) {
	for _, c := range r.all {
		do(c)
	}
}

func (r *lossRun) start()     { r.each(func(c *contender) { c.start(r.t) }) }
func (r *lossRun) kill()      { r.each((*contender).kill) }
func (r *lossRun) supervise() { r.each(func(c *contender) { c.supervise(r.t) }) }

func (r *lossRun) fault(f simnet.Fault) { require.NoError(r.t, r.net.Do(f)) }

// victim is a scripted account with posts that everybody has stored.
func (r *lossRun) victim() string { return r.scripted[r.random.IntN(len(r.scripted))] }

func (r *lossRun) says(did, text string) *simnet.Entry {
	e, err := r.net.PostNow(did, text, "https://loss.example/"+strings.ReplaceAll(text, " ", "-"))
	require.NoError(r.t, err)
	return e
}

// everyoneWrites has each account that is read write a post, so that a reader of chains sees what it has missed, and
// each scripted one four, for the next fault.
func (r *lossRun) everyoneWrites(text string) {
	for _, did := range r.followed {
		if a, _ := r.net.Account(did); a.Status != "" {
			continue
		}
		r.says(did, text)
		if slices.Contains(r.scripted, did) {
			r.before[did] = nil
			for i := range 4 {
				r.before[did] = append(r.before[did], r.says(did, fmt.Sprintf("%s %d", text, i)))
			}
		}
	}
}

// changes edits a post, deletes two, writes one of these again under its key, and adds one.
func (r *lossRun) changes(did string) {
	posts := r.before[did]
	_, err := r.net.EditPost(uriOf(posts[0]), "edited")
	require.NoError(r.t, err)
	require.NoError(r.t, r.net.DeleteRecord(uriOf(posts[1])))
	require.NoError(r.t, r.net.DeleteRecord(uriOf(posts[2])))
	r.again(posts[2])
	r.says(did, "new")
}

// again writes a deleted post again, under its key.
func (r *lossRun) again(e *simnet.Entry) {
	record := fmt.Sprintf(`{"$type":"app.bsky.feed.post","text":"again","createdAt":%q}`, time.Now().UTC().Format(time.RFC3339))
	_, err := r.net.PutRecord(e.DID, e.Collection, e.Rkey, []byte(record))
	require.NoError(r.t, err)
}

// fold updates what must be stored.
func (r *lossRun) fold() {
	entries := r.net.Log().Entries()
	if len(entries) == r.folded {
		return
	}
	r.folded, r.want, r.ever = len(entries), map[recordKey]string{}, map[recordKey]int{}
	for _, e := range entries {
		if e.Kind == "commit" {
			r.ever[recordKey{e.Collection, e.DID, e.Rkey}]++
		}
	}
	for key, row := range fold(entries, schema.PostCollection).records {
		if a, _ := r.net.Account(key.did); slices.Contains(r.followed, key.did) && a.Status != "deleted" {
			r.want[key] = row.cid
		}
	}
}

const (
	lossStill   = 75 * time.Second // what is wrong and has not changed for so long stays wrong: tap notices silence after a minute
	lossLongest = 6 * time.Minute
)

// settle waits until every table is right, or has not changed for a while, and returns when it began to.
func (r *lossRun) settle(after string, still time.Duration) (began time.Time) {
	began = time.Now()
	changed, last := began, ""
	eventually.Loop(r.t.Context(), time.Second, func() bool {
		r.supervise()
		r.fold()
		state := ""
		for _, c := range r.all {
			c.forward()
			if err := c.compare(r); err != nil {
				state += err.Error() // Postgres or the tables are not there yet
			}
			state += fmt.Sprintln(len(c.wrong), c.found)
		}
		if state != last {
			changed, last = time.Now(), state
		}
		right := !slices.ContainsFunc(r.all, func(c *contender) bool { return !c.compared || len(c.wrong) > 0 })
		return right || time.Since(changed) > still || time.Since(began) > lossLongest
	})
	if time.Since(began) > lossLongest {
		r.t.Logf("after %s something still changes: %s", after, last)
	}
	return began
}

// catchUp measures, one after the other, how fast each reads what happened while it was down.
func (r *lossRun) catchUp() {
	r.kill()
	was := len(r.net.Log().Entries())
	r.net.Play(lossCatchUp)
	r.everyoneWrites("the end of the backlog")
	r.fold()
	last := map[recordKey]string{} // what only the backlog wrote
	for _, e := range r.net.Log().Entries()[was:] {
		key := recordKey{e.Collection, e.DID, e.Rkey}
		if cid, ok := r.want[key]; ok {
			last[key] = cid
		}
	}
	for _, c := range r.all {
		cpu, began := c.cpu(), time.Now()
		c.start(r.t)
		eventually.Loop(r.t.Context(), 100*time.Millisecond, func() bool {
			c.supervise(r.t)
			c.forward()
			missing := len(last)
			if found, err := c.read(r.t.Context()); err == nil {
				for key, cid := range last {
					if found[key] == cid {
						missing--
					}
				}
			}
			return missing == 0 || time.Since(began) > 5*time.Minute
		})
		c.took, c.spent = time.Since(began), c.cpu()-cpu
		r.t.Logf("%s read %d events in %s, with %s of processor time", c.name, lossCatchUp, c.took.Round(10*time.Millisecond), c.spent)
		c.kill()
	}
	r.start()
	r.settle("the backlog", lossStill)
}

// buildLossTools builds tap and the readers, and returns their folder and tap's version.
func buildLossTools(t *testing.T) (dir, version string) {
	t.Helper()
	dir = t.TempDir()
	const module = "github.com/bluesky-social/indigo"
	run := func(args ...string) string {
		command := exec.Command("go", args...)
		command.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := command.CombinedOutput()
		require.NoError(t, err, string(out))
		return strings.TrimSpace(string(out))
	}
	run("build", "-C", "losstable", "-trimpath", "-ldflags=-s -w", "-o", dir+"/", module+"/cmd/tap", "./tapreader", "./naive")
	return dir, run("list", "-C", "losstable", "-m", "-f", "{{.Version}}", module)
}

// publish prints the tables, and writes them into the document that -report names.
func (r *lossRun) publish(seed uint64, rows [][]string) {
	r.t.Helper()
	head := []string{""}
	for _, c := range r.all {
		head = append(head, c.name)
	}
	faults, sums := newTable(append([]string{"fault"}, head[1:]...)...), newTable(head...)
	for _, row := range rows {
		faults.line(row...)
	}
	for _, f := range lossFigures() {
		row := []string{f.name}
		for _, c := range r.all {
			row = append(row, f.of(r, c))
		}
		sums.line(row...)
	}
	played := "all faults"
	if *lossFaultsPlayed > 0 {
		played = fmt.Sprintf("only the first %d faults (`-loss-faults`)", len(rows))
	}
	const page = "`make loss-table SEED=%d`, %s, %d cores, %s; %s.\nA cell has 0, or the rows that are %s since this fault.\n\n%s\n%s\n\n%s"
	text := fmt.Sprintf(page, seed, time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), postgresVersion(r.t, r.all[0]), played,
		strings.Join(lossKinds(), " / "), faults, strings.Join([]string{lossSync, lossOperations, lossSigned}, "\n"), sums)
	r.t.Log("\n" + text)
	if *reportFile == "" {
		return
	}
	document, err := os.ReadFile(*reportFile)
	require.NoError(r.t, err)
	const from, to = "<!-- loss table -->\n", "<!-- end of the loss table -->"
	above, rest, ok := strings.Cut(string(document), from)
	_, below, closed := strings.Cut(rest, to)
	require.True(r.t, ok && closed, "%s: expected the lines %q and %q", filepath.Base(*reportFile), from, to)
	require.NoError(r.t, os.WriteFile(*reportFile, []byte(above+from+"\n"+text+"\n"+to+below), 0o644)) // readable by everyone
}

func postgresVersion(t *testing.T, c *contender) (version string) {
	require.NoError(t, c.pool.QueryRow(context.Background(), `SELECT 'PostgreSQL ' || current_setting('server_version')`).Scan(&version))
	version, _, _ = strings.Cut(version, " (")
	return version
}

// lossFigure is a line of the second table.
type lossFigure struct {
	name string
	of   func(*lossRun, *contender) string
}

func lossFigures() []lossFigure {
	wrong := func(how string) func(*lossRun, *contender) string {
		return func(_ *lossRun, c *contender) string {
			n := 0
			for _, is := range c.wrong {
				n += map[bool]int{true: 1}[is == how]
			}
			return fmt.Sprint(n)
		}
	}
	return []lossFigure{
		{"version", func(_ *lossRun, c *contender) string { return c.version }},
		{"posts that must be stored", func(r *lossRun, _ *contender) string { return fmt.Sprint(len(r.want)) }},
		{"lost at the end", wrong("lost")},
		{"stale at the end", wrong("stale")},
		{"deleted, and still there at the end", wrong("resurrected")},
		{"forged", wrong("forged")},
		{"handed over more often than they happened", func(r *lossRun, c *contender) string { return fmt.Sprint(c.doubled(r)) }},
		{fmt.Sprintf("events/s, of a backlog of %d", lossCatchUp), func(_ *lossRun, c *contender) string {
			return fmt.Sprintf("%.0f", lossCatchUp/c.took.Seconds())
		}},
		{"CPU-seconds for it, with Postgres", func(_ *lossRun, c *contender) string { return fmt.Sprintf("%.1f", c.spent.Seconds()) }},
		{"peak memory of its processes, MB", func(_ *lossRun, c *contender) string { return fmt.Sprintf("%.0f", c.peak()) }},
	}
}
