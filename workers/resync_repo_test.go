package workers

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertest"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer/firehose"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// resyncing is a rig whose resyncs may follow each other at once, unless change sets other limits.
// Only the test changes its small network.
func resyncing(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	return newRigOn(t, simnet.Config{Seed: 21, Accounts: 10, History: 100, HistorySpan: 3 * time.Hour}, func(c *Config) {
		c.Collections = stored()
		c.Resync = ResyncLimits{Useful: time.Millisecond, Useless: time.Millisecond}
		c.ReadRepository = func(car []byte, did string, key atcrypto.PublicKey) (Repository, error) {
			return firehose.ReadRepository(car, did, key, c.Collections.Stores)
		}
		if change != nil {
			change(c)
		}
	})
}

// refuses marks an account like a stream that has refused a revision; empty means an unknown
// revision. It returns how many jobs were needed.
func (r *rig) refuses(did, rev string) (added int) {
	r.t.Helper()
	require.NoError(r.t, pgx.BeginFunc(r.t.Context(), r.pool, func(tx pgx.Tx) error {
		b := schema.Batch{Desynchronized: []schema.Desynchronized{{DID: did, Cause: "a test", Rev: rev}}}
		if _, err := b.Apply(r.t.Context(), tx, schema.Lease{}); err != nil || len(b.Resyncs) == 0 {
			return err
		}
		added = len(b.Resyncs)
		return EnqueueResyncs(r.client)(r.t.Context(), tx, b.Resyncs)
	}))
	return added
}

// synchronized waits until no account is desynchronized.
func (r *rig) synchronized() {
	r.t.Helper()
	r.becomes(0, `SELECT count(*) FROM resyncs WHERE desynchronized_at IS NOT NULL`)
	r.becomes(0, `SELECT count(*) FROM river_job WHERE kind = 'resync_repo' AND state <> 'completed'`)
}

func revNow() string { return syntax.NewTIDNow(0).String() }

// fetched returns how many times repositories were fetched.
func (r *rig) fetched() int { return len(r.net.Calls("com.atproto.sync.getRepo")) }

// due makes the only waiting resync due.
func (r *rig) due() {
	r.t.Helper()
	const waits = ` WHERE kind = 'resync_repo' AND state = 'scheduled'`
	r.becomes(1, `SELECT count(*) FROM river_job`+waits)
	r.execute(`UPDATE resyncs SET due_at = now()`)
	r.execute(`UPDATE river_job SET scheduled_at = now(), state = 'available'` + waits)
}

// TestResyncStoresEditsAndDeletions covers every collection, and the projection of the written
// records.
func TestResyncStoresEditsAndDeletions(t *testing.T) {
	t.Parallel()
	r := resyncing(t, nil)
	did, _ := r.busiest()
	r.puts(did, document, "self", "before")
	r.puts(did, persona, "gone", "before")
	r.follows(did)
	old := r.posts(did)
	deleted, edited := old[0].Rkey, old[1].Rkey
	require.NoError(t, r.net.DeleteRecord(uri(did, deleted)))
	_, err := r.net.EditPost(uri(did, edited), "edited")
	require.NoError(t, err)
	written, err := r.net.PostNow(did, "new", "https://news.example/1")
	require.NoError(t, err)
	r.puts(did, document, "self", "edited")
	r.puts(did, note, "self", "new")
	require.NoError(t, r.net.DeleteRecord("at://"+did+"/"+persona+"/gone"))
	listed := len(r.net.Calls("com.atproto.repo.listRecords"))

	require.Equal(t, 1, r.refuses(did, revNow()))
	r.synchronized()
	require.Len(t, r.net.Calls("com.atproto.repo.listRecords"), listed)
	now := r.posts(did)
	require.Equal(t, len(now), r.count(`SELECT count(*) FROM posts WHERE did = $1`, did))
	for _, p := range now {
		require.Equal(t, 1, r.count(`SELECT count(*) FROM posts WHERE did = $1 AND rkey = $2 AND cid = $3`, did, p.Rkey, p.CID), p.Rkey)
	}
	require.Equal(t, []string{note + " self new", document + " self edited"}, r.records(did))
	require.Equal(t, 2, r.count(`SELECT count(*) FROM tombstones WHERE rkey IN ($1, 'gone')`, deleted))
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'read_posts' AND state = 'completed' AND args::text LIKE '%' || $1 || '%'`,
		written.Rkey)
	require.Equal(t, 1, r.fetched())
	require.Equal(t, 1, r.count(`SELECT count(*) FROM resyncs WHERE unchanged = 0 AND rev <> '' AND problem = ''`))
	require.Zero(t, r.refuses(did, tidBefore(time.Minute)), "no job is needed: the compared repository includes the revision")
}

// TestResyncKeepsWhatArrivesMeanwhile covers a deletion and an edit with later revisions than the
// fetched repository.
func TestResyncKeepsWhatArrivesMeanwhile(t *testing.T) {
	t.Parallel()
	fetched, release := make(chan struct{}), make(chan struct{})
	r := resyncing(t, func(c *Config) {
		read := c.ReadRepository
		c.ReadRepository = func(car []byte, did string, key atcrypto.PublicKey) (Repository, error) {
			close(fetched)
			<-release
			return read(car, did, key)
		}
	})
	did, _ := r.busiest()
	r.follows(did)
	var rkeys []string
	for i := range 3 {
		e, err := r.net.PostNow(did, fmt.Sprint("missed ", i))
		require.NoError(t, err)
		rkeys = append(rkeys, e.Rkey)
	}
	r.refuses(did, revNow())
	<-fetched
	later := revNow()
	key := func(i int) schema.Key { return schema.Key{Collection: schema.PostCollection, DID: did, Rkey: rkeys[i]} }
	require.NoError(t, pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		b := schema.Batch{Deletions: []schema.Deletion{{Key: key(0), Rev: later, At: time.Now()}},
			Writes: []schema.Write{{Key: key(1), Rev: later, CID: "later", CreatedAt: time.Now(), Record: []byte(`{"text":"edited meanwhile"}`)}}}
		_, err := b.Apply(t.Context(), tx, schema.Lease{})
		return err
	}))
	close(release)
	r.synchronized()
	require.Zero(t, r.count(`SELECT count(*) FROM posts WHERE rkey = $1`, rkeys[0]), "a post that was deleted meanwhile must not be stored")
	require.Equal(t, 1, r.count(`SELECT count(*) FROM posts WHERE rkey = $1 AND cid = 'later'`, rkeys[1]))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM posts WHERE rkey = $1 AND record ->> 'text' = 'missed 2'`, rkeys[2]))
}

// TestResyncRepeatsForLaterRefusals shows that commits refused after the repository was fetched
// need another resync, which the same job does.
func TestResyncRepeatsForLaterRefusals(t *testing.T) {
	t.Parallel()
	fetched, release := make(chan struct{}, 10), make(chan struct{})
	r := resyncing(t, func(c *Config) {
		read := c.ReadRepository
		c.ReadRepository = func(car []byte, did string, key atcrypto.PublicKey) (Repository, error) {
			fetched <- struct{}{}
			<-release
			return read(car, did, key)
		}
	})
	did, _ := r.busiest()
	r.follows(did)
	require.Equal(t, 1, r.refuses(did, revNow()))
	<-fetched
	require.Zero(t, r.refuses(did, tidBefore(-time.Minute)), "no second job is needed while the job is running")
	_, err := r.net.PostNow(did, "refused meanwhile")
	require.NoError(t, err)
	require.Zero(t, r.refuses(did, ""))
	close(release)
	r.synchronized()
	require.Equal(t, 1, r.count(`SELECT count(*) FROM posts WHERE record ->> 'text' = 'refused meanwhile'`))
	require.Equal(t, 2, r.fetched())
	require.Equal(t, 1, r.count(`SELECT count(*) FROM river_job WHERE kind = 'resync_repo'`))
}

// TestWaitingEventsUndoNoResync covers events that wait as dead letters while the account is
// compared. When they are verified at last, they restore no deleted record and no edited text.
// Later events still count.
func TestWaitingEventsUndoNoResync(t *testing.T) {
	t.Parallel()
	r := resyncing(t, nil)
	did, _ := r.busiest()
	r.follows(did)
	posts := r.posts(did)
	deleted, edited, created := tidBefore(time.Hour), posts[0], tidBefore(-time.Minute)
	before, after := tidBefore(time.Minute), tidBefore(-2*time.Minute)
	event := func(rkey, rev string) schema.Write {
		key := schema.Key{Collection: schema.PostCollection, DID: did, Rkey: rkey}
		l := schema.DeadLetter{
			Stage: schema.StageVerify, Class: schema.ClassRetryable, Key: key, Rev: rev, Raw: []byte("an event"),
		}
		require.NoError(t, l.Store(t.Context(), r.pool, "s"))
		return schema.Write{Key: key, Rev: rev, CID: "waited", CreatedAt: time.Now(), Record: []byte(`{"text":"it waited"}`)}
	}
	_, err := r.net.PostNow(did, "the last") // the revision of the repository
	require.NoError(t, err)
	waiting := []schema.Write{event(deleted, before), event(edited.Rkey, before), event(created, after)}
	r.refuses(did, "")
	r.synchronized()
	require.Equal(t, 3, r.count(`SELECT count(*) FROM dead_letters WHERE raw_bytes > 0 AND state = 'open'`))
	slices.SortFunc(waiting, func(a, b schema.Write) int { return strings.Compare(a.Rkey, b.Rkey) })
	require.NoError(t, pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error { // as a retry does
		_, err := (&schema.Batch{Writes: waiting}).Apply(t.Context(), tx, schema.Lease{})
		return err
	}))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM posts WHERE cid = 'waited' AND rkey = $1`, created))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM posts WHERE cid = 'waited'`))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM posts WHERE rkey = $1 AND cid = $2`, edited.Rkey, edited.CID))
}

// TestResyncMarkedWhileItsJobEndsIsNotForgotten covers a stream that marks an account just after
// the account's job has found nothing to do. The stream adds no other job.
func TestResyncMarkedWhileItsJobEndsIsNotForgotten(t *testing.T) {
	t.Parallel()
	r := resyncing(t, nil)
	did, _ := r.busiest()
	inserted, err := r.client.Insert(t.Context(), jobs.ResyncRepo{DID: did}, &river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)})
	require.NoError(t, err)
	r.execute(`UPDATE river_job SET state = 'running', attempted_at = now() WHERE id = $1`, inserted.Job.ID)
	inserted.Job.State = rivertype.JobStateRunning
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background()) // committed, or the test has failed
	b := schema.Batch{Desynchronized: []schema.Desynchronized{{DID: did, Cause: "a test"}}}
	_, err = b.Apply(t.Context(), tx, schema.Lease{})
	require.NoError(t, err)
	require.NoError(t, EnqueueResyncs(r.client)(t.Context(), tx, b.Resyncs))
	ended := make(chan error, 1)
	go func() {
		w := newResyncRepo(Config{Shared: Shared{Pool: r.pool, Logger: slog.New(slog.DiscardHandler)}})
		ended <- w.Work(rivertest.WorkContext(t.Context(), r.client.Client),
			&river.Job[jobs.ResyncRepo]{JobRow: inserted.Job, Args: jobs.ResyncRepo{DID: did}})
	}()
	eventually.True(t, func() bool { return len(ended) > 0 || schematest.Blocks(t, r.pool, tx) }, 10*time.Millisecond)
	require.NoError(t, tx.Commit(t.Context()))
	snoozed := &river.JobSnoozeError{}
	require.ErrorAs(t, <-ended, &snoozed)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM river_job WHERE kind = 'resync_repo' AND state = 'running'`))
}

// TestResyncRespectsRetention shows that expired records are neither fetched nor deleted.
func TestResyncRespectsRetention(t *testing.T) {
	t.Parallel()
	r := resyncing(t, nil)
	did, _ := r.busiest()
	r.follows(did)
	r.execute(`UPDATE accounts SET read_since = now() - interval '100 hours' WHERE did = $1`, did)
	old, recent := tidBefore(72*time.Hour), tidBefore(time.Hour)
	for _, rkey := range []string{old, recent} {
		r.puts(did, document, rkey, "kept for a day")
		r.puts(did, persona, rkey, "kept for ever")
	}
	ancient := tidBefore(200 * time.Hour)
	r.puts(did, persona, ancient, "from before the account was read")
	r.refuses(did, "")
	r.synchronized()
	require.Equal(t,
		[]string{persona + " " + old + " kept for ever", persona + " " + recent + " kept for ever", document + " " + recent + " kept for a day"},
		r.records(did))
}

// TestForgerCannotHaveRepositoriesFetched shows that forgeries have no repository fetched more
// often than the limits allow. An account that differs is compared again soon.
func TestForgerCannotHaveRepositoriesFetched(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	r := resyncing(t, func(c *Config) { c.Resync = ResyncLimits{PerHour: 3, Useful: time.Millisecond, Useless: time.Hour} })
	r.calm() // otherwise jobs that are due at once would not be seen waiting
	did, _ := r.busiest()
	r.follows(did)
	forge := func() {
		t.Helper()
		for range 20 {
			r.refuses(did, "")
		}
	}
	forge()
	r.becomes(1, `SELECT count(*) FROM resyncs WHERE unchanged = 1`)
	forge()
	r.becomes(1,
		`SELECT count(*) FROM river_job WHERE kind = 'resync_repo' AND state = 'scheduled' AND scheduled_at > now() + interval '50 minutes'`)
	require.Equal(t, 1, r.fetched())
	r.due()
	r.becomes(1, `SELECT count(*) FROM resyncs WHERE unchanged = 2 AND due_at > now() + interval '110 minutes'`)
	_, err := r.net.PostNow(did, "missed")
	require.NoError(t, err)
	forge()
	r.due()
	r.becomes(1, `SELECT count(*) FROM resyncs WHERE unchanged = 0 AND due_at < now() + interval '1 minute'`)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM posts WHERE record ->> 'text' = 'missed'`))
	require.Equal(t, 3, r.fetched())
	forge() // three have begun in this hour
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'resync_repo' AND state = 'scheduled'`)
	require.Equal(t, 3, r.fetched())
	r.execute(`UPDATE resyncs SET begun_at = now() - interval '61 minutes'`)
	r.due()
	r.becomes(4, fmt.Sprintf(`SELECT %d + count(*) FROM resyncs WHERE unchanged = 1`, 3))
	require.Equal(t, 4, r.fetched())
}

// TestResyncNeedsTheAccountsKey shows that a repository that is not signed with the key in the
// directory changes nothing. The account stays desynchronized until a repository is.
func TestResyncNeedsTheAccountsKey(t *testing.T) {
	t.Parallel()
	trusted := make(chan struct{})
	r := resyncing(t, func(c *Config) {
		c.Resync.Useful = time.Second
		read := c.ReadRepository
		c.ReadRepository = func(car []byte, did string, key atcrypto.PublicKey) (Repository, error) {
			select {
			case <-trusted:
			default:
				other, err := atcrypto.GeneratePrivateKeyP256()
				require.NoError(t, err)
				key, _ = other.PublicKey()
			}
			return read(car, did, key)
		}
	})
	did, _ := r.busiest()
	r.follows(did)
	_, err := r.net.PostNow(did, "missed")
	require.NoError(t, err)
	r.refuses(did, "")
	r.becomes(1, `SELECT count(*) FROM resyncs WHERE desynchronized_at IS NOT NULL AND problem LIKE '%is not signed with the account''s key%'`)
	require.Zero(t, r.count(`SELECT count(*) FROM posts WHERE record ->> 'text' = 'missed'`))
	require.Zero(t, r.count(`SELECT count(*) FROM river_job WHERE kind = 'resync_repo' AND errors IS NOT NULL`), "no attempt may fail")
	close(trusted)
	r.synchronized()
	require.Equal(t, 1, r.count(`SELECT count(*) FROM posts WHERE record ->> 'text' = 'missed'`))
}

// TestResyncOfAnAccountThatIsGone shows that a resync waits while the account is not active, and
// ends when the account is deleted or no longer followed.
func TestResyncOfAnAccountThatIsGone(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	r := resyncing(t, nil)
	followed := r.followed()[:3]
	r.follows(followed...)
	r.execute(`UPDATE accounts SET status = 'takendown' WHERE did = $1`, followed[0])
	r.execute(`UPDATE accounts SET status = 'deleted' WHERE did = $1`, followed[1])
	r.execute(`DELETE FROM watches WHERE target = $1`, followed[2])
	for _, did := range followed {
		_, err := r.net.PostNow(did, "missed")
		require.NoError(t, err)
		r.refuses(did, "")
	}
	r.becomes(1, `SELECT count(*) FROM resyncs`)
	r.becomes(1, `SELECT count(*) FROM resyncs WHERE problem = 'the account is takendown' AND desynchronized_at IS NOT NULL`)
	r.becomes(2, `SELECT count(*) FROM river_job WHERE kind = 'resync_repo' AND state = 'completed'`)
	require.Zero(t, r.fetched())
	r.execute(`UPDATE accounts SET status = 'active' WHERE did = $1`, followed[0])
	require.NoError(t, r.net.Deactivate(followed[0])) // the stream has not reported it yet
	r.due()
	r.becomes(1, `SELECT count(*) FROM resyncs WHERE problem LIKE '%RepoDeactivated%' AND due_at > now() + interval '20 hours'`)
	require.NoError(t, r.net.Reactivate(followed[0]))
	r.due()
	r.synchronized()
	require.Equal(t, 1, r.count(`SELECT count(*) FROM posts WHERE record ->> 'text' = 'missed'`))
}

// TestDeletedDIDIsADeletedAccount shows that a DID that is deleted in the directory is a deleted
// account, whatever the stream reported.
func TestDeletedDIDIsADeletedAccount(t *testing.T) {
	t.Parallel()
	r := resyncing(t, nil)
	did, _ := r.busiest()
	r.follows(did)
	require.NoError(t, r.net.Delete(did))
	r.execute(`
		INSERT INTO dead_letters (key, stage, did, cause, raw, raw_bytes, first_seen, last_seen)
		VALUES ('\x01', 'verify', $1, 'a test', '', 0, now(), now())`, did)
	r.refuses(did, "")
	r.becomes(1, fmt.Sprintf(`SELECT count(*) FROM accounts WHERE did = '%s' AND status = 'deleted'`, did))
	r.becomes(0, `SELECT count(*) FROM resyncs`)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM dead_letters WHERE state = 'dismissed'`))
	require.Zero(t, r.fetched())
}

// TestInventedAccountsAreForgotten shows that accounts without a document are deleted if the whole
// network is followed, and kept if they are followed.
func TestInventedAccountsAreForgotten(t *testing.T) {
	t.Parallel()
	r := resyncing(t, nil)
	const invented = "did:plc:nobodynobodynobodynobody"
	require.Equal(t, 1, r.refuses(invented, ""))
	r.becomes(0, `SELECT count(*) FROM resyncs`)
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, invented)
	r.becomes(1, `SELECT count(*) FROM watches WHERE problem <> ''`) // no sync hides it any longer
	r.execute(`INSERT INTO watch_members (watch_id, did) SELECT id, target FROM watches`)
	r.refuses(invented, "")
	r.becomes(1, `SELECT count(*) FROM resyncs WHERE problem <> '' AND due_at > now() + interval '23 hours'`)
	require.Zero(t, r.fetched())
}

// TestServerOfItsOwnDocumentIsAskedAgain shows that a did:web account is not forgotten because its
// server does not have its document for a moment.
func TestServerOfItsOwnDocumentIsAskedAgain(t *testing.T) {
	t.Parallel()
	r := resyncing(t, func(c *Config) { c.Resync.Useful = time.Hour })
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	did := "did:web:" + strings.Replace(strings.TrimPrefix(server.URL, "http://"), ":", "%3A", 1)
	r.refuses(did, "")
	r.becomes(1, `
		SELECT count(*) FROM resyncs WHERE did = $1 AND problem LIKE '%its own server says so%'
		    AND due_at BETWEEN now() + interval '50 minutes' AND now() + interval '1 hour'`, did)
}
