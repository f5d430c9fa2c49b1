package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

// compare stops the fleet, compares the tables with the oracle, and returns the
// report of the round.
func (c *chaos) compare() roundReport {
	c.t.Helper()
	c.end()
	r := roundReport{chaos: c, length: time.Since(c.began), events: len(c.net.Log().Entries())}
	end := time.Now().Truncate(time.Second).Add(time.Second).UTC()
	require.NoError(c.t, pgx.BeginFunc(c.t.Context(), c.pool, func(tx pgx.Tx) (err error) {
		var all []string
		if c.follows {
			all, r.posts, r.shares, err = c.compareFollowed(c.t.Context(), tx, end)
		} else {
			all, r.posts, r.shares, err = c.compareEveryone(c.t.Context(), tx, end)
		}
		if err != nil {
			return err
		}
		r.lost, r.doubled = lostAndDoubled(all)
		c.problems = append(c.problems, shorten(byTable(all))...)
		gaps, err := holeProblems(c.t.Context(), tx, c.holes, c.follows)
		c.problems = append(c.problems, gaps...)
		return err
	}))
	c.problems = slices.Concat(c.problems, c.responses.wrong, c.responses.silent)
	r.problems = len(c.problems)
	return r
}

// require fails the test if the comparison found a problem.
func (c *chaos) require() {
	c.t.Helper()
	require.Empty(c.t, c.problems, strings.Join(c.problems, "\n"))
	require.NotEmpty(c.t, c.responses.statuses)
	require.Positive(c.t, c.responses.strict, "no response could have shown that a deleted post or a hidden account counted")
	require.Greater(c.t, count(c.t, c.pool, `SELECT max(epoch) FROM streams`), 1, "the lease never moved")
}

// compareEveryone compares the tables with the fold of every event that the
// server has not forgotten.
func (c *chaos) compareEveryone(ctx context.Context, tx pgx.Tx, end time.Time) (problems []string, posts, shares int, err error) {
	compared, problems, err := c.compared(ctx, tx)
	if err != nil {
		return nil, 0, 0, err
	}
	log := c.net.Log().Entries()
	oracle := fold(slices.DeleteFunc(slices.Clone(log), func(e *simnet.Entry) bool { return c.lost[e] && !compared.restores(e) }))
	oracle.renamed = map[accountKey][]string{}
	for _, e := range log {
		switch key := accountKey(e.DID); {
		case e.Kind != "identity":
		case c.lost[e]:
			oracle.renamed[key] = append(oracle.renamed[key], e.Handle)
		default:
			delete(oracle.renamed, key)
		}
	}
	oracle.deadLettersExpected, oracle.doubts = c.deadLetters(), c.doubts
	oracle.gapsExpected, oracle.merged, oracle.keysGone = len(c.holes), c.merged, c.relay
	found, err := foundRecords(ctx, tx)
	if err != nil {
		return nil, 0, 0, err
	}
	oracle.restore(compared, found, log)
	differences, err := oracle.compareAll(ctx, tx, end)
	problems = append(problems, differences...)
	c.explainShares(ctx, tx, oracle, problems)
	return append(problems, c.rankingProblems(oracle, end)...), len(oracle.records), len(oracle.shares), err
}

// explainShares logs what is known about the records whose shares are wrong.
func (c *chaos) explainShares(ctx context.Context, tx pgx.Tx, oracle oracle, problems []string) {
	const sql = `
SELECT 'waits since ' || since FROM waiting WHERE did = $1 AND collection = $2 AND rkey = $3
UNION ALL SELECT 'subject ' || u::text FROM subjects AS u WHERE did = $4 AND rkey = $5
UNION ALL SELECT 'share ' || s::text FROM shares AS s WHERE (did, rkey) IN (($1, $3), ($4, $5))
UNION ALL SELECT 'record ' || concat_ws(' ', rkey, rev, indexed_at) FROM records WHERE (did, rkey) IN (($1, $3), ($4, $5))
UNION ALL SELECT 'account ' || concat_ws(' ', did, status, status_at) FROM accounts WHERE did IN ($1, $4)`
	for _, problem := range problems[:min(len(problems), 5)] {
		for key, r := range oracle.records {
			if rest, ok := strings.CutPrefix(problem, "shares: "+key.String()+" of "); ok {
				subject, _ := subjectOf(key, r.record)
				rows, err := tx.Query(ctx, sql, key.did, key.collection, key.rkey, subject.did, subject.rkey)
				require.NoError(c.t, err)
				lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
				require.NoError(c.t, err)
				c.t.Logf("%s, through %s: %s", rest, subject, strings.Join(lines, "; "))
			}
		}
	}
}

// deadLetters is the number of dead letters there must be: one for each kind of poison, however
// often it was sent.
func (c *chaos) deadLetters() (kinds int) {
	for name := range c.fired {
		if slices.ContainsFunc(c.poisons(), func(p poison) bool { return name == c.source()+": "+string(p.fault) }) {
			kinds++
		}
	}
	return kinds
}

// rankingProblems compares the rankings that `weir trending` prints, and the counter's tables, with
// the oracle.
func (c *chaos) rankingProblems(oracle oracle, end time.Time) (problems []string) {
	for _, window := range []time.Duration{time.Hour, 24 * time.Hour} {
		got := rankedLinks(c.t, c.env, strconv.Itoa(int(window.Hours()))+"h", end.Format(time.RFC3339))
		require.NotEmpty(c.t, got)
		problems = append(problems, oracle.compareTrending(got, end, window)...)
	}
	return append(problems, oracle.countedProblems(c.t, c.env)...)
}

// holeProblems requires one gap over each hole, and no other gap. In a round of followed accounts,
// whose feeds can be read, the gaps must be closed; otherwise they must be open.
func holeProblems(ctx context.Context, tx pgx.Tx, holes []hole, closed bool) (problems []string, err error) {
	const sql = `
		SELECT from_at, to_at, closed_at IS NOT NULL, concat_ws(' ', stream, from_at, to_at, reason, problem, how_closed) FROM gaps
		ORDER BY id`
	type gap struct {
		From, To time.Time
		Closed   bool
		Text     string
	}
	rows, err := tx.Query(ctx, sql)
	if err != nil {
		return nil, fmt.Errorf("read the gaps: %w", err)
	}
	gaps, err := pgx.CollectRows(rows, pgx.RowToStructByPos[gap])
	if err != nil {
		return nil, fmt.Errorf("read the gaps: %w", err)
	}
	covers := func(g gap, h hole) bool { return !g.From.After(h.from) && !g.To.Before(h.to) }
	for _, h := range holes {
		over := 0
		for _, g := range gaps {
			if covers(g, h) {
				over++
			}
		}
		if over != 1 {
			problems = append(problems, fmt.Sprintf("gaps: expected one over what the server forgot, %s to %s, found %d",
				h.from.UTC().Format(time.RFC3339Nano), h.to.UTC().Format(time.RFC3339Nano), over))
		}
	}
	for _, g := range gaps {
		if !slices.ContainsFunc(holes, func(h hole) bool { return covers(g, h) }) {
			problems = append(problems, "gaps: one where nothing was forgotten: "+g.Text)
		}
		if g.Closed != closed {
			problems = append(problems, fmt.Sprintf("gaps: expected closed to be %t: %s", closed, g.Text))
		}
	}
	return problems, nil
}

// byTable groups problems by the table, which is the text before the first colon.
func byTable(problems []string) (found [][]string) {
	at := map[string]int{}
	for _, line := range problems {
		table, _, _ := strings.Cut(line, ": ")
		i, known := at[table]
		if !known {
			i = len(found)
			at[table] = i
			found = append(found, nil)
		}
		found[i] = append(found[i], line)
	}
	return found
}

// lostAndDoubled counts the rows of records, tombstones and shares that are
// missing, and those that must not be there.
func lostAndDoubled(problems []string) (lost, doubled int) {
	for _, line := range problems {
		if table, _, _ := strings.Cut(line, ": "); table != "records" && table != "tombstones" && table != "shares" {
			continue
		}
		switch {
		case strings.HasSuffix(line, "found no row"):
			lost++
		case strings.Contains(line, "expected no row, found"), strings.Contains(line, "expected one row, found another"):
			doubled++
		}
	}
	return lost, doubled
}
