package schema

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Gap is an interval of a stream that a resume could not be shown to cover.
type Gap struct {
	Stream string // set when read
	From   time.Time
	To     time.Time
	Reason string
}

func (g *Gap) queue(q *pgx.Batch, stream string) {
	const sql = `
INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ($1, $2, $3, $4, now())
ON CONFLICT (stream, from_at, to_at) DO NOTHING`
	q.Queue(sql, stream, g.From, g.To, g.Reason)
}

// GapFailed writes down why an open gap cannot be closed.
func GapFailed(ctx context.Context, db DB, gap int64, problem string) error {
	if _, err := db.Exec(ctx, `UPDATE gaps SET problem = $2 WHERE id = $1 AND closed_at IS NULL`, gap, problem); err != nil {
		return fmt.Errorf("write down the problem of gap %d: %w", gap, err)
	}
	return nil
}

// OpenGaps lists the unclosed gaps that overlap an interval, oldest first, at
// most a hundred.
func OpenGaps(ctx context.Context, db DB, from, to time.Time) ([]Gap, error) {
	const sql = `
SELECT stream  AS stream,
       from_at AS "from",
       to_at   AS "to",
       reason  AS reason
FROM gaps
WHERE closed_at IS NULL AND from_at < $2 AND to_at > $1
ORDER BY from_at
LIMIT 100`
	return all(ctx, db, "read the gaps", pgx.RowToStructByName[Gap], sql, from, to)
}
