// Package clickhouse copies the archive's segments into a ClickHouse server, for queries
// over years. Its data can always be made again from the archive.
//
// The rows of a segment are inserted at most once, because a materialised view would
// count duplicates. The package trusts a server's count of rows, not its response to an
// insert. After an attempt with an unknown result, nothing is inserted until no part of
// that attempt can arrive any more.
package clickhouse

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weir-social/weir/internal/archive"
)

// Settle is how long after the beginning of an attempt no part of it can arrive any more:
// it has insertTimeout to send its block, and a server needs less than a second to store
// a block that it has read.
const Settle = insertTimeout + 30*time.Second

// Unsettled means that another attempt was begun recently and may still store rows.
type Unsettled struct{ Wait time.Duration }

func (u *Unsettled) Error() string {
	return fmt.Sprintf("an earlier attempt may store rows for another %s", u.Wait.Round(time.Second))
}

// Segment is the content of a segment to store.
type Segment struct {
	Number  int64
	Version int    // how many times it was rewritten: rows of earlier versions are deleted
	SHA256  string // of its file: a rewritten segment has another one
	Rows    []Row  // ordered by position
	// Generation is increased to insert rows again that a server has stored and lost.
	// Otherwise it may remember their token.
	Generation int
}

// token returns the name of a block of a segment's rows. The same block has the same
// token in every attempt, so that newer servers store it only once.
func (s Segment) token(rows []Row) string {
	return fmt.Sprintf("weir %d %s %d %d %d", s.Number, s.SHA256, s.Generation, rows[0].Position, len(rows))
}

// id returns the value of the column segment: the number and, above its 32 bits, the
// version. So a late insert of an earlier version cannot mix with the rows of a later
// one.
func (s Segment) id() uint64 { return uint64(s.Version)<<32 | uint64(s.Number) } // both are positive and smaller

// Put stores the rows of a segment, unless they are stored already. After any error, the
// next call continues: it counts the stored rows and inserts the missing ones.
func (x *Index) Put(ctx context.Context, s Segment, attempts marks) error {
	attempt, ago, err := attempts.Begun(ctx, s.Number)
	if err != nil {
		return err
	}
	if attempt > 0 && ago < x.settle {
		return &Unsettled{x.settle - ago}
	}
	if err := x.deleteEarlier(ctx, s); err != nil {
		return err
	}
	missing, err := x.missing(ctx, s)
	if err != nil {
		return fmt.Errorf("count segment %d in ClickHouse: %w", s.Number, err)
	}
	for len(missing) > 0 {
		stored := len(s.Rows) - len(missing)
		some := missing[:min(x.blockRows, len(missing))]
		if err := x.attempt(ctx, s, some, stored, attempt, attempts); err != nil {
			return err
		}
		missing = missing[len(some):]
		attempt++
	}
	return attempts.Indexed(ctx, s.Number, attempt)
}

// deleting is how long a server may need to delete rows before they are counted again.
const deleting = 5 * time.Second

// deleteEarlier deletes the rows of earlier versions. A server deletes asynchronously.
// Until the rows are gone, deleteEarlier returns Unsettled, so that nothing is counted or
// inserted.
func (x *Index) deleteEarlier(ctx context.Context, s Segment) error {
	if s.Version == 0 {
		return nil
	}
	ids := make([]string, s.Version)
	for i := range ids {
		ids[i] = strconv.FormatUint(Segment{Number: s.Number, Version: i}.id(), 10)
	}
	earlier := ` segment IN (` + strings.Join(ids, ", ") + `)`
	n, err := x.counted(ctx, earlier)
	if err != nil {
		return fmt.Errorf("count the earlier versions of segment %d in ClickHouse: %w", s.Number, err)
	}
	if n == 0 {
		return nil
	}
	// Each deletion rewrites parts of the table, and a server may take hours for one.
	answer, err := x.query(ctx, `
SELECT count()
FROM system.mutations
WHERE database = currentDatabase() AND table = 'events' AND NOT is_done FORMAT TabSeparated`)
	if err == nil && strings.TrimSpace(string(answer)) == "0" {
		_, err = x.query(ctx, `ALTER TABLE events DELETE WHERE`+earlier)
	}
	if err != nil {
		return fmt.Errorf("delete the earlier versions of segment %d from ClickHouse: %w", s.Number, err)
	}
	return &Unsettled{deleting}
}

// attempt inserts rows in addition to the stored ones, and counts.
func (x *Index) attempt(ctx context.Context, s Segment, rows []Row, stored, last int, attempts marks) error {
	body := block(s.id(), rows)
	began := time.Now()
	ok, err := attempts.Begin(ctx, s.Number, last)
	if err != nil {
		return err
	}
	if !ok {
		return &Unsettled{x.settle}
	}
	// The deadline counts from the mark, because another process relies on Settle after
	// the mark.
	bounded, cancel := context.WithDeadline(ctx, began.Add(insertTimeout))
	defer cancel()
	if err := x.insert(bounded, s.token(rows), body); err != nil {
		return fmt.Errorf("insert segment %d: %w", s.Number, err)
	}
	n, err := x.count(ctx, s)
	if err == nil && n != stored+len(rows) {
		err = fmt.Errorf("%w: it has %d of %d rows after the insert", ErrAmbiguous, n, stored+len(rows))
	}
	if err != nil {
		return fmt.Errorf("count segment %d in ClickHouse: %w", s.Number, err)
	}
	return nil
}

// count returns how many rows of a segment are stored.
func (x *Index) count(ctx context.Context, s Segment) (int, error) {
	return x.counted(ctx, ` segment = `+strconv.FormatUint(s.id(), 10))
}

// counted returns how many stored rows meet a condition.
func (x *Index) counted(ctx context.Context, condition string) (int, error) {
	answer, err := x.query(ctx, `SELECT count() FROM events WHERE`+condition+` FORMAT TabSeparated`)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(answer)))
	if err != nil {
		return 0, fmt.Errorf("%w: a count that is no number", ErrAway)
	}
	return n, nil
}

// missing returns the rows that are not stored. The server may have a part of a segment
// if somebody else wrote it.
func (x *Index) missing(ctx context.Context, s Segment) ([]Row, error) {
	n, err := x.count(ctx, s)
	switch {
	case err != nil:
		return nil, err
	case n == 0:
		return s.Rows, nil
	case n == len(s.Rows):
		return nil, nil
	case n > len(s.Rows):
		return nil, fmt.Errorf("%w: it has %d rows, and the archive has %d", ErrRefused, n, len(s.Rows))
	}
	const size = 4 + len(archive.ID{})
	answer, err := x.query(ctx, `SELECT position, id FROM events WHERE segment = `+strconv.FormatUint(s.id(), 10)+` FORMAT RowBinary`)
	if err != nil {
		return nil, err
	}
	if len(answer) != size*n {
		return nil, fmt.Errorf("%w: its rows change while they are read", ErrAway)
	}
	stored := make(map[uint32]archive.ID, n)
	for ; len(answer) > 0; answer = answer[size:] {
		stored[binary.LittleEndian.Uint32(answer)] = archive.ID(answer[4:size])
	}
	if len(stored) != n {
		return nil, fmt.Errorf("%w: it has rows twice", ErrRefused)
	}
	var missing []Row
	for i := range s.Rows {
		id, found := stored[s.Rows[i].Position]
		switch {
		case !found:
			missing = append(missing, s.Rows[i])
		case id != s.Rows[i].ID: // the stored collections have changed, and the other rows have moved
			return nil, fmt.Errorf("%w: its rows differ from those of the archive: weir archive index --fresh begins again", ErrRefused)
		}
	}
	if n+len(missing) != len(s.Rows) {
		return nil, fmt.Errorf("%w: it has rows that the archive does not have", ErrRefused)
	}
	return missing, nil
}
