package links

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
)

// TestPostStoredWhileARepostBeginsToWait shows that a job looks once more for the post after its
// repost has begun to wait.
func TestPostStoredWhileARepostBeginsToWait(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.reposts("b/r1", "a/1")
	other := worker(c.pool)
	ctx := afterTransaction(t.Context(), 1, func() {
		require.Equal(t, []string{"b/r1 for a/1"}, c.waiting())
		_, err := c.pool.Exec(t.Context(), `DELETE FROM waiting`) // the post's job looked for waiting records before the repost was committed
		require.NoError(t, err)
		c.posts("a/1", "", c.news)
		require.NoError(t, other.Work(t.Context(), c.job("a/1")))
	})
	require.NoError(t, c.w.Work(ctx, c.job("b/r1")))
	require.Equal(t, []string{"a/1 post " + c.news, "b/r1 repost " + c.news}, c.sharing())
}

// TestQuoteBesideItsSubject shows that a job with both needs one transaction, and that the quote
// counts.
func TestQuoteBesideItsSubject(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.posts("a/1", "", c.news)
	c.posts("b/1", "a/1")
	transactions := 0
	ctx := crashpoint.With(t.Context(), func(_ context.Context, name string) {
		if name == "projection: after its transaction" {
			transactions++
		}
	})
	require.NoError(t, c.w.Work(ctx, c.job("b/1", "a/1")))
	require.Equal(t, 1, transactions)
	require.Equal(t, []string{"a/1 post " + c.news, "b/1 quote " + c.news}, c.sharing())
	require.Empty(t, c.waiting())
	require.Equal(t, 2, c.counts(c.news))
}

// TestQuoteWithTheLinkOfItsSubject shares the link once. When the subject gets another link, the
// quote shares that one too.
func TestQuoteWithTheLinkOfItsSubject(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	other, third := "https://news.example/2", "https://news.example/3"
	c.posts("a/1", "", c.news)
	c.posts("b/1", "a/1", c.news)
	c.project("a/1", "b/1")
	require.Equal(t, []string{"a/1 post " + c.news, "b/1 post " + c.news}, c.sharing())
	require.Equal(t, []string{"b/1 for a/1"}, c.waiting())
	c.project("b/1", "a/1")
	require.Equal(t, []string{"b/1 for a/1"}, c.waiting())

	c.posts("a/1", "", c.news, other)
	c.project("a/1")
	require.Equal(t, []string{"a/1 post " + c.news, "a/1 post " + other, "b/1 post " + c.news, "b/1 quote " + other}, c.sharing())
	require.Empty(t, c.waiting())

	c.posts("a/1", "", c.news)
	c.project("a/1")
	c.check(c.checks())
	require.Equal(t, []string{"a/1 post " + c.news, "b/1 post " + c.news}, c.sharing())

	c.posts("a/1", "", third)
	c.project("a/1")
	c.check(c.checks())
	require.Equal(t, []string{"a/1 post " + third, "b/1 post " + c.news, "b/1 quote " + third}, c.sharing())
	require.Empty(t, c.waiting())
}

// TestSubjectAddedWhileItsSharesGrow covers a transaction that adds a link to a post. It does not
// see the subject's row that another one is making from the earlier links.
func TestSubjectAddedWhileItsSharesGrow(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.posts("a/1", "", c.news)
	c.project("a/1")
	subject := c.key("a/1")
	tx, err := c.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background()) // committed below
	var both []ranking.Share
	for _, identity := range append(c.rows(`SELECT identity FROM links`), "news.example/2") {
		both = append(both, ranking.Share{
			Key: subject, Link: link.Link{Identity: identity, URL: "https://" + identity, Site: "news.example"}, How: "post",
			SharedAt: time.Now(),
		})
	}
	require.NoError(t, ranking.ReplaceShares(t.Context(), tx, []schema.Key{subject}, both, time.Now()))
	found := make(chan ranking.Subjects)
	go func() {
		all, _, err := ranking.FindSubjects(t.Context(), c.pool, []schema.Key{subject})
		assert.NoError(t, err)
		found <- all
	}()
	becomes(t, c.pool, []string{"1"}, `SELECT count(*)::text FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	require.NoError(t, tx.Commit(t.Context()))
	require.Len(t, (<-found)[subject], 2)
}

// TestPostDeletedWhileItBecomesASubject shows that the deletion waits for the transaction that
// makes the subject's row from the post's shares, and then deletes that row too.
func TestPostDeletedWhileItBecomesASubject(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.posts("a/1", "", c.news)
	c.project("a/1")
	tx, err := c.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background()) // committed below
	found, _, err := ranking.FindSubjects(t.Context(), tx, []schema.Key{c.key("a/1")})
	require.NoError(t, err)
	require.Len(t, found, 1)
	deleted := make(chan struct{})
	go func() {
		defer close(deleted)
		c.deletes("a/1")
	}()
	becomes(t, c.pool, []string{"1"}, `SELECT count(*)::text FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	require.NoError(t, tx.Commit(t.Context()))
	<-deleted
	require.Empty(t, c.rows(`SELECT rkey FROM shares`))
	require.Empty(t, c.rows(`SELECT rkey FROM subjects`))
}

// TestPostDeletedWhileItIsReposted shows that the share of a deleted post becomes a waiting row,
// although the check of the changed post did not see the share.
func TestPostDeletedWhileItIsReposted(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.posts("a/1", "", c.news)
	c.project("a/1")
	c.reposts("b/r1", "a/1")
	ctx := afterTransaction(t.Context(), 1, func() {
		c.deletes("a/1")
		_, err := c.pool.Exec(t.Context(), `DELETE FROM changed_subjects`)
		require.NoError(t, err)
	})
	require.NoError(t, c.w.Work(ctx, c.job("b/r1")))
	require.Empty(t, c.rows(`SELECT rkey FROM shares`))
	require.Equal(t, []string{"b/r1 for a/1"}, c.waiting())
}

// TestJobKilledBetweenItsCommitAndTheRelease shows that the job releases the waiting records when
// it runs again.
func TestJobKilledBetweenItsCommitAndTheRelease(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.reposts("b/r1", "a/1")
	c.killed("b/r1")
	require.Equal(t, []string{"b/r1 for a/1"}, c.waiting())
	c.posts("a/1", "", c.news)
	c.killed("a/1")
	require.Equal(t, []string{"a/1 post " + c.news}, c.sharing())
	c.project("a/1")
	require.Equal(t, []string{"a/1 post " + c.news, "b/r1 repost " + c.news}, c.sharing())
	require.Empty(t, c.waiting())
}

// TestReleaseKilledWhileTheRecordSaysSomethingElse covers a released quote that was edited
// meanwhile and now quotes another post. That post's job has not seen yet that the quote waits.
func TestReleaseKilledWhileTheRecordSaysSomethingElse(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	other := worker(c.pool)
	c.posts("b/1", "a/1")
	c.project("b/1")
	c.posts("b/1", "a/2")
	c.posts("a/1", "", "https://old.example/")
	ctx, kill := context.WithCancel(t.Context())
	ctx = afterTransaction(ctx, 2, func() {
		require.Equal(t, []string{"b/1 for a/2"}, c.waiting())
		c.execute(`WITH w AS (DELETE FROM waiting RETURNING *) SELECT * INTO later FROM w`)
		c.posts("a/2", "", c.news)
		require.NoError(t, other.Work(t.Context(), c.job("a/2")))
		require.NoError(t, other.Work(t.Context(), c.job("b/1")))
		c.execute(`INSERT INTO waiting SELECT * FROM later; DELETE FROM shares
			WHERE rkey = '1' AND how = 'quote'`) // as if its transaction had been committed now
		kill()
	})
	require.Error(t, c.w.Work(c.working(ctx), c.job("a/1")))
	c.project("a/1")
	require.Equal(t, 1, c.enqueued())
	require.Equal(t, []string{"a/1 post https://old.example/", "a/2 post " + c.news, "b/1 quote " + c.news}, c.sharing())
}

// TestReleaseKilledWhileThePostChanges covers a release after which nothing waits. The check of the
// changed post ended before the repost shared through it.
func TestReleaseKilledWhileThePostChanges(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	other := worker(c.pool)
	c.reposts("b/r1", "a/1")
	c.project("b/r1")
	c.posts("a/1", "", "https://old.example/")
	ctx, kill := context.WithCancel(t.Context())
	ctx = afterTransaction(ctx, 2, func() {
		c.posts("a/1", "", c.news)
		require.NoError(t, other.Work(t.Context(), c.job("a/1")))
		c.execute(`DELETE FROM changed_subjects`)
		kill()
	})
	job := c.job("a/1")
	require.Error(t, c.w.Work(ctx, job))
	job.Attempt = 2
	require.NoError(t, c.w.Work(t.Context(), job))
	c.check(c.checks())
	require.Equal(t, []string{"a/1 post " + c.news, "b/r1 repost " + c.news}, c.sharing())
}

// TestWaitingEndsWithTheRecord shows that a record's wait ends with it, unless it was stored again
// meanwhile.
func TestWaitingEndsWithTheRecord(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	end := func() {
		require.NoError(t, pgx.BeginFunc(t.Context(), c.pool, func(tx pgx.Tx) error {
			q := &pgx.Batch{}
			schema.QueueNotWaiting(q, c.w.Name(), []schema.Key{c.key("b/1"), c.key("b/r1")})
			return tx.SendBatch(t.Context(), q).Close()
		}))
	}
	c.reposts("b/r1", "a/1")
	c.posts("b/1", "a/1")
	c.project("b/r1", "b/1")
	end()
	require.Equal(t, []string{"b/1 for a/1", "b/r1 for a/1"}, c.waiting())
	c.deletes("b/1")
	end()
	require.Equal(t, []string{"b/r1 for a/1"}, c.waiting())
	c.deletes("b/r1")
	end()
	require.Empty(t, c.waiting())
}

// TestReleaseContinuesWhereItStopped shows that a job without time left continues later, and that
// the rows that it has released no longer wait.
func TestReleaseContinuesWhereItStopped(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	var names []string
	for i := range releasedAtOnce + 10 {
		names = append(names, fmt.Sprintf("b%d/r1", i))
		c.reposts(names[i], "a/1")
	}
	require.NoError(t, c.w.Work(t.Context(), c.job(names...)))
	c.posts("a/1", "", c.news)
	arrived := []schema.Key{c.key("a/1")}
	c.w.patience = time.Hour
	_, err := c.w.projected(t.Context(), arrived, false, nil)
	require.NoError(t, err)
	pages, until := 0, time.Now().Add(time.Hour)
	project := func(keys []schema.Key) error {
		if pages++; pages == 2 {
			return context.Canceled
		}
		_, err := c.w.projected(t.Context(), keys, false, nil)
		return err
	}
	_, err = c.w.projectWaiting(t.Context(), arrived, until, project)
	require.Error(t, err)
	require.Len(t, c.waiting(), 10)
	done, err := c.w.projectWaiting(t.Context(), arrived, time.Now().Add(-time.Second), project)
	require.NoError(t, err)
	require.False(t, done)
	done, err = c.w.projectWaiting(t.Context(), arrived, until, project)
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, releasedAtOnce+11, c.counts(c.news))
	require.Equal(t, 3, pages)
}

// TestWaitingIsBounded shows that waiting is bounded by time and by number.
func TestWaitingIsBounded(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	for i := range 5 {
		c.reposts(fmt.Sprintf("b%d/r1", i), "a/1")
		c.posts(fmt.Sprintf("b%d/1", i), "a/1")
		c.project(fmt.Sprintf("b%d/r1", i), fmt.Sprintf("b%d/1", i))
	}
	age := func(name, by string) {
		key := c.key(name)
		_, err := c.pool.Exec(t.Context(), `UPDATE waiting SET since = since - $4::interval
			WHERE did = $1 AND collection = $2 AND rkey = $3`, key.DID, key.Collection, key.Rkey, by)
		require.NoError(t, err)
	}
	w := c.checks()
	w.now = func() time.Time { return time.Now().Add(72 * time.Hour) }
	c.check(w)
	require.Len(t, c.waiting(), 10, "a clock that is ahead must not end the wait")
	w.now = time.Now
	age("b0/r1", "49 hours")
	age("b0/1", "47 hours")
	c.check(w)
	require.Len(t, c.waiting(), 9)
	w.waitAtMost = 4
	c.check(w)
	require.Equal(t, []string{"b1/1 for a/1", "b1/r1 for a/1"}, c.waiting()[:2])
	require.Len(t, c.waiting(), 8)
	w.stored = collection.Of(collection.Entry{Pattern: "app.bsky.feed.*"}) // kept for ever
	age("b1/r1", "167 hours")
	age("b2/r1", "169 hours")
	c.check(w)
	require.Len(t, c.waiting(), 7)
}

// TestSubjectsThatNoShareNeedsExpire shows that they expire a day after they were last needed, by
// the database's clock. A subject that a repost waits for is needed.
func TestSubjectsThatNoShareNeedsExpire(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.posts("a/1", "", c.news)
	c.posts("a/2", "", c.news)
	c.reposts("b/r1", "a/1")
	c.reposts("b/r2", "a/2")
	c.project("a/1", "a/2", "b/r1", "b/r2")
	c.deletes("b/r2")
	subjects := `SELECT rkey FROM subjects ORDER BY 1`
	w := c.checks()
	c.check(w)
	require.Equal(t, []string{"1", "2"}, c.rows(subjects))
	c.reposts("b/r3", "z/3")
	c.project("b/r3")
	require.Equal(t, []string{"b/r3 for z/3"}, c.waiting())
	_, err := c.pool.Exec(t.Context(), `INSERT INTO subjects (did, collection, rkey) SELECT for_did, for_collection, for_rkey
		FROM waiting`) // as if the posts could not be fetched
	require.NoError(t, err)
	w.now = func() time.Time { return time.Now().Add(72 * time.Hour) }
	c.check(w)
	require.Equal(t, []string{"1", "2", "3"}, c.rows(subjects), "a clock that is ahead must not make a subject expire")
	w.now = time.Now
	_, err = c.pool.Exec(t.Context(), `UPDATE subjects SET checked_at = checked_at - interval '25 hours'`)
	require.NoError(t, err)
	c.check(w)
	require.Equal(t, []string{"1", "3"}, c.rows(subjects))
	require.Equal(t, 2, c.counts(c.news))
	c.reposts("b/r2", "a/2") // the post is still stored
	c.project("b/r2")
	require.Equal(t, []string{"1", "2", "3"}, c.rows(subjects))
}
