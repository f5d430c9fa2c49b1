package workers

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/schema"
)

// clock is the database's clock for River: its last reading plus the process's
// monotonic time since. Steps of the process's own clock do not change it.
type clock struct {
	start time.Time // of the monotonic time

	mu    sync.Mutex
	began time.Time // the database's time at start; zero: not read yet
}

// clockSlack is how far two readings may differ before the difference is a step.
const clockSlack = time.Second

// Now returns the database's time, or the process's time until the database's
// has been read.
func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.began.IsZero() {
		return time.Now()
	}
	return c.began.Add(time.Since(c.start))
}

// NowOrNil lets River's statements use the database's now().
func (c *clock) NowOrNil() *time.Time { return nil }

// step returns how far the database's clock was set, given its current reading;
// 0 if it was not set.
func (c *clock) step(reading time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if step := reading.Add(-time.Since(c.start)).Sub(c.began); !c.began.IsZero() && step.Abs() > clockSlack {
		return step
	}
	return 0
}

// set stores a reading of the database's clock. A slow reply makes the reading seem
// late, so only a step moves the clock back.
func (c *clock) set(reading time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if began := reading.Add(-time.Since(c.start)); began.After(c.began) || c.began.Sub(began) > clockSlack {
		c.began = began
	}
}

// dates makes the database set the times of inserted jobs. River would use the
// process's clock.
type dates struct{ river.HookDefaults }

// InsertBegin clears the times that the caller did not choose. River's statement
// replaces a zero time with now().
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
	bundle  Bundle
	clock   *clock
	wakes   []string      // the queues to wake while jobs wait; none with PollOnly
	repairs int           // remaining passes over the jobs' times
	back    time.Duration // how far the clock was just set back
}

const (
	clockEvery   = time.Second
	clockWithin  = time.Minute // a pass over a million jobs takes a second or two
	repairPasses = 10          // after a step: transactions that began before it may commit late
)

// Start reads the database's clock, starts the client and what features run beside it, and follows
// the clock until the client has stopped. What features run stops with ctx, or with the
// client.
func (c *Client) Start(ctx context.Context) error {
	reading, err := schema.Now(ctx, c.cfg.Pool)
	if err != nil {
		return err
	}
	c.clock.set(reading)
	for _, start := range c.bundle.starts {
		if err := start(ctx, c.Client); err != nil {
			return err
		}
	}
	c.repairs = 1 // the clock may have been set back while no process ran
	if err := c.Client.Start(ctx); err != nil {
		return err
	}
	go c.followClock(context.WithoutCancel(ctx))
	go c.beat(context.WithoutCancel(ctx))
	running, stop := context.WithCancel(ctx)
	go func() {
		<-c.Stopped()
		stop()
	}()
	for _, run := range c.bundle.runs {
		go run(running, c.Client)
	}
	return nil
}

// untilStopped returns a context that ends when the client has stopped, after its last job.
func (c *Client) untilStopped(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		<-c.Stopped()
		cancel()
	}()
	return ctx
}

func (c *Client) followClock(ctx context.Context) {
	ctx = c.untilStopped(ctx)
	for retry.Sleep(ctx, clockEvery) == nil {
		if err := c.readClock(ctx); err != nil && ctx.Err() == nil && schema.Classify(err) != schema.Transient {
			c.cfg.Logger.Error("database_clock_failed", "error", err)
		}
	}
}

// readClock reads the database's time, and wakes the queues that have waiting jobs. If
// the database's clock was set, the periodic jobs are scheduled again. If it was set back,
// jobs that are dated in its future get new times.
func (c *Client) readClock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clockWithin)
	defer cancel()
	read, err := schema.ReadClock(ctx, c.cfg.Pool, c.wakes)
	if err != nil {
		return err
	}
	if read.Shortened {
		c.cfg.Logger.Warn("leader_lease_shortened", "hint", "the database's clock was set back: a dead leader is followed in 15 s")
	}
	step := c.clock.step(read.Now)
	if step != 0 && !c.cfg.ProcessOnly { // River has no periodic jobs where nobody may lead
		c.PeriodicJobs().Clear() // before River sees the new time: otherwise it adds a job for each interval between the two
	}
	c.clock.set(read.Now)
	if step != 0 {
		if !c.cfg.ProcessOnly {
			c.PeriodicJobs().AddMany(c.bundle.periodicJobs())
		}
		c.cfg.Logger.Warn("database_clock_stepped", "by", step.Round(time.Millisecond).String())
	}
	if step < 0 {
		c.back = -step
	}
	if step < 0 || read.Ahead {
		c.repairs = repairPasses
	}
	if c.repairs == 0 {
		return nil
	}
	repaired, err := schema.RepairJobSchedule(ctx, c.cfg.Pool, c.back)
	if err != nil {
		return err
	}
	if step == 0 {
		c.back = 0 // after two passes: other processes may have noticed the step a second later
	}
	if repaired == 0 {
		c.repairs--
		return nil
	}
	c.cfg.Logger.Warn("job_schedule_repaired", "jobs", repaired, "hint", "the database's clock was set back: the jobs had times in its future")
	return nil
}
