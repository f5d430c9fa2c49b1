package workers

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/nostr/directory"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// fromRelays reads an author's events from the relays: those of all stored kinds, and the
// requests to delete. Relays have nothing else to compare with. It does not matter which
// records are stored already, so a repeated job reads everything again. If a configured relay
// cannot be read, the account is read again later.
func (w *BackfillAccount) fromRelays(ctx context.Context, job *river.Job[jobs.BackfillAccount], author [32]byte) error {
	did := job.Args.DID
	at := feedPlace{State: "relays", End: true}
	for {
		feed, err := schema.FindFeed(ctx, w.pool, did)
		if err != nil {
			return err
		}
		if wait := job.Args.NotBefore.Sub(*job.AttemptedAt); wait > 0 && wait < longestSettle {
			return Snooze(wait) // the streams do not bring its events yet
		}
		if w.relays == nil {
			return w.unavailable(ctx, job, job.Args.Since, errNoRelays)
		}
		at.Requests, at.Repository.RereadsRequested = job.Args.Requests, feed.RereadsRequested
		since := job.Args.Since
		if job.Priority == jobs.PriorityGap && feed.CompleteSince != nil && feed.CompleteSince.Before(since) {
			since = *feed.CompleteSince
		}
		further, err := directory.RelaysOf(ctx, w.pool, []string{did})
		if err != nil {
			return err
		}
		reading, cancel := context.WithTimeout(ctx, w.patience) // a slow relay must not end the job
		read, err := w.relays.Backfill(reading, further, author, since)
		cancel()
		if err != nil {
			return err
		}
		at.Posts, at.Newest, at.Oldest = at.Posts+read.Written, read.Newest, read.Oldest
		at.Unread, at.End = read.Unread, read.Cut == ""
		if job.Priority == jobs.PriorityGap { // events of the gap may be missing
			at.Unread = cmp.Or(at.Unread, read.Cut)
		}
		at.Repository.Done = at.Unread == ""
		wider, err := w.finish(ctx, job, &at, since, nil)
		if err != nil {
			return err
		}
		if wider.IsZero() {
			level := slog.LevelDebug
			if at.Posts > 0 {
				level = slog.LevelInfo
			}
			JobLog(ctx, w.log).Log(ctx, level, "backfilled", "did", did, "handle", feed.Handle, "state", at.State, "posts", at.Posts, "since", since, "truncated", read.Cut != "", "unread", read.Unread)
			return nil
		}
	}
}
