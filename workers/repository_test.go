package workers

import (
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/internal/testing/workertest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// follows adds a watch for each account, and waits until their feeds are read.
func (r *rig) follows(dids ...string) {
	r.t.Helper()
	for _, did := range dids {
		r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
	}
	r.becomes(len(dids), `SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL`)
}

const addGap = workertest.AddGap

func uri(did, rkey string) string { return workertest.URI(did, rkey) }

// posts returns an account's posts in its repository, newest first.
func (r *rig) posts(did string) []schema.SourceRecord {
	r.t.Helper()
	return workertest.Posts(r.t, r.api, did)
}

// audits compares every followed account.
func (r *rig) audits(repair bool) schema.Audit {
	r.t.Helper()
	a := Auditor{
		Shared: Shared{Pool: r.pool, Bluesky: r.api, Projections: registered(r.t, r.pool), Logger: slog.New(slog.DiscardHandler)},
		Window: 24 * time.Hour,
		Repair: repair,
	}
	if r.client != nil {
		a.Client = r.client.Client
	}
	sum, _, err := a.Audit(r.t.Context())
	require.NoError(r.t, err)
	return sum
}

// TestClosedGapStoresEditsAndDeletions covers posts from before the gap too.
// The job continues at the page at which it was interrupted.
func TestClosedGapStoresEditsAndDeletions(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	did, posts := r.busiest()
	require.Greater(t, posts, repositoryPage+10)
	r.follows(did)
	old := r.posts(did)
	deleted, edited := []string{old[0].Rkey, old[len(old)-2].Rkey}, []string{old[1].Rkey, old[len(old)-1].Rkey}
	for _, rkey := range deleted {
		require.NoError(t, r.net.DeleteRecord(uri(did, rkey)))
	}
	for _, rkey := range edited {
		_, err := r.net.EditPost(uri(did, rkey), "edited in the gap")
		require.NoError(t, err)
	}
	_, err := r.net.PostNow(did, "posted in the gap")
	require.NoError(t, err)

	before := len(r.net.Calls("com.atproto.repo.listRecords"))
	awaited, release := r.holdingRecords("com.atproto.repo.listRecords")
	r.execute(addGap)
	awaited() // the job has its first page
	require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.TooMany, Endpoint: "com.atproto.repo.listRecords", Count: 1}))
	release()
	r.becomes(1, `SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL AND accounts = 1 AND checked = 1
		AND how_closed = 'the records of 1 account were compared with the repositories'`)
	top := 0
	for _, c := range r.net.Calls("com.atproto.repo.listRecords")[before:] {
		if c.Cursor == "" {
			top++
		}
	}
	require.Equal(t, 1, top, "the first page is not read again")

	now := r.posts(did)
	require.Equal(t, len(now), r.count(`SELECT count(*) FROM posts WHERE did = $1`, did))
	for _, p := range now {
		require.Equal(t, 1, r.count(`SELECT count(*) FROM posts WHERE did = $1 AND rkey = $2 AND cid = $3`, did, p.Rkey, p.CID), p.Rkey)
	}
	require.Equal(t, 2, r.count(`SELECT count(*) FROM posts WHERE record ->> 'text' LIKE 'edited in the gap%'`))
	require.Equal(t, 2, r.count(`SELECT count(*) FROM tombstones WHERE rkey = ANY ($1)`, deleted))
}

// TestGapReadsAccountsThatReturnLater shows that an inactive account does not
// keep a gap open. It is read when it is active again, whichever source reports
// that.
func TestGapReadsAccountsThatReturnLater(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	both := r.followed()[:2]
	r.follows(both...)
	for _, did := range both {
		_, err := r.net.PostNow(did, "posted in the gap, as was that it is active again")
		require.NoError(t, err)
	}
	r.execute(`UPDATE accounts SET status = 'deactivated', status_at = now() - interval '1 day' WHERE did = ANY ($1)`, both)
	r.execute(addGap)
	r.becomes(1, `SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL AND later = 2`)
	r.becomes(2, `SELECT count(*) FROM accounts WHERE reread_since IS NOT NULL`)
	read := func(did string) {
		t.Helper()
		r.becomes(1, fmt.Sprintf(`SELECT count(*) FROM posts WHERE did = '%s' AND record ->> 'text' LIKE 'posted in the gap%%'`, did))
		r.becomes(1, fmt.Sprintf(`SELECT count(*) FROM accounts WHERE did = '%s' AND reread_since IS NULL AND status = 'active'`, did))
	}
	r.execute(`UPDATE accounts SET status = 'active' WHERE did = $1`, both[0])
	read(both[0])
	require.NoError(t, schema.SyncWatches(t.Context(), r.pool))
	read(both[1])
}

// followsInactive follows the busiest account, which becomes inactive after it was read once.
func (r *rig) followsInactive() (did string) {
	r.t.Helper()
	did, _ = r.busiest()
	r.follows(did)
	r.execute(`DELETE FROM river_job WHERE kind = 'request_backfill'`) // the second read of a new follow
	require.NoError(r.t, r.net.Deactivate(did))
	return did
}

// TestRefusedAccountIsReadWhenItReturns covers accounts that were inactive when their posts were read, which no stream
// had reported. One that becomes active again is read at once, or soon if it does so while the read is being refused.
func TestRefusedAccountIsReadWhenItReturns(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	did := r.followsInactive()
	request := func() { r.execute(`SELECT enqueue_backfill($1, interval '1 day')`, did) }
	request()
	r.becomes(1, `SELECT count(*) FROM accounts WHERE feed_problem <> '' AND status = 'active' AND reread_at > now() + interval '50 minutes'`)
	require.NoError(t, r.net.Reactivate(did))
	r.execute(`UPDATE accounts SET status = 'active', status_at = now() WHERE did = $1`, did)
	r.becomes(0, `SELECT count(*) FROM accounts WHERE feed_problem <> ''`)

	require.NoError(t, r.net.Deactivate(did))
	r.execute(`
CREATE FUNCTION returns() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.reread_count := OLD.reread_count + 1; RETURN NEW; END $$;
CREATE TRIGGER returns BEFORE UPDATE ON accounts FOR EACH ROW WHEN (NEW.feed_problem = OLD.feed_problem AND NEW.feed_problem = '')
    EXECUTE FUNCTION returns()`) // when the job locks the row, to store that it was refused
	ended := `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state = 'completed'`
	before := r.count(ended)
	request()
	r.becomes(before+2, ended)
	r.idle()
	require.Equal(t, before+2, r.count(ended), "it is refused again, and nobody has requested more")
}

// TestRefusedReadThatIsRequestedAgainIsRepeated requests an account again after its server refused it, and before the job ends.
func TestRefusedReadThatIsRequestedAgainIsRepeated(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	did := r.followsInactive()
	awaited, release := r.holdingFeed(did)
	r.execute(`SELECT enqueue_backfill($1, interval '1 day')`, did)
	awaited()
	require.NoError(t, r.net.Reactivate(did))
	r.execute(`SELECT enqueue_backfill($1, interval '2 days')`, did)
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state = 'running' AND args -> 'requests' = '1'`)
	release()
	r.becomes(1, `SELECT count(*) FROM accounts
		WHERE feed_problem = '' AND reread_since IS NULL AND read_since < now() - interval '47 hours'`)
}

// TestGapOfARepositoryThatRefuses covers a repository that refuses or is
// unreachable. The feed closes the gap, the gap records that, and the
// repository is compared later.
func TestGapOfARepositoryThatRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	did, _ := r.busiest()
	r.follows(did)
	gone := r.posts(did)[3].Rkey
	require.NoError(t, r.net.DeleteRecord(uri(did, gone)))
	_, err := r.net.PostNow(did, "posted in the gap")
	require.NoError(t, err)
	require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.Forbidden, Endpoint: "com.atproto.sync.getLatestCommit"}))
	r.execute(`UPDATE accounts SET reread_count = 3`) // the account was away before
	r.execute(addGap)
	r.becomes(1, `
		SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL AND unchecked = 1
		    AND how_closed LIKE '%; 1 account could not be read and is read later'`)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM posts WHERE record ->> 'text' LIKE 'posted in the gap%'`),
		"the post must be read from the feed")
	require.Equal(t, 1, r.count(`SELECT count(*) FROM posts WHERE rkey = $1`, gone))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM accounts WHERE reread_since IS NOT NULL AND reread_at > now()`))
	require.Zero(t, r.count(`SELECT count(*) FROM river_job WHERE kind = 'request_backfill' AND args ? 'account'`),
		"nobody has requested another read meanwhile")

	// An unreachable repository is requested a few times.
	r.pauses(jobs.QueueBackfill)
	require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.Unavailable, Endpoint: "com.atproto.sync.getLatestCommit", Count: 4}))
	r.execute(`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('s', now() - interval '1 hour', now(), 'another', now())`)
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND priority = 1 AND state IN ('available', 'retryable')`)
	r.execute(`
		UPDATE river_job SET attempt = $1, state = 'available', scheduled_at = now()
		WHERE kind = 'backfill_account' AND priority = 1 AND state <> 'completed'`, repositoryTries-1)
	require.NoError(t, r.client.QueueResume(t.Context(), jobs.QueueBackfill, nil))
	r.becomes(2, `SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL AND unchecked = 1`)

	r.net.ClearCallFaults()
	r.execute(`UPDATE accounts SET reread_at = now()`)
	require.NoError(t, schema.SyncWatches(t.Context(), r.pool))
	r.becomes(1, `SELECT count(*) FROM accounts WHERE did = '`+did+`' AND reread_since IS NULL`)
	require.Zero(t, r.count(`SELECT count(*) FROM posts WHERE rkey = $1`, gone))
}

// TestGapOfARepositoryThatIsNeverRead shows that the feed closes the gap if the
// server does not respond, or keeps rate limiting.
func TestGapOfARepositoryThatIsNeverRead(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	r := newRig(t, func(cfg *Config) { cfg.JobTimeout = 4 * time.Second })
	did, _ := r.busiest()
	r.follows(did)
	gap := func(job string) {
		t.Helper()
		r.pauses(jobs.QueueBackfill)
		r.execute(addGap)
		r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND priority = 1 AND state = 'available'`)
		r.execute(`UPDATE river_job SET ` + job + ` WHERE kind = 'backfill_account' AND state = 'available'`)
		require.NoError(t, r.client.QueueResume(t.Context(), jobs.QueueBackfill, nil))
	}
	require.NoError(t,
		r.net.FailCalls(simnet.CallFault{Kind: simnet.Slow, Endpoint: "com.atproto.repo.listRecords", Wait: time.Minute, Count: 2}))
	gap(`attempt = 2`)
	r.becomes(1, `SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL AND unchecked = 1`)
	r.net.ClearCallFaults()

	r.execute(`DELETE FROM gaps`)
	require.NoError(t,
		r.net.FailCalls(simnet.CallFault{Kind: simnet.TooMany, Endpoint: "com.atproto.sync.getLatestCommit", Wait: 6 * time.Second, Count: 1000}))
	gap(`attempt = 0`)
	r.becomes(1, `
		SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state = 'scheduled'
		    AND metadata #> '{river:resumable_cursor,read_feed,repository,began}' IS NOT NULL`)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM gaps WHERE closed_at IS NULL`))
	eventually.True(t, func() bool { // as if hours had passed; the job may be running again
		done, err := r.pool.Exec(t.Context(),
			`UPDATE river_job SET metadata =
			jsonb_set(metadata, '{river:resumable_cursor,read_feed,repository,began}', to_jsonb(now() - interval '4 hours'))
			WHERE kind = 'backfill_account' AND state = 'scheduled'`)
		require.NoError(t, err)
		return done.RowsAffected() == 1
	}, 20*time.Millisecond)
	r.becomes(1, `SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL AND unchecked = 1`)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM accounts WHERE reread_since IS NOT NULL`), "the account must be compared later")
}

// TestEachAccountIsReadAgainFromItsOwnTime shows that an account that missed
// years does not make another one be read back for years.
func TestEachAccountIsReadAgainFromItsOwnTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(cfg *Config) { cfg.Window = time.Hour })
	did, _ := r.busiest()
	other := r.followed()[0]
	require.NotEqual(t, did, other)
	r.follows(did, other)
	r.execute(`UPDATE accounts SET reread_since = now() - CASE WHEN did = $1 THEN interval '30 minutes' ELSE interval '20 hours' END`, did)
	stored := r.count(`SELECT count(*) FROM posts WHERE did = $1`, did)
	require.Less(t, stored, len(r.posts(did)))
	require.NoError(t, schema.SyncWatches(t.Context(), r.pool))
	r.becomes(0, `SELECT count(*) FROM accounts WHERE reread_since IS NOT NULL`)
	require.Equal(t, stored, r.count(`SELECT count(*) FROM posts WHERE did = $1`, did))
}

// TestNewFollowIsReadTwice covers posts from before the stream delivered the
// account's posts that the AppView indexes late.
func TestNewFollowIsReadTwice(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	r := newRig(t, nil)
	did, _ := r.busiest()
	r.net.HoldFeeds()
	late, err := r.net.PostNow(did, "indexed late")
	require.NoError(t, err)
	r.follows(did)
	is := fmt.Sprintf(`SELECT count(*) FROM posts WHERE did = '%s' AND rkey = '%s'`, did, late.Rkey)
	require.Zero(t, r.count(is))
	r.net.ReleaseFeeds()
	require.Equal(t, 1, r.count(`SELECT count(*) FROM river_job WHERE kind = 'request_backfill' AND state = 'scheduled'
		AND scheduled_at BETWEEN created_at + interval '1 minute' AND created_at + interval '2 minutes'`), "a minute later")
	r.execute(`UPDATE river_job SET scheduled_at = now() WHERE kind = 'request_backfill'`) // as if the minute had passed
	r.becomes(1, is)
}

// TestAccountFollowedAgainIsCompared shows that edits and deletions in between,
// which were missed, are found, however old their records are.
func TestAccountFollowedAgainIsCompared(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	r := newRig(t, func(cfg *Config) { cfg.Window = time.Hour })
	did, _ := r.busiest()
	r.follows(did)
	old := r.posts(did)
	require.Greater(t, len(old), 3)
	r.execute(`SELECT enqueue_backfill($1, '1 day')`, did)
	r.becomes(len(old), `SELECT count(*) FROM posts`)
	r.idle() // the job that stored them may still store how far it has read
	r.execute(`DELETE FROM watches`)
	r.becomes(0, `SELECT count(*) FROM watch_members`)
	r.execute(`DELETE FROM river_job WHERE kind IN ('backfill_account', 'request_backfill')`)
	newer, older := old[0].Rkey, old[len(old)-1].Rkey
	for _, rkey := range []string{newer, older} {
		require.NoError(t, r.net.DeleteRecord(uri(did, rkey)))
	}
	edited := old[len(old)-2].Rkey
	_, err := r.net.EditPost(uri(did, edited), "edited meanwhile")
	require.NoError(t, err)

	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state = 'completed'`)
	require.Zero(t, r.count(`SELECT count(*) FROM posts WHERE rkey IN ($1, $2)`, newer, older))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM posts WHERE rkey = $1 AND record ->> 'text' LIKE 'edited meanwhile%'`, edited))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM accounts WHERE did = $1 AND reread_since IS NULL AND read_since IS NOT NULL`, did))
}

// TestAuditComparesBackfilledPosts shows that an audit compares posts back to
// the time to which the account was read.
func TestAuditComparesBackfilledPosts(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	did, _ := r.busiest()
	r.pauses(jobs.QueueBackfill)
	followed := time.Now()
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
	r.becomes(1, `SELECT count(*) FROM watch_members`)
	sum := r.audits(true)
	require.Nil(t, sum.Score, "nothing was compared")
	require.Nil(t, sum.From)
	require.Equal(t, []int{0, 0, 1}, []int{sum.Accounts, sum.Failures, sum.Pending})
	last, err := schema.LastAudit(t.Context(), r.pool)
	require.NoError(t, err)
	require.Nil(t, last.Score)
	require.Equal(t, 1, last.Pending)
	require.NoError(t, r.client.QueueResume(t.Context(), jobs.QueueBackfill, nil))
	r.becomes(1, `SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL`)
	read := time.Now()

	stored := r.count(`SELECT count(*) FROM posts`)
	r.execute(`DELETE FROM posts WHERE rkey IN (SELECT rkey FROM posts ORDER BY rkey LIMIT $1)`, stored/2)
	sum = r.audits(false)
	require.Equal(t, stored/2, sum.Missing)
	require.InDelta(t, 0.5, *sum.Score, 0.05)
	var since time.Time
	require.NoError(t, r.pool.QueryRow(t.Context(), `SELECT read_since FROM accounts WHERE did = $1`, did).Scan(&since))
	require.WithinRange(t, since, followed.Add(-24*time.Hour), read.Add(-24*time.Hour))
	require.Equal(t, sum.Started.Add(-24*time.Hour), *sum.From, "the audit must go back one day, as far as the feed was read")
	require.Equal(t, stored/2, r.audits(true).Missing)
	require.Equal(t, stored, r.count(`SELECT count(*) FROM posts`))
	require.InDelta(t, 1, *r.audits(false).Score, 0)
}

// TestAuditReadsWholeRepositories reads a repository with many pages.
func TestAuditReadsWholeRepositories(t *testing.T) {
	t.Parallel()
	const posts = 50*repositoryPage + 30 // more pages than an audit used to read
	newest := time.Now().Add(-time.Hour).UnixMicro()
	r := rigOfPDS(t, func(w http.ResponseWriter, r *http.Request) {
		from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
		to := min(from+repositoryPage, posts)
		var records []string
		for i := from; i < to; i++ {
			rkey := syntax.NewTID(newest-int64(i)*1000, 0).String()
			records = append(records, fmt.Sprintf(`{"uri": %q, "cid": "bafyreidfayvfuwqa7qlnopdjiqrxzs6blmoeu4rujcjtnci5beludirz2a",`+
				` "value": {"text": "x"}}`, uri(alice, rkey)))
		}
		cursor := ""
		if to < posts {
			cursor = fmt.Sprintf(`"cursor": "%d", `, to)
		}
		fmt.Fprintf(w, `{%s"records": [%s]}`, cursor, strings.Join(records, ","))
	})
	sum := r.audits(false)
	require.Zero(t, sum.Failures)
	require.Equal(t, posts, sum.Missing)
}

// rigOfPDS returns a rig that follows an account whose PDS lists the given posts.
func rigOfPDS(t *testing.T, list http.HandlerFunc) *rig {
	t.Helper()
	r := &rig{t: t, pool: schematest.New(t), api: workertest.PDS(t, list)}
	workertest.Follow(t, r.pool, alice)
	return r
}

// TestStrangeRepositoriesLoseNothing shows that a post that a repository lists
// out of order or unreadably does not count as deleted.
func TestStrangeRepositoriesLoseNothing(t *testing.T) {
	t.Parallel()
	now := time.Now().Add(-time.Hour).UnixMicro()
	rkey := func(i int) string { return syntax.NewTID(now+int64(i)*1000, 0).String() }
	page := func(next string, posts ...int) string {
		var records []string
		for _, i := range posts {
			value := `{"text": "x"}`
			if i < 0 {
				i, value = -i, `"no object"`
			}
			records = append(records, fmt.Sprintf(`{"uri": %q, "cid": "bafyreidfayvfuwqa7qlnopdjiqrxzs6blmoeu4rujcjtnci5beludirz2a",`+
				` "value": %s}`, uri(alice, rkey(i)), value))
		}
		return fmt.Sprintf(`{"cursor": %q, "records": [%s]}`, next, strings.Join(records, ","))
	}
	for name, c := range map[string]struct {
		pages    map[string]string
		failures int
	}{
		"a post that is older than its rkey": {map[string]string{"": page("a", 6, 2, 5), "a": page("", 4, 3, 1)}, 1},
		"the lowest first":                   {map[string]string{"": page("a", 1, 2, 3), "a": page("", 4, 5, 6)}, 1},
		"a later page that goes up again":    {map[string]string{"": page("a", 5, 4), "a": page("b", 6, 3), "b": page("", 2, 1)}, 1},
		"in no order, on one page":           {map[string]string{"": page("", 3, 1, 5, 6, 2, 4)}, 0},
		"unreadable":                         {map[string]string{"": page("a", 6, -5, 4), "a": page("b", 3, -2), "b": page("", -1)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rigOfPDS(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, c.pages[r.URL.Query().Get("cursor")]) })
			for i := range 6 {
				r.execute(`INSERT INTO posts (collection, did, rkey, rev, cid, created_at, indexed_at, record)
					VALUES ('app.bsky.feed.post', $1, $2, '', 'bafyreidfayvfuwqa7qlnopdjiqrxzs6blmoeu4rujcjtnci5beludirz2a', now(), now(),
					    '{"text": "x"}')`, alice, rkey(i+1))
			}
			sum := r.audits(true)
			require.Equal(t, []int{c.failures, 0, 0}, []int{sum.Failures, sum.Extra, sum.Missing})
			require.Equal(t, 6, r.count(`SELECT count(*) FROM posts`))
			require.Zero(t, r.count(`SELECT count(*) FROM tombstones`))
		})
	}
}

// TestRevisionOfTheRepositoryBoundsDates covers process and database clocks
// that are both behind. The date of a record is accepted up to the revision of
// its repository, at most a day ahead of us.
func TestRevisionOfTheRepositoryBoundsDates(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	queue, err := Queue(pool, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	now := time.Now().Truncate(time.Millisecond).UTC()
	for name, c := range map[string]struct{ rev, made, stored time.Time }{
		"not in the future":      {now.Add(-time.Hour), now.Add(-2 * time.Hour), now.Add(-2 * time.Hour)},
		"as the revision says":   {now.Add(time.Hour), now.Add(30 * time.Minute), now.Add(30 * time.Minute)},
		"after the revision":     {now.Add(time.Hour), now.Add(2 * time.Hour), now.Add(time.Hour)},
		"more than a day ahead":  {now.Add(48 * time.Hour), now.Add(47 * time.Hour), now.Add(24 * time.Hour)},
		"after an old revision":  {now.Add(-time.Hour), now.Add(time.Hour), now},
		"of the year after next": {now.AddDate(2, 0, 0), now.AddDate(2, 0, 0), now.Add(24 * time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rkey := syntax.NewTID(c.made.UnixMicro(), 0).String()
			found := compared{faults: []schema.Fault{{DID: alice, Collection: schema.PostCollection, Rkey: rkey, Fault: schema.FaultMissing}},
				listed: map[string]schema.SourceRecord{
					rkey: {Rkey: rkey, CID: "c", Record: fmt.Appendf(nil, `{"text": "x", "createdAt": %q}`, c.made.Format(time.RFC3339Nano))}}}
			rev := syntax.NewTID(c.rev.UnixMicro(), 0).String()
			shared := Shared{Pool: pool, Projections: registered(t, pool)}
			require.NoError(t, (&repository{Shared: shared, did: alice}).repair(t.Context(), queue, rev, found, nil))
			var stored time.Time
			require.NoError(t, pool.QueryRow(t.Context(), `SELECT created_at FROM posts WHERE rkey = $1`, rkey).Scan(&stored))
			require.WithinRange(t, stored, c.stored.Add(-time.Second), c.stored.Add(time.Since(now)+time.Second))
		})
	}
}
