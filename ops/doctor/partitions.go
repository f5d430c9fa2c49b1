package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/schema"
)

// partitionsSoon is how long before the last partition of posts ends it is a
// warning: they are made two days ahead.
const partitionsSoon = 24 * time.Hour

// partitions looks at the partitions of posts: whether they are made ahead, and
// whether the server has room for the locks that so many need.
func (d Database) partitions(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	if schema.Check(ctx, pool) != nil {
		return nil, nil // the migrations are a finding of their own
	}
	until, err := schema.PostPartitionsUntil(ctx, pool)
	if err != nil {
		return nil, err
	}
	tree, err := schema.ReadRecordTree(ctx, pool)
	if err != nil {
		return nil, err
	}
	settings, err := schema.Settings(ctx, pool, []string{"max_locks_per_transaction", "max_connections", "max_prepared_transactions"})
	if err != nil {
		return nil, err
	}
	known := map[string]int{}
	for _, s := range settings {
		known[s.Name] = int(number(s.Value))
	}
	return []Finding{judgePartitions(until, time.Now()), judgeLocks(d.Needs, tree, known)}, nil
}

func judgePartitions(until, now time.Time) Finding {
	const check = "partitions"
	const do = "see partitions_not_made in the log of the consumer, and end the transaction that keeps posts locked, such as a backup that hangs"
	switch left := until.Sub(now); {
	case until.IsZero():
		return ok(check, "none yet: the consumer makes them")
	case left <= 0:
		return warn(check, do, "the last one of posts ended at %s: new posts are stored, and expire row by row", until.UTC().Format(time.RFC3339))
	case left < partitionsSoon:
		return warn(check, do, "the last one of posts ends at %s: the next should be there by now, unless no consumer runs", until.UTC().Format(time.RFC3339))
	}
	return ok(check, "those of posts reach to %s", until.UTC().Format(time.RFC3339))
}

const (
	otherLocks = 30 // of a transaction, on everything but records: a generous count
	wideAtOnce = 3  // transactions that use every partition whatever their keys: a deletion of the stream, expiry, an audit
)

// judgeLocks compares the locks that the server has room for with those that all
// transactions need together when each uses every partition of posts, as the
// configuration has them in the end.
func judgeLocks(n Needs, tree schema.RecordTree, settings map[string]int) Finding {
	const check = "setting max_locks_per_transaction"
	relations := tree.Tables + tree.Indexes
	planned := schema.PartitionsFor(n.Keep) * (1 + tree.PerTable)
	one := max(relations, planned) + otherLocks
	need := one * n.Transactions
	slots := max(settings["max_connections"]+settings["max_prepared_transactions"], 1)
	room := settings["max_locks_per_transaction"] * slots
	says := fmt.Sprintf("room for %d locks; a transaction that uses all of posts takes up to %d, and %d at once take %d", room, one, n.Transactions, need)
	if relations > planned {
		says += fmt.Sprintf(" (records has %d partitions; later ones may be larger, and their number goes down as they expire)", tree.Tables)
	}
	const step = 64
	set := (need*5/4/slots/step + 1) * step
	do := fmt.Sprintf("ALTER SYSTEM SET max_locks_per_transaction = %d, and restart Postgres; or lower WEIR_WORKERS", set)
	switch {
	case one*wideAtOnce > room:
		return fail(check, do, "%s", says)
	case need > room:
		return warn(check, do, "%s", says)
	}
	return ok(check, "%s", says)
}
