package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// wrote is a post that was written some time before oracleEnd.
func wrote(did, rkey, rev string, before time.Duration, urls ...string) *simnet.Entry {
	at := oracleEnd.Add(-before)
	return &simnet.Entry{Kind: "commit", Operation: "create", Collection: oraclePost, DID: did, Rkey: rkey, Rev: rev, CID: "cid-" + rev,
		Record: []byte(`{"text":"` + rev + `"}`), CreatedAt: at, TimeUS: at.Add(time.Second).UnixMicro(), Links: urls, Claims: spelled(urls)}
}

// spelled returns the claims of a post without a card.
func spelled(urls []string) (claims []simnet.Claim) {
	for _, url := range urls {
		claims = append(claims, simnet.Claim{URL: url})
	}
	return claims
}

func removed(did, rkey, rev string) *simnet.Entry {
	return &simnet.Entry{Kind: "commit", Operation: "delete", Collection: oraclePost, DID: did, Rkey: rkey, Rev: rev}
}

func TestOracleFoldsTheLatestRevisionAndItsShares(t *testing.T) {
	t.Parallel()
	edited := wrote("a", "1", "r2", time.Hour, "https://b.example")
	edited.Operation = "update"
	edited.Record = []byte(`{"embed":{"$type":"app.bsky.embed.recordWithMedia"}}`)
	like := wrote("a", "4", "r5", 0)
	like.Collection = "app.bsky.feed.like"
	early := wrote("a", "5", "r6", 0)
	early.CreatedAt = oracleEnd.Add(time.Hour) // the event arrived an hour before the date that it claims
	tr := fold([]*simnet.Entry{
		wrote("a", "1", "r1", time.Hour, "https://a.example"), edited,
		wrote("a", "2", "r3", time.Hour, "https://c.example"), removed("a", "2", "r4"),
		removed("a", "3", "r4"), wrote("a", "3", "r5", time.Hour, "https://d.example"),
		like, early,
	})
	key := func(rkey string) recordKey { return recordKey{oraclePost, "a", rkey} }
	require.Len(t, tr.records, 3)
	require.Equal(t, "r2", tr.records[key("1")].rev)
	require.Equal(t, "cid-r2", tr.records[key("1")].cid)
	require.Equal(t, "r5", tr.records[key("3")].rev)
	require.Equal(t, oracleEnd.Add(time.Second), tr.records[key("5")].createdAt.UTC())
	require.Equal(t, map[recordKey]tombstoneRow{key("2"): {"r4"}, key("3"): {"r4"}}, tr.tombstones)
	at := oracleEnd.Add(-time.Hour)
	require.Equal(t, map[shareKey]shareRow{
		{key("1"), "https://b.example"}: {how: "post", at: at, claim: simnet.Claim{URL: "https://b.example"}},
		{key("3"), "https://d.example"}: {how: "post", at: at, claim: simnet.Claim{URL: "https://d.example"}},
	}, tr.shares)
	require.Len(t, tr.everShared, 4)
	require.Len(t, fold([]*simnet.Entry{like, early}, oraclePost, "app.bsky.feed.like").records, 2)
}

// refers makes an entry a repost or a quote of a post.
func refers(e *simnet.Entry, collection, did, rkey string) *simnet.Entry {
	e.Collection = collection
	uri := "at://" + did + "/" + oraclePost + "/" + rkey
	e.Record = []byte(`{"subject":{"uri":"` + uri + `"}}`)
	if collection == oraclePost {
		e.Record = []byte(`{"embed":{"$type":"app.bsky.embed.recordWithMedia","record":{"record":{"uri":"` + uri + `"}}}}`)
	}
	return e
}

func TestOracleFoldsRepostsAndQuotes(t *testing.T) {
	t.Parallel()
	const a, b, repost = "https://a.example", "https://b.example", "app.bsky.feed.repost"
	tr := fold([]*simnet.Entry{
		refers(wrote("b", "1", "r1", time.Minute), repost, "a", "1"), // before the post
		wrote("a", "1", "r1", time.Minute, a), wrote("a", "2", "r2", time.Minute, b), removed("a", "2", "r3"),
		refers(wrote("b", "2", "r2", time.Minute), repost, "a", "2"),
		refers(wrote("c", "1", "r1", time.Minute, b), oraclePost, "a", "1"),
		refers(wrote("d", "1", "r1", time.Minute, a), oraclePost, "a", "1"),
		refers(wrote("e", "1", "r1", time.Minute), oraclePost, "c", "1"),
		wrote("h", "1", "r1", time.Minute, a), {Kind: "account", DID: "h", Status: "takendown"},
		refers(wrote("g", "1", "r1", time.Minute), repost, "h", "1"),
	})
	var all []string
	for key, s := range tr.shares {
		all = append(all, key.did+key.rkey+" "+s.how+" "+key.url)
	}
	slices.Sort(all)
	require.Equal(t, []string{
		"a1 post " + a, "b1 repost " + a, "c1 post " + b, "c1 quote " + a, "d1 post " + a, "e1 quote " + b, "g1 repost " + a, "h1 post " + a,
	}, all)
	require.Equal(t, []ranked{{a, 4}, {b, 2}}, tr.ranking(oracleEnd, time.Hour, 0), "g reposted a hidden account and must not count")
}

func TestOracleFoldsTheLatestStateOfAnAccount(t *testing.T) {
	t.Parallel()
	tr := fold([]*simnet.Entry{
		{Kind: "identity", DID: "a", Handle: "old.example"}, {Kind: "identity", DID: "a", Handle: "new.example"}, {Kind: "identity", DID: "a"},
		{Kind: "account", DID: "b", Status: "suspended"}, {Kind: "identity", DID: "b", Handle: "b.example"},
		{Kind: "account", DID: "c", Status: "deactivated"}, {Kind: "account", DID: "c", Active: true},
		wrote("d", "1", "r1", 0), {Kind: "identity", DID: "d", Handle: "d.example"},
		wrote("e", "1", "r1", 0), removed("e", "1", "r2"), {Kind: "identity", DID: "e", Handle: "e.example"},
	})
	require.Equal(t, map[accountKey]accountRow{"a": {"new.example", "active", true}, "b": {"b.example", "suspended", true},
		"c": {"", "active", true}, "d": {"d.example", "active", false}, "e": {"e.example", "active", true}}, tr.accounts)
}

func TestOracleRanksBySharersThenLastShareThenURL(t *testing.T) {
	t.Parallel()
	const many, late, end = "https://many.example", "https://late.example", "https://end.example"
	tied := []string{"https://g.example", "https://b.example", "https://e.example", "https://a.example", "https://f.example"}
	entries := []*simnet.Entry{
		wrote("a", "1", "r", 50*time.Minute, many), wrote("b", "1", "r", 50*time.Minute, many),
		wrote("c", "1", "r", time.Minute, late), wrote("c", "2", "r", 2*time.Minute, late), // one account counts once
		wrote("d", "1", "r", 5*time.Minute, tied...), // at the same moment
		wrote("e", "1", "r", 0, end),
		wrote("e", "2", "r", time.Hour, "https://out.example"), // the window excludes its start
		wrote("e", "3", "r", -time.Microsecond, "https://future.example"),
		wrote("f", "1", "r", time.Minute, many, "https://hidden.example"), {Kind: "account", DID: "f", Status: "deactivated"},
	}
	tr := fold(entries)
	want := []ranked{{many, 2}, {end, 1}, {late, 1}}
	for _, url := range slices.Sorted(slices.Values(tied)) {
		want = append(want, ranked{url, 1})
	}
	require.Equal(t, want, tr.ranking(oracleEnd, time.Hour, 0))
	require.Equal(t, want[:3], tr.ranking(oracleEnd, time.Hour, 3))

	// The oracle's query returns the same ranking.
	pool := schematest.New(t)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return tr.store(t.Context(), tx) }))
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		found, err := foundRanking(t.Context(), tx, oracleEnd, time.Hour)
		require.Equal(t, want, found)
		return err
	}))
}

func TestOracleExpectsDeadLettersAndGaps(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	tr := fold(nil)
	tr.deadLettersExpected, tr.gapsExpected = 1, 1
	problems, err := tr.problems(t.Context(), pool, oracleEnd)
	require.NoError(t, err)
	requireProblems(t, []string{"dead_letters: rows: expected 1, found 0", "gaps: rows: expected 1, found 0"}, problems)
	for _, sql := range []string{putDeadLetter, putGap} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	problems, err = tr.problems(t.Context(), pool, oracleEnd)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestOracleAllowsALinkThatOutlivesItsShares(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	tr := fold([]*simnet.Entry{wrote("a", "1", "r1", 0, "https://a.example"), removed("a", "1", "r2")})
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return tr.store(t.Context(), tx) }))
	problems, err := tr.problems(t.Context(), pool, oracleEnd)
	require.NoError(t, err)
	require.Empty(t, problems)
	_, err = pool.Exec(t.Context(), `INSERT INTO links (identity, url, site, first_seen) VALUES ('a.example', 'https://a.example', '', now())`)
	require.NoError(t, err)
	problems, err = tr.problems(t.Context(), pool, oracleEnd)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestOracleReportsADuplicateLink(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	tr := fold([]*simnet.Entry{wrote("a", "1", "r1", 0, "https://a.example")})
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return tr.store(t.Context(), tx) }))
	for _, sql := range []string{
		`ALTER TABLE links DROP CONSTRAINT links_identity_key`, // allow the duplicates that a corrupt index would
		`INSERT INTO links (identity, url, site, first_seen) SELECT identity, url, site, first_seen FROM links`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	problems, err := tr.problems(t.Context(), pool, oracleEnd)
	require.NoError(t, err)
	require.Equal(t, []string{"links: https://a.example: expected one row, found another"}, problems)
}

func TestOracleComparesTheMeaningOfJSON(t *testing.T) {
	t.Parallel()
	for _, same := range []string{`{"a":[1.50,{"b":100,"c":null}],"d":"é"}`, `{"d":"\u00e9", "a":[1.5, {"c":null, "b":1e2}]}`} {
		require.Empty(t, unequalJSON([]byte(`{"a":[1.5,{"b":100,"c":null}],"d":"é"}`), []byte(same)))
	}
	for _, other := range []string{
		`{"a":9007199254740993}`, `{"a":"9007199254740992"}`, `{"a":null}`, `{}`, `{"a":[9007199254740992]}`, `null`, `[]`,
	} {
		require.NotEmpty(t, unequalJSON([]byte(`{"a":9007199254740992}`), []byte(other)), other)
	}
}

func TestOracleNamesEveryTableOfAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	n, err := simnet.New(simnet.Config{Seed: 11, Accounts: 60, History: 2000, Mix: simnet.MixPosts, Start: oracleEnd})
	require.NoError(t, err)
	problems, err := fold(n.Log().Entries()).problems(t.Context(), schematest.New(t), oracleEnd)
	require.NoError(t, err)
	require.LessOrEqual(t, len(problems), 20)
	requireProblems(t, []string{"records: ... more like it", "tombstones: ", "accounts: ", "shares: ", "links: ", "ranking: "}, problems)
	require.Contains(t, strings.Join(problems, "\n"), "found no row")
}
