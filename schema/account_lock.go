package schema

import (
	"cmp"
	"math/bits"

	"github.com/jackc/pgx/v5"
)

// A transaction that deletes a record cannot lock a row that another transaction has
// inserted and not committed, and the insert does not see the tombstone. Both would
// commit, and the record would outlive a newer deletion. So every transaction that
// writes or deletes records first takes the locks of their accounts. Accounts are
// hashed onto a fixed number of locks, which limits the locks of the largest batch.
//
// A stream takes the locks in shared mode: an account has one stream, and the fence
// gives that stream one writer. All other writers take them exclusively: backfills,
// repairs, retried dead letters, recordings, and streams that bring the same
// accounts.
const (
	accountLocks     = 32
	accountLockSpace = 0x77656972 // "weir": the first of the two keys of an advisory lock
)

// accountLockSet is a set of account locks, one bit each.
type accountLockSet uint32

// add adds an account's lock to the set.
func (s *accountLockSet) add(did string) {
	h := uint32(2166136261) // FNV-1a: the same in every process
	for i := range len(did) {
		h = (h ^ uint32(did[i])) * 16777619
	}
	*s |= 1 << (h % accountLocks)
}

// lockMode is the function that takes a lock.
type lockMode string

const (
	exclusively lockMode = "pg_advisory_xact_lock"
	shared      lockMode = "pg_advisory_xact_lock_shared"
)

// queueLocks takes the locks, in order, until the transaction ends. It is a separate
// statement, because a statement's snapshot is older than the locks that it waits
// for. It also sets a timeout: if this process pauses before the commit, the server
// ends the transaction, because others wait for these locks and for the stream's
// row.
func (s accountLockSet) queueLocks(q *pgx.Batch, how lockMode) {
	numbers := make([]int32, 0, bits.OnesCount32(uint32(s)))
	for n := range int32(accountLocks) {
		if s&(1<<n) != 0 {
			numbers = append(numbers, n)
		}
	}
	q.Queue(`SELECT set_config('idle_in_transaction_session_timeout', '5s', true), count(`+string(how)+`($1, n)) FROM unnest($2::int[]) AS n`,
		accountLockSpace, numbers)
}

// accounts returns the locks of all accounts whose records, status or dead letters
// the batch changes.
func (b *Batch) accounts() (set accountLockSet) {
	last := "" // sorted slices repeat an account many times in a row
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
	for i := range b.Erasures {
		add(b.Erasures[i].DID)
	}
	for i := range b.DeadLetters {
		if b.DeadLetters[i].Key.DID != "" {
			add(b.DeadLetters[i].Key.DID)
		}
	}
	return set
}

// Compare orders keys in the order in which rows are locked.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Collection, other.Collection), cmp.Compare(k.DID, other.DID), cmp.Compare(k.Rkey, other.Rkey))
}
