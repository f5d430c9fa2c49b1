package schema

import (
	"cmp"
	"math/bits"

	"github.com/jackc/pgx/v5"
)

// Who deletes a record cannot lock the row that another transaction has inserted
// and not committed, and whoever inserts it does not see the tombstone: both
// commit, and the record stands beside a newer deletion. So every transaction
// that writes or deletes records first takes the locks of their accounts. The
// accounts share a fixed number of locks, so that the largest batch holds no
// more than that.
//
// A stream takes them shared: an account has one stream, and the fence gives
// that stream one writer. Everybody else takes them alone: a page of a backfill,
// a repair, a retried dead letter, a recording.
const (
	accountLocks     = 32
	accountLockSpace = 0x77656972 // "weir": the first of the two numbers of an advisory lock
)

// accountLockSet is the locks of some accounts, a bit each.
type accountLockSet uint32

// add adds the lock of an account.
func (s *accountLockSet) add(did string) {
	h := uint32(2166136261) // FNV-1a: the same in every process
	for i := range len(did) {
		h = (h ^ uint32(did[i])) * 16777619
	}
	*s |= 1 << (h % accountLocks)
}

// queue takes the locks, in their order, for the rest of the transaction. It is
// a statement of its own: a statement's snapshot is older than the locks that it
// waits for. And it has the server end the transaction if this process is paused
// before it commits, for others wait for these locks, and for the stream's row.
func (s accountLockSet) queueLocks(q *pgx.Batch, alone bool) {
	const (
		begin  = `SELECT set_config('idle_in_transaction_session_timeout', '5s', true), count(`
		shared = begin + `pg_advisory_xact_lock_shared($1, n)) FROM unnest($2::int[]) AS n`
		whole  = begin + `pg_advisory_xact_lock($1, n)) FROM unnest($2::int[]) AS n`
	)
	numbers := make([]int32, 0, bits.OnesCount32(uint32(s)))
	for n := range int32(accountLocks) {
		if s&(1<<n) != 0 {
			numbers = append(numbers, n)
		}
	}
	sql := shared
	if alone {
		sql = whole
	}
	q.Queue(sql, accountLockSpace, numbers)
}

// accounts are the locks of every account whose records, status or dead letters
// the batch touches.
func (b *Batch) accounts() (set accountLockSet) {
	last := "" // what is sorted by account names it many times in a row
	add := func(did string) {
		if did != last {
			set.add(did)
			last = did
		}
	}
	for i := range b.Writes {
		add(b.Writes[i].DID)
	}
	for i := range b.Deletions {
		add(b.Deletions[i].DID)
	}
	for i := range b.Statuses {
		add(b.Statuses[i].DID)
	}
	for i := range b.DeadLetters {
		if b.DeadLetters[i].Key.DID != "" {
			add(b.DeadLetters[i].Key.DID)
		}
	}
	return set
}

// compare orders records as their rows are locked.
func (k Key) compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Collection, other.Collection), cmp.Compare(k.DID, other.DID), cmp.Compare(k.Rkey, other.Rkey))
}
