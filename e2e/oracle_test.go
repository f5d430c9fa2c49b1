package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/internal/testing/simnet"
)

// oracle is what the tables must hold after a log of the simulated network. It
// shares no code with Weir: the rules are written here a second time, from the
// comments of the migrations.
type oracle struct {
	records    map[recordKey]recordRow
	tombstones map[recordKey]tombstoneRow
	accounts   map[accountKey]accountRow
	shares     map[shareKey]shareRow
	everShared map[string]bool   // the URLs of every revision, deleted ones too
	merged     map[string]string // the URL of the link into which another one is merged

	deadLettersExpected int // rows of dead_letters
	gapsExpected        int // rows of gaps, closed ones included

	doubts   []string // accounts with refused commits: their dead letters are not counted
	restored comparisons
	ahead    bool                    // count shares dated after the end of a window, as if the window ended now
	renamed  map[accountKey][]string // handles that no stored event announced after the account's last one; its profile has them
	keysGone bool                    // commits of deleted accounts may never have been verified, so their deletions are not required
}

// ranked is one line of the ranking.
type ranked struct {
	URL     string
	Sharers int // distinct accounts
}

// fold reads a log, which holds every event once and in order. It stores records of the given
// collections, by default posts and reposts, and the handles and statuses of all accounts.
func fold(entries []*simnet.Entry, collections ...string) oracle {
	if len(collections) == 0 {
		collections = []string{"app.bsky.feed.post", "app.bsky.feed.repost"}
	}
	tr := oracle{
		records:    map[recordKey]recordRow{},
		tombstones: map[recordKey]tombstoneRow{},
		accounts:   map[accountKey]accountRow{},
		shares:     map[shareKey]shareRow{},
		everShared: map[string]bool{},
	}
	for _, e := range entries {
		switch e.Kind {
		case "commit":
			if slices.Contains(collections, e.Collection) {
				tr.commit(e)
			}
		case "account", "identity":
			tr.account(e)
		case "sync", "forged": // these store nothing
		default:
			panic(fmt.Sprintf("entry %d has the kind %q, which the oracle does not know", e.Seq, e.Kind))
		}
	}
	tr.strangers(entries)
	tr.share(tr.records)
	return tr
}

func (tr oracle) commit(e *simnet.Entry) {
	key := recordKey{e.Collection, e.DID, e.Rkey}
	switch e.Operation {
	case "create", "update":
		at := e.CreatedAt // claimed by the author, at most the time of the event
		if event := time.UnixMicro(e.TimeUS); at.After(event) {
			at = event
		}
		tr.records[key] = recordRow{
			rev: e.Rev, cid: e.CID, createdAt: at.Truncate(time.Microsecond), record: e.Record, links: e.Links, claims: e.Claims,
		}
		for _, url := range e.Links {
			tr.everShared[url] = true
		}
	case "delete":
		delete(tr.records, key)
		tr.tombstones[key] = tombstoneRow{e.Rev} // the tombstone is kept if the record returns
	default:
		panic(fmt.Sprintf("entry %d has the operation %q, which the oracle does not know", e.Seq, e.Operation))
	}
}

func (tr oracle) account(e *simnet.Entry) {
	row, ok := tr.accounts[accountKey(e.DID)]
	if !ok {
		row.status = "active"
	}
	switch {
	case e.Kind == "identity":
		row.handle = cmp.Or(e.Handle, row.handle)
	case e.Active:
		row.status = "active"
	default:
		row.status = cmp.Or(e.Status, "inactive")
	}
	tr.accounts[accountKey(e.DID)] = row
}

// strangers marks the accounts that had written no record that is still stored
// when they last announced their handle.
func (tr oracle) strangers(entries []*simnet.Entry) {
	stored, known := map[recordKey]bool{}, map[accountKey]bool{}
	wrote := map[accountKey]int{} // records that still exist at the end
	for _, e := range entries {
		key := recordKey{e.Collection, e.DID, e.Rkey}
		if _, ok := tr.records[key]; ok && e.Kind == "commit" && e.Collection == "app.bsky.feed.post" {
			switch {
			case e.Operation == "delete":
				wrote[accountKey(e.DID)] -= map[bool]int{true: 1}[stored[key]]
				stored[key] = false
			case !stored[key]:
				wrote[accountKey(e.DID)]++
				stored[key] = true
			}
		}
		if e.Kind == "identity" && wrote[accountKey(e.DID)] > 0 {
			known[accountKey(e.DID)] = true
		}
	}
	for did, row := range tr.accounts {
		row.stranger = !known[did]
		tr.accounts[did] = row
	}
}

// problems compares the database with the oracle, including the rankings at end. It returns about
// twenty differences at most. The error means that the database could not be read.
func (tr oracle) problems(ctx context.Context, pool *pgxpool.Pool, end time.Time) ([]string, error) {
	var problems []string
	// In one snapshot, concurrent writes of a worker cannot look like a difference
	// between two tables.
	readOnly := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, pool, readOnly, func(tx pgx.Tx) (err error) {
		problems, err = tr.compare(ctx, tx, end)
		return err
	})
	return problems, err
}

func (tr oracle) compare(ctx context.Context, tx pgx.Tx, end time.Time) ([]string, error) {
	found, err := tr.differences(ctx, tx, end)
	return shorten(found), err
}

// compareAll returns every difference.
func (tr oracle) compareAll(ctx context.Context, tx pgx.Tx, end time.Time) ([]string, error) {
	found, err := tr.differences(ctx, tx, end)
	return slices.Concat(found...), err
}

// differences returns the differences of each table that has any.
func (tr oracle) differences(ctx context.Context, tx pgx.Tx, end time.Time) (found [][]string, err error) {
	checks := []func(context.Context, pgx.Tx) ([]string, error){
		tr.compareRecords, tr.compareTombstones, tr.compareAccounts, tr.compareShares, tr.compareLinks,
		func(ctx context.Context, tx pgx.Tx) ([]string, error) { return tr.compareRankings(ctx, tx, end) },
		unfinishedJobs, tr.compareDeadLetters, tr.compareGaps,
	}
	for _, check := range checks {
		lines, err := check(ctx, tx)
		if err != nil {
			return nil, err
		}
		if len(lines) > 0 {
			found = append(found, lines)
		}
	}
	return found, nil
}

// shorten allots about twenty lines to the tables in equal parts, so that a table with many
// differences hides no other.
func shorten(found [][]string) []string {
	var all []string
	for _, lines := range found {
		if most := 20 / len(found); len(lines) > most {
			more := len(lines) - most
			lines = lines[:most]
			lines[most-1] += fmt.Sprintf(" (and %d more like it)", more)
		}
		all = append(all, lines...)
	}
	return all
}

func (tr oracle) compareRecords(ctx context.Context, tx pgx.Tx) ([]string, error) {
	const sql = `SELECT collection, did, rkey, rev, cid, created_at, record::text FROM records`
	want := maps.Clone(tr.records)
	maps.DeleteFunc(want, func(k recordKey, _ recordRow) bool { return tr.gone(k.did) })
	return compareTable(ctx, tx, "records", want, sql, func(rows pgx.Rows) (k recordKey, r recordRow, err error) {
		err = rows.Scan(&k.collection, &k.did, &k.rkey, &r.rev, &r.cid, &r.createdAt, &r.record)
		_, kept := tr.records[k]
		// An edit in the batch that deleted the account was never stored. Nor was a
		// deletion whose signature can no longer be verified.
		if tr.gone(k.did) && (kept || tr.keysGone && tr.tombstones[k].rev > r.rev) {
			want[k] = r
		}
		return k, r, err
	})
}

// gone reports whether an account is deleted at the end. Its records stay until the purge, except
// those of the batch that deleted it: they were never stored.
func (tr oracle) gone(did string) bool { return tr.accounts[accountKey(did)].status == "deleted" }

// allow expects an optional row that was found.
func allow[K comparable, R any](want, all map[K]R, key K) {
	if r, ok := all[key]; ok {
		want[key] = r
	}
}

func (tr oracle) compareTombstones(ctx context.Context, tx pgx.Tx) ([]string, error) {
	const sql = `SELECT collection, did, rkey, rev FROM tombstones`
	want := maps.Clone(tr.tombstones)
	maps.DeleteFunc(want, func(k recordKey, r tombstoneRow) bool {
		return tr.keysGone && tr.gone(k.did) || tr.restored.optional[k] == r.rev
	})
	return compareTable(ctx, tx, "tombstones", want, sql, func(rows pgx.Rows) (k recordKey, r tombstoneRow, err error) {
		err = rows.Scan(&k.collection, &k.did, &k.rkey, &r.rev)
		allow(want, tr.tombstones, k)
		if tr.restored.wrote(k.did, want[k].rev, r.rev) {
			want[k] = r
		}
		return k, r, err
	})
}

func (tr oracle) compareAccounts(ctx context.Context, tx pgx.Tx) ([]string, error) {
	const sql = `
SELECT a.did, coalesce(a.handle, ''), a.status, p.did IS NOT NULL FROM accounts AS a LEFT JOIN profiles AS p ON p.did = a.did`
	want := maps.Clone(tr.accounts)
	maps.DeleteFunc(want, func(_ accountKey, r accountRow) bool { return r.stranger && r.status == "active" })
	return compareTable(ctx, tx, "accounts", want, sql, func(rows pgx.Rows) (k accountKey, r accountRow, err error) {
		var named bool // it has a profile: its names are read when the page shows it
		err = rows.Scan(&k, &r.handle, &r.status, &named)
		allow(want, tr.accounts, k)
		if expected := want[k]; named && (expected.handle == "" || slices.Contains(tr.renamed[k], r.handle)) {
			want[k] = accountRow{handle: r.handle, status: cmp.Or(expected.status, "active"), stranger: expected.stranger}
		}
		return k, r, err
	})
}

func (tr oracle) compareShares(ctx context.Context, tx pgx.Tx) ([]string, error) {
	const sql = `
SELECT s.collection, s.did, s.rkey, coalesce('https://' || l.identity, 'link ' || s.named_id), s.how, s.shared_at,
    coalesce(s.subject_did, ''),` + claimed + `
FROM shares AS s
LEFT JOIN links AS l ON l.id = s.named_id
LEFT JOIN claims AS c ON c.id = s.claim_id
WHERE` + living
	want := maps.Clone(tr.shares)
	maps.DeleteFunc(want, func(k shareKey, s shareRow) bool { return tr.gone(k.did) || tr.gone(s.through) })
	return compareTable(ctx, tx, "shares", want, sql, func(rows pgx.Rows) (k shareKey, r shareRow, err error) {
		err = rows.Scan(&k.collection, &k.did, &k.rkey, &k.url, &r.how, &r.at, &r.through, &r.claim.URL, &r.claim.Title, &r.claim.Description,
			&r.claim.Picture)
		if (tr.gone(k.did) || tr.gone(r.through)) && tr.everShared[k.url] {
			want[k] = r
		}
		return k, r, err
	})
}

// compareLinks requires a link for every share. A link may outlive its last share. It has no row if
// the post was deleted before it was processed.
func (tr oracle) compareLinks(ctx context.Context, tx pgx.Tx) ([]string, error) {
	want := map[linkKey]linkRow{}
	for key, s := range tr.shares {
		if !tr.gone(key.did) && !tr.gone(s.through) {
			want[linkKey(key.url)] = linkRow{}
		}
	}
	const sql = `SELECT 'https://' || identity FROM links`
	return compareTable(ctx, tx, "links", want, sql, func(rows pgx.Rows) (k linkKey, r linkRow, err error) {
		err = rows.Scan(&k)
		if tr.everShared[string(k)] {
			want[k] = r // optional
		}
		return k, r, err
	})
}

// unfinishedJobs lists the jobs that are not completed, including discarded ones.
func unfinishedJobs(ctx context.Context, tx pgx.Tx) ([]string, error) {
	const sql = `
SELECT 'queue: job ' || id || ': expected completed, found ' || state || ' after ' || attempt || ' attempts'
       || coalesce(': ' || (errors[array_length(errors, 1)] ->> 'error'), '')
FROM river_job
WHERE kind = 'process_posts' AND state <> 'completed'
ORDER BY id`
	return describe(ctx, tx, "river_job", sql)
}

func (tr oracle) compareDeadLetters(ctx context.Context, tx pgx.Tx) ([]string, error) {
	const sql = `
SELECT concat_ws(' ', stage, class, state, concat_ws('/', collection, did, rkey), cause, nullif(path, ''))
FROM dead_letters
WHERE NOT (stage = 'verify' AND class = 'retryable' AND state = 'retried')
  AND NOT (coalesce(did, '') = ANY (coalesce($1::text[], '{}')) AND (stage = 'verify' AND state = 'dismissed' OR stage = 'decode'))
  -- it waited for a key, and its record or its account was deleted meanwhile
  AND NOT (stage = 'verify' AND state = 'dismissed' AND (raw_bytes = 0 OR did = ANY ($2)))
ORDER BY id`
	gone := []string{}
	for key, account := range tr.accounts {
		if tr.keysGone && account.status == "deleted" {
			gone = append(gone, string(key))
		}
	}
	return compareCount(ctx, tx, "dead_letters", tr.deadLettersExpected, sql, tr.doubts, gone)
}

func (tr oracle) compareGaps(ctx context.Context, tx pgx.Tx) ([]string, error) {
	const sql = `SELECT concat_ws(' ', stream, from_at, to_at, reason) FROM gaps ORDER BY id`
	return compareCount(ctx, tx, "gaps", tr.gapsExpected, sql)
}

// compareCount requires a number of rows, whatever they hold.
func compareCount(ctx context.Context, tx pgx.Tx, table string, want int, sql string, args ...any) ([]string, error) {
	rows, err := describe(ctx, tx, table, sql, args...)
	if err != nil || len(rows) == want {
		return nil, err
	}
	return []string{fmt.Sprintf("%s: rows: expected %d, found %d, such as %.500q", table, want, len(rows), rows[:min(len(rows), 3)])}, nil
}

// describe reads rows of one text column.
func describe(ctx context.Context, tx pgx.Tx, table, sql string, args ...any) ([]string, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", table, err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", table, err)
	}
	return lines, nil
}
