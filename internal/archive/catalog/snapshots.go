package catalog

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/schema"
)

// StreamSnapshots is the stream of the archive that holds what no event says: which
// accounts Weir follows, what listings said of them, and what features add.
const StreamSnapshots = "snapshots"

// WireSnapshot is the format of that stream's records: parts of snapshots.
const WireSnapshot = "snapshot"

// SnapshotPart is a part of a snapshot of one table. A snapshot is valid once its last
// part is archived.
type SnapshotPart struct {
	Table string            `json:"table"`
	Part  int               `json:"part"` // from 0
	Last  bool              `json:"last"`
	Rows  []json.RawMessage `json:"rows"`
}

// ParseSnapshotPart reads a record of a snapshot.
func ParseSnapshotPart(record []byte) (SnapshotPart, error) {
	var p SnapshotPart
	if err := json.Unmarshal(record, &p); err != nil {
		return p, errors.Join(archive.ErrCorrupt, err)
	}
	if p.Table == "" || p.Part < 0 {
		return p, fmt.Errorf("%w: a part of a snapshot names no table", archive.ErrCorrupt)
	}
	return p, nil
}

// The core tables that are archived as snapshots and that others name.
const (
	SnapshotOfAccounts = "accounts"
	snapshotMembers    = "watch_members"
)

// coreTable is a core table that is archived as snapshots.
type coreTable struct {
	name    string
	read    string // the query of its rows, of one jsonb each
	restore string // of the rows in $1, in order
}

// coreTables returns the core tables, in the order in which they are restored.
func coreTables() []coreTable {
	return []coreTable{
		{"watches", `
SELECT to_jsonb(w) FROM (SELECT id, target, kind, at_least, added_at, synced_at FROM watches ORDER BY id) AS w`, `
INSERT INTO watches (id, target, kind, at_least, added_at, synced_at) OVERRIDING SYSTEM VALUE
SELECT id, target, kind, at_least, added_at, synced_at FROM jsonb_populate_recordset(NULL::watches, $1)
ON CONFLICT DO NOTHING`},
		{snapshotMembers, `
SELECT to_jsonb(m) FROM (SELECT watch_id, did, added_at FROM watch_members ORDER BY did, watch_id) AS m`, `
INSERT INTO watch_members (watch_id, did, added_at)
SELECT m.watch_id, m.did, m.added_at FROM jsonb_populate_recordset(NULL::watch_members, $1) AS m
WHERE EXISTS (SELECT FROM watches AS w WHERE w.id = m.watch_id)
ON CONFLICT DO NOTHING`},
		{"purge_queue", `
SELECT to_jsonb(p) FROM (SELECT did, queued_at FROM purge_queue ORDER BY did) AS p`, `
INSERT INTO purge_queue (did, queued_at) SELECT did, queued_at FROM jsonb_populate_recordset(NULL::purge_queue, $1)
ON CONFLICT DO NOTHING`},
		{SnapshotOfAccounts, `
SELECT to_jsonb(k) FROM (
    SELECT a.did, a.handle, a.handle_at, a.display_name, a.avatar, a.status, a.status_at, a.hidden_at FROM accounts AS a
    WHERE a.display_name IS NOT NULL OR a.avatar IS NOT NULL OR a.status = 'hidden'
        OR EXISTS (SELECT FROM watch_members AS w WHERE w.did = a.did)
    ORDER BY a.did
) AS k`, `
INSERT INTO accounts AS a (did, handle, handle_at, handle_unverified, display_name, avatar, status, status_at, hidden_at)
SELECT s.did, s.handle, s.handle_at, s.handle IS NOT NULL AND s.did NOT LIKE ` + schema.NostrDIDs + `, s.display_name, s.avatar, s.status,
    s.status_at, s.hidden_at FROM jsonb_populate_recordset(NULL::accounts, $1) AS s
ON CONFLICT (did) DO UPDATE
SET handle       = CASE WHEN a.erased_rev IS NULL
    AND coalesce(excluded.handle_at, '-infinity') >= coalesce(a.handle_at, '-infinity') THEN excluded.handle ELSE a.handle END,
    handle_at    = greatest(a.handle_at, excluded.handle_at),
    handle_unverified = a.handle_unverified OR excluded.handle_unverified,
    display_name = CASE WHEN a.erased_rev IS NULL THEN excluded.display_name ELSE a.display_name END,
    avatar       = CASE WHEN a.erased_rev IS NULL THEN excluded.avatar ELSE a.avatar END,
    status       = CASE WHEN coalesce(excluded.status_at, '-infinity') >= coalesce(a.status_at, '-infinity') THEN excluded.status
                        WHEN a.status = 'active' AND excluded.hidden_at >= a.status_at THEN 'hidden' ELSE a.status END,
    status_at    = greatest(a.status_at, excluded.status_at),
    hidden_at    = excluded.hidden_at`},
	}
}

// Sizes of a part of a snapshot, and of the row of archive_open that holds parts.
const (
	snapshotPartRows = 1000
	snapshotRowBytes = 4 << 20
)

// ArchiveSnapshots adds to the archive the core tables, and those of features, that have
// changed since their last snapshot, all of them at one moment. It returns how many.
func ArchiveSnapshots(ctx context.Context, pool *pgxpool.Pool, features ...schema.SnapshotTable) (changed int, err error) {
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		for _, table := range snapshotTables(features) {
			s, err := takeSnapshot(ctx, tx, table)
			if err != nil {
				return err
			}
			const remember = `
INSERT INTO archive_snapshots AS s (name, content, archived_at) VALUES ($1, $2, now())
ON CONFLICT (name) DO UPDATE SET content = excluded.content, archived_at = excluded.archived_at WHERE s.content <> excluded.content`
			done, err := tx.Exec(ctx, remember, table.Name, s.content())
			if err != nil {
				return fmt.Errorf("remember the snapshot of %s: %w", table.Name, err)
			}
			if done.RowsAffected() == 0 {
				continue
			}
			changed++
			if err := s.store(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	})
	return changed, err
}

// snapshotTables returns the core tables and those of features.
func snapshotTables(features []schema.SnapshotTable) (all []schema.SnapshotTable) {
	for _, t := range coreTables() {
		all = append(all, schema.SnapshotTable{Name: t.name, Read: t.read})
	}
	return append(all, features...)
}

// snapshot is the content of a table, as rows of archive_open.
type snapshot struct {
	table string
	rows  []packedRow
	raw   []byte // content of the row that is not full
	parts int
	inRow int // parts in raw
	hash  [sha256.Size]byte
}

type packedRow struct {
	blob         []byte
	records, raw int
}

func (s *snapshot) content() string { return hex.EncodeToString(s.hash[:]) }

// takeSnapshot reads a table.
func takeSnapshot(ctx context.Context, tx pgx.Tx, table schema.SnapshotTable) (*snapshot, error) {
	s := &snapshot{table: table.Name}
	rows, err := tx.Query(ctx, table.Read)
	if err != nil {
		return nil, fmt.Errorf("take a snapshot of %s: %w", table.Name, err)
	}
	defer rows.Close()
	hash := sha256.New()
	var part []json.RawMessage
	for rows.Next() {
		raw := rows.RawValues()[0]
		if len(raw) > 0 && raw[0] == 1 { // the binary form of jsonb begins with a version byte
			raw = raw[1:]
		}
		row := json.RawMessage(bytes.Clone(raw))
		hash.Write(row)          // never fails
		hash.Write([]byte{'\n'}) // likewise
		if part = append(part, row); len(part) == snapshotPartRows {
			if err := s.add(part, false); err != nil {
				return nil, err
			}
			part = part[:0]
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("take a snapshot of %s: %w", table.Name, err)
	}
	hash.Sum(s.hash[:0])
	return s, s.add(part, true)
}

// add adds a part.
func (s *snapshot) add(rows []json.RawMessage, last bool) error {
	if rows == nil {
		rows = []json.RawMessage{}
	}
	record, err := json.Marshal(SnapshotPart{Table: s.table, Part: s.parts, Last: last, Rows: rows})
	if err != nil {
		return fmt.Errorf("encode a snapshot of %s: %w", s.table, err)
	}
	s.parts++
	s.inRow++
	if s.raw = archive.AppendRecord(s.raw, record); last || len(s.raw) >= snapshotRowBytes {
		s.rows = append(s.rows, packedRow{blob: archive.PackRow(s.raw), records: s.inRow, raw: len(s.raw)})
		s.raw, s.inRow = s.raw[:0], 0
	}
	return nil
}

func (s *snapshot) store(ctx context.Context, tx pgx.Tx) error {
	for _, r := range s.rows {
		if err := insertOpenRow(ctx, tx, StreamSnapshots, r.records, &Row{Wire: WireSnapshot, blob: r.blob, raw: r.raw}); err != nil {
			return err
		}
	}
	return nil
}

// Snapshots collects the last whole snapshot of each table from the archive's records.
type Snapshots struct {
	whole map[string][]json.RawMessage
	begun map[string][]json.RawMessage
	next  map[string]int // the number of the next part
	ever  map[string]bool
}

// Add adds a record.
func (s *Snapshots) Add(record []byte) error {
	p, err := ParseSnapshotPart(record)
	if err != nil {
		return err
	}
	if s.whole == nil {
		s.whole, s.begun, s.next, s.ever = map[string][]json.RawMessage{}, map[string][]json.RawMessage{}, map[string]int{}, map[string]bool{}
	}
	if p.Part == 0 {
		s.begun[p.Table], s.next[p.Table] = nil, 0
	}
	if p.Part != s.next[p.Table] {
		return fmt.Errorf("%w: part %d of a snapshot of %s comes after part %d", archive.ErrCorrupt, p.Part, p.Table, s.next[p.Table]-1)
	}
	s.next[p.Table]++
	s.begun[p.Table] = append(s.begun[p.Table], p.Rows...)
	if p.Last {
		s.whole[p.Table] = s.begun[p.Table]
		delete(s.begun, p.Table)
	}
	if p.Table == snapshotMembers {
		return s.remember(p.Rows)
	}
	return nil
}

// remember adds the members of watches to the accounts that were ever followed.
func (s *Snapshots) remember(rows []json.RawMessage) error {
	for _, row := range rows {
		var m struct {
			DID string `json:"did"`
		}
		if err := json.Unmarshal(row, &m); err != nil {
			return errors.Join(archive.ErrCorrupt, err)
		}
		s.ever[m.DID] = true
	}
	return nil
}

// Rows returns the rows of a table in its last whole snapshot.
func (s *Snapshots) Rows(table string) []json.RawMessage { return s.whole[table] }

// FollowsEveryone reports whether the whole network is followed.
func (s *Snapshots) FollowsEveryone() bool { return len(s.whole["watches"]) == 0 }

// EverFollowed reports whether an account was a member of a watch in any snapshot.
func (s *Snapshots) EverFollowed(did string) bool { return s.ever[did] }

// Restore restores the core tables. What was restored before, or what events have
// changed since, stays. Accounts that are no longer followed are queued
// for a purge.
func (s *Snapshots) Restore(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for _, table := range coreTables() {
			rows := s.whole[table.name]
			for len(rows) > 0 {
				n := min(len(rows), snapshotPartRows)
				if _, err := tx.Exec(ctx, table.restore, rows[:n]); err != nil {
					return fmt.Errorf("restore %s: %w", table.name, err)
				}
				rows = rows[n:]
			}
		}
		left := make([]string, 0)
		for did := range s.ever {
			left = append(left, did)
		}
		const finish = `
WITH numbered AS (
    SELECT setval(pg_get_serial_sequence('watches', 'id'), greatest((SELECT max(id) FROM watches), 1))
), unwatched AS (
    INSERT INTO purge_queue (did, queued_at)
    SELECT d.did, now() FROM unnest($1::text[]) AS d (did)
    WHERE EXISTS (SELECT FROM watches) AND NOT EXISTS (SELECT FROM watch_members AS w WHERE w.did = d.did)
    ON CONFLICT (did) DO NOTHING
)
SELECT FROM numbered`
		if _, err := tx.Exec(ctx, finish, left); err != nil {
			return fmt.Errorf("queue the accounts that are no longer followed: %w", err)
		}
		return nil
	})
}

// StripSnapshot removes the names of forgotten accounts from a snapshot of the accounts.
// Which accounts Weir followed stays.
func StripSnapshot(m archive.Manifest, record []byte, goes func(archive.Said) bool) [][]byte {
	part, err := ParseSnapshotPart(record)
	if err != nil || part.Table != SnapshotOfAccounts {
		return [][]byte{record}
	}
	names, gone := []string{"handle", "display_name", "avatar"}, false
	for i, row := range part.Rows {
		var account map[string]json.RawMessage
		var did string
		if json.Unmarshal(row, &account) != nil || json.Unmarshal(account["did"], &did) != nil {
			continue
		}
		named := false
		for _, name := range names {
			named = named || account[name] != nil && string(account[name]) != "null"
		}
		if !named || !goes(archive.Said{Author: did, At: m.FirstAt}) {
			continue
		}
		gone = true
		for _, name := range names {
			account[name] = json.RawMessage("null")
		}
		if part.Rows[i], err = json.Marshal(account); err != nil {
			return nil
		}
	}
	if !gone {
		return [][]byte{record}
	}
	b, err := json.Marshal(part)
	if err != nil {
		return nil
	}
	return [][]byte{b}
}
