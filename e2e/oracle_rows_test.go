package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/testing/simnet"
)

type (
	recordKey  struct{ collection, did, rkey string }
	accountKey string // a DID
	linkKey    string // the canonical URL of a page, as in the network's log
	shareKey   struct {
		recordKey
		url string // the page's canonical URL
	}
)

type recordRow struct {
	rev, cid  string
	createdAt time.Time
	record    []byte         // JSON
	links     []string       // known to the oracle only
	claims    []simnet.Claim // claims about these links
}

type tombstoneRow struct{ rev string }

type accountRow struct {
	handle string // "" if unknown
	status string

	// stranger means that, as far as the log shows, no record of the account
	// was stored when it last announced its handle. Whether it has a row with a
	// handle depends on how the events were batched.
	stranger bool
}

type shareRow struct {
	how     string
	at      time.Time
	claim   simnet.Claim
	through string // the author of the post that is reposted or quoted; not compared
}

type linkRow struct{} // a link has only its key

// row is what a table must hold under a key. unlike returns its differences from
// the row that was found.
type row[R any] interface{ unlike(found R) []string }

// compareTable reads a table and returns its differences from want, sorted.
func compareTable[K comparable, R row[R]](
	ctx context.Context, tx pgx.Tx, table string, want map[K]R, sql string, scan func(pgx.Rows) (K, R, error),
) ([]string, error) {
	rows, err := tx.Query(ctx, sql)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", table, err)
	}
	defer rows.Close()
	var lines []string
	seen := make(map[K]bool, len(want))
	for rows.Next() {
		key, found, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", table, err)
		}
		expected, ok := want[key]
		switch {
		case seen[key]:
			lines = append(lines, fmt.Sprintf("%s: %v: expected one row, found another", table, key))
		case !ok:
			lines = append(lines, fmt.Sprintf("%s: %v: expected no row, found %v", table, key, found))
		default:
			for _, difference := range expected.unlike(found) {
				lines = append(lines, fmt.Sprintf("%s: %v: %s", table, key, difference))
			}
		}
		seen[key] = true
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", table, err)
	}
	for key, expected := range want {
		if !seen[key] {
			lines = append(lines, fmt.Sprintf("%s: %v: expected %v, found no row", table, key, expected))
		}
	}
	slices.Sort(lines)
	return lines, nil
}

func (k recordKey) String() string { return k.collection + "/" + k.did + "/" + k.rkey }
func (k shareKey) String() string  { return k.recordKey.String() + " of " + k.url }

func (r recordRow) String() string {
	return fmt.Sprintf("rev %s, cid %s, created_at %s, %.200s", r.rev, r.cid, r.createdAt.UTC().Format(time.RFC3339Nano), r.record)
}
func (r tombstoneRow) String() string { return "rev " + r.rev }
func (r accountRow) String() string   { return fmt.Sprintf("handle %q, status %s", r.handle, r.status) }
func (r shareRow) String() string {
	return fmt.Sprintf("how %s, shared_at %s", r.how, r.at.UTC().Format(time.RFC3339Nano))
}
func (r linkRow) String() string { return "a row" }

func (r recordRow) unlike(found recordRow) []string {
	return slices.Concat(unequal("rev", r.rev, found.rev), unequal("cid", r.cid, found.cid),
		unequalTime("created_at", r.createdAt, found.createdAt), unequalJSON(r.record, found.record))
}
func (r tombstoneRow) unlike(found tombstoneRow) []string { return unequal("rev", r.rev, found.rev) }
func (r accountRow) unlike(found accountRow) []string {
	if (r.stranger || r.status == "deleted") && found.handle == "" {
		r.handle = "" // the handle may precede the account's row, and the purge clears the profile
	}
	return append(unequal("handle", r.handle, found.handle), unequal("status", r.status, found.status)...)
}
func (r shareRow) unlike(found shareRow) []string {
	return slices.Concat(unequal("how", r.how, found.how), unequalTime("shared_at", r.at, found.at),
		unequal("claim", fmt.Sprint(r.claim), fmt.Sprint(found.claim)))
}
func (linkRow) unlike(linkRow) []string { return nil }

func unequal(column, expected, found string) []string {
	if expected == found {
		return nil
	}
	return []string{fmt.Sprintf("%s: expected %q, found %q", column, expected, found)}
}

func unequalTime(column string, expected, found time.Time) []string {
	return unequal(column, expected.UTC().Format(time.RFC3339Nano), found.UTC().Format(time.RFC3339Nano))
}

// unequalJSON names the fields in which two records differ in meaning.
func unequalJSON(expected, found []byte) (lines []string) {
	a, b := fields(expected), fields(found)
	names := maps.Clone(a)
	maps.Copy(names, b)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !reflect.DeepEqual(meaning(a[name]), meaning(b[name])) {
			lines = append(lines, fmt.Sprintf("record.%s: expected %.200s, found %.200s", name,
				cmp.Or(string(a[name]), "none"), cmp.Or(string(b[name]), "none")))
		}
	}
	return lines
}

// fields returns the fields of an object; any other value is one nameless field.
func fields(object []byte) map[string]json.RawMessage {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(object, &all); err != nil || all == nil {
		return map[string]json.RawMessage{"": object}
	}
	return all
}

// meaning returns a JSON value independent of its spelling, or nil if there is
// none.
func meaning(value json.RawMessage) any {
	if value == nil {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		return "not JSON: " + string(value)
	}
	return []any{exact(v)} // null differs from a missing value
}

// exact replaces numbers with a form in which 1.0 equals 1.
func exact(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, ok := new(big.Rat).SetString(v.String()); ok {
			return json.Number(n.RatString()) // a type that equals no string
		}
		return v
	case []any:
		for i := range v {
			v[i] = exact(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = exact(v[k])
		}
	}
	return v
}
