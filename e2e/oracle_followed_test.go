package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/simnet"
)

// followedTruth is what the tables must hold of a network of which some accounts
// are followed, after every gap is closed:
//
//   - of whoever is followed and shown at the end, every post that stands and was
//     written since the moment from which on the account is read, and of the
//     older ones those that stand, if any; each as it was edited last, whether
//     the stream told so or not, with its shares. A post that was read from a
//     listing bears a revision before its first one, or another one of its
//     author's repository: an edit may fall between the moment when a comparison
//     asks for the revision and the one when it lists the posts. It may bear the
//     time of its first version;
//   - of whoever is hidden, deleted or no longer followed: nothing that nobody
//     wrote; nothing of it counts;
//   - followed are those whom the network says, and whom a row names; who is
//     hidden may be missing. Whether they are shown is right.
type followedOracle struct {
	oracle                               // the fold of the whole log
	since  map[string]time.Time          // who is followed, and from when on the posts are asked for
	ever   map[recordKey]map[string]bool // the CIDs of every version
	shared map[shareKey]bool             // by every version
	first  map[recordKey]recordRow       // the first version of what stands
	revs   map[recordKey]bool            // every revision of each repository, as the key's rkey
}

// foldFollowed folds the whole log, also what the server forgot.
func foldFollowed(entries []*simnet.Entry, since map[string]time.Time) followedOracle {
	tr := followedOracle{oracle: fold(entries, schema.PostCollection), since: since, ever: map[recordKey]map[string]bool{},
		shared: map[shareKey]bool{}, first: map[recordKey]recordRow{}, revs: map[recordKey]bool{}}
	for _, e := range entries {
		tr.revs[recordKey{did: e.DID, rkey: e.Rev}] = true
		if e.Kind != "commit" || e.Collection != schema.PostCollection || e.Operation == "delete" {
			continue
		}
		key := recordKey{e.Collection, e.DID, e.Rkey}
		if tr.ever[key] == nil {
			tr.ever[key] = map[string]bool{}
		}
		tr.ever[key][e.CID] = true
		for _, url := range e.Links {
			tr.shared[shareKey{key, url}] = true
		}
		if e.Operation == "create" {
			tr.first[key] = recordRow{rev: e.Rev, createdAt: e.CreatedAt}
		}
	}
	return tr
}

// shown says whether an account is followed, and its posts can be read.
func (tr followedOracle) shown(did string) bool {
	_, followed := tr.since[did]
	account, known := tr.accounts[accountKey(did)]
	return followed && (!known || account.status == "active")
}

// expected is what must be stored; also what may be, in the rows found.
func (tr followedOracle) expected(found map[recordKey]recordRow) map[recordKey]recordRow {
	want := map[recordKey]recordRow{}
	for key, r := range tr.records {
		at, stored := found[key]
		if !tr.shown(key.did) || !stored && r.createdAt.Before(tr.since[key.did]) {
			continue
		}
		if stored && (at.rev < tr.first[key].rev || at.cid == r.cid && tr.revs[recordKey{did: key.did, rkey: at.rev}]) { // from a listing, which does not tell the revision
			r.rev = at.rev
			if !at.createdAt.Before(tr.first[key].createdAt) && at.createdAt.Before(r.createdAt) {
				r.createdAt = at.createdAt
			}
		}
		want[key] = r
	}
	for key, at := range found {
		if !tr.shown(key.did) && tr.ever[key][at.cid] {
			want[key] = at // it may stay, but must not count
		}
	}
	return want
}

// differences are those between the tables and the truth; ranked is what must
// count.
func (tr followedOracle) differences(ctx context.Context, tx pgx.Tx) (problems []string, ranked oracle, err error) {
	found, err := foundRecords(ctx, tx)
	if err != nil {
		return nil, oracle{}, err
	}
	want := tr.oracle
	want.records, want.shares = tr.expected(found), map[shareKey]shareRow{}
	ranked = oracle{accounts: tr.accounts, shares: map[shareKey]shareRow{}}
	for key, r := range want.records {
		for _, url := range r.links {
			want.shares[shareKey{key, url}] = shareRow{how: howShared(r.record), at: r.createdAt}
		}
	}
	for key, s := range want.shares {
		if tr.shown(key.did) {
			ranked.shares[key] = s
		}
	}
	checks := []func(context.Context, pgx.Tx) ([]string, error){
		want.compareRecords,
		func(ctx context.Context, tx pgx.Tx) ([]string, error) { return tr.compareShares(ctx, tx, want.shares) },
		tr.compareTombstones, tr.compareMembers, tr.compareStatuses, unfinishedJobs, want.compareDeadLetters,
	}
	for _, check := range checks {
		lines, err := check(ctx, tx)
		if err != nil {
			return nil, oracle{}, err
		}
		problems = append(problems, lines...)
	}
	return problems, ranked, nil
}

func foundRecords(ctx context.Context, tx pgx.Tx) (map[recordKey]recordRow, error) {
	found := map[recordKey]recordRow{}
	rows, err := tx.Query(ctx, `SELECT collection, did, rkey, rev, cid, created_at, record::text FROM records`)
	if err != nil {
		return nil, fmt.Errorf("read records: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var k recordKey
		var r recordRow
		if err := rows.Scan(&k.collection, &k.did, &k.rkey, &r.rev, &r.cid, &r.createdAt, &r.record); err != nil {
			return nil, fmt.Errorf("read records: %w", err)
		}
		found[k] = r
	}
	return found, rows.Err()
}

// compareShares asks for the shares of whoever is shown; of the others there may
// be any that ever were.
func (tr followedOracle) compareShares(ctx context.Context, tx pgx.Tx, want map[shareKey]shareRow) ([]string, error) {
	const sql = `
SELECT s.collection, s.did, s.rkey, coalesce(l.url, 'link ' || s.link_id), s.how, s.shared_at
FROM shares AS s
LEFT JOIN links AS l ON l.id = s.link_id`
	return compareTable(ctx, tx, "shares", want, sql, func(rows pgx.Rows) (k shareKey, r shareRow, err error) {
		err = rows.Scan(&k.collection, &k.did, &k.rkey, &k.url, &r.how, &r.at)
		if !tr.shown(k.did) && tr.shared[k] {
			want[k] = r
		}
		return k, r, err
	})
}

// compareTombstones refuses those of what was never deleted. What was deleted
// in a hole need not have one.
func (tr followedOracle) compareTombstones(ctx context.Context, tx pgx.Tx) (problems []string, err error) {
	lines, err := tr.oracle.compareTombstones(ctx, tx)
	for _, line := range lines {
		if _, _, invented := strings.Cut(line, ": expected no row, found"); invented {
			problems = append(problems, line)
		}
	}
	return problems, err
}

// compareWatched asks who is followed.
func (tr followedOracle) compareMembers(ctx context.Context, tx pgx.Tx) ([]string, error) {
	found, err := describe(ctx, tx, "watched", `SELECT DISTINCT did FROM watch_members`)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, did := range found {
		if _, ok := tr.since[did]; !ok {
			lines = append(lines, "watched: "+did+": expected no row, found one")
		}
	}
	for _, did := range slices.Sorted(maps.Keys(tr.since)) {
		if tr.shown(did) && !slices.Contains(found, did) {
			lines = append(lines, "watched: "+did+": expected one, found no row")
		}
	}
	return lines, nil
}

// compareStatuses asks whether the followed accounts are shown or not.
func (tr followedOracle) compareStatuses(ctx context.Context, tx pgx.Tx) ([]string, error) {
	const sql = `SELECT w.did || ' ' || coalesce(a.status, 'active') FROM (SELECT DISTINCT did FROM watch_members) AS w LEFT JOIN accounts AS a USING (did)`
	found, err := describe(ctx, tx, "accounts", sql)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, line := range found {
		did, status, _ := strings.Cut(line, " ")
		if _, ok := tr.since[did]; ok && tr.shown(did) != (status == "active") {
			lines = append(lines, fmt.Sprintf("accounts: %s: expected it to be shown: %t, found it %s", did, tr.shown(did), status))
		}
	}
	return lines, nil
}

// judgeFollowed compares the tables with what holds of the followed accounts.
func (c *chaos) compareFollowed(ctx context.Context, tx pgx.Tx, end time.Time) (problems []string, posts, shares int, err error) {
	since := map[string]time.Time{}
	for _, did := range c.followed() {
		since[did] = c.began.Add(-24 * time.Hour) // WEIR_BACKFILL_WINDOW; nothing is older here
	}
	tr := foldFollowed(c.net.Log().Entries(), since)
	tr.deadLettersExpected = c.deadLetters()
	problems, ranked, err := tr.differences(ctx, tx)
	if err != nil {
		return nil, 0, 0, err
	}
	for key := range tr.records {
		if tr.shown(key.did) {
			posts++
		}
	}
	return append(problems, c.rankingProblems(ranked, end)...), posts, len(ranked.shares), nil
}
