package nostr

import (
	"context"
	"errors"
	"time"

	"github.com/riverqueue/river"

	source "github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/internal/nostr/directory"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// AuditRelays compares yesterday at each configured Nostr relay with the stored events, by the
// authors' dates, and stores what is missing. If a killed job runs again, the days that it
// compared have nothing missing any more.
type AuditRelays struct {
	river.WorkerDefaults[AuditRelaysArgs]
	*relays
	patience time.Duration
}

// relayAuditWithin limits the time for one relay.
const relayAuditWithin = 20 * time.Minute

// Timeout is long because a relay may be slow, and may have many events.
func (w *AuditRelays) Timeout(*river.Job[AuditRelaysArgs]) time.Duration { return time.Hour }

// Work compares the days that are due, until it has run for long.
func (w *AuditRelays) Work(ctx context.Context, _ *river.Job[AuditRelaysArgs]) error {
	if err := w.Check(); err != nil {
		return workers.NonRetryable(err) // a process with configured relays added it
	}
	for started := time.Now(); time.Since(started) < w.patience; {
		stream, day, err := directory.DueAudit(ctx, w.Pool, w.Streams())
		if errors.Is(err, schema.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		reading, cancel := context.WithTimeout(ctx, relayAuditWithin)
		found, unread, err := w.Audit(reading, stream, day, day.AddDate(0, 0, 1))
		cancel()
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		found.Stream, found.Day = stream, day
		if unread != nil {
			found.Problem = unread.Error()
		}
		workers.JobLog(ctx, w.Log).Info("relay_compared", "stream", stream, "day", day.Format(time.DateOnly), "method", found.Method, "events",
			found.Events, "missing", found.Missing, "stored", found.Stored, "problem", found.Problem)
		if err := directory.StoreAudit(ctx, w.Pool, found, !errors.Is(unread, source.ErrIncomplete)); err != nil {
			return err
		}
	}
	return workers.Snooze(0)
}
