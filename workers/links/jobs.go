package links

import (
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
)

// ProcessPostsArgs projects the posts and reposts, and their Nostr equivalents, of one commit
// of a stream into links and shares. It contains names, not records: the worker reads the
// stored records when it runs.
type ProcessPostsArgs struct {
	// Posts names the records of app.bsky.feed.post, each as "did/rkey".
	Posts []string `json:"posts"`
	// Reposts names the records of app.bsky.feed.repost in the same form.
	Reposts []string `json:"reposts,omitempty"`
	// Others names the records of the other collections.
	Others []jobs.Record `json:"others,omitempty"`
	// Arrived is when the first event of the batch arrived; zero if the records came
	// another way.
	Arrived time.Time `json:"arrived,omitzero"`
	// Stream is the stream that brought them; empty if they came another way.
	Stream string `json:"stream,omitempty"`
	// Fresh is true if all records are new, see jobs.Batch.
	Fresh bool `json:"fresh,omitempty"`
}

// Kind names the job.
func (ProcessPostsArgs) Kind() string { return "process_posts" }

// InsertOpts are the defaults of its inserts: the process queue, with the highest
// priority.
func (p ProcessPostsArgs) InsertOpts() river.InsertOpts {
	return jobs.Batch{Arrived: p.Arrived, Stream: p.Stream}.InsertOpts()
}

// CheckSubjectsArgs updates reposts and quotes when the posts that they refer to change.
// It projects the reposts and quotes of a changed post again, fetches the posts of
// strangers, and deletes records that have waited too long. A repost of a post that must
// be fetched adds a job too.
type CheckSubjectsArgs struct{}

// Kind names the job.
func (CheckSubjectsArgs) Kind() string { return "check_subjects" }

// InsertOpts are the defaults of its inserts.
func (CheckSubjectsArgs) InsertOpts() river.InsertOpts { return jobs.Periodic(jobs.QueueNetwork, 2, 3) }

// ResolveLinksArgs asks shorteners where short links lead, and merges those links with their
// targets. A new short link adds a job too.
type ResolveLinksArgs struct{}

// Kind names the job.
func (ResolveLinksArgs) Kind() string { return "resolve_links" }

// InsertOpts are the defaults of its inserts.
func (ResolveLinksArgs) InsertOpts() river.InsertOpts { return jobs.Periodic(jobs.QueueNetwork, 3, 3) }

// CheckCountsArgs compares the counts of a sample of links with the shares.
type CheckCountsArgs struct{}

// Kind names the job.
func (CheckCountsArgs) Kind() string { return "check_counts" }

// InsertOpts are the defaults of its inserts.
func (CheckCountsArgs) InsertOpts() river.InsertOpts {
	return jobs.Periodic(jobs.QueueMaintenance, 4, 2)
}

// ReadProfilesArgs reads which accounts that share links ask not to be shown to strangers.
type ReadProfilesArgs struct{}

// Kind names the job.
func (ReadProfilesArgs) Kind() string { return "read_profiles" }

// InsertOpts are the defaults of its inserts.
func (ReadProfilesArgs) InsertOpts() river.InsertOpts { return jobs.Periodic(jobs.QueueNetwork, 2, 3) }

// VerifyHandlesArgs verifies the handles of accounts that are followed or shown.
type VerifyHandlesArgs struct{}

// Kind names the job.
func (VerifyHandlesArgs) Kind() string { return "verify_handles" }

// InsertOpts are the defaults of its inserts.
func (VerifyHandlesArgs) InsertOpts() river.InsertOpts { return jobs.Periodic(jobs.QueueNetwork, 3, 3) }
