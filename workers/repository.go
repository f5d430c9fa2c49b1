package workers

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/bluesky"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// repository compares the stored posts of an account with its repository, page
// by page, and makes them the same.
type repository struct {
	pool *pgxpool.Pool
	api  *bluesky.Client
	did  string

	projections *Projections
}

const (
	repositoryPage  = 100    // posts of a page: the most that a PDS gives
	repositoryPages = 20_000 // more than anybody can have written
	aboveAll        = "~"    // sorts after every rkey
)

// repositoryPlace is how far a repository has been compared.
type repositoryPlace struct {
	Began  time.Time `json:"began,omitzero"` // when it was first asked for anything
	Rev    string    `json:"rev"`            // of the repository, before the first page
	Asked  int       `json:"asked"`          // schema.Feed.Asked, before that
	Cursor string    `json:"cursor"`         // of the next page
	Last   string    `json:"last"`           // the lowest rkey so far
	Pages  int       `json:"pages"`
	Faults int       `json:"faults"` // what was found and repaired
	End    bool      `json:"end"`
}

// compared is what a page shows.
type compared struct {
	records int
	newest  time.Time
	faults  []schema.Fault
	listed  map[string]schema.SourcePost // what the repository has where it differs, by rkey
}

// page reads the next page, compares it with what is stored of the rkeys that it
// covers, from one to below another, and moves the place behind it. A repository
// lists the highest rkey first. An rkey that is no TID says nothing of its time
// and is left out.
func (r repository) page(ctx context.Context, at *repositoryPlace, from, to string) (compared, error) {
	c := compared{listed: map[string]schema.SourcePost{}}
	if at.Last == "" {
		at.Last = aboveAll
	}
	page, next, err := r.api.Records(ctx, r.did, schema.PostCollection, at.Cursor, repositoryPage)
	if err != nil {
		return c, err
	}
	lower, upper := from, min(at.Last, to)
	end := next == "" || len(page) > 0 && page[len(page)-1].Rkey < from
	if !end {
		if len(page) > 0 {
			lower = page[len(page)-1].Rkey
		}
	}
	// A post that another page lists would be taken for deleted. And whoever lists
	// without an end is not read for ever.
	whole := next == "" && at.Pages == 0
	if !whole && !descends(page, at.Last) || !end && (len(page) == 0 || at.Pages >= repositoryPages) {
		return c, &bluesky.Error{Class: bluesky.Permanent, Call: "com.atproto.repo.listRecords", Message: "the repository does not list its posts from the highest rkey to the lowest"}
	}
	var listed []schema.SourcePost
	unreadable := map[string]bool{} // there, but nobody knows how
	for _, p := range page {
		if p.Record == nil {
			unreadable[p.Rkey] = true
			continue
		}
		tid, err := syntax.ParseTID(p.Rkey)
		if err != nil || p.Rkey < lower || p.Rkey >= upper {
			continue
		}
		if c.newest.Before(tid.Time()) && tid.Time().Before(time.Now()) {
			c.newest = tid.Time()
		}
		listed = append(listed, schema.SourcePost{Rkey: p.Rkey, CID: p.CID, Record: p.Record})
	}
	if lower < upper {
		if c.faults, err = schema.Compare(ctx, r.pool, r.did, lower, upper, listed); err != nil {
			return c, err
		}
		c.faults = slices.DeleteFunc(c.faults, func(f schema.Fault) bool { return unreadable[f.Rkey] })
	}
	c.records = len(listed)
	differ := make(map[string]bool, len(c.faults))
	for _, f := range c.faults {
		differ[f.Rkey] = true
	}
	for _, l := range listed {
		if differ[l.Rkey] {
			c.listed[l.Rkey] = l
		}
	}
	at.Cursor, at.Last, at.End = next, lower, end
	at.Pages++
	return c, nil
}

// descends reports whether a page lists its posts from the highest rkey to the
// lowest, all of them below an rkey.
func descends(page []bluesky.FeedPost, below string) bool {
	for _, p := range page {
		if p.Rkey >= below {
			return false
		}
		below = p.Rkey
	}
	return true
}

// repair makes what is stored what the repository has: it deletes what is gone,
// and writes what is missing or different, at a revision that was asked for
// before the posts were. What a repository lists after it has named a revision
// holds at that revision or later, so whatever the stream brings of a later one
// wins, and what is stored of a later one stays. also belongs to the last of the
// transactions.
func (r repository) repair(ctx context.Context, client *river.Client[pgx.Tx], rev string, c compared, also func(pgx.Tx) error) error {
	now, err := schema.LatestTime(ctx, r.pool, time.Now())
	if err != nil {
		return err
	}
	if tid, err := syntax.ParseTID(rev); err == nil { // the account's server dates the revision: nothing it lists is later
		now = schema.ServerTime(now, tid.Time())
	}
	var writes []schema.Write
	var deletions []schema.Deletion
	for _, f := range c.faults {
		key := schema.Key{Collection: schema.PostCollection, DID: r.did, Rkey: f.Rkey}
		l, there := c.listed[f.Rkey]
		switch {
		case f.Rev > rev: // the stream was faster
		case f.Fault == schema.FaultExtra:
			deletions = append(deletions, schema.Deletion{Key: key, Rev: rev, At: now})
		case there:
			writes = append(writes, schema.Write{Key: key, Rev: rev, CID: l.CID, CreatedAt: schema.CreatedAt(l.Record, l.Rkey, now), Record: l.Record})
		}
	}
	// In a transaction of their own: each locks its rows in their order.
	if len(deletions) > 0 {
		if err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error { return schema.DeletePosts(ctx, tx, deletions, r.projections.Rows()) }); err != nil {
			return err
		}
	}
	return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		written, err := schema.MendPosts(ctx, tx, writes)
		if err != nil {
			return err
		}
		if err := r.projections.Enqueue(client, "")(ctx, tx, written, time.Time{}); err != nil || also == nil {
			return err
		}
		return also(tx)
	})
}

// tidAt is the first TID of a moment.
func tidAt(t time.Time) string {
	if t.Before(time.Unix(0, 0)) {
		return strings.Repeat("2", 13)
	}
	return syntax.NewTID(t.UnixMicro(), 0).String()
}

// compareRepository compares the next page of an account's repository with what
// is stored, repairs it, and commits the place behind it.
func (w *BackfillAccount) compareRepository(ctx context.Context, job *river.Job[jobs.BackfillAccount], at *feedPlace, since time.Time) error {
	place := *at
	repo := repository{pool: w.pool, api: w.api, did: job.Args.DID, projections: w.projections}
	feed, err := schema.FindFeed(ctx, w.pool, job.Args.DID)
	if err != nil {
		return err
	}
	if place.Repository.Rev == "" {
		place.Repository.Asked = feed.Asked // before the revision: what is asked for later is not settled
		if place.Repository.Rev, err = w.api.LatestRev(ctx, job.Args.DID); err != nil {
			return err
		}
	}
	now, err := schema.AgreedTime(ctx, w.pool, time.Now()) // as expiry has it
	if err != nil {
		return err
	}
	c, err := repo.page(ctx, &place.Repository, tidAt(w.kept(since, feed.Claimed, now)), aboveAll)
	if err != nil {
		return err
	}
	place.Repository.Faults += len(c.faults)
	if c.newest.After(place.Newest) {
		place.Newest = c.newest
	}
	err = repo.repair(ctx, river.ClientFromContext[pgx.Tx](ctx), place.Repository.Rev, c, func(tx pgx.Tx) error {
		_, err := river.ResumableSetStepCursorTx[*riverDriver](ctx, tx, job, place)
		return err
	})
	if err == nil {
		*at = place
	}
	return err
}

// kept is from when an account's posts are to be compared: everything that is
// claimed to be stored, as far as it is kept.
func (w *BackfillAccount) kept(since time.Time, claimed *time.Time, now time.Time) time.Time {
	if claimed != nil && claimed.Before(since) {
		since = *claimed
	}
	return notExpired(since, w.keep, now)
}

// notExpired is from or, where that is later, the moment before which expiry may
// delete at any time; keep 0: for ever.
func notExpired(from time.Time, keep time.Duration, now time.Time) time.Time {
	if oldest := now.Add(expiring - keep); keep > 0 && oldest.After(from) {
		return oldest
	}
	return from
}

// expiring is how long a comparison may take while its posts expire.
const expiring = time.Minute
