package jobs

import "github.com/riverqueue/river"

// ReplayDeadLetters tries every dead letter again whose replay is asked for. The
// SQL functions replay_dead_letter and replay_dead_letters add it: its kind is
// part of the schema.
type ReplayDeadLetters struct{}

// Kind names the job.
func (ReplayDeadLetters) Kind() string { return "replay_dead_letters" }

// InsertOpts are the defaults of its inserts.
func (ReplayDeadLetters) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueNetwork, Tags: []string{"asked-for"}}
}
