package ranking_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// says stores what a post of an account says about the link "story".
func says(t *testing.T, pool *pgxpool.Pool, did, rkey, url string, card ranking.Card) {
	t.Helper()
	k := schema.Key{Collection: schema.PostCollection, DID: did, Rkey: rkey}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		s := ranking.Share{Key: k, Identity: "story", URL: url, Site: "news.example", How: "post", SharedAt: noon(), Card: card}
		return ranking.ReplaceShares(t.Context(), tx, []schema.Key{k}, []ranking.Share{s}, noon())
	}))
}

func claims(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	return column(t, pool, `SELECT concat_ws(' ', c.url, nullif(c.title, ''), nullif(c.description, ''), nullif(c.image, '')) || ': ' ||
		(SELECT coalesce(string_agg(s.did, ' ' ORDER BY s.did), 'nobody') FROM shares AS s WHERE s.claim_id = c.id) FROM claims AS c ORDER BY c.url COLLATE "C", c.title = '', c.image`)
}

// TestOneClaimForAllWhoSayTheSame: pictures are compared by their CIDs, and a claim goes
// when no share names it.
func TestOneClaimForAllWhoSayTheSame(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	const https, http = "https://news.example/story", "http://news.example/story"
	for _, who := range []string{"a", "b", "c"} {
		says(t, pool, who, "1", https, ranking.Card{Title: "T", Description: "D", Image: "blob:did:plc:" + who + "/cid1", From: "at://" + who})
	}
	says(t, pool, "d", "1", http, ranking.Card{Title: "T", Description: "D", Image: "blob:did:plc:d/cid1", From: "at://d"})
	says(t, pool, "e", "1", https, ranking.Card{Title: "T", Description: "D", Image: "blob:did:plc:e/cid2", From: "at://e"})
	says(t, pool, "f", "1", https, ranking.Card{})
	require.Equal(t, []string{http + " T D cid1: d", https + " T D cid1: a b c", https + " T D cid2: e", https + ": f"}, claims(t, pool))

	says(t, pool, "f", "1", https, ranking.Card{Title: "T", Description: "D", Image: "blob:did:plc:f/cid2", From: "at://f"}) // edited
	execute(t, pool, `DELETE FROM shares WHERE did = 'd'`)
	done, err := ranking.ExpireClaims(t.Context(), pool, 0, 10)
	require.NoError(t, err)
	require.Equal(t, 2, done.Found)
	require.Equal(t, []string{https + " T D cid1: a b c", https + " T D cid2: e f"}, claims(t, pool))
	execute(t, pool, `DELETE FROM shares`)
	execute(t, pool, `DELETE FROM links`)
	require.Empty(t, claims(t, pool))
}

// TestClaimsStayWhileTheyAreNamed: claims expire while posts change what they say, again
// and again. No share names a claim that is gone.
func TestClaimsStayWhileTheyAreNamed(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	says(t, pool, "a", "0", "https://news.example/story", ranking.Card{})
	stop, ended := make(chan struct{}), make(chan error, 1)
	expired := 0
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			done, err := ranking.ExpireClaims(t.Context(), pool, 0, 10)
			expired += done.Found
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	for i := range 300 {
		for _, who := range []string{"a", "b"} {
			says(t, pool, who, "1", "https://news.example/story", ranking.Card{Title: fmt.Sprint("T", i%3), From: "at://" + who, At: noon().Add(time.Duration(i))})
		}
	}
	close(stop)
	require.NoError(t, <-ended)
	require.Positive(t, expired)
	require.Empty(t, column(t, pool, `SELECT s.did FROM shares AS s WHERE s.claim_id IS NULL OR NOT EXISTS (SELECT FROM claims AS c WHERE c.id = s.claim_id)`))
}
