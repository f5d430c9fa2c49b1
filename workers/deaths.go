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

// A process that dies does not fail its jobs, but River's rescuer counts a failed
// attempt. Each job therefore has jobs.Deaths more attempts than it may fail, and
// deaths are subtracted wherever River decides by the number of failures.

// deathCount returns how many attempts of a job ended with their process or
// never returned.
func deathCount(job *rivertype.JobRow) int {
	var metadata struct {
		Rescues int `json:"river:rescue_count"`
	}
	if json.Unmarshal(job.Metadata, &metadata) != nil {
		return 0
	}
	return min(max(metadata.Rescues, 0), jobs.Deaths)
}

// checkDeaths returns an error for a job that has ended with its process too
// often.
func checkDeaths(job *rivertype.JobRow) error {
	if n := deathCount(job); n == jobs.Deaths {
		return NonRetryable(fmt.Errorf("the process died, or the job never returned, %d times: the job may be what kills the process", n))
	}
	return nil
}

// deaths makes River discard a job after as many failures as its kind allows.
type deaths struct{ river.HookDefaults }

// WorkBegin changes the attempt limit that River checks, in memory only.
func (deaths) WorkBegin(_ context.Context, job *rivertype.JobRow) error {
	if job.MaxAttempts > jobs.Deaths { // otherwise the inserter does not know about deaths, and they count
		job.MaxAttempts -= jobs.Deaths - deathCount(job)
	}
	return nil
}

// retries is River's retry policy by the database's clock. Deaths do not
// lengthen the delay.
type retries struct{ clock *clock }

// NextRetry returns when the job is retried.
func (r retries) NextRetry(job *rivertype.JobRow) time.Time {
	failed := *job
	failed.Errors = failed.Errors[:max(len(failed.Errors)-deathCount(job), 0)]
	return r.clock.Now().Add(time.Until((&river.DefaultClientRetryPolicy{}).NextRetry(&failed)))
}
