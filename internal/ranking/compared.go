package ranking

import "github.com/weir-social/weir/internal/ops/compare"

// ofStored leaves out shares of posts that are not stored, and those that do not count.
const ofStored = ` (k.subject_did IS NULL OR EXISTS (
    SELECT FROM records AS p WHERE p.collection = k.subject_collection AND p.did = k.subject_did AND p.rkey = k.subject_rkey)
  AND EXISTS (
    SELECT FROM subjects AS u
    WHERE u.collection = k.subject_collection AND u.did = k.subject_did AND u.rkey = k.subject_rkey AND k.named_id = ANY (u.links))
  AND NOT EXISTS (SELECT FROM accounts AS gone WHERE gone.did = k.subject_did AND gone.status = 'deleted')) `

const unasked = "those of quotes and reposts of posts that are not stored: the AppView is asked for their links again; " +
	"and those of links that the post no longer has: they do not count, and the next check deletes them"

// Why columns are not compared.
const (
	inLinks  = "compared as the identity of the link"
	inMerges = "link_merges says it"
	byVotes  = "the votes are counted again, and pages fetched again"
	expiries = "what a link's expired shares were: the archive may have older ones than the database"
	wordsOf  = "made from the record"
)

// Compared returns the tables that weir compare compares.
func Compared() []compare.Table {
	return []compare.Table{
		{
			Name: "shares", Key: []string{"collection", "did", "rkey", "named"},
			Columns: []string{"link", "how", "shared_at", "subject_did", "subject_of", "subject_rkey", "gift", "copied"},
			From: `
SELECT k.*, CASE WHEN k.subject_did IS NOT NULL THEN k.subject_collection END AS subject_of, n.identity AS named, l.identity AS link
FROM shares AS k
JOIN links AS n ON n.id = k.named_id
JOIN links AS l ON l.id = k.link_id
WHERE` + compare.Kept + `AND` + ofStored,
			Rows: compare.Purged + "; and " + unasked,
			Without: map[string]string{
				"link_id": inLinks, "named_id": inLinks, "claim_id": compare.Numbered, "stored_at": compare.Clock, "words": wordsOf,
				"subject_collection": "compared as subject_of, if there is a subject",
			},
		},
		{
			Name: "links", Key: []string{"identity"}, Columns: []string{"site"},
			From: `
SELECT * FROM links AS l
WHERE EXISTS (SELECT FROM shares AS k WHERE k.named_id = l.id AND` + compare.Kept + `AND` + ofStored + `)`,
			Rows: "those without a share that is compared",
			Without: map[string]string{
				"id": compare.Numbered, "url": byVotes, "title": byVotes, "description": byVotes, "image": byVotes, "card_from": byVotes,
				"first_seen": compare.Clock, "kept_sharers": expiries, "kept_at": expiries, "merged_into": inMerges, "counts_as": inMerges,
			},
		},
		{Name: "blocks", Key: []string{"kind", "target"}, Columns: []string{"added_at"}, Without: map[string]string{"id": compare.Numbered}},
		{
			Name: "link_merges", Key: []string{"identity"}, Columns: []string{"into", "why", "merged_at", "split_at"},
			From: `
SELECT l.identity, i.identity AS "into", m.why, m.merged_at, m.split_at
FROM link_merges AS m
JOIN links AS l ON l.id = m.link_id
JOIN links AS i ON i.id = m.into_id`,
			Without: map[string]string{"link_id": inLinks, "into_id": inLinks},
		},
	}
}
