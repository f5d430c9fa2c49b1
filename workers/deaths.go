package workers

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-social/weir/jobs"
)

// An attempt that ends with its process is no failure of the job. River's rescuer
// counts it as one, so every job may have jobs.Deaths attempts more than it may
// fail, and what River decides by the number of failures does not see deaths.

// died is how many attempts of a job ended with their process, or never returned.
func died(job *rivertype.JobRow) int {
	var metadata struct {
		Rescues int `json:"river:rescue_count"`
	}
	if json.Unmarshal(job.Metadata, &metadata) != nil {
		return 0
	}
	return min(max(metadata.Rescues, 0), jobs.Deaths)
}

// fatal is the error of a job that has ended with its process too often.
func fatal(job *rivertype.JobRow) error {
	if n := died(job); n == jobs.Deaths {
		return nonRetryable(fmt.Errorf("its process died, or it never returned, %d times: the job may be what kills its process", n))
	}
	return nil
}

// deaths has River discard a job after as many failures as its kind allows.
type deaths struct{ river.HookDefaults }

// WorkBegin changes what River compares the attempt with, in memory alone.
func (deaths) WorkBegin(_ context.Context, job *rivertype.JobRow) error {
	if job.MaxAttempts > jobs.Deaths { // else its inserter knows nothing of deaths, and they count
		job.MaxAttempts -= jobs.Deaths - died(job)
	}
	return nil
}

// retries is River's retry policy by the database's clock. A death does not make
// the wait longer.
type retries struct{ clock *clock }

// NextRetry is when a job is tried again.
func (r retries) NextRetry(job *rivertype.JobRow) time.Time {
	failed := *job
	failed.Errors = failed.Errors[:max(len(failed.Errors)-died(job), 0)]
	return r.clock.Now().Add(time.Until((&river.DefaultClientRetryPolicy{}).NextRetry(&failed)))
}
