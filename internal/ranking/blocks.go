package ranking

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/schema"
)

// The kinds of blocks.
const (
	BlockedAccount = "account"
	BlockedDomain  = "domain"
	BlockedLink    = "link"
)

// Block takes a link, a domain or an account out of every ranking, feed and page.
type Block struct {
	Kind    string    `json:"kind"`
	Target  string    `json:"target"` // the identity of a link, a host, or a DID
	AddedAt time.Time `json:"added_at"`
	Links   int64     `json:"links"`  // that are blocked
	Shares  int64     `json:"shares"` // stored ones that do not count
}

// ParseBlock reads the account or the domain that a user names: an account by DID, npub or a
// handle that begins with @, which is the target then.
func ParseBlock(text string) (Block, error) {
	if strings.HasPrefix(text, "@") || strings.HasPrefix(text, "did:") || strings.HasPrefix(text, "npub1") {
		if target, ok := account(text); ok {
			return Block{Kind: BlockedAccount, Target: target}, nil
		}
	} else if host, ok := domain(text); ok {
		return Block{Kind: BlockedDomain, Target: host}, nil
	}
	return Block{}, fmt.Errorf(
		"%q is neither a URL, a domain nor an account: expected https://…, spam.example, did:plc:…, @alice.example or npub1…",
		text,
	)
}

// AddBlock adds a block. added is false if it exists.
func AddBlock(ctx context.Context, db schema.DB, b Block) (added bool, err error) {
	n, err := schema.Change(ctx, db, "block "+b.Target,
		`INSERT INTO blocks (kind, target) VALUES ($1, $2) ON CONFLICT (target, kind) DO NOTHING`, b.Kind, b.Target)
	return n > 0, err
}

// RemoveBlock removes a block. removed is false if there was none.
func RemoveBlock(ctx context.Context, db schema.DB, b Block) (removed bool, err error) {
	const sql = `
DELETE FROM blocks AS b
WHERE b.kind = $1
    AND (b.target = $2 OR b.kind = 'link'
        AND b.target = (SELECT i.identity FROM links AS l JOIN links AS i ON i.id = l.counts_as WHERE l.identity = $2))`
	n, err := schema.Change(ctx, db, "remove the block of "+b.Target, sql, b.Kind, b.Target)
	return n > 0, err
}

// Blocks lists all blocks, oldest first, with what each takes out of the counts.
func Blocks(ctx context.Context, db schema.DB) ([]Block, error) {
	const sql = `
SELECT b.kind, b.target, b.added_at,
       (SELECT count(*) FROM blocked_links AS l WHERE l.block_id = b.id) AS links,
       CASE b.kind WHEN 'account' THEN (SELECT count(*) FROM shares AS s WHERE s.did = b.target)
                   ELSE (SELECT count(*) FROM blocked_links AS l JOIN shares AS s ON s.link_id = l.link_id
                       WHERE l.block_id = b.id) END AS shares
FROM blocks AS b
ORDER BY b.id`
	return schema.All(ctx, db, "list the blocks", pgx.RowToStructByPos[Block], sql)
}

// BlocksSnapshot returns how the blocks are archived.
func BlocksSnapshot() schema.SnapshotTable {
	return schema.SnapshotTable{Name: "blocks", Read: `
SELECT to_jsonb(b) FROM (SELECT kind, target, added_at FROM blocks ORDER BY id) AS b`, Restore: restoreBlocks}
}

// restoreBlocks adds archived blocks.
func restoreBlocks(ctx context.Context, pool *pgxpool.Pool, rows []json.RawMessage) error {
	const sql = `
INSERT INTO blocks (kind, target, added_at) SELECT kind, target, added_at FROM jsonb_populate_recordset(NULL::blocks, $1)
ON CONFLICT (target, kind) DO NOTHING`
	if len(rows) == 0 {
		return nil
	}
	return schema.Exec(ctx, pool, "restore the blocks", sql, rows)
}
