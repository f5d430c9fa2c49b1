package workers

import (
	"context"
	"time"

	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/schema"
)

const (
	beatInterval = 2 * time.Second
	lapse        = 20 * time.Second // without a heartbeat: the process is dead. A busy machine may hold one up for some seconds
	beatTimeout  = 10 * time.Second // a later heartbeat is better than one that waits for a lock or a connection
)

// beat stores the process's heartbeat until the client has stopped, and starts the jobs of dead
// processes again. If such a process was only paused, its jobs run twice, which changes nothing.
func (c *Client) beat(ctx context.Context) {
	ctx = c.untilStopped(ctx)
	for {
		if err := c.beatOnce(ctx); err != nil && ctx.Err() == nil && schema.Classify(err) != schema.Transient {
			c.cfg.Logger.Error("heartbeat_failed", "error", err)
		}
		if retry.Sleep(ctx, beatInterval) != nil {
			return
		}
	}
}

func (c *Client) beatOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	names, err := schema.Beat(ctx, c.cfg.Pool, c.ID(), lapse)
	if err != nil || len(names) == 0 {
		return err
	}
	n, err := schema.RescueJobs(ctx, c.cfg.Pool, names, lapse)
	if err == nil {
		c.cfg.Logger.Warn("worker_lapsed", "workers", names, "jobs_rescued", n)
	}
	return err
}
