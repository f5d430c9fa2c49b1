package workers

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/link"
	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
)

// ProcessPosts projects a batch of posts into links and shares. It reads the
// current rows and writes their shares under their locks, so the tables end the
// same whatever the order of jobs. Running a job twice changes nothing.
type ProcessPosts struct {
	river.WorkerDefaults[jobs.ProcessPosts]
	*Projector
	delay prometheus.Histogram
	whole prometheus.Histogram

	// find is link.InPost.
	find func(did string, record []byte) (link.Post, error)
}

func newProcessPosts(cfg Config, projector *Projector) *ProcessPosts {
	f := promauto.With(cfg.Registerer)
	seconds := prometheus.ExponentialBuckets(0.005, 1.7, 20)
	return &ProcessPosts{
		Projector: projector,
		delay: f.NewHistogram(prometheus.HistogramOpts{Name: "weir_row_to_ranking_seconds",
			Help: "Time from the commit of a batch until its links count in the ranking.", Buckets: seconds}),
		whole: f.NewHistogram(prometheus.HistogramOpts{Name: "weir_event_to_ranking_seconds",
			Help: "Time from the arrival of a batch's first event until its links count in the ranking.", Buckets: seconds}),
		find: link.InPost,
	}
}

// Work projects the job's posts. It does not use Projector.Project, which would
// lock all of them: most posts share nothing.
func (w *ProcessPosts) Work(ctx context.Context, job *river.Job[jobs.ProcessPosts]) error {
	p, err := w.projected(ctx, postKeys(job.Args.Posts))
	if err != nil {
		return err
	}
	for _, f := range p.failures {
		if err := w.deadLetter(ctx, job.JobRow, f); err != nil {
			return err
		}
	}
	w.metrics.records.WithLabelValues(w.name).Add(float64(p.posts))
	w.delay.Observe(max(0, time.Since(job.CreatedAt).Seconds()))
	if !job.Args.Arrived.IsZero() {
		w.whole.Observe(max(0, time.Since(job.Args.Arrived).Seconds()))
	}
	return nil
}

// projected projects posts and writes their shares. The posts that failed are in
// its failures.
func (w *ProcessPosts) projected(ctx context.Context, keys []schema.Key) (*sharing, error) {
	posts, err := schema.Posts(ctx, w.pool, keys)
	if err != nil {
		return nil, err
	}
	before, err := ranking.RecordsWithShares(ctx, w.pool, keys)
	if err != nil {
		return nil, err
	}
	p := &sharing{worker: w, posts: len(posts), shares: map[schema.Key][]ranking.Share{}, revs: map[schema.Key]string{}}
	for i := range posts {
		p.add(&posts[i])
	}
	// A post without shares, now and before, needs no lock: a job that read another
	// revision locks it itself.
	for _, key := range before {
		p.touch(key)
	}
	if err := ranking.EnsureLinks(ctx, w.pool, p.all(), time.Now()); err != nil && schema.Classify(err) != schema.Data {
		return nil, err // an error of the data occurs again below, where the post is dead-lettered
	}
	return p, w.write(ctx, p, p.keys())
}

// write stores the shares of the posts. If the database refuses the data, the
// posts are written one by one, and the one at fault is dead-lettered.
func (w *ProcessPosts) write(ctx context.Context, p *sharing, keys []schema.Key) error {
	if len(keys) == 0 {
		return nil
	}
	err := w.replace(ctx, p, keys)
	for try := 1; try <= 3 && schema.Classify(err) == schema.Transient && ctx.Err() == nil; try++ {
		err = w.replace(ctx, p, keys) // most often a deadlock's victim
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

// replace is the transaction: it locks the posts, reads again those that have
// changed, and writes.
func (w *ProcessPosts) replace(ctx context.Context, p *sharing, keys []schema.Key) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		locked, err := schema.LockPosts(ctx, tx, keys)
		if err != nil {
			return err
		}
		var changed []schema.Key
		there := make(map[schema.Key]bool, len(locked))
		for i := range locked {
			key := postKey(locked[i].DID, locked[i].Rkey)
			there[key] = true
			if p.revs[key] != locked[i].Rev {
				changed = append(changed, key)
			}
		}
		if len(changed) > 0 {
			again, err := schema.Posts(ctx, tx, changed)
			if err != nil {
				return err
			}
			for i := range again {
				p.add(&again[i])
			}
		}
		// The transaction that deleted a post has deleted its shares. The shares of
		// an expired post outlive it.
		var stored []schema.Key
		var shares []ranking.Share
		for _, key := range keys {
			if there[key] {
				stored = append(stored, key)
				shares = append(shares, p.shares[key]...)
			}
		}
		if len(stored) == 0 {
			return nil
		}
		return ranking.ReplaceShares(ctx, tx, stored, shares, time.Now())
	})
}

// sharing holds the shares of the posts of one job.
type sharing struct {
	worker   *ProcessPosts
	posts    int                            // number of stored posts
	shares   map[schema.Key][]ranking.Share // only of posts with shares, now or before
	revs     map[schema.Key]string          // the revision projected
	failures []failure
}

func (p *sharing) touch(key schema.Key) {
	if _, ok := p.shares[key]; !ok {
		p.shares[key] = nil
	}
}

// all returns the shares of every post.
func (p *sharing) all() []ranking.Share {
	var shares []ranking.Share
	for _, s := range p.shares {
		shares = append(shares, s...)
	}
	return shares
}

// keys returns the records to write, sorted, so that concurrent jobs lock in one
// order.
func (p *sharing) keys() []schema.Key {
	keys := make([]schema.Key, 0, len(p.shares))
	for key := range p.shares {
		keys = append(keys, key)
	}
	return sortedKeys(keys)
}

// add projects one post and replaces an earlier revision of it.
func (p *sharing) add(post *schema.Post) {
	key := postKey(post.DID, post.Rkey)
	p.revs[key] = post.Rev
	found, err := p.worker.links(post)
	if err != nil {
		p.failed(key, post.Record, err)
		return
	}
	if len(found.Links) == 0 {
		if _, ok := p.shares[key]; ok {
			p.shares[key] = nil
		}
		return
	}
	kind := "post"
	if found.Quote {
		kind = "quote"
	}
	uri := "at://" + post.DID + "/" + schema.PostCollection + "/" + post.Rkey
	shares := make([]ranking.Share, 0, len(found.Links))
	for _, l := range found.Links {
		shares = append(shares, ranking.Share{
			Key: key, URL: l.URL, Site: l.Site, How: kind, SharedAt: post.CreatedAt, StoredAt: post.IndexedAt,
			Card: ranking.Card{Title: l.Card.Title, Description: l.Card.Description, Image: l.Card.Image, From: uri, At: post.IndexedAt},
		})
	}
	p.shares[key] = shares
}

func (p *sharing) failed(key schema.Key, record []byte, cause error) {
	p.failures = append(p.failures, failure{Key: key, rev: p.revs[key], raw: record, cause: cause})
}

// links returns the links of a post.
func (w *ProcessPosts) links(post *schema.Post) (found link.Post, err error) {
	defer w.recovered(&err)
	return w.find(post.DID, post.Record)
}

func postKey(did, rkey string) schema.Key {
	return schema.Key{Collection: schema.PostCollection, DID: did, Rkey: rkey}
}

// postKeys parses the job's "did/rkey" names, each once. Malformed names name no
// record and are skipped.
func postKeys(names []string) []schema.Key {
	keys := make([]schema.Key, 0, len(names))
	for _, name := range names {
		if did, rkey, ok := strings.Cut(name, "/"); ok {
			keys = append(keys, postKey(did, rkey))
		}
	}
	return sortedKeys(keys)
}
