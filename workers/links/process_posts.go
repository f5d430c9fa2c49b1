package links

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// ProcessPosts projects a batch of posts and reposts into links and shares. It reads the current
// rows and writes their shares under their locks, so the order of jobs does not change the result.
// Running a job twice changes nothing.
//
// A repost or a quote shares the links of its subject, which may be stored later, be changed or be
// deleted at any time. The job does not lock the subject: a popular post would be locked all the
// time. Instead, a share through a subject counts only while the subject names the link, and after
// each transaction the job checks whether the subjects are still as it found them.
type ProcessPosts struct {
	river.WorkerDefaults[ProcessPostsArgs]
	*workers.Projector
	pool     *pgxpool.Pool
	delay    prometheus.Histogram
	whole    prometheus.Histogram
	patience time.Duration // how long to release waiting records before the job yields to others; shorter than the job's timeout

	resolves bool // short links are resolved
	profiles bool // profiles are read

	find func(did string, record []byte) (link.Post, error) // link.InPost
}

// repostCollection is the collection of reposts.
const repostCollection = "app.bsky.feed.repost"

func newProcessPosts(b workers.Bundle) *ProcessPosts {
	f := promauto.With(b.Registerer)
	seconds := prometheus.ExponentialBuckets(0.005, 1.7, 20)
	return &ProcessPosts{
		Projector: b.Projector(Name),
		pool:      b.Pool,
		delay: f.NewHistogram(prometheus.HistogramOpts{Name: "weir_row_to_ranking_seconds",
			Help: "Time from the commit of a batch until its links count in the ranking.", Buckets: seconds}),
		whole: f.NewHistogram(prometheus.HistogramOpts{Name: "weir_event_to_ranking_seconds",
			Help: "Time from the arrival of a batch's first event until its links count in the ranking.", Buckets: seconds}),
		find:     link.InPost,
		patience: b.JobTimeout / 2,
		profiles: b.Bluesky != nil,
	}
}

// Work projects the job's records, and then the records that waited for them. It does not use
// Projector.Project, which would lock all of them, although most posts share nothing.
func (w *ProcessPosts) Work(ctx context.Context, job *river.Job[ProcessPostsArgs]) error {
	keys := append(parseKeys(schema.PostCollection, job.Args.Posts), parseKeys(repostCollection, job.Args.Reposts)...)
	for _, r := range job.Args.Others {
		keys = append(keys, schema.Key(r))
	}
	first := job.Attempt <= 1 && len(job.AttemptedBy) <= 1 // a snoozed job is at its first attempt again
	p, err := w.projected(ctx, keys, job.Args.Fresh && first, nil)
	if err != nil {
		return err
	}
	if err := w.recover(ctx, job.JobRow, p); err != nil {
		return err
	}
	if err := w.settle(ctx, job.JobRow, p); err != nil {
		return err
	}
	w.delay.Observe(max(0, time.Since(job.CreatedAt).Seconds()))
	if !job.Args.Arrived.IsZero() {
		w.whole.Observe(max(0, time.Since(job.Args.Arrived).Seconds()))
	}
	return w.release(ctx, job.JobRow, p.linked())
}

// recover makes Weir project again everything that shares through the records of a job that died or
// failed. If a run ended between the transaction for records that it released and the check after
// it, shares of an earlier revision may be left, which no longer wait.
func (w *ProcessPosts) recover(ctx context.Context, job *rivertype.JobRow, p *sharing) error {
	linked := p.linked()
	if job.Attempt <= 1 || len(linked) == 0 {
		return nil
	}
	p.due = true
	return ranking.AddChangedSubjects(ctx, w.pool, linked)
}

// settle dead-letters the records that failed. It adds a job if a subject must be fetched or has
// changed, another if an account is new, and another if a short link is new.
func (w *ProcessPosts) settle(ctx context.Context, job *rivertype.JobRow, p *sharing) error {
	for _, f := range p.failures {
		if err := w.DeadLetter(ctx, job, f); err != nil {
			return err
		}
	}
	w.Projected(p.records)
	var next []river.JobArgs
	if p.due {
		next = append(next, CheckSubjectsArgs{})
	}
	if p.unread && w.profiles {
		next = append(next, ReadProfilesArgs{})
	}
	if p.short && w.resolves {
		next = append(next, ResolveLinksArgs{})
	}
	return enqueue(ctx, next...)
}

// enqueue adds jobs by the client that runs this one. Outside a client, nothing is enqueued.
func enqueue(ctx context.Context, all ...river.JobArgs) error {
	client, err := river.ClientFromContextSafely[pgx.Tx](ctx)
	if err != nil {
		return nil
	}
	for _, args := range all {
		if _, err := client.Insert(ctx, args, nil); err != nil {
			return fmt.Errorf("enqueue %s: %w", args.Kind(), err)
		}
	}
	return nil
}

// errSubjectsChanging means that the subjects changed after each of several transactions.
var errSubjectsChanging = errors.New("the subjects of the records keep changing")

const mostRounds = 5 // a job whose subjects still change after this many transactions is retried

// projected projects records and writes their shares. The records that failed are in the failures
// of p. fresh: the records are new, and nothing was projected from them. foundBy: the subjects by
// which the records were found; nil: the job names the records.
func (w *ProcessPosts) projected(ctx context.Context, keys []schema.Key, fresh bool, foundBy []schema.Key) (p *sharing, err error) {
	p = newSharing(w, len(keys))
	if err := p.read(ctx, workers.SortedKeys(keys), fresh); err != nil {
		return nil, err
	}
	p.foundBy = foundBy
	if p.subjects, p.due, err = ranking.FindSubjects(ctx, p.db, p.subjectKeys()); err != nil {
		return nil, err
	}
	if p.unread, err = ranking.RequestProfiles(ctx, p.db, p.authors()); err != nil {
		return nil, err
	}
	if err := w.addLinks(ctx, p, p.keys()); err != nil && schema.Classify(err) != schema.Data && !errors.Is(err, schema.ErrBusy) {
		return nil, err // the other errors occur again below: there the links are added again, or the post is dead-lettered
	}
	if err := p.expectSubjects(ctx); err != nil {
		return nil, err
	}
	for i, keys := 0, p.keys(); len(keys) > 0; i++ {
		if i == mostRounds {
			return nil, errSubjectsChanging
		}
		if err := w.write(ctx, p, keys); err != nil {
			return nil, err
		}
		p.written = true
		crashpoint.At(ctx, "projection: after its transaction")
		if keys, err = w.withChangedSubjects(ctx, p); err != nil {
			return nil, err
		}
	}
	return p, ranking.RecountCopies(ctx, p.db, p.keys())
}

// withChangedSubjects returns the records whose subjects have changed since they were read. A process that
// stored a subject meanwhile did not see that the record began to wait, and one that deleted a
// subject meanwhile did not see its share.
func (w *ProcessPosts) withChangedSubjects(ctx context.Context, p *sharing) (changed []schema.Key, err error) {
	if _, err := ranking.SyncSubjects(ctx, p.db, p.reprojected); err != nil {
		return nil, err
	}
	before := p.subjects
	var due bool
	if p.subjects, due, err = ranking.FindSubjects(ctx, p.db, p.subjectKeys()); err != nil {
		return nil, err
	}
	p.due = p.due || due
	for key, t := range p.through {
		if !slices.Equal(before[t.Subject], p.subjects[t.Subject]) {
			changed = append(changed, key)
		}
	}
	return workers.SortedKeys(changed), nil
}

// write stores the shares of the records. If the database refuses the data, it writes the records
// one by one and dead-letters the one at fault.
func (w *ProcessPosts) write(ctx context.Context, p *sharing, keys []schema.Key) error {
	if len(keys) == 0 {
		return nil
	}
	err := w.replace(ctx, p, keys)
	for try := 1; try <= 3 && schema.Classify(err) == schema.Transient && ctx.Err() == nil; try++ {
		if errors.Is(err, schema.ErrBusy) { // a link has expired meanwhile, or a record contains another one now
			if err = w.addLinks(ctx, p, keys); errors.Is(err, schema.ErrBusy) {
				continue
			}
			if err != nil {
				break
			}
		}
		err = w.replace(ctx, p, keys) // usually this transaction was the victim of a deadlock
	}
	if err == nil || schema.Classify(err) != schema.Data {
		return err
	}
	if len(keys) == 1 {
		p.failed(keys[0], nil, fmt.Errorf("store its links: %w", err))
		return nil
	}
	for _, key := range keys {
		if err := w.write(ctx, p, []schema.Key{key}); err != nil {
			return err
		}
	}
	return nil
}

// addLinks adds the links that records contain, if they are missing.
func (w *ProcessPosts) addLinks(ctx context.Context, p *sharing, keys []schema.Key) error {
	var shares []ranking.Share
	for _, key := range keys {
		shares = append(shares, p.shares[key]...)
	}
	short, err := ranking.EnsureLinks(ctx, p.db, shares, time.Now())
	p.short = p.short || short
	return err
}

// replace is the transaction: it locks the records, reads those again that have changed, and
// writes.
func (w *ProcessPosts) replace(ctx context.Context, p *sharing, keys []schema.Key) error {
	return p.db.BeginFunc(ctx, func(tx pgx.Tx) error {
		there, err := p.lock(ctx, tx, keys)
		if err != nil {
			return err
		}
		contained, err := p.contained(ctx, tx, keys)
		if err != nil {
			return err
		}
		// The transaction that deleted a record has deleted its shares. The shares of an expired
		// record stay. A deleted record no longer waits.
		var shared ranking.Replacement
		var waits []schema.Wait
		var waiting, deleted, strays []schema.Key
		for _, key := range keys {
			t, ok := p.through[key]
			// A job that writes shares or waits of the record at the same time also checks again,
			// and finds what a changed subject has made of them.
			again := p.written || p.changed[key]
			if !there[key] {
				deleted = append(deleted, key)
				continue
			}
			if ok && again || p.waited[key] {
				waiting = append(waiting, key)
			}
			if ok && p.foundBy != nil && !slices.Contains(p.foundBy, t.Subject) {
				strays = append(strays, key)
			}
			shared.Records = append(shared.Records, key)
			before := again || p.shared[key]
			if before {
				shared.Before = append(shared.Before, key)
			}
			if before || len(p.shares[key]) > 0 { // only these can name links
				shared.Subjects = append(shared.Subjects, key)
			}
			shared.Shares = append(shared.Shares, p.shares[key]...)
			if of := p.originals[key]; of != (link.Subject{}) {
				shared.Copies = append(shared.Copies, ranking.BridgedCopy{Record: key, Of: schema.Key(of)})
			}
			if !ok {
				continue
			}
			// A link that the record itself contains is not shared through its subject too.
			// If no other is left, it waits until the subject changes.
			if t.Links = without(p.subjects[t.Subject], contained[key]); len(t.Links) == 0 {
				waits = append(waits, schema.Wait{Record: key, For: t.Subject})
			} else {
				shared.Through = append(shared.Through, t)
			}
		}
		q := &pgx.Batch{}
		shared.Queue(q, time.Now())
		schema.QueueWaiting(q, Name, waiting, waits)
		schema.QueueNotWaiting(q, Name, deleted)
		if q.Len() == 0 {
			return nil
		}
		if err := ranking.WriteShares(ctx, tx, q); err != nil {
			return err
		}
		p.due = p.due || shared.Changed
		crashpoint.At(ctx, "projection: before its end")
		return enqueueStrays(ctx, tx, strays)
	})
}

// enqueueStrays adds a job that names records. These were found through the subject that they
// referred to before they were edited. A run that died before its next check would not find them
// again.
func enqueueStrays(ctx context.Context, tx pgx.Tx, strays []schema.Key) error {
	client, err := river.ClientFromContextSafely[pgx.Tx](ctx)
	if err != nil || len(strays) == 0 {
		return nil // outside a client, nothing is enqueued
	}
	records := make([]jobs.Record, len(strays))
	for i, key := range strays {
		records[i] = jobs.Record(key)
	}
	if _, err := client.InsertTx(ctx, tx, Projection().Job(jobs.Batch{Records: records}), nil); err != nil {
		return fmt.Errorf("enqueue the projection of edited records: %w", err)
	}
	return nil
}

// parseKeys parses the job's "did/rkey" names. Malformed names name no record and are
// skipped.
func parseKeys(collection string, names []string) []schema.Key {
	keys := make([]schema.Key, 0, len(names))
	for _, name := range names {
		if did, rkey, ok := strings.Cut(name, "/"); ok {
			keys = append(keys, schema.Key{Collection: collection, DID: did, Rkey: rkey})
		}
	}
	return keys
}

// byCollection splits sorted keys into those of posts and those of other collections.
func byCollection(keys []schema.Key) (posts, others []schema.Key) {
	for _, key := range keys {
		if key.Collection == schema.PostCollection {
			posts = append(posts, key)
		} else {
			others = append(others, key)
		}
	}
	return posts, others
}

// Projection returns the projection of posts, notes, and records that refer to them into
// shared links.
func Projection() schema.Projection {
	return schema.Projection{
		Name: Name, Collections: link.Collections(),
		Tables: []string{"shares", "subjects", "copies"}, Dates: map[string]string{"shares": "shared_at"},
		Compared: []string{"shares", "projected_subjects"},
		Concerns: func(collection string, record []byte) bool {
			return collection != link.CollectionPost || link.MayShare(record)
		},
		Job: func(b jobs.Batch) river.JobArgs {
			job := ProcessPostsArgs{Posts: make([]string, 0, len(b.Records)), Arrived: b.Arrived, Stream: b.Stream, Fresh: b.Fresh}
			for _, r := range b.Records {
				switch r.Collection {
				case link.CollectionPost:
					job.Posts = append(job.Posts, r.DID+"/"+r.Rkey)
				case link.CollectionRepost:
					job.Reposts = append(job.Reposts, r.DID+"/"+r.Rkey)
				default:
					job.Others = append(job.Others, r)
				}
			}
			return job
		},
	}
}
