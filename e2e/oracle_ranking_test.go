package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
)

// ranking ranks the links shared after end-window and not after end: by the
// number of visible accounts that shared them, then by the last of these shares,
// then by URL. It returns at most limit lines, or all if limit is 0.
func (tr oracle) ranking(end time.Time, window time.Duration, limit int) []ranked {
	end = end.Truncate(time.Microsecond) // as Postgres does
	sharers, last := map[string]map[string]bool{}, map[string]time.Time{}
	for key, s := range tr.shares {
		if s.at.After(end) && !tr.ahead || !s.at.After(end.Add(-window)) || !tr.counts(key, s) {
			continue
		}
		url := tr.root(key.url)
		if sharers[url] == nil {
			sharers[url] = map[string]bool{}
		}
		sharers[url][key.did] = true
		if s.at.After(last[url]) {
			last[url] = s.at
		}
	}
	lines := make([]ranked, 0, len(sharers))
	for url, dids := range sharers {
		lines = append(lines, ranked{url, len(dids)})
	}
	slices.SortFunc(lines, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.Sharers, a.Sharers), last[b.URL].Compare(last[a.URL]), cmp.Compare(a.URL, b.URL))
	})
	if limit > 0 && len(lines) > limit {
		lines = lines[:limit]
	}
	return lines
}

// root is the URL of the link that counts in place of another.
func (tr oracle) root(url string) string {
	for into, ok := tr.merged[url]; ok; into, ok = tr.merged[url] {
		url = into
	}
	return url
}

func (tr oracle) compareRankings(ctx context.Context, tx pgx.Tx, end time.Time) ([]string, error) {
	var lines []string
	for _, hours := range []int{1, 3, 6, 12, 24} {
		window := time.Duration(hours) * time.Hour
		found, err := foundRanking(ctx, tx, end, window)
		if err != nil {
			return nil, err
		}
		if difference := misplaced(tr.ranking(end, window, 0), found); difference != "" {
			lines = append(lines, fmt.Sprintf("ranking: %d h to %s, %s", hours, end.UTC().Format(time.RFC3339Nano), difference))
		}
	}
	return lines, nil
}

// compareTrending compares what `weir trending` prints with the oracle's ranking, and every
// headline with the votes. Weir ranks links with equally many sharers and the same last share in
// the order in which they were stored. The oracle does not know this order: it ranks these links by
// URL.
func (tr oracle) compareTrending(links []ranking.TrendingLink, end time.Time, window time.Duration) (problems []string) {
	for _, problem := range tr.compareHeadlines(links) {
		problems = append(problems, fmt.Sprintf("weir trending: %s, %s", window, problem))
	}
	tied := func(a, b ranking.TrendingLink) bool {
		return a.Sharers == b.Sharers && a.LastShared.Equal(b.LastShared)
	}
	cut := len(links)
	if cut == mostLinks { // links equal to the last ones may have been cut off
		for cut > 0 && tied(links[cut-1], links[mostLinks-1]) {
			cut--
		}
	}
	var found []ranked
	for rest := slices.Clone(links[:cut]); len(rest) > 0; {
		n := 1
		for n < len(rest) && tied(rest[n], rest[0]) {
			n++
		}
		slices.SortFunc(rest[:n], func(a, b ranking.TrendingLink) int { return cmp.Compare(canonical(a.URL), canonical(b.URL)) })
		for _, l := range rest[:n] {
			found = append(found, ranked{canonical(l.URL), l.Sharers})
		}
		rest = rest[n:]
	}
	want := tr.ranking(end, window, 0)
	if len(links) == mostLinks {
		want = want[:min(cut, len(want))]
	}
	if difference := misplaced(want, found); difference != "" {
		problems = append(problems, fmt.Sprintf("weir trending: %s, %s", window, difference))
	}
	return problems
}

// countedProblems compares the counter's tables: `weir recount --check` compares them with a
// recount, and the rankings that end now, which are read from them, are compared with the oracle's.
// With --at, Weir counts the shares instead.
func (tr oracle) countedProblems(t *testing.T, env []string) (problems []string) {
	t.Helper()
	if found, stderr, code := weir(t, env, "recount", "--check"); code != 0 {
		problems = append(problems, strings.Split("weir recount --check: "+strings.TrimSpace(found+stderr), "\n")...)
	}
	tr.ahead = true
	for _, window := range []string{"1h", "24h", "7d"} {
		var page struct {
			At    time.Time `json:"generated_at"`
			Links []ranking.TrendingLink
		}
		require.NoError(t,
			json.Unmarshal([]byte(succeed(t, env, "trending", "--json", "--limit", strconv.Itoa(mostLinks), "--window", window)), &page))
		length := map[string]time.Duration{"1h": time.Hour, "24h": 24 * time.Hour, "7d": 7 * 24 * time.Hour}[window]
		problems = append(problems, tr.compareTrending(page.Links, page.At, length)...)
	}
	return problems
}

// misplaced names the first difference. The places below it are shifted.
func misplaced(want, found []ranked) string {
	for i := range max(len(want), len(found)) {
		if expected, actual := place(want, i), place(found, i); expected != actual {
			return fmt.Sprintf("place %d: expected %s, found %s", i+1, expected, actual)
		}
	}
	return ""
}

func place(lines []ranked, i int) string {
	if i >= len(lines) {
		return "nothing"
	}
	return fmt.Sprintf("%s by %d", lines[i].URL, lines[i].Sharers)
}

func foundRanking(ctx context.Context, tx pgx.Tx, end time.Time, window time.Duration) ([]ranked, error) {
	const sql = `
SELECT each.url, count(*)
FROM (
    SELECT 'https://' || l.identity AS url, s.did AS did, max(s.shared_at) AS at
    FROM links AS l
    JOIN shares AS s ON s.link_id = l.id
    LEFT JOIN accounts AS a ON a.did = s.did
    LEFT JOIN accounts AS b ON b.did = s.subject_did
    WHERE s.shared_at > $1 AND s.shared_at <= $2 AND coalesce(a.status, 'active') = 'active'
        AND coalesce(b.status, 'active') = 'active' AND` + living + `
    GROUP BY l.identity, s.did
) AS each
GROUP BY each.url
ORDER BY count(*) DESC, max(each.at) DESC, each.url COLLATE "C"`
	end = end.Truncate(time.Microsecond)
	rows, err := tx.Query(ctx, sql, end.Add(-window), end)
	if err != nil {
		return nil, fmt.Errorf("rank the links for the oracle: %w", err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ranked])
	if err != nil {
		return nil, fmt.Errorf("rank the links for the oracle: %w", err)
	}
	return lines, nil
}
