package schema

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Now is the time by the database's clock.
func Now(ctx context.Context, db DB) (time.Time, error) {
	return one(ctx, db, "read the database's clock", pgx.RowTo[time.Time], `SELECT clock_timestamp()`)
}

// AgreedTime is the earliest of a process's time, the database's, and that of the
// newest event stored, which is of a server's clock. What is due by it is due
// whichever of the three may be ahead.
func AgreedTime(ctx context.Context, db DB, now time.Time) (time.Time, error) {
	const sql = `SELECT least($1::timestamptz, clock_timestamp(), (SELECT max(last_event_at) FROM streams))`
	return one(ctx, db, "compare the clocks", pgx.RowTo[time.Time], sql, now)
}

// LatestTime is the later of a process's time and the database's. What its author
// dates after it is dated wrongly, whichever of the two is behind.
func LatestTime(ctx context.Context, db DB, now time.Time) (time.Time, error) {
	return one(ctx, db, "compare the clocks", pgx.RowTo[time.Time], `SELECT greatest($1::timestamptz, clock_timestamp())`, now)
}

// aheadAtMost is how far ahead of both of our clocks a server's is believed.
const aheadAtMost = 24 * time.Hour

// ServerTime is the later of our time and a server's, up to a day ahead of ours:
// where both of our clocks are behind, a server's is not.
func ServerTime(now, server time.Time) time.Time {
	if most := now.Add(aheadAtMost); server.After(most) {
		return most
	}
	if server.After(now) {
		return server
	}
	return now
}

// MendTimes sets right what bears a time later than it can be by the database's
// clock, since that clock was set back: jobs would wait for it, those that a
// killed process left behind too. It answers how many there were. It may be
// called every few seconds however many jobs wait; with retries it reads every
// job that is to be tried again, which is for when the clock was set back.
func MendTimes(ctx context.Context, db DB, retries bool) (int, error) {
	return one(ctx, db, "mend the times of jobs", pgx.RowTo[int], `SELECT mend_times($1)::int`, retries)
}
