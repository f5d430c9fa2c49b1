package nostr

import (
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
)

// ReadAuthorsArgs reads the profiles and the relay lists of followed accounts that are
// due, and asks domains to confirm the names in the profiles.
type ReadAuthorsArgs struct{}

// Kind names the job.
func (ReadAuthorsArgs) Kind() string { return "read_authors" }

// InsertOpts are the defaults of its inserts.
func (ReadAuthorsArgs) InsertOpts() river.InsertOpts { return jobs.Periodic(jobs.QueueNetwork, 3, 3) }

// ReadRelaysArgs reads what followed accounts wrote to relays that they name and that are
// not configured.
type ReadRelaysArgs struct{}

// Kind names the job.
func (ReadRelaysArgs) Kind() string { return "read_relays" }

// InsertOpts are the defaults of its inserts.
func (ReadRelaysArgs) InsertOpts() river.InsertOpts { return jobs.Periodic(jobs.QueueNetwork, 3, 3) }

// AuditRelaysArgs compares a day of each relay with the stored events, if that is due.
type AuditRelaysArgs struct{}

// Kind names the job.
func (AuditRelaysArgs) Kind() string { return "audit_relays" }

// InsertOpts are the defaults of its inserts.
func (AuditRelaysArgs) InsertOpts() river.InsertOpts { return jobs.Periodic(jobs.QueueNetwork, 4, 3) }
