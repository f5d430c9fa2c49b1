package workers

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/collection"
	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// TestPostStoredWhileARepostBeginsToWait: whoever begins to wait looks once more.
func TestPostStoredWhileARepostBeginsToWait(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.reposts("b/r1", "a/1")
	other := worker(c.pool)
	c.w.committed = func() {
		c.w.committed = nil
		require.Equal(t, []string{"b/r1 for a/1"}, c.waiting())
		_, err := c.pool.Exec(t.Context(), `DELETE FROM waiting`) // the post's job looked before the repost's commit
		require.NoError(t, err)
		c.posts("a/1", "", c.news)
		require.NoError(t, other.Work(t.Context(), c.job("a/1")))
	}
	c.project("b/r1")
	require.Equal(t, []string{"a/1 post " + c.news, "b/r1 repost " + c.news}, c.sharing())
}

// TestQuoteBesideItsSubject: a job with both needs one transaction, and the quote counts.
func TestQuoteBesideItsSubject(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.posts("a/1", "", c.news)
	c.posts("b/1", "a/1")
	transactions := 0
	c.w.committed = func() { transactions++ }
	require.NoError(t, c.w.Work(t.Context(), c.job("b/1", "a/1")))
	require.Equal(t, 1, transactions)
	require.Equal(t, []string{"a/1 post " + c.news, "b/1 quote " + c.news}, c.sharing())
	require.Empty(t, c.waiting())
	require.Equal(t, 2, c.counts(c.news))
}

// TestQuoteWithTheLinkOfItsSubject shares the link once. When the subject gets another
// one, the quote shares that too.
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

// TestSubjectAddedWhileItsSharesGrow: a transaction that adds a link to a post does not see
// the subject's row that is being made of the links from before.
func TestSubjectAddedWhileItsSharesGrow(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.posts("a/1", "", c.news)
	c.project("a/1")
	subject := c.key("a/1")
	tx, err := c.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background()) //nolint:errcheck // committed
	var both []ranking.Share
	for _, identity := range append(c.rows(`SELECT identity FROM links`), "news.example/2") {
		both = append(both, ranking.Share{Key: subject, Identity: identity, URL: "https://" + identity, Site: "news.example", How: "post", SharedAt: time.Now()})
	}
	require.NoError(t, ranking.ReplaceShares(t.Context(), tx, []schema.Key{subject}, both, time.Now()))
	found := make(chan ranking.Subjects)
	go func() {
		all, _, err := ranking.FindSubjects(t.Context(), c.pool, []schema.Key{subject})
		assert.NoError(t, err)
		found <- all
	}()
	becomes(t, c.pool, []string{"1"}, `SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	require.NoError(t, tx.Commit(t.Context()))
	require.Len(t, (<-found)[subject], 2)
}

// TestPostDeletedWhileItBecomesASubject: the deletion waits for the transaction that makes
// the subject's row of the post's shares, and then deletes the row too.
func TestPostDeletedWhileItBecomesASubject(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.posts("a/1", "", c.news)
	c.project("a/1")
	tx, err := c.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background()) //nolint:errcheck // committed
	found, _, err := ranking.FindSubjects(t.Context(), tx, []schema.Key{c.key("a/1")})
	require.NoError(t, err)
	require.Len(t, found, 1)
	deleted := make(chan struct{})
	go func() {
		defer close(deleted)
		c.deletes("a/1")
	}()
	becomes(t, c.pool, []string{"1"}, `SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	require.NoError(t, tx.Commit(t.Context()))
	<-deleted
	require.Empty(t, c.rows(`SELECT rkey FROM shares`))
	require.Empty(t, c.rows(`SELECT rkey FROM subjects`))
}

// TestPostDeletedWhileItIsReposted: the share of a post that has gone becomes a row that
// waits, although the check of the changed post did not see the share.
func TestPostDeletedWhileItIsReposted(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.posts("a/1", "", c.news)
	c.project("a/1")
	c.reposts("b/r1", "a/1")
	c.w.committed = func() {
		c.w.committed = nil
		c.deletes("a/1")
		_, err := c.pool.Exec(t.Context(), `DELETE FROM changed_subjects`)
		require.NoError(t, err)
	}
	c.project("b/r1")
	require.Empty(t, c.rows(`SELECT rkey FROM shares`))
	require.Equal(t, []string{"b/r1 for a/1"}, c.waiting())
}

// TestJobKilledBetweenItsCommitAndTheRelease releases when it runs again.
func TestJobKilledBetweenItsCommitAndTheRelease(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	ctx, kill := context.WithCancel(t.Context())
	c.reposts("b/r1", "a/1")
	c.w.committed = kill
	require.Error(t, c.w.Work(ctx, c.job("b/r1")), "after it began to wait")
	require.Equal(t, []string{"b/r1 for a/1"}, c.waiting())
	c.posts("a/1", "", c.news)
	require.Error(t, c.w.Work(ctx, c.job("a/1")))
	ctx, kill = context.WithCancel(t.Context())
	c.w.committed = kill
	require.Error(t, c.w.Work(ctx, c.job("a/1")), "after its own shares")
	require.Equal(t, []string{"a/1 post " + c.news}, c.sharing())
	c.w.committed = nil
	c.project("a/1")
	require.Equal(t, []string{"a/1 post " + c.news, "b/r1 repost " + c.news}, c.sharing())
	require.Empty(t, c.waiting())
}

// TestReleaseKilledWhileTheRecordSaysSomethingElse: the quote that it released was edited
// meanwhile and quotes another post, whose job did not see yet that the quote waits.
func TestReleaseKilledWhileTheRecordSaysSomethingElse(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	other := worker(c.pool)
	c.posts("b/1", "a/1")
	c.project("b/1")
	c.posts("b/1", "a/2")
	c.posts("a/1", "", "https://old.example/")
	ctx, kill := context.WithCancel(t.Context())
	c.afterTransaction(2, func() {
		require.Equal(t, []string{"b/1 for a/2"}, c.waiting())
		c.execute(`WITH w AS (DELETE FROM waiting RETURNING *) SELECT * INTO later FROM w`)
		c.posts("a/2", "", c.news)
		require.NoError(t, other.Work(t.Context(), c.job("a/2")))
		require.NoError(t, other.Work(t.Context(), c.job("b/1")))
		c.execute(`INSERT INTO waiting SELECT * FROM later; DELETE FROM shares WHERE rkey = '1' AND how = 'quote'`) // as if it had written now
		kill()
	})
	require.Error(t, c.w.Work(c.working(ctx), c.job("a/1")))
	c.w.committed = nil
	c.project("a/1")
	require.Equal(t, 1, c.enqueued())
	require.Equal(t, []string{"a/1 post https://old.example/", "a/2 post " + c.news, "b/1 quote " + c.news}, c.sharing())
}

// TestReleaseKilledWhileThePostChanges: nothing waits any more, and the check of the
// changed post was over before the repost shared through it.
func TestReleaseKilledWhileThePostChanges(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	other := worker(c.pool)
	c.reposts("b/r1", "a/1")
	c.project("b/r1")
	c.posts("a/1", "", "https://old.example/")
	ctx, kill := context.WithCancel(t.Context())
	c.afterTransaction(2, func() {
		c.posts("a/1", "", c.news)
		require.NoError(t, other.Work(t.Context(), c.job("a/1")))
		c.execute(`DELETE FROM changed_subjects`)
		kill()
	})
	job := c.job("a/1")
	require.Error(t, c.w.Work(ctx, job))
	c.w.committed = nil
	job.Attempt = 2
	require.NoError(t, c.w.Work(t.Context(), job))
	c.check(c.checks())
	require.Equal(t, []string{"a/1 post " + c.news, "b/r1 repost " + c.news}, c.sharing())
}

// TestWaitingEndsWithTheRecord, unless it was stored again meanwhile.
func TestWaitingEndsWithTheRecord(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	end := func() {
		require.NoError(t, pgx.BeginFunc(t.Context(), c.pool, func(tx pgx.Tx) error {
			q := &pgx.Batch{}
			schema.QueueNotWaiting(q, c.w.name, []schema.Key{c.key("b/1"), c.key("b/r1")})
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

// TestReleaseContinuesWhereItStopped: a job that has no time left continues later, and
// the rows that it has released wait no longer.
func TestReleaseContinuesWhereItStopped(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	c := newTown(t)
	var names []string
	for i := range releasedAtOnce + 10 {
		names = append(names, fmt.Sprintf("b%d/r1", i))
		c.reposts(names[i], "a/1")
	}
	require.NoError(t, c.w.Work(t.Context(), c.job(names...)))
	c.posts("a/1", "", c.news)
	known := []schema.Key{c.key("a/1")}
	c.w.patience = time.Hour
	_, err := c.w.projected(t.Context(), known, false, nil)
	require.NoError(t, err)
	pages, until := 0, time.Now().Add(time.Hour)
	project := func(keys []schema.Key) error {
		if pages++; pages == 2 {
			return context.Canceled
		}
		_, err := c.w.projected(t.Context(), keys, false, nil)
		return err
	}
	waits := waiters{c.pool, c.w.name}
	_, err = waits.release(t.Context(), known, until, project)
	require.Error(t, err)
	require.Len(t, c.waiting(), 10)
	done, err := waits.release(t.Context(), known, time.Now().Add(-time.Second), project)
	require.NoError(t, err)
	require.False(t, done)
	done, err = waits.release(t.Context(), known, until, project)
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, releasedAtOnce+11, c.counts(c.news))
	require.Equal(t, 3, pages)
}

// TestWaitingIsBounded by time and by number.
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
		_, err := c.pool.Exec(t.Context(), `UPDATE waiting SET since = since - $4::interval WHERE did = $1 AND collection = $2 AND rkey = $3`, key.DID, key.Collection, key.Rkey, by)
		require.NoError(t, err)
	}
	w := c.checks()
	w.now = func() time.Time { return time.Now().Add(72 * time.Hour) }
	c.check(w)
	require.Len(t, c.waiting(), 10, "a clock that is ahead ends no waiting")
	w.now = time.Now
	age("b0/r1", "49 hours")
	age("b0/1", "47 hours")
	c.check(w)
	require.Len(t, c.waiting(), 9)
	w.waitAtMost = 4
	c.check(w)
	require.Equal(t, []string{"b1/1 for a/1", "b1/r1 for a/1"}, c.waiting()[:2])
	require.Len(t, c.waiting(), 8)
	w.stored = collection.Of(collection.Entry{Pattern: "app.bsky.feed.*"}) // for ever
	age("b1/r1", "167 hours")
	age("b2/r1", "169 hours")
	c.check(w)
	require.Len(t, c.waiting(), 7)
}

// TestSubjectsThatNoShareNeedsExpire, a day after they were last needed, by the clock of
// the database. One that a repost waits for is needed.
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
	_, err := c.pool.Exec(t.Context(), `INSERT INTO subjects (did, collection, rkey) SELECT for_did, for_collection, for_rkey FROM waiting`) // it could not be fetched
	require.NoError(t, err)
	w.now = func() time.Time { return time.Now().Add(72 * time.Hour) }
	c.check(w)
	require.Equal(t, []string{"1", "2", "3"}, c.rows(subjects), "a clock that is ahead makes no row idle")
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
