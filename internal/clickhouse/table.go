package clickhouse

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// The table works on every server since 18.16. A segment is in one partition, so its
// block becomes one part: it is stored completely or not at all.
const createTable = `
CREATE TABLE IF NOT EXISTS events (
    id         FixedString(16),
    source     String,
    author     String,
    collection String,
    rkey       String,
    operation  String,
    created_at DateTime,
    body       String,
    links      Array(String),
    segment    UInt64,
    position   UInt32
) ENGINE = MergeTree PARTITION BY intDiv(segment, 1000) ORDER BY (segment, position)`

const insertStatement = `
INSERT INTO events (id, source, author, collection, rkey, operation, created_at, body, links, segment, position) FORMAT Native`

// windowSetting is how many blocks a server remembers. Without it, the server ignores
// tokens.
const windowSetting = "non_replicated_deduplication_window"

// Empty deletes all rows. Materialised views keep their counts.
func (x *Index) Empty(ctx context.Context) error {
	if err := x.Create(ctx); err != nil {
		return err
	}
	if _, err := x.query(ctx, `TRUNCATE TABLE events`); err != nil {
		return fmt.Errorf("empty the table of events: %w", err)
	}
	return nil
}

// Create creates the table if there is none.
func (x *Index) Create(ctx context.Context) error {
	sql := createTable
	has, err := x.readSettings(ctx)
	if err == nil && has[tokenSetting] { // windowSetting is older than the token
		sql += ` SETTINGS ` + windowSetting + ` = 1000`
	}
	if err == nil {
		_, err = x.query(ctx, sql)
	}
	if err != nil {
		return fmt.Errorf("create the table of events: %w", err)
	}
	return x.checkEngine(ctx)
}

// Check connects to the server, and reads the table of events if there is one. It changes nothing.
func (x *Index) Check(ctx context.Context) error {
	if _, err := x.readSettings(ctx); err != nil {
		return err
	}
	answer, err := x.query(ctx, `EXISTS TABLE events`)
	if err != nil || strings.TrimSpace(string(answer)) == "0" { // a worker creates it
		return err
	}
	if _, err := x.query(ctx, `SELECT id FROM events LIMIT 0`); err != nil {
		return err
	}
	return x.checkEngine(ctx)
}

// checkEngine refuses a table that somebody else created with another engine: a replica's
// count may be behind, and other engines drop rows later.
func (x *Index) checkEngine(ctx context.Context) error {
	answer, err := x.query(ctx, `SELECT engine FROM system.tables WHERE database = currentDatabase() AND name = 'events' FORMAT TabSeparated`)
	if err != nil {
		return fmt.Errorf("read the engine of the table of events: %w", err)
	}
	if engine := strings.TrimSpace(string(answer)); engine != "MergeTree" {
		return fmt.Errorf("%w: the table events has the engine %s, and counts are exact with MergeTree only: let Weir create it in a database "+
			"of its own", ErrRefused, strconv.QuoteToASCII(engine))
	}
	return nil
}
