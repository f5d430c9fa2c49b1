package ranking_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// says stores the claims of an account's post about the link "story".
func says(t *testing.T, pool *pgxpool.Pool, did, rkey, url string, card link.Card) {
	t.Helper()
	k := schema.Key{Collection: schema.PostCollection, DID: did, Rkey: rkey}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		s := ranking.Share{Key: k, Link: link.Link{Identity: "story", URL: url, Site: "news.example", Card: card}, How: "post", SharedAt: noon()}
		return ranking.ReplaceShares(t.Context(), tx, []schema.Key{k}, []ranking.Share{s}, noon())
	}))
}

func claims(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	return column(t, pool, `SELECT concat_ws(' ', c.url, nullif(c.title, ''), nullif(c.description, ''), nullif(c.image, '')) || ': ' ||
		(SELECT coalesce(string_agg(s.did, ' ' ORDER BY s.did), 'nobody') FROM shares AS s WHERE s.claim_id = c.id) FROM claims AS c
		ORDER BY c.url COLLATE "C", c.title = '', c.image`)
}

// TestOneClaimForAllWhoSayTheSame shows that pictures are compared by their CIDs, and that a claim
// is deleted when no share names it.
func TestOneClaimForAllWhoSayTheSame(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	const https, http = "https://news.example/story", "http://news.example/story"
	for _, who := range []string{"a", "b", "c"} {
		says(t, pool, who, "1", https, link.Card{Title: "T", Description: "D", Image: "blob:did:plc:" + who + "/cid1"})
	}
	says(t, pool, "d", "1", http, link.Card{Title: "T", Description: "D", Image: "blob:did:plc:d/cid1"})
	says(t, pool, "e", "1", https, link.Card{Title: "T", Description: "D", Image: "blob:did:plc:e/cid2"})
	says(t, pool, "f", "1", https, link.Card{})
	require.Equal(t, []string{http + " T D cid1: d", https + " T D cid1: a b c", https + " T D cid2: e", https + ": f"}, claims(t, pool))

	says(t, pool, "f", "1", https, link.Card{Title: "T", Description: "D", Image: "blob:did:plc:f/cid2"}) // edited
	execute(t, pool, `DELETE FROM shares WHERE did = 'd'`)
	done, err := ranking.ExpireClaims(t.Context(), pool, 0, 10)
	require.NoError(t, err)
	require.Equal(t, 2, done.Found)
	require.Equal(t, []string{https + " T D cid1: a b c", https + " T D cid2: e f"}, claims(t, pool))
	execute(t, pool, `DELETE FROM shares`)
	execute(t, pool, `DELETE FROM links`)
	require.Empty(t, claims(t, pool))
}

// TestClaimStaysForTheWorkerThatFoundIt shows that expiry keeps a claim while a worker that found
// it unnamed stores a share that names it.
func TestClaimStaysForTheWorkerThatFoundIt(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	says(t, pool, "a", "1", "https://news.example/story", link.Card{Title: "T"})
	execute(t, pool, `DELETE FROM shares`)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) // nothing is left to roll back
	k := schema.Key{Collection: schema.PostCollection, DID: "b", Rkey: "1"}
	all := []ranking.Share{{
		Key:  k,
		Link: link.Link{Identity: "story", URL: "https://news.example/story", Site: "news.example", Card: link.Card{Title: "T"}},
		How:  "post", SharedAt: noon(),
	}}
	execute(t, tx, `SELECT FROM links WHERE identity = 'story' FOR KEY SHARE`) // as the first statement of a Replacement
	done, err := ranking.ExpireClaims(t.Context(), pool, 0, 10)
	require.NoError(t, err)
	require.Zero(t, done.Found)
	require.NoError(t, ranking.ReplaceShares(t.Context(), tx, []schema.Key{k}, all, noon()))
	require.NoError(t, tx.Commit(t.Context()))
	done, err = ranking.ExpireClaims(t.Context(), pool, 0, 10)
	require.NoError(t, err)
	require.Equal(t, ranking.Examined{Last: 1, Links: 1}, done)
	require.Equal(t, []string{"https://news.example/story T: b"}, claims(t, pool))
}

// TestClaimExpiresBeforeItsVoteIsCounted shows that readers see the headline that the other votes
// choose, and that the check reports no difference.
func TestClaimExpiresBeforeItsVoteIsCounted(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.post("a", 1, "", "Title")
	s.post("b", 2, "", "Title|Description")
	s.requires("https Title Description " + from("a", 1))
	execute(t, s.pool, `DELETE FROM shares WHERE did = 'a'`)
	done, err := ranking.ExpireClaims(t.Context(), s.pool, 0, 10)
	require.NoError(t, err)
	require.Equal(t, 1, done.Found)
	_, err = ranking.Check(t.Context(), s.pool, func(d ranking.Difference) { require.Fail(t, d.String()) })
	require.NoError(t, err)
	s.requires("https Title Description " + from("b", 2))
}
