package links

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/bisect"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// ReadProfiles reads the profiles of accounts that share links, before these are shown and then
// once a day: who labels its own profile !no-unauthenticated is not shown to strangers. It reads the
// names of those whom the top of the ranking shows. Running the job twice changes nothing but the
// time of the reading.
type ReadProfiles struct {
	river.WorkerDefaults[ReadProfilesArgs]
	pool *pgxpool.Pool
	api  *bluesky.Client

	patience time.Duration
}

const profilesAgain = 24 * time.Hour // how often a profile is read

// Work reads what is due. Profiles that cannot be read now stay due.
func (w *ReadProfiles) Work(ctx context.Context, _ *river.Job[ReadProfilesArgs]) error {
	asking, cancel := context.WithTimeout(ctx, w.patience)
	defer cancel()
	if err := w.readDue(ctx, asking); err != nil {
		return err
	}
	named, err := w.readNames(ctx, asking)
	if err == nil && named {
		err = enqueue(ctx, VerifyHandlesArgs{})
	}
	return err
}

// readDue reads which accounts are shown to strangers.
func (w *ReadProfiles) readDue(ctx, asking context.Context) error {
	for {
		now, err := schema.Now(ctx, w.pool)
		if err != nil {
			return err
		}
		since := now.Add(-profilesAgain)
		due, err := ranking.DueProfiles(ctx, w.pool, since, bluesky.MostProfiles)
		if err != nil || len(due) == 0 {
			return err
		}
		profiles, err := w.read(asking, due)
		if err != nil {
			return nil // the next run asks again
		}
		var shown []string
		for _, p := range profiles {
			shown = append(shown, p.DID)
		}
		if err := ranking.RecordProfiles(ctx, w.pool, due, shown, since, now); err != nil {
			return err
		}
	}
}

// readNames reads the names of accounts that the page shows. It reports whether it has stored any.
func (w *ReadProfiles) readNames(ctx, asking context.Context) (stored bool, err error) {
	for ; ; stored = true {
		now, err := schema.Now(ctx, w.pool)
		if err != nil {
			return stored, err
		}
		faces, err := ranking.UnnamedFaces(ctx, w.pool, now.Add(-profilesAgain), bluesky.MostProfiles)
		if err != nil || len(faces) == 0 {
			return stored, err
		}
		profiles, err := w.read(asking, faces)
		if err != nil {
			return stored, nil // the next run asks again
		}
		var named []schema.Member
		for _, p := range profiles {
			named = append(named, schema.Member(p))
		}
		if err := schema.RecordNames(ctx, w.pool, faces, named, now); err != nil {
			return stored, err
		}
	}
}

// read returns the profiles of those of some accounts that may be shown to strangers. A refused
// request is split, so that one strange account does not withhold others.
func (w *ReadProfiles) read(ctx context.Context, dids []string) (shown []bluesky.Profile, err error) {
	err = bisect.Each(dids, func(dids []string) error {
		profiles, err := w.api.Profiles(ctx, dids)
		for _, p := range profiles {
			if !p.Withheld {
				shown = append(shown, p)
			}
		}
		return err
	}, func(err error) bool { return workers.Refused(err) && ctx.Err() == nil }, func(string, error) error { return nil })
	return shown, err
}
