package workers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/jobs"
)

// SendAlert sends one message to this process's webhook. Running the job twice
// sends it twice: if the process dies between the response and the end of the
// job, the message is repeated rather than lost.
type SendAlert struct {
	river.WorkerDefaults[jobs.SendAlert]
	hook *Webhook // nil: this process has none
	log  *slog.Logger
	now  func() time.Time
}

const (
	staleAlert    = 24 * time.Hour // older messages are not sent
	leastSnooze   = time.Second
	mostSnooze    = time.Hour
	defaultSnooze = 30 * time.Second // without Retry-After
	elsewhere     = time.Minute      // wait for another worker, if this one has no webhook
	maxHookBody   = 4 << 10          // bytes read of a response
	maxHookReason = 200              // bytes of the response that are kept as the reason
)

// Work sends the message. After status 429 the job is snoozed, other statuses
// below 500 cancel it, and everything else is retried until its attempts are
// used up.
func (w *SendAlert) Work(ctx context.Context, job *river.Job[jobs.SendAlert]) error {
	if age := w.now().Sub(job.Args.At); age > staleAlert {
		return NonRetryable(fmt.Errorf("send alert %s: it is %s old", job.Args.Name, age.Round(time.Minute)))
	}
	if w.hook == nil {
		RowLog(ctx).Info("alert_deferred", "error", "this process has no webhook")
		return Snooze(elsewhere)
	}
	body, err := w.hook.body(job.Args)
	if err != nil {
		return fmt.Errorf("write alert %s: %w", job.Args.Name, err)
	}
	if err := w.post(ctx, body); err != nil {
		return fmt.Errorf("send alert %s: %w", job.Args.Name, err)
	}
	JobLog(ctx, w.log).Info("alert_sent", "name", job.Args.Name, "component", job.Args.Component, "resolved", job.Args.Resolved, "format",
		w.hook.format)
	return nil
}

// webhookError is a response with a status outside 2xx.
type webhookError struct {
	status     int
	body       string
	retryAfter time.Duration // of status 429
}

func (e *webhookError) Error() string {
	return fmt.Sprintf("the webhook returned %d: %q", e.status, e.body)
}

// post sends one request. Its errors do not contain the webhook's address.
func (w *SendAlert) post(ctx context.Context, body []byte) error {
	h := w.hook
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return errors.New("the webhook's address is invalid")
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := h.client.Do(request)
	if wrong, ok := errors.AsType[*url.Error](err); ok {
		if wrong.Timeout() && ctx.Err() == nil {
			return fmt.Errorf("the webhook did not respond within %s", h.client.Timeout)
		}
		err = wrong.Err // does not contain the URL
	}
	if err != nil {
		return err
	}
	defer response.Body.Close()                                       // read only
	data, _ := io.ReadAll(io.LimitReader(response.Body, maxHookBody)) // only the status counts
	reason := strings.ToValidUTF8(string(data[:min(len(data), maxHookReason)]), "")
	if response.StatusCode/100 == 2 {
		return nil
	}
	return &webhookError{status: response.StatusCode, body: reason, retryAfter: w.retryAfter(response.Header)}
}

// retryAfter returns how long the webhook wants to be left alone.
func (w *SendAlert) retryAfter(header http.Header) time.Duration {
	wait, ok := retry.After(header, w.now())
	if !ok {
		wait = defaultSnooze
	}
	return min(max(wait, leastSnooze), mostSnooze)
}
