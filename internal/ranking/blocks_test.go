package ranking_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestDomainsAreNamedAsInLinks shows that a domain may be written in any script, as in the address of a link. SQL does
// not convert it, and refuses it.
func TestDomainsAreNamedAsInLinks(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"bücher.example": "xn--bcher-kva.example", "www.BÜCHER.example.": "xn--bcher-kva.example",
		"xn--bcher-kva.example": "xn--bcher-kva.example",
		"उदाहरण.com":            "xn--p1b6ci4b4b3a.com", "Spam.Example": "spam.example",
	} {
		block, err := ranking.ParseBlock(text)
		require.NoError(t, err)
		require.Equal(t, ranking.Block{Kind: ranking.BlockedDomain, Target: want}, block)
		l, err := link.Parse("https://" + strings.TrimPrefix(text, "www.") + "/x")
		require.NoError(t, err)
		require.Equal(t, l.Site, block.Target)
		asked := func(name string) (string, bool) { return text, name == "domain" }
		q, err := ranking.ParseQuery(asked, ranking.Limits{Default: 10, Most: 10})
		require.NoError(t, err)
		require.Equal(t, want, q.Site)
	}
	for _, text := range []string{"a..", "-a.example", "a b.example", "a.example/x", strings.Repeat("ü", 300) + ".example"} {
		_, err := ranking.ParseBlock(text)
		require.Error(t, err, text)
	}
	_, err := schematest.New(t).Exec(t.Context(), `INSERT INTO blocks (kind, target) VALUES ('domain', 'bücher.example')`)
	require.ErrorContains(t, err, "blocks_check")
}

// TestBlockedIsNowhere blocks a link, a domain and an account, and takes the blocks back. The ranking and
// the counts follow at once, in one transaction with the block, and a recount says the same. What comes
// later is blocked too, whatever the stream says of the account.
func TestBlockedIsNowhere(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	now := time.Now()
	const a, b, sub, other = "https://a.example/x", "https://spam.example/1", "https://www.sub.spam.example/2", "https://notspam.example/3"
	for i, did := range []string{"did:plc:a", "did:plc:b", "did:plc:c"} {
		for n, url := range []string{a, b, sub, other} {
			if i >= n/2 { // the last two are shared by two accounts
				share(t, pool, did, string(rune('1'+n)), url, now.Add(-time.Duration(n+1)*time.Minute), link.Card{})
			}
		}
	}
	_, err := ranking.Count(t.Context(), pool, now)
	require.NoError(t, err)
	all := []string{a + " 3", b + " 3", sub + " 2", other + " 2"}
	shown := func(counted bool) []string {
		t.Helper()
		if counted {
			_, err := ranking.Count(t.Context(), pool, now)
			require.NoError(t, err)
		}
		page, err := ranking.Trending(t.Context(), pool, ranking.Query{At: now, Window: time.Hour, Limit: 10})
		require.NoError(t, err)
		lines := []string{}
		for _, l := range page.Links {
			lines = append(lines, l.URL+" "+string(rune('0'+l.Sharers)))
		}
		require.ElementsMatch(t, lines, column(t, pool, `SELECT url || ' ' || sharers FROM trending(interval '1 hour')`))
		_, err = ranking.Check(t.Context(), pool, func(d ranking.Difference) { require.Fail(t, "a count is wrong", "%v", d) })
		require.NoError(t, err)
		return lines
	}
	require.Equal(t, all, shown(false))
	for target, want := range map[string][]string{
		"domain Spam.example": {a + " 3", other + " 2"},
		"domain a.example":    {b + " 3", sub + " 2", other + " 2"},
		"link " + b:           {a + " 3", sub + " 2", other + " 2"},
		"account did:plc:c":   {a + " 2", b + " 2", sub + " 1", other + " 1"},
	} {
		execute(t, pool, `INSERT INTO blocks (kind, target) VALUES (split_part($1, ' ', 1), split_part($1, ' ', 2))`, target)
		require.Equal(t, want, shown(false), target)
		require.Equal(t, want, shown(true), target)
		require.Len(t, column(t, pool, `SELECT target FROM blocks`), 1)
		execute(t, pool, `DELETE FROM blocks`)
		require.Equal(t, all, shown(false), target)
		require.Equal(t, all, shown(true), target)
	}
	for _, target := range []string{"spam.example", "did:plc:c"} {
		block, err := ranking.ParseBlock(target)
		require.NoError(t, err)
		added, err := ranking.AddBlock(t.Context(), pool, block)
		require.NoError(t, err)
		require.True(t, added)
	}
	share(t, pool, "did:plc:a", "9", "https://spam.example/new", now.Add(-time.Minute), link.Card{})
	_, err = apply(t.Context(), pool, lease, schema.Batch{Statuses: []schema.Status{{DID: "did:plc:c", Status: "active", At: now}}})
	require.NoError(t, err)
	require.Equal(t, []string{a + " 2", other + " 1"}, shown(true))
	_, err = ranking.ReadLink(t.Context(), pool, ranking.LinkQuery{ID: 2, At: now, Window: time.Hour})
	require.ErrorIs(t, err, ranking.ErrLink)
	blocks, err := ranking.Blocks(t.Context(), pool)
	require.NoError(t, err)
	require.Equal(t, []int64{3, 6, 0, 4}, []int64{blocks[0].Links, blocks[0].Shares, blocks[1].Links, blocks[1].Shares}, "%v", blocks)
	for _, left := range []string{"blocked", "deactivated"} { // a row that is not needed would be deleted
		execute(t, pool, `UPDATE accounts SET status = $1 WHERE did = 'did:plc:c'`, left)
		expired, err := schema.ExpireAccounts(t.Context(), pool, nil, now.AddDate(1, 0, 0), now.AddDate(1, 0, 0), 10)
		require.NoError(t, err)
		require.Positive(t, expired.Checked)
		require.Equal(t, []string{"blocked"}, column(t, pool, `SELECT status FROM accounts WHERE did = 'did:plc:c'`))
		execute(t, pool, `UPDATE accounts SET check_at = now() WHERE did = 'did:plc:c'`)
	}
	for _, block := range blocks {
		removed, err := ranking.RemoveBlock(t.Context(), pool, block)
		require.NoError(t, err)
		require.True(t, removed)
	}
	require.Equal(t, append([]string{a + " 3", b + " 3"}, sub+" 2", other+" 2", "https://spam.example/new 1"), shown(true))
}
