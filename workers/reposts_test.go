package workers

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/collection"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// town is a database in which accounts post, repost and quote. Account "a" is did:plc:a,
// and a record is named "a/1", or "a/r1" if it is a repost.
type town struct {
	author
	w    *ProcessPosts
	news string
	revs int
}

func newTown(t *testing.T) *town {
	t.Helper()
	pool := schematest.New(t)
	return &town{author: newAuthor(t, pool), w: worker(pool), news: "https://news.example/1"}
}

func (c *town) key(name string) schema.Key {
	who, rkey, _ := strings.Cut(name, "/")
	key := postKey("did:plc:"+who, rkey)
	if strings.HasPrefix(rkey, "r") {
		key.Collection = repostCollection
	}
	return key
}

func (c *town) uri(name string) string {
	key := c.key(name)
	return "at://" + key.DID + "/" + key.Collection + "/" + key.Rkey
}

// write stores a revision of a record.
func (c *town) write(name string, record any) {
	c.t.Helper()
	c.revs++
	raw, err := json.Marshal(record)
	require.NoError(c.t, err)
	c.apply(schema.Batch{Writes: []schema.Write{{Key: c.key(name), Rev: fmt.Sprintf("%05d", c.revs), CID: "c", CreatedAt: time.Now().Add(-time.Minute), Record: raw}}})
}

// posts stores a post that contains links and may quote another.
func (c *town) posts(name, quoted string, urls ...string) {
	c.t.Helper()
	record := map[string]any{"text": strings.Join(urls, " ")}
	if quoted != "" {
		record["embed"] = map[string]any{"$type": "app.bsky.embed.record", "record": map[string]string{"uri": c.uri(quoted), "cid": "c"}}
	}
	c.write(name, record)
}

func (c *town) reposts(name, subject string) {
	c.t.Helper()
	c.write(name, map[string]any{"subject": map[string]string{"uri": c.uri(subject), "cid": "c"}})
}

func (c *town) deletes(name string) {
	c.t.Helper()
	c.revs++
	c.apply(schema.Batch{Deletions: []schema.Deletion{{Key: c.key(name), Rev: fmt.Sprintf("%05d", c.revs), At: time.Now()}}})
}

// job names records as the job of one batch does.
func (c *town) job(names ...string) *river.Job[jobs.ProcessPosts] {
	var records []jobs.Record
	for _, name := range names {
		records = append(records, jobs.Record(c.key(name)))
	}
	args, _ := jobs.Links().Job(jobs.Batch{Records: records}).(jobs.ProcessPosts)
	return &river.Job[jobs.ProcessPosts]{JobRow: &rivertype.JobRow{CreatedAt: time.Now()}, Args: args}
}

// project processes records, a job each.
func (c *town) project(names ...string) {
	c.t.Helper()
	for _, name := range names {
		require.NoError(c.t, c.w.Work(c.t.Context(), c.job(name)))
	}
}

// counts returns the number of sharers of a link in the ranking.
func (c *town) counts(url string) int {
	c.t.Helper()
	links, err := ranking.TrendingLinks(c.t.Context(), c.pool, time.Now(), time.Hour, 1000)
	require.NoError(c.t, err)
	for _, l := range links {
		if l.URL == url {
			return l.Sharers
		}
	}
	return 0
}

func (c *town) rows(sql string) []string {
	c.t.Helper()
	all, err := schema.All(c.t.Context(), c.pool, "read", pgx.RowTo[string], sql)
	require.NoError(c.t, err)
	return all
}

// shares returns the shares that count, as "a/1 post https://…".
func (c *town) sharing() []string {
	c.t.Helper()
	return c.rows(`SELECT replace(s.did, 'did:plc:', '') || '/' || s.rkey || ' ' || s.how || ' ' || l.url FROM shares AS s JOIN links AS l ON l.id = s.link_id
		WHERE s.subject_did IS NULL OR s.link_id = ANY (SELECT unnest(u.links) FROM subjects AS u WHERE u.did = s.subject_did AND u.rkey = s.subject_rkey) ORDER BY 1`)
}

// waiting returns what waits, as "a/r1 for b/1".
func (c *town) waiting() []string {
	c.t.Helper()
	return c.rows(`SELECT replace(did || '/' || rkey || ' for ' || for_did || '/' || for_rkey, 'did:plc:', '') FROM waiting ORDER BY 1`)
}

// checks returns the worker of check_subjects.
func (c *town) checks() *CheckSubjects {
	return &CheckSubjects{pool: c.pool, log: slog.New(slog.DiscardHandler), links: c.w, stored: collection.Of(collection.Entry{Pattern: "app.bsky.feed.*", Retention: 48 * time.Hour}),
		patience: time.Minute, calls: subjectCalls, waitAtMost: waitingRows, now: time.Now}
}

func (c *town) check(w *CheckSubjects) {
	c.t.Helper()
	require.NoError(c.t, w.Work(c.t.Context(), &river.Job[jobs.CheckSubjects]{JobRow: &rivertype.JobRow{}}))
}

// TestReposterSharesTheLinksOfThePost in either order of arrival, in one job or in two.
// An account counts once. A link in the quoting post itself is shared by post.
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
				if !stored[n] { // a second job for one revision
					write[n]()
				}
				stored[n] = true
			}
			require.NoError(t, c.w.Work(t.Context(), c.job(names...)), name)
		}
		require.Equal(t, []string{"a/1 post " + c.news, "a/r9 repost " + c.news, "b/2 quote " + c.news, "b/r1 repost " + c.news, "c/3 post " + other, "c/3 quote " + c.news}, c.sharing(), name)
		require.Equal(t, 3, c.counts(c.news), "%s: a and b shared it twice", name)
		require.Empty(t, c.waiting(), name)
	}
}

// TestQuoteOfAQuoteSharesOnlyWhatTheQuotedPostContains, also in a cycle.
func TestQuoteOfAQuoteSharesOnlyWhatTheQuotedPostContains(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	const own, same = "https://own.example/", "https://same.example/"
	c.posts("a/1", "", c.news)
	c.posts("b/1", "a/1", own)
	c.posts("c/1", "b/1")
	c.posts("d/1", "e/1", same)
	c.posts("e/1", "d/1", same)
	c.posts("f/1", "f/1", same) // itself
	c.project("c/1", "e/1", "d/1", "b/1", "a/1", "f/1")
	require.Equal(t, []string{"a/1 post " + c.news, "b/1 post " + own, "b/1 quote " + c.news, "c/1 quote " + own, "d/1 post " + same, "e/1 post " + same, "f/1 post " + same}, c.sharing())
	require.Empty(t, c.waiting())
}

// TestStrangeRepostsShareNothing and are no dead letters, but what is no object is one.
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

// TestDeletedRepostSharesNothing, before and after its share exists. What waits for a
// post and was deleted waits no longer when the post comes.
func TestDeletedRepostSharesNothing(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	c.posts("a/1", "", c.news)
	c.reposts("b/r1", "a/1")
	c.project("a/1", "b/r1")
	require.Equal(t, 2, c.counts(c.news))
	c.deletes("b/r1")
	require.Equal(t, 1, c.counts(c.news), "in the transaction of the deletion")
	c.project("b/r1")
	require.Equal(t, []string{"a/1 post " + c.news}, c.sharing())

	c.reposts("b/r2", "c/1")
	c.posts("b/3", "c/1")
	c.project("b/r2", "b/3")
	require.Equal(t, []string{"b/3 for c/1", "b/r2 for c/1"}, c.waiting())
	c.deletes("b/r2")
	c.posts("b/3", "") // quotes nothing any more
	c.project("b/3")
	require.Equal(t, []string{"b/r2 for c/1"}, c.waiting(), "the consumer does not touch what waits")
	c.posts("c/1", "", c.news)
	c.project("c/1")
	require.Empty(t, c.waiting())
	require.Equal(t, []string{"a/1 post " + c.news, "c/1 post " + c.news}, c.sharing())
}

// TestDeletedPostEndsTheSharesOfAllWhoRepostedIt in the transaction of the deletion,
// which writes one row however many reposted it. If the post returns, so do the shares.
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
	require.Equal(t, []string{"700"}, through(), "the deletion did not touch them")
	require.Len(t, c.rows(`SELECT rkey FROM changed_subjects`), 1)

	c.posts("c/1", "", "https://another.example/")
	c.reposts("d/r1", "c/1")
	c.project("c/1", "d/r1")
	c.check(c.checks())
	require.Equal(t, []string{"1"}, through(), "that of another post")
	require.Len(t, c.waiting(), 700)
	require.Empty(t, c.rows(`SELECT rkey FROM changed_subjects`))

	c.posts("a/1", "", c.news)
	c.project("a/1")
	require.Equal(t, 701, c.counts(c.news))
	require.Empty(t, c.waiting())
	c.deletes("a/1")
	c.posts("a/1", "", c.news)
	c.project("a/1", "b1/r1")
	require.Equal(t, 701, c.counts(c.news), "returned before anything noticed")
}

// TestEditedPostChangesTheSharesOfAllWhoRepostedIt: to other links, to none, and back.
// Records that have expired lose the share.
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
	c.check(c.checks())
	require.Equal(t, []string{"a/1 post " + other, "b/r1 repost " + other, "c/1 quote " + other}, c.sharing())
	require.Equal(t, c.sharing(), c.rows(`SELECT replace(s.did, 'did:plc:', '') || '/' || s.rkey || ' ' || s.how || ' ' || l.url FROM shares AS s JOIN links AS l ON l.id = s.link_id ORDER BY 1`))
	c.posts("a/1", "")
	c.project("a/1")
	require.Empty(t, c.sharing())
	c.check(c.checks())
	require.Equal(t, []string{"b/r1 for a/1", "c/1 for a/1"}, c.waiting())
	c.posts("a/1", "", c.news, other)
	c.project("a/1")
	require.Equal(t, []string{"a/1 post " + c.news, "a/1 post " + other, "b/r1 repost " + c.news, "b/r1 repost " + other, "c/1 quote " + c.news, "c/1 quote " + other}, c.sharing())
}

// TestEditedQuoteSharesThroughItsNewSubject, and a link that moves between the quoting
// and the quoted post is shared by post or by quote.
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

// TestHiddenAuthorCarriesNothing: the reposts of a hidden account's post do not count
// until the account returns.
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

// TestReleaseContinuesWhereItStopped: a job that has no time left continues later, and
// the rows that it has released wait no longer.
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
	known := []schema.Key{c.key("a/1")}
	c.w.patience = time.Hour
	_, err := c.w.projected(t.Context(), known)
	require.NoError(t, err)
	pages, until := 0, time.Now().Add(time.Hour)
	project := func(keys []schema.Key) error {
		if pages++; pages == 2 {
			return context.Canceled
		}
		_, err := c.w.projected(t.Context(), keys)
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

// TestSubjectsThatNoShareNeedsExpire, a day after they were last needed.
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
	w.now = func() time.Time { return time.Now().Add(25 * time.Hour) }
	w.stored = collection.Registry{}
	c.check(w)
	require.Equal(t, []string{"1"}, c.rows(subjects))
	require.Equal(t, 2, c.counts(c.news))
	c.reposts("b/r2", "a/2") // the post is still stored
	c.project("b/r2")
	require.Equal(t, []string{"1", "2"}, c.rows(subjects))
}

// BenchmarkViralPost shows how many reposts of one post are projected per second, while
// more and more have been: it must not slow down.
func BenchmarkViralPost(b *testing.B) {
	pool := schematest.New(b)
	_ = NewProjections(jobs.Links()).Register(b.Context(), pool, slog.New(slog.DiscardHandler))
	exec := func(sql string, args ...any) {
		_, err := pool.Exec(b.Context(), sql, args...)
		require.NoError(b, err)
	}
	exec(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record) VALUES ('app.bsky.feed.post', 'did:plc:a', '1', '1', '', now(), '{"text":"https://news.example/1"}')`)
	w := worker(pool)
	job := func(args jobs.ProcessPosts) {
		require.NoError(b, w.Work(b.Context(), &river.Job[jobs.ProcessPosts]{JobRow: &rivertype.JobRow{CreatedAt: time.Now()}, Args: args}))
	}
	job(jobs.ProcessPosts{Posts: []string{"did:plc:a/1"}})
	const each, jobSize = 20_000, 500
	for part := range 5 {
		exec(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
			SELECT 'app.bsky.feed.repost', 'did:plc:b' || i, 'r', '1', '', now(), '{"subject":{"uri":"at://did:plc:a/app.bsky.feed.post/1","cid":"c"},"createdAt":"2026-07-04T12:00:00Z"}'
			FROM generate_series($1::int, $2::int) AS i`, part*each, part*each+each-1)
		began := time.Now()
		for at := part * each; at < (part+1)*each; at += jobSize {
			names := make([]string, jobSize)
			for i := range names {
				names[i] = fmt.Sprintf("did:plc:b%d/r", at+i)
			}
			job(jobs.ProcessPosts{Posts: []string{}, Reposts: names})
		}
		b.ReportMetric(each/time.Since(began).Seconds(), fmt.Sprintf("shares/s-from-%dk", part*each/1000))
	}
	began := time.Now()
	exec(`DELETE FROM subjects`)
	b.ReportMetric(float64(time.Since(began).Microseconds())/1000, "ms/deletion")
}
