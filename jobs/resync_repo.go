package jobs

import "github.com/riverqueue/river"

// ResyncRepo compares an account with its repository, because a commit of it could not
// be verified, or was announced without its contents. There is one unfinished job per
// account.
type ResyncRepo struct {
	DID string `json:"did" river:"unique"`
}

// Kind names the job.
func (ResyncRepo) Kind() string { return "resync_repo" }

// InsertOpts are the defaults of its inserts.
func (ResyncRepo) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueResync, Tags: []string{"resync"}, UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: Unfinished()}}
}
