package jobs

import (
	"time"

	"github.com/riverqueue/river"
)

// QueueProcess is the queue of ProcessPosts, and of projections that set no other.
const QueueProcess = "process"

// ProcessPosts projects the posts and reposts, and their Nostr equivalents, of one commit
// of a stream into links and shares. It contains names, not records: the worker reads the
// stored records when it runs.
type ProcessPosts struct {
	// Posts names the records of app.bsky.feed.post, each as "did/rkey".
	Posts []string `json:"posts"`
	// Reposts names the records of app.bsky.feed.repost in the same form.
	Reposts []string `json:"reposts,omitempty"`
	// Others names the records of the other collections.
	Others []Record `json:"others,omitempty"`
	// Arrived is when the first event of the batch arrived; zero if the records came
	// another way.
	Arrived time.Time `json:"arrived,omitzero"`
	// Stream is the stream that brought them; empty if they came another way.
	Stream string `json:"stream,omitempty"`
	// Fresh is true if all records are new, see Batch.
	Fresh bool `json:"fresh,omitempty"`
}

// Kind names the job.
func (ProcessPosts) Kind() string { return "process_posts" }

// InsertOpts are the defaults of its inserts: the process queue, with the highest
// priority.
func (p ProcessPosts) InsertOpts() river.InsertOpts {
	return Batch{Arrived: p.Arrived, Stream: p.Stream}.InsertOpts()
}
