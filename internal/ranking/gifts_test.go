package ranking_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// gives stores a gift for a link, given by a post of an account.
func gives(t *testing.T, pool *pgxpool.Pool, did, identity, gift string, ago time.Duration) {
	t.Helper()
	k := schema.Key{Collection: schema.PostCollection, DID: did, Rkey: "1"}
	s := ranking.Share{
		Key: k, Link: link.Link{Identity: identity, URL: "https://" + identity, Site: "news.example", Gift: gift}, How: "post",
		SharedAt: noon().Add(-ago),
	}
	_, err := ranking.EnsureLinks(t.Context(), pool, []ranking.Share{s}, noon())
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return ranking.ReplaceShares(t.Context(), tx, []schema.Key{k}, []ranking.Share{s}, noon())
	}))
}

// TestNewestLivingGiftIsOffered shows that the page of the link and the ranking offer the newest
// gift whose giver counts and whose record exists.
func TestNewestLivingGiftIsOffered(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	const story = "news.example/a"
	offered := func(want string) {
		t.Helper()
		l, err := ranking.ReadLink(t.Context(), pool, ranking.LinkQuery{ID: 1, At: noon(), Window: ranking.LongestWindow})
		require.NoError(t, err)
		require.Equal(t, want, l.Gift)
		p, err := ranking.Trending(t.Context(), pool, ranking.Query{At: noon(), Window: ranking.LongestWindow, Limit: 10})
		require.NoError(t, err)
		require.Equal(t, want, p.Links[0].Gift)
	}
	gives(t, pool, "did:plc:none", story, "", 0)
	offered("")
	gives(t, pool, "did:plc:old", story, "https://news.example/a?gift=old", 3*time.Hour)
	gives(t, pool, "did:plc:new", story, "https://news.example/a?gift=new", time.Hour)
	gives(t, pool, "did:plc:hidden", story, "https://news.example/a?gift=hidden", time.Minute)
	offered("https://news.example/a?gift=hidden")
	execute(t, pool, `INSERT INTO accounts (did, status) VALUES ('did:plc:hidden', 'takendown')`)
	offered("https://news.example/a?gift=new")
	gives(t, pool, "did:plc:new", story, "https://news.example/a?gift=edited", time.Hour)
	offered("https://news.example/a?gift=edited")
	gives(t, pool, "did:plc:new", story, "", time.Hour) // the edit withdraws the gift
	offered("https://news.example/a?gift=old")
	execute(t, pool, `INSERT INTO watches (target) VALUES ('alice.example')`)
	execute(t, pool, `INSERT INTO watch_members (watch_id, did) VALUES (1, 'did:plc:none')`)
	offered("")
	execute(t, pool, `DELETE FROM watches`)
	execute(t, pool, `DELETE FROM shares WHERE did = 'did:plc:old'`)
	offered("")
	// A gift for a merged link opens another address.
	gives(t, pool, "did:plc:other", "news.example/b", "https://news.example/b?gift=b", 0)
	var other int64
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT id FROM links WHERE identity = 'news.example/b'`).Scan(&other))
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return ranking.MergeLinks(t.Context(), tx, ranking.Merge{Link: other, Into: 1, Why: ranking.ByHand, Now: noon()})
	}))
	offered("")
}
