package workers

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/riverqueue/river"
)

// Resumable runs a step that continues at its stored position. It returns the
// step's error, and the worker must return it: River would hide the error from
// middleware, and metrics and traces would count a success.
func Resumable[P any](ctx context.Context, name string, step func(context.Context, P) error) (err error) {
	river.ResumableStepCursor(ctx, name, nil, func(ctx context.Context, stored json.RawMessage) error {
		var at P
		if len(stored) > 0 {
			err = json.Unmarshal(stored, &at)
		}
		if err != nil {
			err = fmt.Errorf("read the position in step %s: %w", name, err)
			return err
		}
		err = step(ctx, at)
		return err
	})
	return err
}
