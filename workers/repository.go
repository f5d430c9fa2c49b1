package workers

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// repository compares an account's stored records with its repository, one
// collection after another and page by page, and repairs the differences.
type repository struct {
	Shared
	api   listing
	did   string
	names []string // the collections; nil: not read yet
	cut   bool     // there are more than mostCollections
}

// Limits on what an endless or maliciously expensive repository can cost. Records
// beyond these limits are not compared.
const (
	repositoryPage  = 100    // records per page: the maximum of a PDS
	repositoryPages = 20_000 // pages of one comparison: more than an account can fill
	wholePages      = 100    // after this many pages a collection with rkeys that are no TIDs ends at the window
	mostCollections = 100    // collections per account that match prefixes

	aboveAll = "\x7f" // sorts after every rkey
)

// repositoryPlace is the position in a comparison of a repository.
type repositoryPlace struct {
	Began            time.Time `json:"began,omitzero"`    // time of the first request
	Rev              string    `json:"rev"`               // revision of the repository, read before the first page
	RereadsRequested int       `json:"rereads_requested"` // schema.Feed.RereadsRequested, read before the revision
	Collection       string    `json:"collection"`        // current collection; empty: before the first
	Cursor           string    `json:"cursor"`            // of the next page
	Last             string    `json:"last"`              // lowest rkey so far
	Listed           int       `json:"listed"`            // pages of the collection so far
	Undated          bool      `json:"undated"`           // the collection has rkeys that are no TIDs
	End              bool      `json:"end"`               // end of the collection
	Pages            int       `json:"pages"`
	Faults           int       `json:"faults"` // faults found and repaired
	Cut              bool      `json:"cut"`    // there are more collections than are compared
	Done             bool      `json:"done"`   // all collections are compared
}

// next moves to the next collection, and returns false if there is none.
func (p *repositoryPlace) next(names []string) bool {
	for _, name := range names {
		if p.Collection == "" || compareNames(p.Collection, name) < 0 {
			p.Collection, p.Cursor, p.Last, p.Listed, p.Undated, p.End = name, "", "", 0, false, false
			return true
		}
	}
	return false
}

// compareNames orders collections for reading: posts first.
func compareNames(a, b string) int {
	first := func(name string) int {
		if name == schema.PostCollection {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(a, b))
}

// collections returns the account's stored collections in order: every name of
// the registry, and at most mostCollections that match its prefixes, in the
// repository or among the stored records.
func (r *repository) collections(ctx context.Context) ([]string, error) {
	if r.names != nil {
		return r.names, nil
	}
	names := r.Collections.Repositories().Names()
	if r.Collections.Stores(schema.PostCollection) && !slices.Contains(names, schema.PostCollection) {
		names = append(names, schema.PostCollection)
	}
	if prefixes := r.Collections.Repositories().Prefixes(); len(prefixes) > 0 {
		found, err := r.api.Collections(ctx, r.did)
		if err != nil {
			return nil, err
		}
		for _, pattern := range prefixes {
			prefix := strings.TrimSuffix(pattern, ".*") // names with this prefix sort between prefix+"." and prefix+"/"
			stored, err := schema.OtherCollectionsOf(ctx, r.Pool, r.did, prefix+".", prefix+"/", mostCollections+1)
			if err != nil {
				return nil, err
			}
			found = append(found, stored...)
		}
		slices.Sort(found)
		found = slices.DeleteFunc(slices.Compact(found), func(name string) bool {
			return slices.Contains(names, name) || !r.Collections.Stores(name)
		})
		if r.cut = len(found) > mostCollections; r.cut {
			found = found[:mostCollections]
		}
		names = append(names, found...)
	}
	slices.SortFunc(names, compareNames)
	r.names = names
	return names, nil
}

// retention returns how long the records of a collection are kept; 0: for ever.
func (r *repository) retention(name string) time.Duration {
	e, _ := r.Collections.Find(name)
	return e.Retention
}

// span returns the part of a collection that is compared: records with TIDs between
// two times that have not expired and, except for posts, every record whose rkey is
// no TID. Projected rows of expired records are compared too, as far back as since.
func (r *repository) span(ctx context.Context, name string, since, from, now time.Time, to string) (schema.Span, error) {
	in := schema.Span{Collection: name, From: tidAt(notExpired(from, r.retention(name), now)), To: to, Undated: name != schema.PostCollection}
	if r.Projections != nil {
		in.Tables = r.Projections.Compared(name)
	}
	var err error
	in.Since, err = schema.OldestProjected(ctx, r.Pool, r.did, in, tidAt(since))
	return in, err
}

// compared is the result of comparing a page.
type compared struct {
	collection string
	records    int
	newest     time.Time
	faults     []schema.Fault
	listed     map[string]schema.SourceRecord // the repository's records that differ, by rkey
}

// page reads the next page of a collection, compares its part of the span with
// the stored records, and advances the position. A repository lists the highest
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
	// If the order is wrong, a record on another page would look deleted. An endless
	// listing must stop.
	whole := next == "" && at.Listed == 0
	if !whole && !descends(page, at.Last) || next != "" && (len(page) == 0 || at.Pages >= repositoryPages) {
		return c, &bluesky.Error{
			Class: bluesky.Permanent, Call: "com.atproto.repo.listRecords",
			Message: "the repository does not list " + in.Collection + " from the highest rkey to the lowest",
		}
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
		in.Lower, in.Upper = max(in.Lower, min(in.From, in.Since)), min(in.Upper, in.To)
	}
	listed, unreadable := readable(page, in)
	if in.Lower < in.Upper {
		if c.faults, err = schema.Compare(ctx, r.Pool, r.did, in, listed, rkeys(page)); err != nil {
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

// ends reports whether a page is the last one to read of a collection: there is
// no next page, or the next ones are older than the span. Rkeys that are no TIDs
// can be anywhere: if the pages so far or the lowest rkeys contain any, the rest
// is read too, up to a limit.
func (r *repository) ends(ctx context.Context, at *repositoryPlace, in schema.Span, page []bluesky.FeedPost, next string) (bool, error) {
	at.Undated = at.Undated || in.Undated && slices.ContainsFunc(page, undated)
	switch {
	case next == "":
		return true, nil
	case page[len(page)-1].Rkey >= min(in.From, in.Since):
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

// undated reports whether an rkey does not contain the time of its record.
func undated(p bluesky.FeedPost) bool { return !isTID(p.Rkey) }

func isTID(rkey string) bool {
	_, err := syntax.ParseTID(rkey)
	return err == nil
}

// readable returns the records of a page that belong to a span, and the rkeys of
// records that exist but cannot be read.
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

func rkeys(page []bluesky.FeedPost) []string {
	all := make([]string, len(page))
	for i := range page {
		all[i] = page[i].Rkey
	}
	return all
}

// descends reports whether a page lists its records from the highest rkey to the
// lowest, all below an rkey.
func descends(page []bluesky.FeedPost, below string) bool {
	for _, p := range page {
		if p.Rkey >= below {
			return false
		}
		below = p.Rkey
	}
	return true
}

// repair makes the stored records equal to the repository's. It deletes extra ones
// and writes missing or different ones, at a revision that was read before the
// records. The records are at that revision or later, so a later revision wins,
// whether it is stored already or comes from the stream. also runs in the last
// transaction.
func (r *repository) repair(ctx context.Context, client *river.Client[pgx.Tx], rev string, c compared, also func(pgx.Tx) error) error {
	now, err := schema.LatestTime(ctx, r.Pool, time.Now())
	if err != nil {
		return err
	}
	if tid, err := syntax.ParseTID(rev); err == nil { // the revision contains the server's time: no listed record is later
		now = schema.ServerTime(now, tid.Time())
	}
	var writes []schema.Write
	var deletions []schema.Deletion
	for _, f := range c.faults {
		key := schema.Key{Collection: f.Collection, DID: r.did, Rkey: f.Rkey}
		l, there := c.listed[f.Rkey]
		switch {
		case f.Rev > rev: // the stream has stored a later revision
		case f.Fault == schema.FaultExtra:
			deletions = append(deletions, schema.Deletion{Key: key, Rev: rev, At: now})
		case there:
			writes = append(writes,
				schema.Write{Key: key, Rev: rev, CID: l.CID, CreatedAt: schema.CreatedAt(l.Record, l.Rkey, now), Record: l.Record})
		}
	}
	crashpoint.At(ctx, "reconciliation: page compared")
	// Deletions have their own transaction: each transaction locks its rows in order.
	if len(deletions) > 0 {
		if err := pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error {
			if err := r.Fetched().remove(ctx, tx, deletions, r.Projections); err != nil {
				return err
			}
			if err := r.Projections.Lock(ctx, tx); err != nil { // the projections of other programs would keep their rows
				return err
			}
			return r.Projections.Enqueue(client, "")(ctx, tx, schema.NotFresh(r.Projections.Deleted(deletions)), time.Time{})
		}); err != nil {
			return err
		}
		crashpoint.At(ctx, "reconciliation: extra records deleted")
	}
	return pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error {
		written, err := r.Fetched().Store(ctx, tx, writes, schema.RepairRecords)
		if err != nil {
			return err
		}
		if err := r.Projections.Enqueue(client, "")(ctx, tx, schema.NotFresh(written), time.Time{}); err != nil || also == nil {
			return err
		}
		return also(tx)
	})
}

// tidAt returns the first TID of a time.
func tidAt(t time.Time) string {
	if t.Before(time.Unix(0, 0)) {
		return strings.Repeat("2", 13)
	}
	return syntax.NewTID(t.UnixMicro(), 0).String()
}

// compareRepository compares and repairs the next page of an account's
// repository, and commits the new position.
func (w *BackfillAccount) compareRepository(
	ctx context.Context, job *river.Job[jobs.BackfillAccount], repo *repository, feed schema.Feed, at *feedPlace,
) (err error) {
	place := *at
	if place.Repository.Rev == "" {
		if place.Repository.Rev, err = w.Bluesky.LatestRev(ctx, job.Args.DID); err != nil {
			return err
		}
	}
	if place.Repository.Collection == "" || place.Repository.End {
		names, err := repo.collections(ctx)
		if err != nil {
			return err
		}
		if job.Priority != jobs.PriorityGap { // the feed has brought the posts
			names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == schema.PostCollection })
		}
		place.Repository.Cut = repo.cut
		if !place.Repository.next(names) {
			place.Repository.Done = true
			*at = place
			return nil
		}
	}
	now, err := schema.EarliestTime(ctx, w.Pool, time.Now()) // retention uses this clock
	if err != nil {
		return err
	}
	since := job.Args.Since
	// compare everything that counts as stored
	if job.Priority == jobs.PriorityGap && feed.CompleteSince != nil && feed.CompleteSince.Before(since) {
		since = *feed.CompleteSince
	}
	in, err := repo.span(ctx, place.Repository.Collection, since, since, now, aboveAll)
	if err != nil {
		return err
	}
	c, err := repo.page(ctx, &place.Repository, in)
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

// notExpired returns from or, if that is later, the time before which rows may expire
// at any moment. keep 0 means for ever.
func notExpired(from time.Time, keep time.Duration, now time.Time) time.Time {
	if oldest := now.Add(expiring - keep); keep > 0 && oldest.After(from) {
		return oldest
	}
	return from
}

// expiring is how long a comparison may take while its posts expire.
const expiring = time.Minute
