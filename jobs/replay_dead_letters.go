package jobs

import (
	"encoding/json"
	"fmt"

	"github.com/riverqueue/river"
)

// TagDeadLetter marks the jobs that replay a dead letter: the trigger of
// river_job settles it at their end.
const TagDeadLetter = "dead-letter"

// ReplayDeadLetters tries every dead letter again whose replay is asked for. The
// SQL functions replay_dead_letter and replay_dead_letters add it: its kind is
// part of the schema.
type ReplayDeadLetters struct{}

// Kind names the job.
func (ReplayDeadLetters) Kind() string { return "replay_dead_letters" }

// InsertOpts are the defaults of its inserts.
func (ReplayDeadLetters) InsertOpts() river.InsertOpts { return river.InsertOpts{Queue: QueueNetwork} }

// Decode reads the arguments of a job of any kind, as they are stored.
func Decode(kind string, args []byte) (river.JobArgs, error) {
	switch kind {
	case BackfillAccount{}.Kind():
		return decode[BackfillAccount](args)
	case CloseGap{}.Kind():
		return decode[CloseGap](args)
	case Expire{}.Kind():
		return decode[Expire](args)
	case ProcessPosts{}.Kind():
		return decode[ProcessPosts](args)
	case ReplayDeadLetters{}.Kind():
		return decode[ReplayDeadLetters](args)
	case RequestBackfill{}.Kind():
		return decode[RequestBackfill](args)
	case SyncFollows{}.Kind():
		return decode[SyncFollows](args)
	}
	return nil, fmt.Errorf("there is no job of kind %q", kind)
}

func decode[T river.JobArgs](args []byte) (river.JobArgs, error) {
	var job T
	if err := json.Unmarshal(args, &job); err != nil {
		return nil, fmt.Errorf("read the arguments of a %s job: %w", job.Kind(), err)
	}
	return job, nil
}
