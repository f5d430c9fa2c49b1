package e2e

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// table is a Markdown table.
type table struct{ strings.Builder }

func newTable(head ...string) *table {
	t := &table{}
	t.line(head...)
	t.line(slices.Repeat([]string{"---"}, len(head))...)
	return t
}

func (t *table) line(cells ...string) { fmt.Fprintf(t, "| %s |\n", strings.Join(cells, " | ")) }

// roundReport is the result of a round.
type roundReport struct {
	*chaos
	length        time.Duration
	events        int
	posts, shares int // the number that must be stored
	lost, doubled int
	problems      int // all problems that the comparison found
}

// chaosReport has the results of all rounds.
type chaosReport []roundReport

// publish prints the faults and the results by kind of round.
func (all chaosReport) publish(t *testing.T, took time.Duration) {
	t.Helper()
	kinds, names := rounds(), []string{}
	for _, kind := range kinds {
		names = append(names, kind.String())
	}
	of := func(kind round) (these chaosReport) {
		return slices.DeleteFunc(slices.Clone(all), func(r roundReport) bool { return r.round != kind })
	}
	figures := newTable(append([]string{"figure"}, names...)...)
	for _, f := range roundFigures() {
		cells := []string{f.name}
		for _, kind := range kinds {
			cells = append(cells, f.of(of(kind)))
		}
		figures.line(cells...)
	}
	fired := map[string]bool{}
	for _, r := range all {
		for name := range r.fired {
			fired[name] = true
		}
	}
	faults := newTable(append([]string{"fault"}, names...)...)
	for _, name := range slices.Sorted(maps.Keys(fired)) {
		cells := []string{name}
		for _, kind := range kinds {
			cells = append(cells, sum(of(kind), func(r roundReport) int { return r.fired[name] }))
		}
		faults.line(cells...)
	}
	if last := all[len(all)-1]; last.disk == nil {
		faults.line("full disk of Postgres", fmt.Sprintf("not possible here: %v", last.noDisk))
	}
	publish(t, fmt.Sprintf("%s, %d rounds, on %d cores\n\n%s\n%s", took.Round(time.Second), len(all), runtime.NumCPU(), figures, faults))
}

func sum(of chaosReport, what func(roundReport) int) string {
	total := 0
	for _, r := range of {
		total += what(r)
	}
	return fmt.Sprint(total)
}

// roundFigure is a row of the report, with one value for each kind of round.
type roundFigure struct {
	name string
	of   func(chaosReport) string
}

func roundFigures() []roundFigure {
	total := func(name string, what func(roundReport) int) roundFigure {
		return roundFigure{name, func(of chaosReport) string { return sum(of, what) }}
	}
	return []roundFigure{
		{"rounds", func(of chaosReport) string { return fmt.Sprint(len(of)) }},
		{"seeds", func(of chaosReport) string {
			if len(of) == 0 {
				return ""
			}
			return fmt.Sprintf("%d to %d", of[0].seed, of[len(of)-1].seed)
		}},
		{"longest round", func(of chaosReport) string {
			longest := time.Duration(0)
			for _, r := range of {
				longest = max(longest, r.length)
			}
			return longest.Round(time.Second).String()
		}},
		total("events", func(r roundReport) int { return r.events }),
		total("posts that must be stored", func(r roundReport) int { return r.posts }),
		total("shares", func(r roundReport) int { return r.shares }),
		total("processes killed", func(r roundReport) int { return r.kills }),
		total("processes started again", func(r roundReport) int { return r.restarts }),
		total("holes", func(r roundReport) int { return len(r.holes) }),
		total("events that the server forgot unread", func(r roundReport) int { return len(r.chaos.lost) }),
		total("rows lost", func(r roundReport) int { return r.lost }),
		total("rows doubled or invented", func(r roundReport) int { return r.doubled }),
		total("counts that one account more would make wrong", func(r roundReport) int { return r.responses.strict }),
		total("problems of any kind", func(r roundReport) int { return r.problems }),
		{"longest time until the stream was stored again", func(of chaosReport) string {
			var slowest roundReport
			for _, r := range of {
				if slowest.chaos == nil || r.slowest > slowest.slowest {
					slowest = r
				}
			}
			if slowest.chaos == nil {
				return ""
			}
			return fmt.Sprintf("%s, after: %s", slowest.slowest.Round(10*time.Millisecond), slowest.after)
		}},
		{"responses of the web process", func(of chaosReport) string {
			all := responses{statuses: map[int]int{}}
			for _, r := range of {
				for status, n := range r.responses.statuses {
					all.statuses[status] += n
				}
				all.away += r.responses.away
				all.silent, all.wrong = append(all.silent, r.responses.silent...), append(all.wrong, r.responses.wrong...)
			}
			return all.summary()
		}},
	}
}

func (a responses) summary() string {
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(a.statuses)) {
		parts = append(parts, fmt.Sprintf("%d of status %d", a.statuses[status], status))
	}
	return fmt.Sprintf("%s; %d requests without a response, %d wrong responses, %d requests while it was killed", strings.Join(parts, ", "),
		len(a.silent), len(a.wrong), a.away)
}

// publish prints a report, and writes it to the file that -report names.
func publish(t testing.TB, report string) {
	t.Helper()
	t.Log("\n" + report)
	if *reportFile != "" {
		require.NoError(t, os.WriteFile(*reportFile, []byte(report), 0o644)) // readable by everyone
	}
}
