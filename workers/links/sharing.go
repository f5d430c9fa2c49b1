package links

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// sharing holds what the records of one job share.
type sharing struct {
	worker  *ProcessPosts
	db      schema.Lookups
	records int // number of stored records
	readRecords
	written  bool         // a transaction has committed
	foundBy  []schema.Key // the subjects by which the records were found; nil: the job names the records
	subjects ranking.Subjects
	due      bool // a subject must be fetched now, or has changed
	short    bool // a link of a shortener is new
	unread   bool // the profile of an account was never read
	failures []workers.Failure
}

// readRecords is what was read of the records.
type readRecords struct {
	// the shares that the records themselves contain; only for records that wait, or have or had shares
	shares      map[schema.Key][]ranking.Share
	through     map[schema.Key]ranking.Through // reposts and quotes, without their links
	originals   map[schema.Key]link.Subject    // what the records are copies of; zero: they are not copies
	waited      map[schema.Key]bool            // the records that waited before
	shared      map[schema.Key]bool            // the records that had shares before
	reprojected []schema.Key                   // the records that had shares, or were changed
	revs        map[schema.Key]string          // the revision projected
	changed     map[schema.Key]bool            // the records that changed after they were read
}

// newSharing returns a sharing for a job with a number of records.
func newSharing(w *ProcessPosts, records int) *sharing {
	return &sharing{worker: w, db: schema.NewLookups(w.pool, records), readRecords: readRecords{shares: map[schema.Key][]ranking.Share{},
		through: map[schema.Key]ranking.Through{}, originals: map[schema.Key]link.Subject{},
		waited: map[schema.Key]bool{}, shared: map[schema.Key]bool{}, changed: map[schema.Key]bool{}, revs: map[schema.Key]string{}}}
}

// read reads the records, and which of them have shares or wait.
func (p *sharing) read(ctx context.Context, keys []schema.Key, fresh bool) error {
	if len(keys) == 0 {
		return nil
	}
	postKeys, otherKeys := byCollection(keys)
	posts, err := schema.Posts(ctx, p.db, postKeys)
	if err != nil {
		return err
	}
	others, err := schema.Records(ctx, p.db, otherKeys)
	if err != nil {
		return err
	}
	var waiting []schema.Key
	if !fresh {
		if p.reprojected, err = ranking.RecordsWithShares(ctx, p.db, keys); err != nil {
			return err
		}
		if waiting, err = schema.WaitingRecords(ctx, p.db, Name, keys); err != nil {
			return err
		}
	}
	p.records = len(posts) + len(others)
	for i := range posts {
		p.addPost(&posts[i])
	}
	for i := range others {
		p.addOther(&others[i])
	}
	// A record that has no shares, had none, and waits for nothing needs no lock: a job
	// that read another revision locks it itself.
	for _, key := range p.reprojected {
		p.shared[key] = true
		p.touch(key)
	}
	for _, key := range waiting {
		p.waited[key] = true
		p.touch(key)
	}
	return nil
}

func (p *sharing) touch(key schema.Key) {
	if _, ok := p.shares[key]; !ok {
		p.shares[key] = nil
	}
}

// keys returns the records to write, sorted, so that concurrent jobs lock in the same
// order.
func (p *sharing) keys() []schema.Key {
	keys := make([]schema.Key, 0, len(p.shares)+len(p.through))
	for key := range p.shares {
		keys = append(keys, key)
	}
	for key := range p.through {
		keys = append(keys, key)
	}
	return workers.SortedKeys(keys)
}

// linked returns the records that contain links themselves, sorted.
func (p *sharing) linked() []schema.Key {
	var keys []schema.Key
	for key, shares := range p.shares {
		if len(shares) > 0 {
			keys = append(keys, key)
		}
	}
	return workers.SortedKeys(keys)
}

// authors returns the accounts that share links, and those of the posts that they share.
func (p *sharing) authors() (dids []string) {
	for _, key := range p.linked() {
		dids = append(dids, key.DID)
	}
	for key, t := range p.through {
		dids = append(dids, key.DID, t.Subject.DID)
	}
	return dids
}

// subjectKeys returns the subjects of the records, sorted.
func (p *sharing) subjectKeys() []schema.Key {
	var keys []schema.Key
	for _, t := range p.through {
		keys = append(keys, t.Subject)
	}
	return workers.SortedKeys(keys)
}

// expectSubjects adds the subjects that are among the records themselves, with the links
// that they are about to share. So one transaction is enough, unless something changes
// meanwhile. Check the subjects again after it.
func (p *sharing) expectSubjects(ctx context.Context) error {
	var own []ranking.Share
	for _, key := range p.subjectKeys() {
		if _, ok := p.subjects[key]; !ok {
			own = append(own, p.shares[key]...)
		}
	}
	expected, err := ranking.NamedLinks(ctx, p.db, own)
	if err != nil {
		return err
	}
	for key, links := range expected {
		p.subjects[key] = links
	}
	return nil
}

// contained returns the links that quotes contain themselves, for those whose subjects
// have links too.
func (p *sharing) contained(ctx context.Context, tx pgx.Tx, keys []schema.Key) (ranking.Subjects, error) {
	var own []ranking.Share
	for _, key := range keys {
		if t, ok := p.through[key]; ok && len(p.subjects[t.Subject]) > 0 {
			own = append(own, p.shares[key]...)
		}
	}
	return ranking.NamedLinks(ctx, tx, own)
}

// without returns the links that are not among others.
func without(links, others []int64) []int64 {
	if len(others) == 0 {
		return links
	}
	return slices.DeleteFunc(slices.Clone(links), func(id int64) bool { return slices.Contains(others, id) })
}

// lock locks the records against writers and reads again those that have changed. It
// reports which of them are stored.
func (p *sharing) lock(ctx context.Context, tx pgx.Tx, keys []schema.Key) (there map[schema.Key]bool, err error) {
	postKeys, otherKeys := byCollection(keys)
	there = make(map[schema.Key]bool, len(keys))
	posts, err := schema.LockPosts(ctx, tx, postKeys)
	if err != nil {
		return nil, err
	}
	var reread []schema.Key
	for i := range posts {
		key := postKey(posts[i].DID, posts[i].Rkey)
		there[key] = true
		if p.revs[key] != posts[i].Rev {
			reread = append(reread, key)
			p.change(key)
		}
	}
	again, err := schema.Posts(ctx, tx, reread)
	if err != nil {
		return nil, err
	}
	for i := range again {
		p.addPost(&again[i])
	}
	others, err := schema.LockRecords(ctx, tx, otherKeys)
	if err != nil {
		return nil, err
	}
	for i := range others {
		key := others[i].Key
		there[key] = true
		if p.revs[key] != others[i].Rev {
			p.change(key)
			p.addOther(&others[i])
		}
	}
	return there, nil
}

// change marks a record that another job may have projected from an earlier revision
// since this job read it.
func (p *sharing) change(key schema.Key) {
	p.changed[key] = true
	p.reprojected = append(p.reprojected, key)
}

// addPost projects one post. It replaces an earlier revision of the post.
func (p *sharing) addPost(post *schema.Post) {
	key := postKey(post.DID, post.Rkey)
	p.revs[key] = post.Rev
	found, err := p.worker.links(post.DID, post.Record, p.worker.find)
	if err != nil {
		p.failed(key, post.Record, err)
		return
	}
	p.add(key, post.CreatedAt, post.IndexedAt, &found)
}

// add sets the shares of a record.
func (p *sharing) add(key schema.Key, createdAt, storedAt time.Time, found *link.Post) {
	p.originals[key] = found.Original
	p.refer(key, found.Quoted, ranking.Through{Key: key, How: "quote", SharedAt: createdAt, StoredAt: storedAt, Text: found.Text})
	if len(found.Links) == 0 {
		if _, ok := p.shares[key]; ok {
			p.shares[key] = nil
		}
		return
	}
	shares := make([]ranking.Share, 0, len(found.Links))
	for _, l := range found.Links {
		shares = append(shares, ranking.Share{Key: key, Link: l, How: "post", SharedAt: createdAt, StoredAt: storedAt, Text: found.Text})
	}
	p.shares[key] = shares
}

// addOther projects one record of a collection other than posts. It replaces an earlier
// revision of the record.
func (p *sharing) addOther(r *schema.Record) {
	if r.Collection != link.CollectionNote && r.Collection != link.CollectionArticle {
		p.addRepost(r)
		return
	}
	find := func(did string, record []byte) (link.Post, error) { return link.InRecord(r.Collection, did, record) }
	p.revs[r.Key] = r.Rev
	found, err := p.worker.links(r.DID, r.Record, find)
	if err != nil {
		p.failed(r.Key, r.Record, err)
		return
	}
	p.add(r.Key, r.CreatedAt, r.IndexedAt, &found)
}

// addRepost projects one repost. It replaces an earlier revision of the repost.
func (p *sharing) addRepost(repost *schema.Record) {
	p.revs[repost.Key] = repost.Rev
	var subject, original link.Subject
	var err error
	if repost.Collection == repostCollection {
		subject, err = link.InRepost(repost.Record)
	} else {
		subject, original, err = link.InEventRepost(repost.Collection, repost.Record)
	}
	if err != nil {
		p.failed(repost.Key, repost.Record, err)
		return
	}
	p.originals[repost.Key] = original
	p.refer(repost.Key, subject, ranking.Through{Key: repost.Key, How: "repost", SharedAt: repost.CreatedAt, StoredAt: repost.IndexedAt})
}

// refer makes a record share through a subject, or through none.
func (p *sharing) refer(key schema.Key, subject link.Subject, t ranking.Through) {
	t.Subject = schema.Key(subject)
	if subject == (link.Subject{}) || t.Subject == key {
		delete(p.through, key)
		return
	}
	p.through[key] = t
}

func (p *sharing) failed(key schema.Key, record []byte, cause error) {
	p.failures = append(p.failures, workers.Failure{Key: key, Rev: p.revs[key], Raw: record, Cause: cause})
}

// links returns the links of a record.
func (w *ProcessPosts) links(
	did string, record []byte, find func(did string, record []byte) (link.Post, error),
) (found link.Post, err error) {
	defer w.Recovered(&err)
	return find(did, record)
}

func postKey(did, rkey string) schema.Key {
	return schema.Key{Collection: schema.PostCollection, DID: did, Rkey: rkey}
}
