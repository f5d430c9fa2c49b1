package jobs

import "github.com/riverqueue/river"

// AuditRelays compares a day of each Nostr relay with the stored events, if that is due. There
// is one unfinished job at a time. It has few attempts: the next hour adds another job.
type AuditRelays struct{}

// Kind names the job.
func (AuditRelays) Kind() string { return "audit_relays" }

// InsertOpts are the defaults of its inserts.
func (AuditRelays) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueNetwork, Priority: 4, MaxAttempts: 3 + Deaths, Tags: []string{TagPeriodic}, UniqueOpts: river.UniqueOpts{ByState: Unfinished()}}
}
