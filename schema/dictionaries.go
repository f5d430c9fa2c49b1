package schema

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Dictionary returns the compression dictionary with a sha256, in hex, or ErrNoRows.
func Dictionary(ctx context.Context, db DB, sha256 string) ([]byte, error) {
	return One(ctx, db, "read the dictionary", pgx.RowTo[[]byte], `SELECT bytes FROM dictionaries WHERE sha256 = $1`, sha256)
}

// StoreDictionary stores a verified dictionary, so that a restart needs no
// download.
func StoreDictionary(ctx context.Context, db DB, sha256, url string, bytes []byte, now time.Time) error {
	const sql = `
INSERT INTO dictionaries (sha256, url, bytes, fetched_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (sha256) DO NOTHING`
	if _, err := db.Exec(ctx, sql, sha256, url, bytes, now); err != nil {
		return fmt.Errorf("store the dictionary: %w", err)
	}
	return nil
}
