package ranking_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/words"
	"github.com/weir-social/weir/schema"
)

// library is a database with shared links that a text may find.
type library struct {
	*testing.T
	pool *pgxpool.Pool
	now  time.Time
}

// add stores a post, or a note of Nostr, and its share of a page.
func (l *library) add(did, rkey, page, text string, card link.Card) {
	l.Helper()
	k := schema.Key{Collection: schema.PostCollection, DID: did, Rkey: rkey}
	if ranking.NetworkOf(did) == ranking.Nostr {
		k.Collection = ranking.NoteCollection
	}
	execute(l.T, l.pool, `INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
		VALUES ($1, $2, $3, '1', '', $4, '{}') ON CONFLICT DO NOTHING`, k.Collection, did, rkey, l.now)
	s := ranking.Share{
		Key: k, Link: link.Link{Identity: page, URL: "https://" + page, Site: "news.example", Card: card}, How: "post",
		SharedAt: l.now, Text: text,
	}
	require.NoError(l, pgx.BeginFunc(l.Context(), l.pool, func(tx pgx.Tx) error {
		return ranking.ReplaceShares(l.Context(), tx, []schema.Key{k}, []ranking.Share{s}, l.now)
	}))
}

// find returns the addresses that a text finds. It requires the same from the counts and from the
// shares.
func (l *library) find(db ranking.Beginner, text string) (found []string) {
	l.Helper()
	for _, past := range []bool{false, true} {
		p, err := ranking.Trending(l.Context(), db, ranking.Query{
			At: l.now.Add(time.Second), Past: past, Window: time.Hour, Limit: 10, Text: text,
		})
		require.NoError(l, err)
		urls := []string{}
		for _, k := range p.Links {
			urls = append(urls, strings.TrimPrefix(k.URL, "https://"))
		}
		require.True(l, !past || p.Recounted)
		if past {
			require.ElementsMatch(l, found, urls, "the recount: %q", text)
		}
		found = urls
	}
	return found
}

func (l *library) count() {
	l.Helper()
	_, err := ranking.Count(l.Context(), l.pool, l.now)
	require.NoError(l, err)
}

// TestTextFindsLinks finds links by the text of their cards, their addresses and their sharers'
// posts, whether they are counted or pending.
func TestTextFindsLinks(t *testing.T) {
	t.Parallel()
	l := &library{t, schematest.New(t), noon()}
	l.count()
	l.add("did:plc:a", "1", "news.example/2026/grey-birds?x=1", "Look at “this”, Crème!", link.Card{
		Title: "The heron returns", Description: "After ten years",
	})
	l.add("did:plc:b", "1", "news.example/2026/grey-birds?x=1", "I have seen one", link.Card{Title: "A false title"})
	l.add("did:plc:c", "1", "other.example/Stra%C3%9Fe_100%25", "Look 寿司が食べたい", link.Card{})
	const birds, street = "news.example/2026/grey-birds?x=1", "other.example/Stra%C3%9Fe_100%25"
	for range 2 {
		for text, want := range map[string][]string{
			"heron":                      {birds},
			"HERON years":                {birds},
			"years heron":                {birds},
			"heron seen":                 {}, // no text has both words
			"false":                      {birds},
			"retu":                       {birds}, // the beginning of a word
			"retu heron":                 {},
			`"retu"`:                     {},
			`"heron returns"`:            {birds},
			`"returns heron"`:            {},
			`"returns after"`:            {}, // a phrase does not continue in the description
			"creme":                      {birds},
			"CRÈME this":                 {birds},
			"look":                       {birds, street},
			"食べ":                         {street},
			"べ食":                         {},
			"grey heron":                 {birds}, // the address and the title
			"straße":                     {street},
			"news.example":               {birds},
			"NEWS.example/2026/":         {birds},
			"https://www.news.example/":  {birds},
			"example/":                   {birds, street},
			"s.example/2026/g":           {birds},
			"2026/grey-birds?x=1":        {birds},
			"other.example/stra%c3%9fe_": {street},
			"other.example/stra_c3":      {},
			"never":                      {},
			"!!":                         {},
			"\xff\x00":                   {},
			"'":                          {},
		} {
			require.ElementsMatch(t, want, l.find(l.pool, text), "%q", text)
		}
		l.count()
	}
	_, err := ranking.Trending(t.Context(), l.pool, ranking.Query{Window: time.Hour, Limit: 1, Text: strings.Repeat("ä", words.MaxText+1)})
	require.ErrorContains(t, err, "more than 200 characters")
	require.Empty(t, l.find(l.pool, strings.Repeat("ä.", words.MaxText/2)))
}

// TestTextOfADeletedPostFindsNothing checks this in the transaction that deletes the post, hides
// its author or edits it, whether it is counted or pending.
func TestTextOfADeletedPostFindsNothing(t *testing.T) {
	t.Parallel()
	for _, counted := range []bool{false, true} {
		l := &library{t, schematest.New(t), noon()}
		l.count()
		const page = "news.example/1"
		l.add("did:plc:a", "1", page, "a seldom word", link.Card{Title: "A heron"})
		l.add("did:plc:b", "1", page, "others", link.Card{Title: "Others"})
		if counted {
			l.count()
		}
		for _, sql := range []string{
			`DELETE FROM shares WHERE did = 'did:plc:a'`,
			`INSERT INTO accounts (did, status) VALUES ('did:plc:a', 'takendown')`,
		} {
			tx, err := l.pool.Begin(t.Context())
			require.NoError(t, err)
			defer tx.Rollback(context.WithoutCancel(t.Context())) // the transaction may have ended
			execute(t, tx, sql)
			for _, text := range []string{"seldom", "heron"} {
				require.Equal(t, []string{page}, l.find(l.pool, text), "not committed")
				require.Empty(t, l.find(inside{tx}, text))
			}
			require.Equal(t, []string{page}, l.find(inside{tx}, "others"))
			require.NoError(t, tx.Rollback(t.Context()))
		}
		l.add("did:plc:a", "1", page, "another word", link.Card{Title: "A heron"}) // an edit
		require.Empty(t, l.find(l.pool, "seldom"))
		require.Equal(t, []string{page}, l.find(l.pool, "another"))
		require.Equal(t, []string{page}, l.find(l.pool, "heron"))
		lease := take(t, l.pool, "me")
		_, err := apply(t.Context(), l.pool, lease, schema.Batch{Deletions: []schema.Deletion{deletion("1", "3")}})
		require.NoError(t, err)
		require.Empty(t, l.find(l.pool, "heron"))
		require.Empty(t, l.find(l.pool, "another"))
		require.Equal(t, []string{page}, l.find(l.pool, "others"))
	}
}

// inside returns the same transaction again and again.
type inside struct{ tx pgx.Tx }

func (i inside) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) { return i.tx.Begin(ctx) }

// TestTextOfAPostIsFoundWhileThePostIsStored covers a post whose share and card are kept longer.
func TestTextOfAPostIsFoundWhileThePostIsStored(t *testing.T) {
	t.Parallel()
	l := &library{t, schematest.New(t), time.Now().Truncate(time.Second)}
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), l.pool, l.now, 24*time.Hour))
	require.NoError(t, ranking.EnsureDays(t.Context(), l.pool, l.now, 7*24*time.Hour))
	tid := func(before time.Duration) string { return syntax.NewTID(l.now.Add(-before).UnixMicro(), 0).String() }
	const early, late, other, ahead = "news.example/early", "news.example/late", "news.example/other", "news.example/ahead"
	l.add("did:plc:a", tid(20*time.Hour), early, "written", link.Card{Title: "Heron"})
	l.add("did:plc:b", tid(time.Minute), late, "written", link.Card{})
	l.add("did:plc:c", "self", other, "written", link.Card{})
	l.add("did:plc:d", tid(-200*24*time.Hour), ahead, "written", link.Card{})
	l.count()
	require.ElementsMatch(t, []string{early, late, other, ahead}, l.find(l.pool, "written"))

	expired, err := schema.ExpiredPartitions(t.Context(), l.pool, "posts", l.now.Add(-10*time.Hour))
	require.NoError(t, err)
	require.NotEmpty(t, expired)
	for _, part := range expired {
		_, err := schema.DropPartition(t.Context(), l.pool, part, nil)
		require.NoError(t, err)
	}
	require.ElementsMatch(t, []string{late, other, ahead}, l.find(l.pool, "written"))
	require.Equal(t, []string{early}, l.find(l.pool, "heron"))
	execute(t, l.pool, `DELETE FROM posts WHERE did IN ('did:plc:c', 'did:plc:d')`) // these posts expire one by one
	require.Equal(t, []string{late}, l.find(l.pool, "written"))
	require.Equal(t, []string{early}, l.find(l.pool, "heron"))
}

// TestTextOfANoteIsFoundWhileTheNoteIsStored shows that a note's text is found by its words, like a
// post's. The key of a note contains no day, and may sort before or after those of the stored
// posts.
func TestTextOfANoteIsFoundWhileTheNoteIsStored(t *testing.T) {
	t.Parallel()
	l := &library{t, schematest.New(t), time.Now().Truncate(time.Second)}
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), l.pool, l.now, 24*time.Hour))
	require.NoError(t, ranking.EnsureDays(t.Context(), l.pool, l.now, 7*24*time.Hour))
	author := func(digit string) string { return "did:nostr:" + strings.Repeat(digit, 64) }
	const low, high, post = "news.example/low", "news.example/high", "news.example/post"
	l.add(author("a"), strings.Repeat("0", 64), low, "written zap", link.Card{})
	l.add(author("b"), strings.Repeat("f", 64), high, "written", link.Card{})
	l.add("did:plc:a", syntax.NewTID(l.now.Add(-time.Minute).UnixMicro(), 0).String(), post, "written", link.Card{})
	for range 2 {
		require.ElementsMatch(t, []string{low, high, post}, l.find(l.pool, "written"))
		require.Equal(t, []string{low}, l.find(l.pool, "zap writ"))
		require.Empty(t, l.find(l.pool, "post zap"))
		l.count()
	}
	execute(t, l.pool, `DELETE FROM records WHERE did = '`+author("b")+`'`) // the note expires, and its share is kept
	require.ElementsMatch(t, []string{low, post}, l.find(l.pool, "written"))
}

// TestHostileTextsAreIndexedInPart shows that every posted text is stored, and that its beginning
// is found.
func TestHostileTextsAreIndexedInPart(t *testing.T) {
	t.Parallel()
	l := &library{t, schematest.New(t), noon()}
	long := strings.Repeat("ünbelievable", 300)
	l.add("did:plc:a", "1", "news.example/1", "begin "+strings.Repeat("a b ' \\ : ", 1<<17)+" finish", link.Card{
		Title: "card " + strings.Repeat("x ", 1<<20), Description: long,
	})
	l.add("did:plc:b", "1", "news.example/2", long, link.Card{Title: "\xff\x00'\\:*&|!()<->"})
	require.Equal(t, []string{"news.example/1"}, l.find(l.pool, "begin"))
	require.Equal(t, []string{"news.example/1"}, l.find(l.pool, "card"))
	require.Empty(t, l.find(l.pool, "finish"))
	require.Len(t, l.find(l.pool, long[:150]), 2, "the beginning of a long word")
	var largest int
	require.NoError(t, l.pool.QueryRow(t.Context(),
		`SELECT greatest((SELECT max(pg_column_size(words)) FROM shares), (SELECT max(pg_column_size(words)) FROM claims))`).Scan(&largest))
	require.Less(t, largest, 20_000)
}
