package links

import (
	"context"
	"time"

	"github.com/riverqueue/river/rivertype"

	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

const releasedAtOnce = 500

// projectWaiting calls project with the records that wait for arrived ones, about releasedAtOnce at a
// time. project must make each of them wait anew or stop waiting: schema/waiting.go has the protocol.
// Call it after the commit that stored these. It returns false if it stopped at until. Calling
// it again continues, because most of the projected records no longer wait.
func (w *ProcessPosts) projectWaiting(
	ctx context.Context, arrived []schema.Key, until time.Time, project func([]schema.Key) error,
) (done bool, err error) {
	if len(arrived) == 0 {
		return true, nil
	}
	if arrived, err = schema.WaitedFor(ctx, w.pool, Name, arrived); err != nil {
		return false, err
	}
	var released []schema.Key // most records have few waiting for them, so several are projected at once
	for _, key := range arrived {
		for after := (schema.Key{}); ; {
			if time.Now().After(until) {
				return false, nil
			}
			keys, err := schema.WaitingFor(ctx, w.pool, Name, key, after, releasedAtOnce)
			if err != nil {
				return false, err
			}
			if released = append(released, keys...); len(released) >= releasedAtOnce {
				if err := project(released); err != nil {
					return false, err
				}
				released = nil
			}
			if len(keys) < releasedAtOnce {
				break
			}
			after = keys[len(keys)-1]
		}
	}
	if len(released) == 0 {
		return true, nil
	}
	return true, project(released)
}

// release projects the reposts and quotes that wait for posts. If there are very many, the
// job yields to other jobs in between.
func (w *ProcessPosts) release(ctx context.Context, job *rivertype.JobRow, arrived []schema.Key) error {
	done, err := w.projectWaiting(ctx, arrived, time.Now().Add(w.patience), func(keys []schema.Key) error {
		return w.again(ctx, job, keys, arrived)
	})
	if err == nil && !done {
		return workers.Snooze(0)
	}
	return err
}

// again projects records that were found through their subjects.
func (w *ProcessPosts) again(ctx context.Context, job *rivertype.JobRow, keys, foundBy []schema.Key) error {
	p, err := w.projected(ctx, keys, false, foundBy)
	if err != nil {
		return err
	}
	return w.settle(ctx, job, p)
}
