package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// The limits of the cost of a change, as a multiple of the base's cost.
const (
	mostCPU = 1.10
	mostWAL = 1.05
)

// Events of one run: few enough for ten turns to take about five minutes.
const (
	againstPosts = 60_000
	againstLive  = 30_000
)

// BenchmarkAgainst compares this binary with the one that -base names.
// Both do the same in turn, -turns times (10), each in a database that
// it has migrated itself. It compares processor time and bytes of WAL, which
// depend little on the load of the machine, and no rates. It fails if a median is
// more than mostCPU or mostWAL times that of the base. Without -base it is
// skipped.
func BenchmarkAgainst(b *testing.B) {
	base := *baseBinary
	if base == "" {
		b.Log("-base names no binary to compare with: make bench-against BASE=<commit>")
		return
	}
	turns := turns()
	a := newAgainst(b)
	for b.Loop() {
		var of [2][]costs // the base, and this binary
		programs := [2]string{base, binary}
		for turn := range turns + 1 {
			for i := range programs {
				which := (i + turn) % 2 // the first one has the colder caches
				cost := a.turn(programs[which])
				if turn > 0 { // the first one warms up
					of[which] = append(of[which], cost)
				}
			}
		}
		b.ReportMetric(0, "ns/op")
		a.report(of[0], of[1])
	}
}

// costs holds the cost per event, by case and figure.
type costs map[string]float64

// against holds what the runs of both binaries share.
type against struct {
	b          *testing.B
	server     *devpg.Server
	admin      *pgx.Conn
	postmaster int
	recording  string
	net        *simnet.Net
}

func newAgainst(b *testing.B) *against {
	b.Helper()
	a := newMeasured(b)
	var err error
	a.recording, _ = benchRecording(b, simnet.MixPosts, againstPosts, newPost)
	a.net, err = simnet.New(simnet.Config{Seed: 6, Accounts: 20_000, History: againstLive, HistorySpan: 6 * time.Hour})
	require.NoError(b, err)
	require.NoError(b, a.net.Start("127.0.0.1:0"))
	b.Cleanup(a.net.Stop)
	return a
}

// newMeasured returns a server whose processor time and WAL can be measured.
func newMeasured(b *testing.B) *against {
	b.Helper()
	a := &against{b: b}
	var err error
	// Postgres's background work is switched off: its cost would be attributed
	// to the binary that happens to run.
	a.server, err = devpg.Start(context.Background(), devpg.Options{Settings: map[string]string{
		"shared_buffers": "512MB", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "autovacuum": "off"}})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, a.server.Stop(context.Background())) })
	a.admin, err = pgx.Connect(b.Context(), a.server.URL("postgres"))
	require.NoError(b, err)
	b.Cleanup(func() { a.admin.Close(context.Background()) }) // the test is over
	var backend int
	require.NoError(b, a.admin.QueryRow(b.Context(), `SELECT pg_backend_pid()`).Scan(&backend))
	a.postmaster = readProcess(b, backend).parent
	return a
}

// turn runs all cases with a program.
func (a *against) turn(program string) costs {
	a.b.Helper()
	cost := costs{}
	url, drop := a.database(program)
	environment := []string{"DATABASE_URL=" + url, "WEIR_LOG_LEVEL=warn"}
	ingest := "ingest"
	if exec.Command(program, ingest, "--help").Run() != nil {
		ingest = "replay" // its name in older commits
	}
	cost.add("consume", againstPosts, a.measure(func() *os.ProcessState {
		return a.run(environment, program, ingest, "--work=false", a.recording)
	}))
	cost.add("process", againstPosts, a.measure(func() *os.ProcessState {
		return a.run(environment, program, ingest, os.DevNull)
	}))
	drop()
	url, drop = a.database(program)
	environment = []string{"DATABASE_URL=" + url, "WEIR_LOG_LEVEL=warn"}
	cost.add("small batches", againstLive, a.measure(func() *os.ProcessState { return a.live(program, url) }))
	cost.add("process small batches", againstLive, a.measure(func() *os.ProcessState {
		return a.run(environment, program, ingest, os.DevNull)
	}))
	drop()
	return cost
}

// database creates a database and has the program migrate it.
func (a *against) database(program string) (url string, drop func()) {
	a.b.Helper()
	name := fmt.Sprintf("against_%d", time.Now().UnixNano())
	_, err := a.admin.Exec(a.b.Context(), `CREATE DATABASE `+name)
	require.NoError(a.b, err)
	url = a.server.URL(name)
	a.run([]string{"DATABASE_URL=" + url, "WEIR_LOG_LEVEL=warn"}, program, "migrate")
	return url, func() {
		_, err := a.admin.Exec(a.b.Context(), `DROP DATABASE `+name+` WITH (FORCE)`)
		require.NoError(a.b, err)
	}
}

func (a *against) run(env []string, program string, args ...string) *os.ProcessState {
	a.b.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	require.NoError(a.b, err, string(out))
	return cmd.ProcessState
}

// live reads the network over the wire in batches as small as on a quiet day:
// posts, edits, deletions and accounts.
func (a *against) live(program, url string) *os.ProcessState {
	a.b.Helper()
	cmd := exec.Command(program, "consume")
	cmd.Env = []string{"DATABASE_URL=" + url, "WEIR_JETSTREAM=" + a.net.URL(), "WEIR_START=oldest", "WEIR_COMPRESS=false",
		"WEIR_OPS_LISTEN=off", "WEIR_LOG_LEVEL=warn", "WEIR_BATCH_EVENTS=20"} // older commits know these
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(a.b, cmd.Start())
	pool := open(a.b, url)
	readsAll(a.b, pool, a.net)
	pool.Close()
	require.NoError(a.b, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(a.b, cmd.Wait(), out.String())
	return cmd.ProcessState
}

// cost is what one run consumed.
type cost struct {
	process, postgres time.Duration // of processor time
	wal               int64         // bytes
}

func (c costs) add(name string, events int, of cost) {
	perEvent := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(events) }
	c[name+" | CPU of weir, µs"] = perEvent(of.process)
	c[name+" | CPU of Postgres, µs"] = perEvent(of.postgres)
	c[name+cpuOfBoth] = perEvent(of.process + of.postgres)
	c[name+walBytes] = float64(of.wal) / float64(events)
}

// The figures that have a limit.
const (
	cpuOfBoth = " | CPU of both, µs"
	walBytes  = " | WAL, B"
)

// measure returns the cost of a run. It starts with a checkpoint, since the first
// change of a page after one writes the whole page.
func (a *against) measure(run func() *os.ProcessState) cost {
	a.b.Helper()
	_, err := a.admin.Exec(a.b.Context(), `CHECKPOINT`)
	require.NoError(a.b, err)
	wal := func() (at int64) {
		require.NoError(a.b, a.admin.QueryRow(a.b.Context(), `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&at))
		return at
	}
	a.quiet()
	cpu, lsn := a.postgres(), wal()
	ended := run()
	a.quiet()
	return cost{process: ended.UserTime() + ended.SystemTime(), postgres: a.postgres() - cpu, wal: wal() - lsn}
}

// quiet waits until there are no other connections: the time of a server process
// is counted once it has ended.
func (a *against) quiet() {
	a.b.Helper()
	eventually.True(a.b, func() bool {
		var others int
		err := a.admin.QueryRow(a.b.Context(), `
			SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&others)
		return err == nil && others == 0
	}, 20*time.Millisecond)
}

// postgres is the processor time of the whole server so far, of ended and running
// processes, as the kernel counts it in hundredths of a second.
func (a *against) postgres() time.Duration {
	a.b.Helper()
	for {
		main := readProcess(a.b, a.postmaster)
		all, err := os.ReadDir("/proc")
		require.NoError(a.b, err, "processor time is read from /proc, as on Linux")
		ticks := main.own + main.ended
		for _, entry := range all {
			pid, err := strconv.Atoi(entry.Name())
			if err != nil {
				continue
			}
			if p, err := parseProcess(pid); err == nil && p.parent == a.postmaster {
				ticks += p.own
			}
		}
		if readProcess(a.b, a.postmaster).ended == main.ended { // no process ended before it was read
			return time.Duration(ticks) * 10 * time.Millisecond
		}
	}
}

// kernelProcess is what the kernel reports of a process: times in ticks, its own
// and those of its ended children.
type kernelProcess struct{ parent, own, ended int }

func readProcess(t testing.TB, pid int) kernelProcess {
	t.Helper()
	p, err := parseProcess(pid)
	require.NoError(t, err)
	return p
}

func parseProcess(pid int) (kernelProcess, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return kernelProcess{}, err
	}
	_, after, _ := strings.Cut(string(text), ") ") // the name may contain any character
	fields := strings.Fields(after)
	number := make([]int, 15)
	for i := 1; i < len(number) && i < len(fields); i++ {
		number[i], _ = strconv.Atoi(fields[i]) // the fields used here are numbers
	}
	return kernelProcess{parent: number[1], own: number[11] + number[12], ended: number[13] + number[14]}, nil
}

// report prints the medians and their ratios, and fails if a ratio is too large.
func (a *against) report(base, changed []costs) {
	a.b.Helper()
	table := newTable("case", "figure per event", "base", "spread", "this", "spread", "ratio", "in pairs", "at most")
	names := map[string]bool{}
	for name := range base[0] {
		names[name] = true
	}
	var all []string
	for name := range names {
		all = append(all, name)
	}
	slices.Sort(all)
	for _, name := range all {
		before, beforeSpread := median(base, name)
		after, afterSpread := median(changed, name)
		ratio, limit := after/before, 0.0
		switch {
		case strings.HasSuffix(name, cpuOfBoth):
			limit = mostCPU
		case strings.HasSuffix(name, walBytes):
			limit = mostWAL
		}
		what, figure, _ := strings.Cut(name, " | ")
		cell := ""
		if limit > 0 {
			cell = fmt.Sprintf("%.2f", limit)
			unit, _, _ := strings.Cut(strings.ReplaceAll(name, " | ", ":"), ",")
			a.b.ReportMetric(ratio, strings.ReplaceAll(unit, " ", "-")+"-x")
			if ratio > limit {
				a.b.Errorf("%s: %.3f times the base's: expected at most %.2f", name, ratio, limit)
			}
		}
		table.line(what, figure, fmt.Sprintf("%.2f", before), fmt.Sprintf("%.1f %%", beforeSpread), fmt.Sprintf("%.2f", after),
			fmt.Sprintf("%.1f %%", afterSpread), fmt.Sprintf("%.3f", ratio), fmt.Sprintf("%.3f", paired(base, changed, name)), cell)
	}
	publish(a.b, table.String())
}

// paired is the median of the ratios within each turn, where the load of the
// machine is similar for both.
func paired(base, changed []costs, name string) float64 {
	of := make([]costs, len(base))
	for i := range base {
		of[i] = costs{name: changed[i][name] / base[i][name]}
	}
	middle, _ := median(of, name)
	return middle
}

// median returns the median of a figure, and the interquartile range in per cent
// of it.
func median(of []costs, name string) (middle, spread float64) {
	var all []float64
	for _, c := range of {
		all = append(all, c[name])
	}
	slices.Sort(all)
	at := func(part float64) float64 {
		place := part * float64(len(all)-1)
		low := int(place)
		high := min(low+1, len(all)-1)
		return all[low] + (place-float64(low))*(all[high]-all[low])
	}
	middle = at(0.5)
	return middle, 100 * (at(0.75) - at(0.25)) / middle
}
