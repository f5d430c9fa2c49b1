package workers

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/riverqueue/river"
)

// resumable is a step that a later attempt takes up at the place it has stored.
// It answers the step's error, for the worker to return: River would keep it to
// itself, and whoever stands around the job, as what is measured and traced,
// would take the attempt for a success.
func resumable[P any](ctx context.Context, name string, step func(context.Context, P) error) (err error) {
	river.ResumableStepCursor(ctx, name, nil, func(ctx context.Context, stored json.RawMessage) error {
		var at P
		if len(stored) > 0 {
			err = json.Unmarshal(stored, &at)
		}
		if err != nil {
			err = fmt.Errorf("read the place in step %s: %w", name, err)
			return err
		}
		err = step(ctx, at)
		return err
	})
	return err
}
