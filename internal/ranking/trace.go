package ranking

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// TracedShare is a share with the status that decides whether it counts.
type TracedShare struct {
	Collection string `json:"collection"`
	DID        string `json:"did"`
	Rkey       string `json:"rkey"`
	Handle     string `json:"handle,omitempty"`
	URL        string `json:"url"`
	Named      string `json:"named,omitempty"` // the URL of the link that the record names, if that is merged into this one
	How        string `json:"how"`
	// AT-URI of the post that is quoted or reposted; empty: the record itself contains the link
	Subject  string    `json:"subject,omitempty"`
	SharedAt time.Time `json:"shared_at"`
	Status   string    `json:"status"`
	Why      Reason    `json:"why,omitempty"` // why it counts in no window; empty: it counts in those that contain it
}

const tracedShares = `
SELECT s.collection AS collection, s.did AS did, s.rkey AS rkey, coalesce(a.handle, '') AS handle, l.url AS url,
       CASE WHEN s.named_id <> s.link_id THEN (SELECT n.url FROM links AS n WHERE n.id = s.named_id) ELSE '' END AS named, s.how AS how,
       coalesce('at://' || s.subject_did || '/' || s.subject_collection || '/' || s.subject_rkey, '') AS subject, s.shared_at AS shared_at,
       coalesce(a.status, 'active') AS status, coalesce(s.why, '') AS why
FROM judged_shares AS s
JOIN links AS l ON l.id = s.link_id
LEFT JOIN accounts AS a ON a.did = s.did `

// SharesOfRecord returns the shares of a record.
func SharesOfRecord(ctx context.Context, db schema.DB, k schema.Key) ([]TracedShare, error) {
	return schema.All(ctx, db, "read the shares of the record", pgx.RowToStructByName[TracedShare],
		tracedShares+`WHERE s.collection = $1 AND s.did = $2 AND s.rkey = $3 ORDER BY l.url`, k.Collection, k.DID, k.Rkey)
}

// CountSharesOf counts the shares of an account.
func CountSharesOf(ctx context.Context, db schema.DB, did string) (int64, error) {
	return schema.One(ctx, db, "count the shares of "+did, pgx.RowTo[int64], `SELECT count(*) FROM shares WHERE did = $1`, did)
}

// SharesOfLink returns at most limit shares of a link, latest first.
func SharesOfLink(ctx context.Context, db schema.DB, link int64, limit int) ([]TracedShare, error) {
	return schema.All(ctx, db, "read the shares of the link", pgx.RowToStructByName[TracedShare], tracedShares+`WHERE s.link_id = $1
		ORDER BY s.shared_at DESC, s.did LIMIT $2`, link, limit)
}

// Link is a shared page.
type Link struct {
	ID        int64     `json:"id"`
	URL       string    `json:"url"`
	Title     string    `json:"title"`
	CardFrom  string    `json:"card_from"` // AT-URI of the post that the title is from, or the address of the page; empty: there is no card
	FirstSeen time.Time `json:"first_seen"`
}

// FindLink returns the link that counts for an identity: that link, or the one that it is
// merged into. It returns schema.ErrNoRows if there is none.
func FindLink(ctx context.Context, db schema.DB, identity string) (Link, error) {
	const sql = `
SELECT id AS id, url AS url, title AS title, card_from AS card_from, first_seen AS first_seen FROM links
WHERE id = (SELECT l.counts_as FROM links AS l WHERE l.identity = $1)`
	return schema.One(ctx, db, "read the link", pgx.RowToStructByName[Link], sql, identity)
}

// LinkID returns the id of the link with an identity, merged or not, or schema.ErrNoRows.
func LinkID(ctx context.Context, db schema.DB, identity string) (int64, error) {
	return schema.One(ctx, db, "look up the link", pgx.RowTo[int64], `SELECT id FROM links WHERE identity = $1`, identity)
}
