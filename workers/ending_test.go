package workers

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/bluesky"
)

// TestEveryErrorHasOneEnding: what a job's error calls for, however it is wrapped.
func TestEveryErrorHasOneEnding(t *testing.T) {
	t.Parallel()
	const cancel, retry = "cancel", "retry"
	snoozed := func(d time.Duration) string { return "snooze " + d.String() }
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"the account is gone":         {&bluesky.Error{Class: bluesky.Permanent, Status: 400, Name: "AccountTakedown"}, cancel},
		"the server is busy":          {&bluesky.Error{Class: bluesky.RateLimited, Status: 429, RetryAfter: time.Minute}, snoozed(time.Minute)},
		"busy, and does not say when": {&bluesky.Error{Class: bluesky.RateLimited}, snoozed(time.Second)},
		"the server is broken":        {&bluesky.Error{Class: bluesky.Transient, Status: 500}, retry},
		"the login is refused":        {errors.Join(&bluesky.Error{Class: bluesky.Permanent, Status: 401}, bluesky.ErrLogin), retry},
		"the database refuses a row":  {&pgconn.PgError{Code: "22003"}, cancel},
		"the database restarts":       {&pgconn.PgError{Code: "57P01"}, retry},
		"a deadlock":                  {&pgconn.PgError{Code: "40P01"}, retry},
		"a table is missing":          {&pgconn.PgError{Code: "42P01"}, retry},
		"the job took too long":       {context.DeadlineExceeded, retry},
		"a bug":                       {errors.New("a bug"), retry},
		"the worker gives up":         {river.JobCancel(errors.New("x")), cancel},
		"the worker waits":            {river.JobSnooze(time.Hour), snoozed(time.Hour)},
	} {
		for _, err := range []error{c.err, fmt.Errorf("read a page: %w", c.err)} {
			var cancelled *river.JobCancelError
			var snooze *river.JobSnoozeError
			got, ended := retry, ending(err)
			switch {
			case errors.As(ended, &snooze):
				got = snoozed(snooze.Duration)
			case errors.As(ended, &cancelled):
				got = cancel
			}
			require.Equal(t, c.want, got, name)
			if snooze == nil {
				require.ErrorContains(t, ended, err.Error(), "nothing of the cause is lost")
			}
		}
	}
	require.NoError(t, ending(nil))
}
