package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// followedOracle is what the tables must hold if only some accounts are followed,
// after every gap is closed:
//
//   - Accounts that are followed and shown at the end: every existing post written
//     since the account is read, in its last version, with its shares, whether or
//     not the stream delivered it. Older posts are optional; a stored one must
//     exist. A post that was read from a listing has a revision before its first
//     one, or another revision of its author's repository, since an edit may happen
//     between reading the revision and listing the posts. It may have the time of
//     its first version.
//   - Reposts and quotes of posts of such accounts, and of strangers' posts that were
//     never edited and whose authors were never hidden, share the post's links. No
//     stream delivers other posts: the links of any version that was ever shown are
//     allowed.
//   - Accounts that are hidden, deleted or no longer followed: any version that was
//     ever written, or nothing. Their shares do not count.
//   - watch_members: the accounts that the network's follows and the watches name.
//     Hidden accounts may be missing. The others must have the right status: shown or
//     hidden.
type followedOracle struct {
	oracle                               // the fold of the whole log
	since  map[string]time.Time          // the followed accounts, and the time since when each is read
	ever   map[recordKey]map[string]bool // the CIDs of every version
	shared map[shareKey]bool             // the links of every version
	hidden map[string]bool               // the accounts that were ever hidden
	first  map[recordKey]recordRow       // the first version of each post
	revs   map[recordKey]bool            // every revision of each repository, as the key's rkey
}

// foldFollowed folds the whole log, forgotten events included.
func foldFollowed(entries []*simnet.Entry, since map[string]time.Time) followedOracle {
	tr := followedOracle{oracle: fold(entries), since: since, hidden: map[string]bool{}, ever: map[recordKey]map[string]bool{},
		shared: map[shareKey]bool{}, first: map[recordKey]recordRow{}, revs: map[recordKey]bool{}}
	for _, e := range entries {
		tr.revs[recordKey{did: e.DID, rkey: e.Rev}] = true
		if e.Kind == "account" && !e.Active {
			tr.hidden[e.DID] = true
		}
		if e.Kind != "commit" || e.Collection != schema.PostCollection && e.Collection != "app.bsky.feed.repost" || e.Operation == "delete" {
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

// shown reports whether an account is followed and its posts can be read.
func (tr followedOracle) shown(did string) bool {
	_, followed := tr.since[did]
	account, known := tr.accounts[accountKey(did)]
	return followed && (!known || account.status == "active")
}

// expected returns the records that must be stored, and those optional ones that
// were found.
func (tr followedOracle) expected(found map[recordKey]recordRow) map[recordKey]recordRow {
	want := map[recordKey]recordRow{}
	for key, r := range tr.records {
		at, stored := found[key]
		if !tr.shown(key.did) || !stored && r.createdAt.Before(tr.since[key.did]) {
			continue
		}
		// from a listing, which has no revisions
		if stored && (at.rev < tr.first[key].rev || at.cid == r.cid && tr.revs[recordKey{did: key.did, rkey: at.rev}]) {
			r.rev = at.rev
			if !at.createdAt.Before(tr.first[key].createdAt) && at.createdAt.Before(r.createdAt) {
				r.createdAt = at.createdAt
			}
		}
		want[key] = r
	}
	for key, at := range found {
		if !tr.shown(key.did) && tr.ever[key][at.cid] {
			want[key] = at // optional, but must not count
		}
	}
	return want
}

// differences compares the tables with the oracle; ranked holds the shares that
// must count.
func (tr followedOracle) differences(ctx context.Context, tx pgx.Tx) (problems []string, ranked oracle, err error) {
	found, err := foundRecords(ctx, tx)
	if err != nil {
		return nil, oracle{}, err
	}
	want := tr.oracle
	want.records, want.shares = tr.expected(found), map[shareKey]shareRow{}
	// whether a stranger is hidden is known only once its post is fetched again
	ranked = oracle{merged: tr.merged, shares: map[shareKey]shareRow{}}
	want.share(tr.subjects())
	through, err := foundThrough(ctx, tx)
	if err != nil {
		return nil, oracle{}, err
	}
	for key, s := range through {
		if _, ok := want.shares[key]; !ok && tr.may(key, s, want.records) {
			want.shares[key] = s.shareRow
		}
	}
	for key, s := range want.shares {
		if tr.shown(key.did) && (s.through == "" || through[key].counts || tr.shown(s.through)) {
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

// subjects returns the posts whose links are shared by all who repost or quote them.
func (tr followedOracle) subjects() map[recordKey]recordRow {
	sure := map[recordKey]recordRow{}
	for key, r := range tr.records {
		if tr.shown(key.did) || !tr.hidden[key.did] && len(tr.ever[key]) == 1 {
			sure[key] = r
		}
	}
	return sure
}

// may reports whether a share through a post is allowed: some version of the post
// contained the link, and the record refers to it.
func (tr followedOracle) may(key shareKey, s throughRow, records map[recordKey]recordRow) bool {
	r, ok := records[key.recordKey]
	subject, how := recordKey{}, ""
	if ok {
		subject, how = subjectOf(key.recordKey, r.record)
	}
	return ok && subject == s.subject && how == s.how && s.at.Equal(r.createdAt) &&
		tr.shared[shareKey{subject, key.url}] && !slices.Contains(r.links, key.url)
}

// throughRow is a share through a post.
type throughRow struct {
	shareRow
	subject recordKey
	counts  bool // as far as the author of the post is concerned
}

func foundThrough(ctx context.Context, tx pgx.Tx) (map[shareKey]throughRow, error) {
	found := map[shareKey]throughRow{}
	rows, err := tx.Query(ctx, `
SELECT s.collection, s.did, s.rkey, 'https://' || l.identity, s.how, s.shared_at, s.subject_did, s.subject_rkey,
    coalesce(a.status, 'active') = 'active'
FROM shares AS s
JOIN links AS l ON l.id = s.named_id
LEFT JOIN accounts AS a ON a.did = s.subject_did
WHERE s.subject_did IS NOT NULL AND`+living)
	if err != nil {
		return nil, fmt.Errorf("read the shares through posts: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var k shareKey
		var r throughRow
		if err := rows.Scan(&k.collection, &k.did, &k.rkey, &k.url, &r.how, &r.at, &r.through, &r.subject.rkey, &r.counts); err != nil {
			return nil, fmt.Errorf("read the shares through posts: %w", err)
		}
		r.subject.collection, r.subject.did = schema.PostCollection, r.through
		found[k] = r
	}
	return found, rows.Err()
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

// compareShares requires the shares of accounts that are shown. Of other accounts
// it allows any share that ever existed.
func (tr followedOracle) compareShares(ctx context.Context, tx pgx.Tx, want map[shareKey]shareRow) ([]string, error) {
	const sql = `
SELECT s.collection, s.did, s.rkey, coalesce('https://' || l.identity, 'link ' || s.named_id), s.how, s.shared_at,` + claimed + `
FROM shares AS s
LEFT JOIN links AS l ON l.id = s.named_id
LEFT JOIN claims AS c ON c.id = s.claim_id
WHERE` + living
	return compareTable(ctx, tx, "shares", want, sql, func(rows pgx.Rows) (k shareKey, r shareRow, err error) {
		err = rows.Scan(&k.collection, &k.did, &k.rkey, &k.url, &r.how, &r.at, &r.claim.URL, &r.claim.Title, &r.claim.Description,
			&r.claim.Picture)
		if !tr.shown(k.did) && tr.shared[k] {
			want[k] = r
		}
		return k, r, err
	})
}

// compareTombstones refuses tombstones of records that were never deleted. A
// record that was deleted in a hole may have none.
func (tr followedOracle) compareTombstones(ctx context.Context, tx pgx.Tx) (problems []string, err error) {
	lines, err := tr.oracle.compareTombstones(ctx, tx)
	for _, line := range lines {
		if _, _, invented := strings.Cut(line, ": expected no row, found"); invented {
			problems = append(problems, line)
		}
	}
	return problems, err
}

// compareMembers compares the followed accounts.
func (tr followedOracle) compareMembers(ctx context.Context, tx pgx.Tx) ([]string, error) {
	found, err := describe(ctx, tx, "watch_members", `SELECT DISTINCT did FROM watch_members`)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, did := range found {
		if _, ok := tr.since[did]; !ok {
			lines = append(lines, "watch_members: "+did+": expected no row, found one")
		}
	}
	for _, did := range slices.Sorted(maps.Keys(tr.since)) {
		if tr.shown(did) && !slices.Contains(found, did) {
			lines = append(lines, "watch_members: "+did+": expected one, found no row")
		}
	}
	return lines, nil
}

// compareStatuses compares which of the followed accounts are shown.
func (tr followedOracle) compareStatuses(ctx context.Context, tx pgx.Tx) ([]string, error) {
	const sql = `
		SELECT w.did || ' ' || coalesce(a.status, 'active') FROM (SELECT DISTINCT did FROM watch_members) AS w
		LEFT JOIN accounts AS a USING (did)`
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

// compareFollowed compares the tables with the oracle of the followed accounts.
func (c *chaos) compareFollowed(ctx context.Context, tx pgx.Tx, end time.Time) (problems []string, posts, shares int, err error) {
	since := map[string]time.Time{}
	for _, did := range c.followed() {
		since[did] = c.began.Add(-24 * time.Hour) // WEIR_BACKFILL_WINDOW; no post is older here
	}
	tr := foldFollowed(c.net.Log().Entries(), since)
	tr.deadLettersExpected, tr.doubts, tr.merged, tr.keysGone = c.deadLetters(), c.doubts, c.merged, c.relay
	_, unexpected, err := c.compared(ctx, tx)
	if err != nil {
		return nil, 0, 0, err
	}
	problems, ranked, err := tr.differences(ctx, tx)
	if err != nil {
		return nil, 0, 0, err
	}
	problems = append(problems, unexpected...)
	c.explainShares(ctx, tx, tr.oracle, problems)
	for key := range tr.records {
		if tr.shown(key.did) {
			posts++
		}
	}
	return append(problems, c.rankingProblems(ranked, end)...), posts, len(ranked.shares), nil
}
