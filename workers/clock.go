package workers

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-social/weir/schema"
)

// clock is the database's clock, for River: what the database said last, plus
// the process's monotonic time since. A step of the process's own clock does not
// change it.
type clock struct {
	start time.Time // of the monotonic time

	mu    sync.Mutex
	began time.Time // what the database's clock said at start; zero: not read yet

	dead atomic.Pointer[time.Time] // when the lease of a leader that is dead ends, in the database's future
}

// clockSlack is how far two readings may disagree before it is a step.
const clockSlack = time.Second

// Now is the database's time; this process's until it has been read.
func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.began.IsZero() {
		return time.Now()
	}
	return c.began.Add(time.Since(c.start))
}

// NowOrNil is the time that River's statements use; nil is the database's now().
// A dead leader's lease in the database's future would keep every other from
// leading, so River is told a time after it until one leads.
func (c *clock) NowOrNil() *time.Time {
	ends := c.dead.Load()
	if ends == nil {
		return nil
	}
	after := ends.Add(time.Second)
	return &after
}

// step returns how far the database's clock was set, given what it says now; 0:
// it was not.
func (c *clock) step(says time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if step := says.Add(-time.Since(c.start)).Sub(c.began); !c.began.IsZero() && step.Abs() > clockSlack {
		return step
	}
	return 0
}

// set takes over what the database's clock says. A slow reply makes it seem late,
// so that only a step sets it back.
func (c *clock) set(says time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if began := says.Add(-time.Since(c.start)); began.After(c.began) || c.began.Sub(began) > clockSlack {
		c.began = began
	}
}

// dates has the database date the jobs that are inserted: River would use this
// process's clock.
type dates struct{ river.HookDefaults }

// InsertBegin leaves out the times that nobody chose. River's statement replaces
// the zero time by now().
func (dates) InsertBegin(_ context.Context, job *rivertype.JobInsertParams) error {
	job.CreatedAt = &time.Time{}
	if job.State == rivertype.JobStateAvailable {
		job.ScheduledAt = &time.Time{}
	}
	return nil
}

// Client is a River client whose clock is the database's.
type Client struct {
	*river.Client[pgx.Tx]
	cfg     Config
	clock   *clock
	repairs int // passes over the jobs' dates that are still to be made

	lease time.Time // of River's leader, in the database's future, as it was read first
	since time.Time // when that was
}

const (
	clockEvery   = time.Second
	deadAfter    = 10 * time.Second // a leader that lives renews its lease every five
	clockWithin  = time.Minute      // a pass over a million jobs takes a second or two
	repairPasses = 10               // after a step: transactions that began before it commit late
)

// Start reads the database's clock, starts the client, and follows the clock until
// the client has stopped.
func (c *Client) Start(ctx context.Context) error {
	says, err := schema.Now(ctx, c.cfg.Pool)
	if err != nil {
		return err
	}
	c.clock.set(says)
	c.repairs = 1 // nobody may have been there when the clock was set back
	if err := c.Client.Start(ctx); err != nil {
		return err
	}
	go c.followClock(context.WithoutCancel(ctx))
	return nil
}

func (c *Client) followClock(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		<-c.Stopped()
		cancel()
	}()
	for sleep(ctx, clockEvery) == nil {
		if err := c.readClock(ctx); err != nil && ctx.Err() == nil && schema.Classify(err) != schema.Transient {
			c.cfg.Logger.Error("database_clock_not_followed", "error", err)
		}
	}
}

// readClock takes over the database's time. If its clock was set, the periodic
// jobs are planned anew; if it was set back, jobs that are dated in its future are
// dated anew.
func (c *Client) readClock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clockWithin)
	defer cancel()
	read, err := schema.ReadClock(ctx, c.cfg.Pool)
	if err != nil {
		return err
	}
	c.watchLease(read.Lease)
	step := c.clock.step(read.Now)
	if step != 0 {
		c.PeriodicJobs().Clear() // before River sees the new time: it would add a job for each interval between the two
	}
	c.clock.set(read.Now)
	if step != 0 {
		c.PeriodicJobs().AddMany(c.cfg.periodic(false))
		c.cfg.Logger.Warn("database_clock_stepped", "by", step.Round(time.Millisecond).String())
	}
	if step < 0 || read.Ahead {
		c.repairs = repairPasses
	}
	if c.repairs == 0 {
		return nil
	}
	repaired, err := schema.RepairJobSchedule(ctx, c.cfg.Pool)
	if err != nil {
		return err
	}
	if repaired == 0 {
		c.repairs--
		return nil
	}
	c.cfg.Logger.Warn("job_schedule_repaired", "jobs", repaired, "hint", "the database's clock was set back: they were dated in its future")
	return nil
}

// watchLease notices that River's leader died before it could renew a lease that
// is in the database's future, because its clock was set back.
func (c *Client) watchLease(ends *time.Time) {
	switch {
	case ends == nil || !ends.Equal(c.lease):
		c.clock.dead.Store(nil)
		c.lease, c.since = time.Time{}, time.Now()
		if ends != nil {
			c.lease = *ends
		}
	case time.Since(c.since) > deadAfter && c.clock.dead.Swap(ends) == nil:
		c.cfg.Logger.Warn("leader_lease_overridden", "ends", *ends, "hint", "the database's clock was set back, and the leader of the workers died before it renewed its lease")
	}
}
