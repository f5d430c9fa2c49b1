package links

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/internal/testing/workertest"
	"github.com/weir-social/weir/schema"
)

const getPosts = "app.bsky.feed.getPosts"

// village is a town that follows did:plc:b and reads the posts of strangers from a
// simulated network.
type village struct {
	*town
	net    *simnet.Net
	checks *CheckSubjects
	later  time.Duration // how far the clock of the checks is ahead
}

func newVillage(t *testing.T) *village {
	t.Helper()
	n, err := simnet.New(simnet.Config{Seed: 9, Accounts: 40})
	require.NoError(t, err)
	require.NoError(t, n.Start("127.0.0.1:0"))
	t.Cleanup(n.Stop)
	v := &village{town: newTown(t), net: n}
	v.checks = v.town.checks()
	v.checks.api, v.checks.now = workertest.API(t, n), func() time.Time { return time.Now().Add(v.later) }
	v.execute(`INSERT INTO watches (target, kind) VALUES ('did:plc:b', 'account')`)
	v.execute(`INSERT INTO watch_members (watch_id, did) SELECT id, 'did:plc:b' FROM watches`)
	return v
}

// stranger makes an account post, and returns the URI.
func (v *village) stranger(i int, urls ...string) string {
	v.t.Helper()
	e, err := v.net.PostNow(v.net.Accounts()[i].DID, "x", urls...)
	require.NoError(v.t, err)
	return uri(e.DID, e.Rkey)
}

// repostsURI makes the followed account repost a post.
func (v *village) repostsURI(rkey, subject string) {
	v.t.Helper()
	v.write("b/"+rkey, map[string]any{"subject": map[string]string{"uri": subject, "cid": "c"}})
	v.project("b/" + rkey)
}

func (v *village) run() { v.t.Helper(); v.check(v.checks) }

// asked returns how many times getPosts was called.
func (v *village) asked() int { return len(v.net.Calls(getPosts)) }

// TestPostsOfStrangersAreFetched shows that posts of strangers are fetched, 25 per call, and that
// their reposts wait until then. The posts are not stored as records.
func TestPostsOfStrangersAreFetched(t *testing.T) {
	t.Parallel()
	v := newVillage(t)
	for i := range 30 {
		v.repostsURI(fmt.Sprintf("r%d", i), v.stranger(i, fmt.Sprintf("https://news.example/%d", i)))
	}
	require.Len(t, v.waiting(), 30)
	v.run()
	require.Equal(t, 2, v.asked())
	require.Empty(t, v.waiting())
	require.Len(t, v.sharing(), 30)
	require.Equal(t, 1, v.counts("https://news.example/3"), "a stranger does not count")
	require.Empty(t, v.rows(`SELECT rkey FROM posts`))
	v.run()
	require.Equal(t, 2, v.asked(), "not fetched again before the interval")
	v.posts("b/2", "", "https://news.example/x")
	v.project("b/2")
	v.reposts("b/r99", "b/2")
	v.project("b/r99")
	v.run()
	require.Equal(t, 2, v.asked(), "a stored post is not fetched")
	v.posts("b/3", "")
	v.project("b/3")
	v.reposts("b/r98", "b/3")
	v.project("b/r98")
	v.run()
	require.Equal(t, 2, v.asked(), "a stored post is not fetched even if it has no link")
}

// TestReleaseIsRepeatedAfterADeath kills a process after it has stored a fetched post, and before
// the records that waited for it are projected. The post is then still due.
func TestReleaseIsRepeatedAfterADeath(t *testing.T) {
	t.Parallel()
	v := newVillage(t)
	for i := range 3 {
		v.repostsURI(fmt.Sprintf("r%d", i), v.stranger(i, fmt.Sprintf("https://news.example/%d", i)))
	}
	_, err := v.pool.Exec(t.Context(), `
WITH copied AS (
    INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
    SELECT r.collection, r.did, r.rkey || '-' || n, r.rev, r.cid, r.created_at, r.record
    FROM records AS r, generate_series(1, $1) AS n WHERE r.rkey LIKE '%r0'
    RETURNING collection, did, rkey, record
)
INSERT INTO waiting (projection, collection, did, rkey, for_collection, for_did, for_rkey)
SELECT w.projection, c.collection, c.did, c.rkey, w.for_collection, w.for_did, w.for_rkey FROM copied AS c, waiting AS w
WHERE w.rkey LIKE '%r0'`, releasedAtOnce)
	require.NoError(t, err)
	dying := crashpoint.Kill(t.Context(), 1, "projection: after its transaction") // of the first page of waiting records
	err = v.checks.Work(dying, &river.Job[CheckSubjectsArgs]{JobRow: &rivertype.JobRow{}})
	require.ErrorIs(t, err, context.Canceled)
	require.NotEmpty(t, v.waiting())
	v.run()
	require.Empty(t, v.waiting())
	require.Len(t, v.sharing(), releasedAtOnce+3)
	v.run()
	require.Equal(t, 2, v.asked(), "not fetched again before the interval")
}

// TestChangedSubjectReleasesWhatADeathLeft covers a run that projected a repost again and died
// before its second look. Meanwhile the post got its link back, or was stored again after it was deleted.
func TestChangedSubjectReleasesWhatADeathLeft(t *testing.T) {
	t.Parallel()
	v := newVillage(t)
	v.posts("a/1", "", "https://news.example/1")
	v.project("a/1")
	v.reposts("b/r1", "a/1")
	v.project("b/r1")
	require.Len(t, v.sharing(), 2)
	for _, change := range []string{
		`INSERT INTO changed_subjects (did, collection, rkey) SELECT did, collection, rkey FROM subjects`,
		`DELETE FROM subjects`,
	} {
		v.execute(`DELETE FROM shares WHERE rkey = 'r1'`)
		v.execute(`INSERT INTO waiting (projection, collection, did, rkey, for_collection, for_did, for_rkey)
		SELECT $1, $2, 'did:plc:b', 'r1', $3, 'did:plc:a', '1'`, v.w.Name(), repostCollection, schema.PostCollection)
		v.execute(change)
		v.run()
		require.Empty(t, v.waiting(), change)
		require.Len(t, v.sharing(), 2, change)
	}
}

// TestSubjectThatChangesTwice covers a second change just after the shares through a post were
// projected for the first. The shares of expired records end.
func TestSubjectThatChangesTwice(t *testing.T) {
	t.Parallel()
	v := newVillage(t)
	subject := postKey("did:plc:a", "3jzfcijpj2z2a")
	edited := func(rev, url string) {
		v.apply(schema.Batch{Writes: []schema.Write{{
			Key: subject, Rev: rev, CID: "c" + rev, CreatedAt: time.Now(), Record: []byte(`{"text":"` + url + `"}`),
		}}})
		_, err := v.w.projected(t.Context(), []schema.Key{subject}, false, nil)
		require.NoError(t, err)
	}
	const shared = `SELECT l.url FROM shares AS s JOIN links AS l ON l.id = s.link_id WHERE s.rkey = 'r1'`
	edited("1", "https://a.example/")
	v.repostsURI("r1", uri(subject.DID, subject.Rkey))
	require.Equal(t, []string{"https://a.example/"}, v.rows(shared))
	edited("2", "https://b.example/")
	reposts, err := ranking.SharesThrough(t.Context(), v.pool, subject, schema.Key{}, 10)
	require.NoError(t, err)
	require.Len(t, reposts, 1)
	require.NoError(t, ranking.DropDeadShares(t.Context(), v.pool, subject, reposts))
	v.run()
	require.Equal(t, []string{"https://b.example/"}, v.rows(shared))
	v.execute(`DELETE FROM records WHERE rkey = 'r1'`) // the record has expired
	edited("3", "https://c.example/")
	v.run()
	require.Empty(t, v.rows(shared))
}

// TestFetchRequestedByAClockAhead shows that such a fetch is not delayed until the time of that
// clock.
func TestFetchRequestedByAClockAhead(t *testing.T) {
	t.Parallel()
	v := newVillage(t)
	v.repostsURI("r1", v.stranger(0, "https://news.example/1"))
	v.execute(`UPDATE subjects SET fetch_at = fetch_at + interval '1 hour'`)
	v.run()
	require.Len(t, v.sharing(), 1)
	v.run()
	require.Equal(t, 1, v.asked(), "not fetched again before the interval")
}

// TestStrangersPostIsFetchedAgain shows that a stranger's post is fetched again while its link is
// in a ranking. A post that the AppView no longer returns does not count, and an edit changes the
// links.
func TestStrangersPostIsFetchedAgain(t *testing.T) {
	t.Parallel()
	v := newVillage(t)
	deleted, edited, hidden, old := v.stranger(0, "https://a.example/"), v.stranger(1, "https://b.example/"), v.stranger(2,
		"https://c.example/"), v.stranger(3, "https://d.example/")
	for i, subject := range []string{deleted, edited, hidden, old} {
		v.repostsURI(fmt.Sprintf("r%d", i), subject)
	}
	v.run()
	require.Equal(t, []int{1, 1, 1}, []int{v.counts("https://a.example/"), v.counts("https://b.example/"), v.counts("https://c.example/")})
	require.NoError(t, v.net.DeleteRecord(deleted))
	_, err := v.net.EditPost(edited, "x", "https://e.example/")
	require.NoError(t, err)
	require.NoError(t, v.net.TakeDown(v.net.Accounts()[2].DID))
	v.execute(`UPDATE shares SET shared_at = shared_at - interval '8 days' WHERE rkey = 'r3'`)
	v.later = ranking.SubjectInterval - time.Minute
	v.run()
	require.Equal(t, 1, v.asked())
	v.later = ranking.SubjectInterval + time.Second
	v.run()
	require.Equal(t, 2, v.asked())
	require.NotContains(t, v.net.Calls(getPosts)[1].URIs, old, "a post whose link is in no ranking must not be fetched again")
	require.Equal(t, []int{0, 0, 1, 0}, []int{
		v.counts("https://a.example/"), v.counts("https://b.example/"), v.counts("https://e.example/"),
		v.counts("https://c.example/"),
	})
	require.Len(t, v.rows(`SELECT rkey FROM subjects WHERE NOT shown`), 2)
	require.Len(t, v.waiting(), 2)
	require.NoError(t, v.net.Reactivate(v.net.Accounts()[2].DID))
	v.later += time.Minute
	v.run()
	require.Equal(t, 1, v.counts("https://c.example/"), "shown again")
	v.repostsURI("r9", old)
	v.execute(`UPDATE subjects SET fetched_at = fetched_at - interval '1 hour' WHERE fetch_at IS NULL`)
	v.project("b/r9")
	asked := v.asked()
	v.run()
	require.Equal(t, asked+1, v.asked(), "a new repost must have the post fetched again")
}

// TestPostThatIsNotShownIsFetchedAFewTimes covers a post that the AppView does not return yet,
// because it may lag.
func TestPostThatIsNotShownIsFetchedAFewTimes(t *testing.T) {
	t.Parallel()
	v := newVillage(t)
	v.repostsURI("r1", "at://did:plc:nobody/app.bsky.feed.post/1")
	for range 20 {
		v.run()
		v.later += ranking.SubjectInterval
	}
	require.Equal(t, 8, v.asked())
	require.Len(t, v.waiting(), 1)
}

// TestFetchingSurvivesFailures covers failures of every kind, and calls that are refused because of
// one of the posts.
func TestFetchingSurvivesFailures(t *testing.T) {
	t.Parallel()
	v := newVillage(t)
	for i := range 5 {
		v.repostsURI(fmt.Sprintf("r%d", i), v.stranger(i, "https://news.example/"))
	}
	for _, kind := range []simnet.CallFaultKind{
		simnet.InternalError, simnet.BadGateway, simnet.TooMany, simnet.Forbidden, simnet.Severed, simnet.Malformed,
		simnet.Empty,
	} {
		require.NoError(t, v.net.FailCalls(simnet.CallFault{Kind: kind, Endpoint: getPosts, Count: 2}), kind)
		err := v.checks.Work(t.Context(), &river.Job[CheckSubjectsArgs]{JobRow: &rivertype.JobRow{}})
		v.net.ClearCallFaults()
		require.Error(t, err, kind)
		require.Empty(t, v.sharing(), kind)
		require.Empty(t, v.rows(`SELECT rkey FROM subjects WHERE fetched_at IS NOT NULL`), "%s must not mark a post as fetched", kind)
	}
	v.execute(`INSERT INTO subjects (did, collection, rkey, fetch_at) VALUES ('did:plc:x', 'app.bsky.feed.post', 'no rkey', now())`)
	v.run()
	require.Len(t, v.sharing(), 5)
	require.Equal(t, []string{"no rkey"}, v.rows(`SELECT rkey FROM subjects WHERE NOT shown`))
}

// TestFetchedPostDoesNotOutliveItsDeletion deletes a followed account's post on the stream while
// the AppView still returns it.
func TestFetchedPostDoesNotOutliveItsDeletion(t *testing.T) {
	t.Parallel()
	v := newVillage(t)
	subject := v.stranger(0, v.news)
	did := v.net.Accounts()[0].DID
	rkey := subject[len(subject)-13:]
	v.repostsURI("r1", subject)
	due, err := ranking.DueSubjects(t.Context(), v.pool, time.Now(), 10)
	require.NoError(t, err)
	require.Len(t, due, 1)
	deletes := func() {
		v.apply(schema.Batch{Deletions: []schema.Deletion{{Key: postKey(did, rkey), Rev: "9", At: time.Now()}}})
	}
	deletes()
	v.project("b/r1") // waits again, and no fetch is requested
	require.Empty(t, v.rows(`SELECT rkey FROM subjects`))
	fetched := []ranking.FetchedSubject{{
		DueSubject: due[0], Shown: true, Links: []link.Link{{Identity: v.news, URL: v.news, Site: "news.example"}},
	}}
	linked, err := v.checks.store(t.Context(), fetched, time.Now())
	require.NoError(t, err)
	require.Empty(t, linked, "the row of the fetched post no longer exists")
	other := fetched[0].DueSubject
	v.execute(`INSERT INTO subjects (did, collection, rkey, fetch_at) VALUES ('did:plc:x', 'app.bsky.feed.post', '1', now())`)
	other.DID, other.Rkey = "did:plc:x", "1"
	linked, err = v.checks.store(t.Context(), []ranking.FetchedSubject{{DueSubject: other, Shown: true, Links: fetched[0].Links}}, time.Now())
	require.NoError(t, err)
	require.Empty(t, linked, "the fetch was requested again: this response may be older than a deletion")
	v.execute(`DELETE FROM subjects`)

	v.execute(`INSERT INTO subjects (did, collection, rkey, fetch_at)
		VALUES ($1, 'app.bsky.feed.post', $2, now())`, did, rkey) // a fetch requested before the deletion
	v.run()
	require.Equal(t, 1, v.asked())
	require.Empty(t, v.sharing())
	require.Equal(t, []string{"false"}, v.rows(`SELECT shown::text FROM subjects WHERE fetch_at IS NULL`))
}

// TestStrangerWhoBecomesFollowed shows that the stored post replaces the fetched one, and that its
// deletion ends the shares through it.
func TestStrangerWhoBecomesFollowed(t *testing.T) {
	t.Parallel()
	v := newVillage(t)
	subject := v.stranger(0, v.news)
	key := postKey(v.net.Accounts()[0].DID, subject[len(subject)-13:])
	v.repostsURI("r1", subject)
	v.run()
	require.Equal(t, 1, v.counts(v.news))
	v.apply(schema.Batch{Writes: []schema.Write{{
		Key: key, Rev: "1", CID: "c", CreatedAt: time.Now(), Record: []byte(`{"text":"` + v.news + `"}`),
	}}})
	_, err := v.w.projected(t.Context(), []schema.Key{key}, false, nil)
	require.NoError(t, err)
	v.later = time.Hour
	v.run()
	require.Equal(t, 1, v.asked(), "a stored post is not fetched")
	v.apply(schema.Batch{Deletions: []schema.Deletion{{Key: key, Rev: "2", At: time.Now()}}})
	require.Zero(t, v.counts(v.news))
}

// TestWholeNetworkFetchesNothing shows that no post is fetched if the whole network is stored.
func TestWholeNetworkFetchesNothing(t *testing.T) {
	t.Parallel()
	v := newVillage(t)
	v.execute(`DELETE FROM watches`)
	v.repostsURI("r1", v.stranger(0, v.news))
	require.Empty(t, v.rows(`SELECT rkey FROM subjects`))
	v.execute(`INSERT INTO subjects (did, collection, rkey, fetch_at)
		VALUES ('did:plc:x', 'app.bsky.feed.post', '1', now())`) // left from when accounts were followed
	v.run()
	require.Zero(t, v.asked())
	require.Len(t, v.waiting(), 1)
}

// TestRunsAreBounded shows that the number of calls of a run is bounded.
func TestRunsAreBounded(t *testing.T) {
	t.Parallel()
	v := newVillage(t)
	for i := range 30 {
		v.repostsURI(fmt.Sprintf("r%d", i), v.stranger(i, v.news))
	}
	v.checks.calls = 1
	v.run()
	require.Equal(t, 1, v.asked())
	require.Len(t, v.waiting(), 5)
	v.run()
	require.Empty(t, v.waiting())
}

// TestRepostOfAStrangerAddsTheJob shows that such a repost enqueues the job that fetches the post,
// once.
func TestRepostOfAStrangerAddsTheJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hub := r.net.Hub().DID
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, hub)
	r.becomes(1, `SELECT count(*) FROM watch_members`)
	r.idle()
	accounts := r.net.Accounts()
	stranger := slices.IndexFunc(accounts, func(a simnet.Account) bool { return a.Status == "" && a.DID != hub })
	e, err := r.net.PostNow(accounts[stranger].DID, "x", "https://news.example/1")
	require.NoError(t, err)
	repost, err := r.net.RepostNow(hub, uri(e.DID, e.Rkey))
	require.NoError(t, err)
	a := newAuthor(t, r.pool)
	key := schema.Key{Collection: repostCollection, DID: hub, Rkey: repost.Rkey}
	a.apply(schema.Batch{Writes: []schema.Write{{Key: key, Rev: repost.Rev, CID: repost.CID, CreatedAt: time.Now(), Record: repost.Record}}})
	require.NoError(t, pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		return registered(t, r.pool).Enqueue(r.client.Client, "")(t.Context(), tx, schema.NotFresh([]schema.Key{key}), time.Time{})
	}))
	r.becomes(1, `SELECT count(*) FROM shares WHERE how = 'repost'`)
	require.True(t, slices.ContainsFunc(r.net.Calls(getPosts), func(c simnet.Call) bool { return c.Status == http.StatusOK }))
}
