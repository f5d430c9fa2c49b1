package main

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// amiss counts the rows of records, tombstones and shares that are missing, and
// those that should not be there.
func (tr truth) amiss(t *testing.T, pool *pgxpool.Pool) (lost, doubled int) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		records, err := tr.compareRecords(t.Context(), tx)
		require.NoError(t, err)
		tombstones, err := tr.compareTombstones(t.Context(), tx)
		require.NoError(t, err)
		shares, err := tr.compareShares(t.Context(), tx)
		for _, line := range slices.Concat(records, tombstones, shares) {
			switch {
			case strings.HasSuffix(line, "found no row"):
				lost++
			case strings.Contains(line, "expected no row, found"), strings.Contains(line, "expected one row, found another"):
				doubled++
			}
		}
		return err
	}))
	return lost, doubled
}

// table is a Markdown table.
type table struct{ strings.Builder }

func newTable(head ...string) *table {
	t := &table{}
	t.line(head...)
	t.line(slices.Repeat([]string{"---"}, len(head))...)
	return t
}

func (t *table) line(cells ...string) { fmt.Fprintf(t, "| %s |\n", strings.Join(cells, " | ")) }

// figure is a line of two cells.
func (t *table) figure(what string, value any) { t.line(what, fmt.Sprint(value)) }

// report prints what was done and what came of it, and writes it to WEIR_REPORT.
func (c *chaos) report(tr truth, lost, doubled int) {
	c.t.Helper()
	figures := newTable("figure", "value")
	figures.figure("length", fmt.Sprintf("%s, %d rounds, on %d cores", time.Since(c.began).Round(time.Second), c.rounds, runtime.NumCPU()))
	figures.figure("seed", c.seed)
	figures.figure("events", len(c.net.Log().Entries()))
	figures.figure("posts stored", len(tr.records))
	figures.figure("shares", len(tr.shares))
	figures.figure("processes killed", c.kills)
	figures.figure("processes started again", c.restarts)
	figures.figure("events the server forgot", fmt.Sprintf("%d, in %d gaps, all recorded", len(c.lost), len(c.holes)))
	figures.figure("rows lost", lost)
	figures.figure("rows doubled or invented", doubled)
	figures.figure("longest time until the stream was stored again", fmt.Sprintf("%s, after: %s", c.slowest.Round(10*time.Millisecond), c.after))
	figures.figure("answers of the web process", c.answers.summary())
	blows := newTable("fault", "fired")
	for _, name := range slices.Sorted(maps.Keys(c.fired)) {
		blows.figure(name, c.fired[name])
	}
	if c.disk == nil {
		blows.figure("full disk of Postgres", fmt.Sprintf("not possible here: %v", c.noDisk))
	}
	publish(c.t, figures.String()+"\n"+blows.String())
}

func (a answers) summary() string {
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(a.statuses)) {
		parts = append(parts, fmt.Sprintf("%d of status %d", a.statuses[status], status))
	}
	return fmt.Sprintf("%s; %d without an answer, %d wrong, %d asked while it was killed", strings.Join(parts, ", "), len(a.silent), len(a.wrong), a.away)
}

// publish prints a report, and writes it to the file that WEIR_REPORT names.
func publish(t testing.TB, report string) {
	t.Helper()
	t.Log("\n" + report)
	if file := os.Getenv("WEIR_REPORT"); file != "" {
		require.NoError(t, os.WriteFile(file, []byte(report), 0o644)) //nolint:gosec // for everybody to read
	}
}
