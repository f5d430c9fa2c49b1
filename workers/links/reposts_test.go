package links

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// TestReposterSharesTheLinksOfThePost covers either order of arrival, in one job or in two. An
// account counts once. A link in the quoting post itself is shared by post.
func TestReposterSharesTheLinksOfThePost(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][][]string{
		"the post first":  {{"a/1"}, {"b/r1"}, {"b/2"}, {"c/3"}, {"a/r9"}},
		"the post last":   {{"b/r1"}, {"b/2"}, {"c/3"}, {"a/r9"}, {"a/1"}},
		"all in one job":  {{"b/2", "c/3", "a/1", "a/r9", "b/r1"}},
		"again and again": {{"b/r1"}, {"a/1"}, {"b/r1"}, {"c/3", "b/2"}, {"a/1"}, {"a/r9"}, {"c/3"}},
	} {
		c := newTown(t)
		const other = "https://other.example/"
		write := map[string]func(){
			"a/1": func() { c.posts("a/1", "", c.news) }, "b/r1": func() { c.reposts("b/r1", "a/1") }, "b/2": func() { c.posts("b/2", "a/1") },
			"c/3": func() { c.posts("c/3", "a/1", other) }, "a/r9": func() { c.reposts("a/r9", "a/1") },
		}
		stored := map[string]bool{}
		for _, names := range order {
			for _, n := range names {
				if !stored[n] { // a second job for the same revision
					write[n]()
				}
				stored[n] = true
			}
			require.NoError(t, c.w.Work(t.Context(), c.job(names...)), name)
		}
		require.Equal(t, []string{
			"a/1 post " + c.news, "a/r9 repost " + c.news, "b/2 quote " + c.news, "b/r1 repost " + c.news, "c/3 post " + other,
			"c/3 quote " + c.news,
		}, c.sharing(), name)
		require.Equal(t, 3, c.counts(c.news), "%s: a and b shared it twice and count once", name)
		require.Empty(t, c.waiting(), name)
	}
}

// TestQuoteOfAQuoteSharesOnlyWhatTheQuotedPostContains covers cycles too.
func TestQuoteOfAQuoteSharesOnlyWhatTheQuotedPostContains(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	const own, same = "https://own.example/", "https://same.example/"
	c.posts("a/1", "", c.news)
	c.posts("b/1", "a/1", own)
	c.posts("c/1", "b/1")
	c.posts("d/1", "e/1", same)
	c.posts("e/1", "d/1", same)
	c.posts("f/1", "f/1", same) // quotes itself
	c.project("c/1", "e/1", "d/1", "b/1", "a/1", "f/1")
	require.Equal(t, []string{
		"a/1 post " + c.news, "b/1 post " + own, "b/1 quote " + c.news, "c/1 quote " + own, "d/1 post " + same,
		"e/1 post " + same, "f/1 post " + same,
	}, c.sharing())
	require.Equal(t, []string{"d/1 for e/1", "e/1 for d/1"}, c.waiting())
}

// TestStrangeRepostsShareNothing shows that strange reposts are no dead letters, except records
// that are no JSON object.
func TestStrangeRepostsShareNothing(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.posts("a/1", "", c.news)
	c.project("a/1")
	c.write("b/r1", map[string]any{"subject": map[string]string{"uri": "at://alice.example/app.bsky.feed.post/1"}})
	c.write("b/r2", map[string]any{"subject": map[string]string{"uri": "at://did:plc:a/app.bsky.feed.generator/1"}})
	c.write("b/r3", map[string]any{"subject": "at://did:plc:a/app.bsky.feed.post/1"})
	c.write("b/r4", map[string]any{})
	c.write("b/r5", map[string]any{"subject": map[string]string{"uri": c.uri("b/r5")}})
	c.write("b/r6", []int{})
	c.reposts("b/r7", "a/1")
	require.NoError(t, c.w.Work(t.Context(), c.job("b/r1", "b/r2", "b/r3", "b/r4", "b/r5", "b/r6", "b/r7")))
	require.Equal(t, []string{"a/1 post " + c.news, "b/r7 repost " + c.news}, c.sharing())
	require.Empty(t, c.waiting())
	require.Equal(t, []string{"app.bsky.feed.repost r6"}, c.rows(`SELECT collection || ' ' || rkey FROM dead_letters`))
}

// TestDeletedRepostSharesNothing deletes reposts before and after their share exists. A deleted
// repost that waited for a post no longer waits when the post arrives.
func TestDeletedRepostSharesNothing(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.posts("a/1", "", c.news)
	c.reposts("b/r1", "a/1")
	c.project("a/1", "b/r1")
	require.Equal(t, 2, c.counts(c.news))
	c.deletes("b/r1")
	require.Equal(t, 1, c.counts(c.news), "the share must end in the transaction of the deletion")
	c.project("b/r1")
	require.Equal(t, []string{"a/1 post " + c.news}, c.sharing())

	c.reposts("b/r2", "c/1")
	c.posts("b/3", "c/1")
	c.project("b/r2", "b/3")
	require.Equal(t, []string{"b/3 for c/1", "b/r2 for c/1"}, c.waiting())
	c.deletes("b/r2")
	c.posts("b/3", "") // no longer quotes a post
	c.project("b/3")
	require.Equal(t, []string{"b/r2 for c/1"}, c.waiting(), "the consumer must not touch waiting records")
	c.posts("c/1", "", c.news)
	c.project("c/1")
	require.Empty(t, c.waiting())
	require.Equal(t, []string{"a/1 post " + c.news, "c/1 post " + c.news}, c.sharing())
}

// TestDeletedPostEndsTheSharesOfAllWhoRepostedIt shows that the shares end in the transaction of
// the deletion, which writes one row however many accounts reposted the post. If the post returns,
// so do the shares.
func TestDeletedPostEndsTheSharesOfAllWhoRepostedIt(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.posts("a/1", "", c.news)
	c.project("a/1")
	var names []string
	for i := range 700 {
		name := fmt.Sprintf("b%d/r1", i)
		c.reposts(name, "a/1")
		names = append(names, name)
	}
	require.NoError(t, c.w.Work(t.Context(), c.job(names...)))
	require.Equal(t, 701, c.counts(c.news))
	through := func() []string { return c.rows(`SELECT count(*)::text FROM shares WHERE subject_did IS NOT NULL`) }
	c.deletes("a/1")
	require.Zero(t, c.counts(c.news), "at once")
	require.Equal(t, []string{"700"}, through(), "the deletion must not touch the reposts' rows")
	require.Len(t, c.rows(`SELECT rkey FROM changed_subjects`), 1)

	c.posts("c/1", "", "https://another.example/")
	c.reposts("d/r1", "c/1")
	c.project("c/1", "d/r1")
	c.check(c.checks())
	require.Equal(t, []string{"1"}, through(), "only the share through another post may be left")
	require.Len(t, c.waiting(), 700)
	require.Empty(t, c.rows(`SELECT rkey FROM changed_subjects`))

	c.posts("a/1", "", c.news)
	c.project("a/1")
	require.Equal(t, 701, c.counts(c.news))
	require.Empty(t, c.waiting())
	c.deletes("a/1")
	c.posts("a/1", "", c.news)
	c.project("a/1", "b1/r1")
	require.Equal(t, 701, c.counts(c.news), "the post returned before the deletion was checked")
}

// TestEditedPostChangesTheSharesOfAllWhoRepostedIt edits a post to have other links, none, and the
// first ones again. Expired records lose the share.
func TestEditedPostChangesTheSharesOfAllWhoRepostedIt(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	const other = "https://other.example/"
	c.posts("a/1", "", c.news)
	c.reposts("b/r1", "a/1")
	c.posts("c/1", "a/1")
	c.reposts("d/r1", "a/1")
	c.project("a/1", "b/r1", "c/1", "d/r1")
	_, err := c.pool.Exec(t.Context(), `DELETE FROM records WHERE did = 'did:plc:d'`) // as expiry does
	require.NoError(t, err)
	require.Equal(t, 4, c.counts(c.news))
	c.posts("a/1", "", other)
	c.project("a/1")
	require.Zero(t, c.counts(c.news))
	require.NoError(t, projectChanged(t.Context(), workers.NewBundle(workers.Config{
		Shared: workers.Shared{Pool: c.pool, Logger: slog.New(slog.DiscardHandler), Projections: schema.NewProjections(Projection())},
	})))
	require.Equal(t, []string{"a/1 post " + other, "b/r1 repost " + other, "c/1 quote " + other}, c.sharing())
	require.Equal(t, c.sharing(), c.rows(`SELECT replace(s.did, 'did:plc:', '') || '/' || s.rkey || ' ' || s.how || ' ' || l.url
		FROM shares AS s JOIN links AS l ON l.id = s.link_id ORDER BY 1`))
	c.posts("a/1", "")
	c.project("a/1")
	require.Empty(t, c.sharing())
	c.check(c.checks())
	require.Equal(t, []string{"b/r1 for a/1", "c/1 for a/1"}, c.waiting())
	c.posts("a/1", "", c.news, other)
	c.project("a/1")
	require.Equal(t, []string{
		"a/1 post " + c.news, "a/1 post " + other, "b/r1 repost " + c.news, "b/r1 repost " + other, "c/1 quote " + c.news,
		"c/1 quote " + other,
	}, c.sharing())
}

// TestEditedQuoteSharesThroughItsNewSubject also covers a link that moves between the quoting and
// the quoted post: it is shared by post or by quote.
func TestEditedQuoteSharesThroughItsNewSubject(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	const other = "https://other.example/"
	c.posts("a/1", "", c.news)
	c.posts("a/2", "", other)
	c.posts("b/1", "a/1")
	c.project("a/1", "a/2", "b/1")
	own := c.sharing()[:2]
	for _, step := range []struct {
		quoted string
		urls   []string
		want   []string
	}{
		{"a/2", nil, []string{"b/1 quote " + other}},
		{"a/2", []string{other}, []string{"b/1 post " + other}},
		{"a/2", []string{c.news}, []string{"b/1 post " + c.news, "b/1 quote " + other}},
		{"a/1", []string{other}, []string{"b/1 post " + other, "b/1 quote " + c.news}},
		{"", nil, nil},
		{"x/1", nil, nil},
		{"a/1", nil, []string{"b/1 quote " + c.news}},
	} {
		c.posts("b/1", step.quoted, step.urls...)
		c.project("b/1")
		require.Equal(t, slices.Concat(own, step.want), c.sharing(), "%+v", step)
	}
	require.Empty(t, c.waiting())
}

// TestHiddenAuthorCarriesNothing shows that reposts of a hidden account's post do not count until
// the account returns.
func TestHiddenAuthorCarriesNothing(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.posts("a/1", "", c.news)
	c.reposts("b/r1", "a/1")
	c.posts("c/1", "a/1")
	c.project("a/1", "b/r1", "c/1")
	require.Equal(t, 3, c.counts(c.news))
	status := func(status string) {
		c.apply(schema.Batch{Statuses: []schema.Status{{DID: "did:plc:a", Status: status, At: time.Now()}}})
	}
	status("takendown")
	require.Zero(t, c.counts(c.news))
	status("active")
	require.Equal(t, 3, c.counts(c.news))
}
