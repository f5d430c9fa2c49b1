package jobs

import (
	"time"

	"github.com/riverqueue/river"
)

// QueueProcess is the queue of ProcessPosts, and of projections that name no
// other.
const QueueProcess = "process"

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
	return Batch{Arrived: p.Arrived, Stream: p.Stream}.InsertOpts()
}

// Links is the projection of posts into the links that they share.
func Links() Projection {
	return Projection{
		Name: "links", Collections: []string{"app.bsky.feed.post"}, Tables: []string{"shares"},
		Job: func(b Batch) river.JobArgs {
			job := ProcessPosts{Posts: make([]string, len(b.Records)), Arrived: b.Arrived, Stream: b.Stream}
			for i, r := range b.Records {
				job.Posts[i] = r.DID + "/" + r.Rkey
			}
			return job
		},
	}
}
