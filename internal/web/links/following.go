package links

import (
	"context"
	"sync"
	"time"

	"github.com/weir-social/weir/schema"
)

const (
	// keepFollowing is how long the counted number of followed accounts is shown.
	keepFollowing = 30 * time.Second
	// manyMembers is the number of members of watches from which the count is kept. Counting fewer
	// takes a few milliseconds.
	manyMembers = 10_000
)

// following keeps the number of followed accounts for a short time if counting takes long. A
// thousand watches have a million members, and every computed page shows the number.
type following struct {
	mu    sync.Mutex
	last  schema.Following
	until time.Time
}

// read returns what is followed now. Only the number of accounts may be outdated. It is current if
// a watch was added or removed.
func (f *following) read(ctx context.Context, db schema.DB, now time.Time) (schema.Following, error) {
	watches, err := schema.ReadFollowing(ctx, db)
	if err != nil {
		return watches, err
	}
	f.mu.Lock() // others wait for the number instead of counting too
	defer f.mu.Unlock()
	if now.Before(f.until) && watches.Watches == f.last.Watches {
		watches.Accounts = f.last.Accounts
		return watches, nil
	}
	of, err := schema.CountMembers(ctx, db)
	if err != nil {
		return watches, err
	}
	watches.Accounts, f.until = of.Accounts, time.Time{}
	if of.Members >= manyMembers {
		f.last, f.until = watches, now.Add(keepFollowing)
	}
	return watches, nil
}
