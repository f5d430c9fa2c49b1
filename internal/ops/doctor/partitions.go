package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/schema"
)

// partitionsSoon is the remaining time of the last partition of posts below which
// there is a warning. Partitions are created two days ahead.
const partitionsSoon = 24 * time.Hour

// partitions checks that the partitions of posts are created ahead, and that the
// server has enough locks for them.
func (d Database) partitions(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	if d.Migrated(ctx, pool) != nil {
		return nil, nil // the migrations have a finding of their own
	}
	until, err := schema.PartitionsUntil(ctx, pool, "posts")
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
	return []Finding{checkPartitions(until, time.Now()), checkLocks(d.Needs, tree, known)}, nil
}

func checkPartitions(until, now time.Time) Finding {
	const check = "partitions"
	const do = "see partition_creation_failed in the consumer's log, and end the transaction that locks posts, such as a backup that hangs"
	switch left := until.Sub(now); {
	case until.IsZero():
		return ok(check, "none yet: the consumer creates them")
	case left <= 0:
		return warn(check, do, "the last partition of posts ended at %s: new posts are stored, but expire row by row",
			until.UTC().Format(time.RFC3339))
	case left < partitionsSoon:
		return warn(check, do, "the last partition of posts ends at %s: the next one should exist by now, unless no consumer runs",
			until.UTC().Format(time.RFC3339))
	}
	return ok(check, "the partitions of posts reach to %s", until.UTC().Format(time.RFC3339))
}

const (
	otherLocks = 30 // locks of a transaction on relations other than records and the projections' tables, rounded up
	// concurrent transactions that use every partition for any keys: small batches and jobs, see schema.Lookups, expiry, an audit
	wideTransactions = 8
)

// checkLocks compares the server's lock table with the locks that all transactions
// take together if each uses every partition of posts. It uses the number of
// existing partitions or, if that is larger, the number that results from the
// configuration.
func checkLocks(n Needs, tree schema.RecordTree, settings map[string]int) Finding {
	const check = "setting max_locks_per_transaction"
	relations := tree.Tables + tree.Indexes
	planned := schema.PartitionsFor(n.Keep) * (1 + tree.PerTable)
	one := max(relations, planned) + n.Projected + otherLocks
	need := one * n.Transactions
	slots := max(settings["max_connections"]+settings["max_prepared_transactions"], 1)
	available := settings["max_locks_per_transaction"] * slots
	says := fmt.Sprintf("%d locks available; a transaction that uses every partition of posts takes up to %d, and %d at once take %d",
		available, one, n.Transactions, need)
	if relations > planned {
		says += fmt.Sprintf(" (records has %d partitions; their number falls as old ones expire, because new ones may be larger)", tree.Tables)
	}
	const step = 64
	set := (need*5/4/slots/step + 1) * step
	do := fmt.Sprintf("ALTER SYSTEM SET max_locks_per_transaction = %d, and restart Postgres; or lower WEIR_WORKERS", set)
	switch {
	case one*wideTransactions > available:
		return fail(check, do, "%s", says)
	case need > available:
		return warn(check, do, "%s", says)
	}
	return ok(check, "%s", says)
}
