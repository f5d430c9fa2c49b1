package ranking

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// checkVotes compares the votes in sharers with the ledger, claim_votes with sharers,
// and walls and the headlines in links with claim_votes.
func checkVotes(ctx context.Context, tx pgx.Tx, s state, c changes, links []int64, found func(Difference)) error {
	const fields = `CASE WHEN num_nonnulls(%[1]s.title_claim, %[1]s.url_claim) = 0 THEN '' ELSE jsonb_build_object('title', %[1]s.title_claim, 'title_at', %[1]s.title_at, 'title_key', %[1]s.title_key,
        'url', %[1]s.url_claim, 'url_at', %[1]s.url_at, 'url_key', %[1]s.url_key)::text END`
	const columns = `%[1]s.title_claim, %[1]s.title_at, %[1]s.title_key, %[1]s.url_claim, %[1]s.url_at, %[1]s.url_key`
	sql := `
WITH own AS MATERIALIZED (` + ownPosts(among("s.link_id", 2, links)) + `),` + everyVote + `, k AS MATERIALIZED (
    SELECT f.* FROM sharers AS f WHERE num_nonnulls(f.title_claim, f.url_claim) > 0 AND ` + among("f.link_id", 2, links) + `
)
SELECT coalesce(k.link_id, v.link_id), coalesce(k.did, v.did), ` + fmt.Sprintf(fields, "k") + `, ` + fmt.Sprintf(fields, "v") + `
FROM k
FULL JOIN votes AS v ON v.did = k.did AND v.link_id = k.link_id
WHERE (` + fmt.Sprintf(columns, "k") + `) IS DISTINCT FROM (` + fmt.Sprintf(columns, "v") + `)
  AND (k.did IS NULL OR k.voted_at > $3)
ORDER BY 1, 2`
	err := differences(ctx, tx, func(d Difference) {
		if _, pending := c[sharing{d.Link, d.DID}]; !pending {
			d.Kept, d.Expected = "votes "+d.Kept, "votes "+d.Expected
			found(d)
		}
	}, sql, s.KeptFrom, links, s.AsOf.Add(-LongestWindow)) // older shares may have expired
	if err != nil {
		return err
	}
	if err := checkSums(ctx, tx, links, found); err != nil {
		return err
	}
	if err := checkWalls(ctx, tx, links, found); err != nil {
		return err
	}
	return checkHeadlines(ctx, tx, links, found)
}

// checkSums compares claim_votes with sharers.
func checkSums(ctx context.Context, tx pgx.Tx, links []int64, found func(Difference)) error {
	const fields = `CASE WHEN %[1]s.claim_id IS NULL THEN '' ELSE jsonb_build_object('claim', %[1]s.claim_id, 'titles', %[1]s.titles, 'title_at', %[1]s.title_at, 'title_from', %[1]s.title_from,
        'urls', %[1]s.urls, 'url_at', %[1]s.url_at, 'url_from', %[1]s.url_from)::text END`
	const columns = `%[1]s.link_id, %[1]s.titles, %[1]s.title_at, %[1]s.title_from, %[1]s.urls, %[1]s.url_at, %[1]s.url_from`
	sql := `
WITH t AS MATERIALIZED (` + sumOfVotes("sharers AS f WHERE "+among("f.link_id", 1, links)) + `), k AS MATERIALIZED (
    SELECT v.* FROM claim_votes AS v WHERE ` + among("v.link_id", 1, links) + `
)
SELECT coalesce(k.link_id, t.link_id), '', ` + fmt.Sprintf(fields, "k") + `, ` + fmt.Sprintf(fields, "t") + `
FROM k
FULL JOIN t ON t.claim_id = k.claim_id AND t.link_id = k.link_id
WHERE (` + fmt.Sprintf(columns, "k") + `) IS DISTINCT FROM (` + fmt.Sprintf(columns, "t") + `)
ORDER BY 1`
	return differences(ctx, tx, found, sql, links)
}

// checkHeadlines compares the headlines with claim_votes. A link without votes for a title may
// keep its card. It skips links with a vote for a claim that has expired: the vote's share is
// gone, and the vote is pending.
func checkHeadlines(ctx context.Context, tx pgx.Tx, links []int64, found func(Difference)) error {
	sql := `
WITH v AS MATERIALIZED (
    SELECT v.* FROM claim_votes AS v WHERE ` + among("v.link_id", 1, links) + `
),` + chosen(1, links) + `
SELECT l.id, '', jsonb_build_object('url', l.url, 'site', l.site, 'title', l.title, 'description', l.description, 'image', l.image, 'card_from', l.card_from)::text,
       jsonb_build_object('url', h.url, 'site', h.site, 'title', h.title, 'description', h.description, 'image', h.image, 'card_from', h."from")::text
FROM chosen AS h
JOIN links AS l ON l.id = h.link
WHERE (h.url <> '' AND (l.url, l.site) IS DISTINCT FROM (h.url, h.site)
       OR h.title <> '' AND (l.title, l.description, l.image, l.card_from) IS DISTINCT FROM (h.title, h.description, h.image, h."from"))
  AND NOT EXISTS (SELECT FROM v WHERE v.link_id = l.id AND NOT EXISTS (SELECT FROM claims AS c WHERE c.id = v.claim_id))
ORDER BY 1`
	return differences(ctx, tx, found, sql, links)
}
