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
	"strconv"
	"strings"
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
)

// SendAlert sends one message to this process's webhook. Working it twice sends
// it twice: a process that dies between the answer and the end of its job repeats
// itself, which is better than silence.
type SendAlert struct {
	river.WorkerDefaults[jobs.SendAlert]
	hook *Webhook // nil: this process has none
	log  *slog.Logger
	now  func() time.Time
}

const (
	staleAlert    = 24 * time.Hour // nobody wants to be told later
	leastSnooze   = time.Second
	mostSnooze    = time.Hour
	unsaidSnooze  = 30 * time.Second
	elsewhere     = time.Minute // until another worker may take a message that this one cannot send
	maxHookAnswer = 4 << 10     // bytes read of an answer
	maxHookReason = 200         // bytes of it that are kept as a reason
)

// Work sends it. Its answer ends the job by the one rule: 429 is waited out, other
// refusals end it, and everything else is tried again until its attempts are used up.
func (w *SendAlert) Work(ctx context.Context, job *river.Job[jobs.SendAlert]) error {
	if age := w.now().Sub(job.Args.At); age > staleAlert {
		return nonRetryable(fmt.Errorf("send alert %s: it is %s old", job.Args.Name, age.Round(time.Minute)))
	}
	if w.hook == nil {
		rowLog(ctx).Info("alert_left_to_another_process", "cause", "this one has no webhook")
		return later(elsewhere)
	}
	body, err := w.hook.body(job.Args)
	if err != nil {
		return fmt.Errorf("write alert %s: %w", job.Args.Name, err)
	}
	if err := w.post(ctx, body); err != nil {
		return fmt.Errorf("send alert %s: %w", job.Args.Name, err)
	}
	jobLog(ctx, w.log).Info("alert_sent", "name", job.Args.Name, "subject", job.Args.Subject, "resolved", job.Args.Resolved, "format", w.hook.format)
	return nil
}

// webhookError is an answer that is no success.
type webhookError struct {
	status     int
	says       string
	retryAfter time.Duration // where the status is 429
}

func (e *webhookError) Error() string {
	return fmt.Sprintf("the webhook answered %d: %q", e.status, e.says)
}

// post sends one request. Its errors do not name the address.
func (w *SendAlert) post(ctx context.Context, body []byte) error {
	h := w.hook
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return errors.New("the webhook's address cannot be asked")
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := h.client.Do(request)
	if wrong, ok := errors.AsType[*url.Error](err); ok {
		if wrong.Timeout() && ctx.Err() == nil {
			return fmt.Errorf("the webhook did not answer within %s", h.client.Timeout)
		}
		err = wrong.Err // without the URL
	}
	if err != nil {
		return err
	}
	defer response.Body.Close()                                         //nolint:errcheck // read only
	says, _ := io.ReadAll(io.LimitReader(response.Body, maxHookAnswer)) // the status is what counts
	reason := strings.ToValidUTF8(string(says[:min(len(says), maxHookReason)]), "")
	if response.StatusCode/100 == 2 {
		return nil
	}
	return &webhookError{status: response.StatusCode, says: reason, retryAfter: w.snooze(response.Header.Get("Retry-After"))}
}

// snooze reads Retry-After: seconds, or a date.
func (w *SendAlert) snooze(header string) time.Duration {
	wait := unsaidSnooze
	if seconds, err := strconv.ParseFloat(header, 64); err == nil && seconds < mostSnooze.Seconds() {
		wait = time.Duration(seconds * float64(time.Second))
	} else if err == nil {
		wait = mostSnooze
	} else if at, err := http.ParseTime(header); err == nil {
		wait = at.Sub(w.now())
	}
	return min(max(wait, leastSnooze), mostSnooze)
}
