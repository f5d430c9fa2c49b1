package jobs

import (
	"time"

	"github.com/riverqueue/river"
)

// ProcessPosts projects the posts that one commit of a stream wrote into links
// and shares. It names the records and carries none: the worker reads what is
// stored when it runs.
type ProcessPosts struct {
	// Posts names the records of app.bsky.feed.post, each as "did/rkey".
	Posts []string `json:"posts"`
	// Arrived is when the first event of their batch came over the wire; zero
	// where they came another way.
	Arrived time.Time `json:"arrived,omitzero"`
	// Stream is which one brought them; empty where they came another way.
	Stream string `json:"stream,omitempty"`
}

// Kind is "process_posts".
func (ProcessPosts) Kind() string { return "process_posts" }

// InsertOpts puts the job into the process queue, first in line.
func (p ProcessPosts) InsertOpts() river.InsertOpts {
	opts := river.InsertOpts{Queue: QueueProcess, Priority: 1}
	switch {
	case p.Stream != "":
		opts.Tags = tags("stream-" + p.Stream)
	case !p.Arrived.IsZero():
		opts.Tags = []string{"replay"}
	default:
		opts.Tags = []string{"feed"}
	}
	return opts
}
