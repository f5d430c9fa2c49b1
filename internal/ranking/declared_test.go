package ranking_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestUnwillingAccountCountsWhereItIsFollowed stores a declaration that its author does not want to be
// recommended. The author leaves the ranking in the transaction that stores it, and counts again where a
// watch follows it, or if it deletes the declaration. A recount says the same.
func TestUnwillingAccountCountsWhereItIsFollowed(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	now := time.Now()
	const both, one = "https://both.example/", "https://one.example/"
	share(t, pool, "did:plc:a", "1", both, now.Add(-time.Minute), link.Card{})
	share(t, pool, "did:plc:b", "2", both, now.Add(-2*time.Minute), link.Card{})
	share(t, pool, "did:plc:a", "3", one, now.Add(-3*time.Minute), link.Card{})
	is := func(want ...string) {
		t.Helper()
		for range 2 {
			lines := ranked(t, pool, now, time.Hour)
			require.Equal(t, want, lines)
			require.ElementsMatch(t, want, column(t, pool, `SELECT url || ' ' || sharers FROM trending(interval '1 hour')`))
			_, err := ranking.Count(t.Context(), pool, now)
			require.NoError(t, err)
			_, err = ranking.Check(t.Context(), pool, func(d ranking.Difference) { require.Fail(t, "a count is wrong", "%v", d) })
			require.NoError(t, err)
		}
	}
	is(both+" 2", one+" 1")
	k := schema.Key{Collection: "app.bsky.actor.contentVisibilityDeclaration", DID: "did:plc:a", Rkey: "self"}
	declare := func(rev, record string) {
		t.Helper()
		_, err := apply(t.Context(), pool, lease, schema.Batch{Writes: []schema.Write{{
			Key: k, Rev: rev, CID: rev, CreatedAt: now, Record: []byte(record),
		}}})
		require.NoError(t, err)
	}
	declare("1", `{"hideFromAlgorithmicRecommendations": true}`)
	is(both + " 1")
	require.Equal(t, []string{"not_recommended"}, column(t, pool, `SELECT DISTINCT why FROM link_shares WHERE did = 'did:plc:a'`))
	page, err := ranking.LinkShares(t.Context(), pool, ranking.LinkQuery{ID: 1, At: now, Window: time.Hour}, 10, "")
	require.NoError(t, err)
	require.Equal(t, []ranking.Reason{ranking.Unwilling, ranking.Counts}, []ranking.Reason{page.Shares[0].Why, page.Shares[1].Why})
	declare("2", `{"hideFromAlgorithmicRecommendations": false}`)
	is(both+" 2", one+" 1")
	declare("3", `{"hideFromAlgorithmicRecommendations": true}`)
	is(both + " 1")

	execute(t, pool, `INSERT INTO watches (target) VALUES ('x.example')`)
	execute(t, pool, `INSERT INTO watch_members (watch_id, did) VALUES (1, 'did:plc:a'), (1, 'did:plc:b')`)
	is(both+" 2", one+" 1")
	execute(t, pool, `DELETE FROM watches`)
	is(both + " 1")
	_, err = apply(t.Context(), pool, lease, schema.Batch{Deletions: []schema.Deletion{{Key: k, Rev: "4", At: now}}})
	require.NoError(t, err)
	is(both+" 2", one+" 1")
}

// TestStoredProfileWithholdsItsAccount stores profiles with labels of every shape: the account is shown to
// strangers unless it has labelled itself so, from the transaction that stores the profile.
func TestStoredProfileWithholdsItsAccount(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	share(t, pool, "did:plc:a", "1", "https://a.example/", time.Now().Add(-time.Minute), link.Card{})
	execute(t, pool, `INSERT INTO accounts (did, handle, avatar) VALUES ('did:plc:a', 'a.example', 'https://x.example/')`)
	k := schema.Key{Collection: "app.bsky.actor.profile", DID: "did:plc:a", Rkey: "self"}
	many := strings.Repeat(`{"val": "x"}, `, 5000)
	for i, c := range []struct {
		labels   string
		withheld bool
	}{
		{`{"values": [{"val": "!no-unauthenticated"}]}`, true},
		{`null`, false},
		{`{"$type": "com.atproto.label.defs#selfLabels", "values": [` + many +
			`null, 1, "x", [], {"val": null}, {"val": "!no-unauthenticated"}]}`, true},
		{`"!no-unauthenticated"`, false},
		{`{"values": [` + many + `{"val": {"!no-unauthenticated": "!no-unauthenticated"}}, {"val": 7}, {}]}`, false},
		{`{"values": null}`, false},
	} {
		rev := strconv.Itoa(i + 1)
		_, err := apply(t.Context(), pool, lease, schema.Batch{Writes: []schema.Write{{
			Key: k, Rev: rev, CID: rev, CreatedAt: time.Now(), Record: []byte(`{"labels": ` + c.labels + `}`),
		}}})
		require.NoError(t, err, c.labels)
		page, err := ranking.Trending(t.Context(), pool, ranking.Query{Window: time.Hour, Limit: 1})
		require.NoError(t, err)
		want := ranking.Face{DID: "did:plc:a", Handle: "a.example", Avatar: "https://x.example/", Network: ranking.Bluesky}
		if c.withheld {
			want = ranking.Face{DID: "did:plc:a", Withheld: true, Network: ranking.Bluesky}
		}
		require.Equal(t, []ranking.Face{want}, page.Links[0].Faces, "%.200s", c.labels)
		require.Equal(t, 1, page.Links[0].Sharers)
	}
}
