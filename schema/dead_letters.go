package schema

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// maxRaw bounds what a dead letter keeps of its input, in bytes.
const maxRaw = 1 << 20

// Stages at which an input can fail.
const (
	StageDecode  = "decode"  // the frame is no event
	StageCommit  = "commit"  // Postgres refuses what the event brings
	StageProcess = "process" // a stored record cannot be projected
)

// DeadLetter is an input that cannot be processed, and why.
type DeadLetter struct {
	Stage    string
	Key      Key // of the record it is about; empty where unknown
	Cause    string
	Path     string
	Expected string
	Received string
	Raw      []byte
	At       time.Time
}

const insertDeadLetter = `
INSERT INTO dead_letters AS d (key, stage, stream, collection, did, rkey, cause, path, expected, received, raw, raw_bytes, first_seen, last_seen)
VALUES ($1, $2, nullif($3, ''), nullif($4, ''), nullif($5, ''), nullif($6, ''), $7, $8, $9, $10, $11, $12, $13, $13)
ON CONFLICT (key) DO UPDATE
SET last_seen = greatest(d.last_seen, excluded.last_seen),
    count     = d.count + 1`

// Park stores a dead letter. The same input at the same stage is one row.
func (d *DeadLetter) Park(ctx context.Context, db DB, stream string) error {
	if _, err := db.Exec(ctx, insertDeadLetter, d.args(stream)...); err != nil {
		return fmt.Errorf("park a dead letter: %w", err)
	}
	return nil
}

func (d *DeadLetter) queue(q *pgx.Batch, stream string) {
	q.Queue(insertDeadLetter, d.args(stream)...)
}

func (d *DeadLetter) args(stream string) []any {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n%s\n", d.Stage, d.Key.Collection, d.Key.DID, d.Key.Rkey)
	h.Write(d.Raw)
	raw := d.Raw[:min(len(d.Raw), maxRaw)]
	if raw == nil {
		raw = []byte{}
	}
	return []any{h.Sum(nil), d.Stage, stream, text(d.Key.Collection), text(d.Key.DID), text(d.Key.Rkey), text(d.Cause), text(d.Path),
		text(d.Expected), text(d.Received), raw, int64(len(d.Raw)), d.At}
}

// text makes a stranger's string storable: valid UTF-8, no NUL, not endless.
func text(s string) string {
	const limit = 2000
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
