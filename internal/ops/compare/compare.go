// Package compare compares the contents of two Weir databases, such as a running one and
// one that was rebuilt from the archive. It compares named columns of named tables, row by
// row, and reports which tables and columns it leaves out, and why.
package compare

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Difference is a row that differs between the two databases.
type Difference struct {
	Table   string
	Key     []string // the values of the key's columns
	Only    string   // "first" or "second": the only database with the row; empty: both have it
	Columns []string // the columns that differ
}

// String returns the difference in one line.
func (d Difference) String() string {
	what := "only in the " + d.Only + " database"
	if d.Only == "" {
		what = "differs in " + strings.Join(d.Columns, ", ")
	}
	return fmt.Sprintf("%s %s: %s", d.Table, strings.Join(d.Key, " "), what)
}

// Result is the number of rows of a table.
type Result struct {
	Table         string
	First, Second int64
	Different     int64
}

// Databases compares each table in one snapshot of each database. It calls report for
// every difference.
func Databases(ctx context.Context, first, second *pgxpool.Pool, tables []Table, report func(Difference)) (results []Result, err error) {
	readOnly := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, first, readOnly, func(a pgx.Tx) error {
		return pgx.BeginTxFunc(ctx, second, readOnly, func(b pgx.Tx) error {
			for _, tx := range []pgx.Tx{a, b} {
				if _, err := tx.Exec(ctx, `
SELECT set_config('TimeZone', 'UTC', true), set_config('idle_in_transaction_session_timeout', '0', true)`); err != nil {
					return fmt.Errorf("prepare the comparison: %w", err)
				}
			}
			for _, t := range tables {
				r, err := t.compare(ctx, a, b, report)
				if err != nil {
					return fmt.Errorf("compare %s: %w", t.Name, err)
				}
				results = append(results, r)
			}
			return nil
		})
	})
	return results, err
}

// row is a row of a table: its key, by which rows are sorted, and its columns.
type row struct {
	key    string
	values string
}

// query returns the rows of the table, sorted by their keys.
func (t Table) query() string {
	from := t.From
	if from == "" {
		from = "SELECT * FROM " + t.Name
	}
	quoted := func(names []string) string {
		all := make([]string, len(names))
		for i, name := range names {
			all[i] = pgx.Identifier{name}.Sanitize()
		}
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf(`
SELECT jsonb_build_array(%s)::text COLLATE "C" AS key, jsonb_build_array(%s)::text AS vals
FROM (%s) AS t
ORDER BY 1`, quoted(t.Key), quoted(t.Columns), from)
}

// cursor reads one row after another.
type cursor struct {
	rows pgx.Rows
	row
	more bool
	read int64
}

func open(ctx context.Context, tx pgx.Tx, sql string) (*cursor, error) {
	rows, err := tx.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	c := &cursor{rows: rows}
	return c, c.next()
}

func (c *cursor) next() error {
	if c.more = c.rows.Next(); !c.more {
		return c.rows.Err()
	}
	c.read++
	return c.rows.Scan(&c.key, &c.values)
}

// compare reads both databases in parallel, in key order.
func (t Table) compare(ctx context.Context, first, second pgx.Tx, report func(Difference)) (r Result, err error) {
	a, err := open(ctx, first, t.query())
	if err != nil {
		return r, err
	}
	defer a.rows.Close()
	b, err := open(ctx, second, t.query())
	if err != nil {
		return r, err
	}
	defer b.rows.Close()
	r.Table = t.Name
	for a.more || b.more {
		d, both := t.difference(a, b)
		if d.Table != "" {
			r.Different++
			report(d)
		}
		if both || d.Only == "first" {
			err = a.next()
		}
		if err == nil && (both || d.Only == "second") {
			err = b.next()
		}
		if err != nil {
			return r, err
		}
	}
	r.First, r.Second = a.read, b.read
	return r, nil
}

// difference compares the current rows. both is true if they have the same key. The Table
// of d is empty if they are equal.
func (t Table) difference(a, b *cursor) (d Difference, both bool) {
	switch {
	case !b.more || a.more && a.key < b.key:
		return Difference{Table: t.Name, Key: texts(a.key), Only: "first"}, false
	case !a.more || b.key < a.key:
		return Difference{Table: t.Name, Key: texts(b.key), Only: "second"}, false
	case a.values == b.values:
		return Difference{}, true
	}
	d = Difference{Table: t.Name, Key: texts(a.key)}
	x, y := texts(a.values), texts(b.values)
	for i, name := range t.Columns {
		if !slices.Equal(x[i:i+1], y[i:i+1]) {
			d.Columns = append(d.Columns, name)
		}
	}
	return d, true
}

// texts returns the elements of a JSON array from Postgres as texts.
func texts(array string) []string {
	var elements []json.RawMessage
	if json.Unmarshal([]byte(array), &elements) != nil {
		return []string{array}
	}
	all := make([]string, len(elements))
	for i, e := range elements {
		all[i] = string(e)
		var text string
		if json.Unmarshal(e, &text) == nil && len(e) > 0 && e[0] == '"' {
			all[i] = text
		}
	}
	return all
}
