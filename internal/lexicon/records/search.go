package records

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// maxMatches is how many matching records are ranked against each other.
const maxMatches = 5000

// A Match is a record whose texts contain the words.
type Match struct {
	URI     string  `json:"uri"`
	CID     string  `json:"cid"`
	Verdict string  `json:"verdict,omitempty"`
	Text    string  `json:"text"` // the beginning of the text that people wrote in the record
	Rank    float32 `json:"rank"` // by how often, and how close to each other, the words occur

	key schema.Key
}

// Matches is a part of the records that match, best first.
type Matches struct {
	Matches []Match
	Next    Cursor
	// Truncated: too many records match, so only some of them were ranked.
	Truncated bool
}

// A Query is what to search for. Every field but the words may be empty.
type Query struct {
	Words      string // a tsquery
	Collection string
	Language   string // see ValidLanguage; "de" also finds "de-CH"
	MediaType  string // see ValidMediaType; "audio" also finds "audio/mpeg"
}

// Search returns the records that match a query.
func Search(ctx context.Context, db DB, q Query, limit int, after Cursor) (page Matches, err error) {
	matching := filtered(q.Words, q.Language, q.MediaType)
	of := "search " + q.Collection + " " + matching
	from := position{Rank: 1e30}
	if after != "" {
		if from, err = after.read(of); err != nil {
			return page, err
		}
	}
	sql := `
WITH found AS (
    SELECT t.did, t.collection, t.rkey, ts_rank_cd(t.words, $1::tsquery) AS rank
    FROM record_texts AS t
    WHERE t.words @@ $9::tsquery AND ($2 = '' OR t.collection = $2)
    LIMIT $3 + 1
), page AS (
    SELECT f.* FROM found AS f
    WHERE (f.rank, f.did, f.collection, f.rkey) < ($4, $5, $6, $7) AND` + shown("f.did") + `
    ORDER BY f.rank DESC, f.did DESC, f.collection DESC, f.rkey DESC
    LIMIT $8
)
SELECT p.did, p.collection, p.rkey, p.rank, coalesce(r.cid, ''), coalesce(v.verdict, ''), left(t.text, 500),
    (SELECT count(*) > $3 FROM found)
FROM page AS p
JOIN record_texts AS t ON t.did = p.did AND t.collection = p.collection AND t.rkey = p.rkey
LEFT JOIN records AS r ON r.collection = p.collection AND r.did = p.did AND r.rkey = p.rkey
LEFT JOIN verdicts AS v ON v.did = p.did AND v.collection = p.collection AND v.rkey = p.rkey AND v.cid = r.cid
ORDER BY p.rank DESC, p.did DESC, p.collection DESC, p.rkey DESC`
	page.Matches, err = schema.All(ctx, db, "search the records", func(row pgx.CollectableRow) (m Match, err error) {
		err = row.Scan(&m.key.DID, &m.key.Collection, &m.key.Rkey, &m.Rank, &m.CID, &m.Verdict, &m.Text, &page.Truncated)
		m.URI = m.key.URI()
		return m, err
	}, sql, q.Words, q.Collection, maxMatches, from.Rank, from.Key.DID, from.Key.Collection, from.Key.Rkey, limit+1, matching)
	if len(page.Matches) > limit {
		page.Matches = page.Matches[:limit]
		last := page.Matches[limit-1]
		page.Next = position{Of: of, Rank: last.Rank, Key: last.key}.cursor()
	}
	return page, err
}
