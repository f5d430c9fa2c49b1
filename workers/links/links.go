// Package links makes shares and links of posts, notes and articles, and of reposts and quotes of them: it finds their
// links, counts who shares each of them, follows short links, and deletes what is too old.
package links

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/links/redirect"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Name is the name of the projection.
const Name = "links"

// Config configures the workers.
type Config struct {
	Keep      Retention
	Redirects *redirect.Client // asks shorteners; nil: their links are not resolved

	announced time.Duration // how often links are announced, over all processes
}

// Add adds the workers of links.
func Add(b workers.Bundle, cfg Config) {
	interruptible, patience := b.Interruptible(), b.JobTimeout/2
	posts := newProcessPosts(b)
	posts.resolves = cfg.Redirects != nil
	workers.Add(b, posts)
	workers.Add(b, &CheckCounts{pool: b.Pool, log: b.Logger})
	workers.Add(interruptible, newCheckSubjects(b, posts))
	workers.Add(interruptible, &ResolveLinks{pool: b.Pool, client: cfg.Redirects, patience: patience})
	workers.Add(interruptible, &ReadProfiles{pool: b.Pool, api: b.Bluesky, patience: b.JobTimeout / 3})
	workers.Add(interruptible, &VerifyHandles{pool: b.Pool, api: b.Bluesky, patience: b.JobTimeout / 3})
	b.Every(time.Minute, CheckSubjectsArgs{})
	b.Every(time.Minute, VerifyHandlesArgs{})
	b.Later(countsCheckInterval, CheckCountsArgs{})
	if b.Bluesky != nil {
		b.Every(time.Minute, ReadProfilesArgs{})
	}
	if cfg.Redirects != nil {
		b.Every(time.Minute, ResolveLinksArgs{})
	}
	b.Run(newCounter(b, cfg.announced).run)
	expiry := newExpiry(b.Pool, cfg.Keep)
	b.Expire(expiry.ensureDays, expiry.expireShares)
	// A new database needs partitions before its first shares. The expiry makes the later ones.
	b.OnStart(func(ctx context.Context, _ *river.Client[pgx.Tx]) error {
		now, err := schema.EarliestTime(ctx, b.Pool, time.Now())
		if err != nil {
			return err
		}
		if err := ranking.EnsureDays(ctx, b.Pool, now, expiry.keep.Shares); err != nil && !errors.Is(err, schema.ErrBusy) { // others make them
			b.Logger.Warn("partition_creation_failed", "table", "shares", "error", err)
		}
		return nil
	})
}
