package links

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/bisect"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// CheckSubjects updates reposts and quotes when their subjects change. It projects them again when
// a subject was deleted or edited, fetches subjects that no stream delivers, and deletes records
// that have waited too long. Each step is its own transaction and
// finds its work in the tables, so the next run continues after a killed one.
type CheckSubjects struct {
	river.WorkerDefaults[CheckSubjectsArgs]
	pool       *pgxpool.Pool
	api        *bluesky.Client
	log        *slog.Logger
	links      *ProcessPosts
	stored     collection.Registry
	patience   time.Duration // how long to run before the job yields to others; shorter than the job's timeout
	calls      int           // maximum calls per run
	waitAtMost int           // rows of a collection in waiting
	now        func() time.Time
}

const (
	subjectCalls  = 200                // per run: 5,000 subjects
	waitingRows   = 2_000_000          // waiting rows per collection; above this, those that have waited longest are deleted
	waitingTime   = 7 * 24 * time.Hour // after this time no window of the ranking contains the share
	subjectPage   = 500                // records projected at once
	subjectIdle   = 24 * time.Hour     // after this time a subject that no share needs is deleted
	expiredAtOnce = 1000
)

func newCheckSubjects(b workers.Bundle, links *ProcessPosts) *CheckSubjects {
	return &CheckSubjects{pool: b.Pool, api: b.Bluesky, log: b.Logger, links: links, stored: b.Collections,
		patience: b.JobTimeout / 2, calls: subjectCalls, waitAtMost: waitingRows, now: time.Now}
}

// Work runs until nothing is due, its calls are used up, or its time is up.
func (w *CheckSubjects) Work(ctx context.Context, job *river.Job[CheckSubjectsArgs]) error {
	r := &subjectCheck{w, job.JobRow, time.Now().Add(w.patience), w.calls}
	steps := []func(context.Context) (bool, error){r.expireWaiting, r.expireIdle, r.changed, r.fetch}
	for {
		for _, step := range steps {
			done, err := step(ctx)
			if err != nil {
				return err
			}
			if !done {
				return workers.Snooze(0)
			}
		}
		if done, err := workers.CompleteIdle(ctx, w.pool, job, r.idle); err != nil || done {
			return err
		}
		steps = []func(context.Context) (bool, error){r.changed, r.fetch}
	}
}

// projectChanged projects the reposts and quotes of all subjects that have changed, like
// CheckSubjects, where no periodic job does it. It asks no service.
func projectChanged(ctx context.Context, b workers.Bundle) error {
	const unlimited = 24 * time.Hour // no other job waits
	links := newProcessPosts(b)
	links.patience = unlimited
	check := subjectCheck{CheckSubjects: newCheckSubjects(b, links), job: &rivertype.JobRow{}, until: time.Now().Add(unlimited)}
	_, err := check.changed(ctx)
	return err
}

// subjectCheck is one run.
type subjectCheck struct {
	*CheckSubjects
	job   *rivertype.JobRow
	until time.Time // when it yields to others
	left  int       // calls that it may still make
}

// changed projects the reposts and quotes of changed subjects again, page by page.
func (w *subjectCheck) changed(ctx context.Context) (done bool, err error) {
	for {
		subjects, err := ranking.ChangedSubjects(ctx, w.pool, 100)
		if err != nil || len(subjects) == 0 {
			return err == nil, err
		}
		for _, subject := range subjects {
			for after := (schema.Key{}); ; {
				if time.Now().After(w.until) {
					return false, nil
				}
				keys, err := ranking.SharesThrough(ctx, w.pool, subject.Key, after, subjectPage)
				if err != nil {
					return false, err
				}
				if len(keys) == 0 {
					break
				}
				after = keys[len(keys)-1]
				if err := w.links.again(ctx, w.job, slices.Clone(keys), []schema.Key{subject.Key}); err != nil {
					return false, err
				}
				if err := ranking.DropDeadShares(ctx, w.pool, subject.Key, keys); err != nil {
					return false, err
				}
			}
			// A run that died here may have left records waiting that shared through the subject
			// before. If the subject has no links yet, they are released when it gets some.
			if subject.Linked {
				if err := w.links.release(ctx, w.job, []schema.Key{subject.Key}); err != nil {
					return false, err
				}
			}
			if err := ranking.DropChangedSubject(ctx, w.pool, subject.ID); err != nil {
				return false, err
			}
		}
	}
}

// fetch fetches the subjects that are due, at most MostByURI per call, and releases the records
// that waited for them.
func (w *subjectCheck) fetch(ctx context.Context) (done bool, err error) {
	for ; w.left > 0; w.left-- {
		if time.Now().After(w.until) {
			return false, nil
		}
		due, err := ranking.DueSubjects(ctx, w.pool, w.now(), bluesky.MostByURI)
		if err != nil || len(due) == 0 {
			return err == nil, err
		}
		var idle []ranking.DueSubject
		due = slices.DeleteFunc(due, func(d ranking.DueSubject) bool {
			if !d.Needed {
				idle = append(idle, d)
			}
			return !d.Needed
		})
		if err := ranking.FetchAgain(ctx, w.pool, idle, nil); err != nil {
			return false, err
		}
		if err := w.fetchPosts(ctx, due); err != nil {
			return false, err
		}
	}
	return true, nil // the rest is left to the next run
}

// idle finds out whether subjects have changed or become due.
func (w *subjectCheck) idle(ctx context.Context, db pgx.Tx) (bool, error) {
	changed, err := ranking.ChangedSubjects(ctx, db, 1)
	if err != nil || len(changed) > 0 || w.left <= 0 {
		return len(changed) == 0, err
	}
	due, err := ranking.DueSubjects(ctx, db, w.now(), 1)
	return len(due) == 0, err
}

// fetchPosts fetches subjects and stores the posts that the AppView shows. If the AppView refuses
// the request, it fetches them one by one, and treats the one that is refused as not shown.
func (w *subjectCheck) fetchPosts(ctx context.Context, due []ranking.DueSubject) error {
	return bisect.Each(due, func(due []ranking.DueSubject) error {
		uris := make([]string, len(due))
		for i, d := range due {
			uris[i] = d.URI()
		}
		posts, err := w.api.Posts(ctx, uris)
		if err != nil {
			return err
		}
		return w.storePosts(ctx, due, posts)
	}, func(err error) bool {
		failed, isAPI := errors.AsType[*bluesky.Error](err)
		return isAPI && failed.Status == http.StatusBadRequest
	}, func(one ranking.DueSubject, _ error) error { return w.storePosts(ctx, []ranking.DueSubject{one}, nil) })
}

// storePosts stores the posts of subjects, and releases what waits for them. A subject without a post is not
// shown.
func (w *subjectCheck) storePosts(ctx context.Context, due []ranking.DueSubject, posts []bluesky.FeedPost) error {
	now := w.now()
	fetched := make([]ranking.FetchedSubject, len(due))
	for i, d := range due {
		fetched[i].DueSubject = d
		at := slices.IndexFunc(posts, func(p bluesky.FeedPost) bool { return p.DID == d.DID && p.Rkey == d.Rkey })
		if at < 0 {
			continue
		}
		fetched[i].Shown = true
		if found, err := link.InPost(d.DID, posts[at].Record); err == nil { // otherwise it cannot be read
			fetched[i].Links = found.Links
		}
	}
	linked, err := w.store(ctx, fetched, now)
	if err != nil {
		return err
	}
	keys := make([]schema.Key, len(linked))
	for i, d := range linked {
		keys[i] = d.Key
	}
	if err := w.links.release(ctx, w.job, keys); err != nil {
		return err
	}
	again := now.Add(ranking.SubjectInterval)
	return ranking.FetchAgain(ctx, w.pool, linked, &again)
}

// store stores fetched subjects. If the database refuses one, it is stored without links.
func (w *CheckSubjects) store(
	ctx context.Context, fetched []ranking.FetchedSubject, now time.Time,
) (linked []ranking.DueSubject, err error) {
	store := func(some []ranking.FetchedSubject) error {
		var stored []ranking.DueSubject
		err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) (err error) {
			stored, err = ranking.StoreSubjects(ctx, tx, some, now)
			return err
		})
		if err == nil {
			linked = append(linked, stored...)
		}
		return err
	}
	err = bisect.Each(fetched, store, func(err error) bool {
		return schema.Classify(err) == schema.Data
	}, func(one ranking.FetchedSubject, err error) error {
		if len(one.Links) == 0 {
			return err
		}
		w.log.Warn("subject_refused", "did", one.DID, "rkey", one.Rkey, "error", err)
		one.Links = nil
		return store([]ranking.FetchedSubject{one})
	})
	return linked, err
}

// expireWaiting deletes records that have waited longer than the retention of their collection. If
// too many records wait, it deletes those that have waited longest.
func (w *subjectCheck) expireWaiting(ctx context.Context) (done bool, err error) {
	names, err := schema.WaitingCollections(ctx, w.pool)
	if err != nil {
		return false, err
	}
	due, err := schema.WaitingSince(ctx, w.pool, w.waitAtMost)
	if err != nil {
		return false, err
	}
	now, err := schema.EarliestTime(ctx, w.pool, w.now()) // a clock that is ahead must not end the wait
	if err != nil {
		return false, err
	}
	for _, name := range names {
		keep := waitingTime
		if e, ok := w.stored.Find(name); ok && e.Retention > 0 {
			keep = min(keep, e.Retention)
		}
		due = append(due, schema.ExpiryRule{Collection: name, Before: now.Add(-keep)})
	}
	return repeat(w.until, func() (int, error) { return schema.ExpireWaiting(ctx, w.pool, due, expiredAtOnce) })
}

// expireIdle deletes subjects and copies that no share has needed, and that nothing has waited for,
// for a day.
func (w *subjectCheck) expireIdle(ctx context.Context) (done bool, err error) {
	now, err := schema.EarliestTime(ctx, w.pool, w.now()) // a clock that is ahead must not make a row idle
	if err != nil {
		return false, err
	}
	return repeat(w.until, func() (int, error) {
		return ranking.ExpireIdle(ctx, w.pool, now.Add(-subjectIdle), now, expiredAtOnce)
	})
}

// repeat repeats a step until it does nothing more; done is false if the time is up.
func repeat(until time.Time, step func() (int, error)) (done bool, err error) {
	for {
		if n, err := step(); err != nil || n == 0 {
			return err == nil, err
		}
		if time.Now().After(until) {
			return false, nil
		}
	}
}
