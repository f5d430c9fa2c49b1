package workers

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/bluesky"
	"github.com/weir-social/weir/collection"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// repository compares the stored records of an account with its repository, one
// collection after the other and page by page, and makes them the same.
type repository struct {
	pool   *pgxpool.Pool
	api    *bluesky.Client
	did    string
	stored collection.Registry

	projections *Projections

	names []string // of the collections; nil: not asked for yet
	cut   bool     // there are more
}

// What a server that lists without an end, or a repository that is made to be
// expensive, can cost. Beyond the pages nothing is compared of the account.
const (
	repositoryPage  = 100    // records of a page: the most that a PDS gives
	repositoryPages = 20_000 // of one comparison: more than anybody can have written
	wholePages      = 100    // of a collection, after which rkeys that are no TIDs do not make it go beyond the window
	mostCollections = 100    // of an account, that prefixes bring

	aboveAll = "\x7f" // sorts after every rkey
)

// repositoryPlace is how far a repository has been compared.
type repositoryPlace struct {
	Began      time.Time `json:"began,omitzero"` // when it was first asked for anything
	Rev        string    `json:"rev"`            // of the repository, before the first page
	Asked      int       `json:"asked"`          // schema.Feed.Asked, before that
	Collection string    `json:"collection"`     // at which it is; empty: before the first
	Cursor     string    `json:"cursor"`         // of the next page
	Last       string    `json:"last"`           // the lowest rkey so far
	Listed     int       `json:"listed"`         // pages of the collection
	Undated    bool      `json:"undated"`        // it has rkeys that are no TIDs
	End        bool      `json:"end"`            // of the collection
	Pages      int       `json:"pages"`
	Faults     int       `json:"faults"` // what was found and repaired
	Cut        bool      `json:"cut"`    // there are more collections than are compared
	Done       bool      `json:"done"`   // all collections are compared
}

// next moves the place to the first collection after the one at which it is;
// false: that was the last.
func (p *repositoryPlace) next(names []string) bool {
	for _, name := range names {
		if p.Collection == "" || inOrder(p.Collection, name) < 0 {
			p.Collection, p.Cursor, p.Last, p.Listed, p.Undated, p.End = name, "", "", 0, false, false
			return true
		}
	}
	return false
}

// inOrder compares collections in the order in which they are read: posts first.
func inOrder(a, b string) int {
	first := func(name string) int {
		if name == schema.PostCollection {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(a, b))
}

// collections are those of the account that are stored, in order: every name of
// the registry, and what its prefixes bring of what the repository says it has
// and of what is stored, at most mostCollections of these.
func (r *repository) collections(ctx context.Context) ([]string, error) {
	if r.names != nil {
		return r.names, nil
	}
	names := r.stored.Names()
	if r.stored.Stores(schema.PostCollection) && !slices.Contains(names, schema.PostCollection) {
		names = append(names, schema.PostCollection)
	}
	if prefixes := r.stored.Prefixes(); len(prefixes) > 0 {
		found, err := r.api.Collections(ctx, r.did)
		if err != nil {
			return nil, err
		}
		for _, pattern := range prefixes {
			prefix := strings.TrimSuffix(pattern, ".*") // what begins with it and a dot sorts before it and a slash
			stored, err := schema.OtherCollectionsOf(ctx, r.pool, r.did, prefix+".", prefix+"/", mostCollections+1)
			if err != nil {
				return nil, err
			}
			found = append(found, stored...)
		}
		slices.Sort(found)
		found = slices.DeleteFunc(slices.Compact(found), func(name string) bool {
			return slices.Contains(names, name) || !r.stored.Stores(name)
		})
		if r.cut = len(found) > mostCollections; r.cut {
			found = found[:mostCollections]
		}
		names = append(names, found...)
	}
	slices.SortFunc(names, inOrder)
	r.names = names
	return names, nil
}

// retention is how long the records of a collection stay; 0: for ever.
func (r *repository) retention(name string) time.Duration {
	e, _ := r.stored.Find(name)
	return e.Retention
}

// span is what is compared of a collection: what was written from one moment to
// another, by rkeys that are TIDs, as far as it has not expired; and, but for
// posts, every record whose rkey does not say when it was written.
func (r *repository) span(name string, from, now time.Time, to string) schema.Span {
	return schema.Span{Collection: name, From: tidAt(notExpired(from, r.retention(name), now)), To: to, Undated: name != schema.PostCollection}
}

// compared is what a page shows.
type compared struct {
	collection string
	records    int
	newest     time.Time
	faults     []schema.Fault
	listed     map[string]schema.SourceRecord // what the repository has where it differs, by rkey
}

// page reads the next page of a collection, compares what it covers of a span with
// what is stored, and moves the place behind it. A repository lists the highest
// rkey first.
func (r *repository) page(ctx context.Context, at *repositoryPlace, in schema.Span) (compared, error) {
	c := compared{collection: in.Collection, listed: map[string]schema.SourceRecord{}}
	if at.Last == "" {
		at.Last = aboveAll
	}
	page, next, err := r.api.Records(ctx, r.did, in.Collection, at.Cursor, repositoryPage)
	if err != nil {
		return c, err
	}
	// A record that another page lists would be taken for deleted. And whoever lists
	// without an end is not read for ever.
	whole := next == "" && at.Listed == 0
	if !whole && !descends(page, at.Last) || next != "" && (len(page) == 0 || at.Pages >= repositoryPages) {
		return c, &bluesky.Error{Class: bluesky.Permanent, Call: "com.atproto.repo.listRecords", Message: "the repository does not list " + in.Collection + " from the highest rkey to the lowest"}
	}
	end, err := r.ends(ctx, at, in, page, next)
	if err != nil {
		return c, err
	}
	in.Lower, in.Upper = "", at.Last
	if next != "" {
		in.Lower = page[len(page)-1].Rkey
	}
	last := in.Lower
	if !in.Undated {
		in.Lower, in.Upper = max(in.Lower, in.From), min(in.Upper, in.To)
	}
	listed, unreadable := readable(page, in)
	if in.Lower < in.Upper {
		if c.faults, err = schema.Compare(ctx, r.pool, r.did, in, listed); err != nil {
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
		if tid, err := syntax.ParseTID(l.Rkey); err == nil && c.newest.Before(tid.Time()) && tid.Time().Before(time.Now()) {
			c.newest = tid.Time()
		}
		if differ[l.Rkey] {
			c.listed[l.Rkey] = l
		}
	}
	at.Cursor, at.Last, at.End = next, last, end
	at.Pages++
	at.Listed++
	return c, nil
}

// ends reports whether a page is the last one that is read of a collection: when
// there is no other, or when the next ones are older than the span. Rkeys that are
// no TIDs can stand anywhere: where the pages so far or the lowest rkeys show any,
// the rest is read too, to a limit.
func (r *repository) ends(ctx context.Context, at *repositoryPlace, in schema.Span, page []bluesky.FeedPost, next string) (bool, error) {
	at.Undated = at.Undated || in.Undated && slices.ContainsFunc(page, undated)
	switch {
	case next == "":
		return true, nil
	case page[len(page)-1].Rkey >= in.From:
		return false, nil
	case !in.Undated || at.Listed+1 >= wholePages:
		return true, nil
	case at.Undated:
		return false, nil
	}
	lowest, err := r.api.LowestRecords(ctx, r.did, in.Collection, repositoryPage)
	at.Undated = slices.ContainsFunc(lowest, undated)
	return !at.Undated, err
}

// undated reports whether an rkey does not say when its record was written.
func undated(p bluesky.FeedPost) bool { return !isTID(p.Rkey) }

func isTID(rkey string) bool {
	_, err := syntax.ParseTID(rkey)
	return err == nil
}

// readable are the records of a page that belong to a span, and the rkeys of those
// that are there and nobody knows how.
func readable(page []bluesky.FeedPost, in schema.Span) (listed []schema.SourceRecord, unreadable map[string]bool) {
	unreadable = map[string]bool{}
	for _, p := range page {
		belongs := in.Undated
		if isTID(p.Rkey) {
			belongs = p.Rkey >= in.From && p.Rkey < in.To
		}
		switch {
		case p.Record == nil:
			unreadable[p.Rkey] = true
		case belongs && p.Rkey >= in.Lower && p.Rkey < in.Upper:
			listed = append(listed, schema.SourceRecord{Rkey: p.Rkey, CID: p.CID, Record: p.Record})
		}
	}
	return listed, unreadable
}

// descends reports whether a page lists its records from the highest rkey to the
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
// before the records were. What a repository lists after it has named a revision
// holds at that revision or later, so whatever the stream brings of a later one
// wins, and what is stored of a later one stays. also belongs to the last of the
// transactions.
func (r *repository) repair(ctx context.Context, client *river.Client[pgx.Tx], rev string, c compared, also func(pgx.Tx) error) error {
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
		key := schema.Key{Collection: f.Collection, DID: r.did, Rkey: f.Rkey}
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
		if err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
			if err := schema.DeleteRecords(ctx, tx, deletions, r.projections.Rows()); err != nil {
				return err
			}
			return schema.HoldProjections(ctx, tx, r.projections.Rows()) // the tables of others would keep their rows
		}); err != nil {
			return err
		}
	}
	return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		written, err := schema.RepairRecords(ctx, tx, writes)
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
func (w *BackfillAccount) compareRepository(ctx context.Context, job *river.Job[jobs.BackfillAccount], repo *repository, at *feedPlace) error {
	place := *at
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
	if place.Repository.Collection == "" || place.Repository.End {
		names, err := repo.collections(ctx)
		if err != nil {
			return err
		}
		if job.Priority != jobs.PriorityGap { // the feed has brought them
			names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == schema.PostCollection })
		}
		place.Repository.Cut = repo.cut
		if !place.Repository.next(names) {
			place.Repository.Done = true
			*at = place
			return nil
		}
	}
	now, err := schema.AgreedTime(ctx, w.pool, time.Now()) // as expiry has it
	if err != nil {
		return err
	}
	since := job.Args.Since
	if job.Priority == jobs.PriorityGap && feed.Claimed != nil && feed.Claimed.Before(since) { // everything that is claimed to be stored
		since = *feed.Claimed
	}
	c, err := repo.page(ctx, &place.Repository, repo.span(place.Repository.Collection, since, now, aboveAll))
	if err != nil {
		return err
	}
	place.Repository.Faults += len(c.faults)
	if c.collection == schema.PostCollection && c.newest.After(place.Newest) {
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
