package ranking

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// headline is the result of a link's votes.
type headline struct {
	Link        int64
	URL         string // empty: nobody votes for a spelling
	Site        string
	Title       string // empty: nobody votes for a title
	Description string
	Image       string // blob:<did>/<cid>
	From        string // the AT-URI of the earliest post that votes for the title, or the address of the page that has it
}

// chosen returns a list of common table expressions that ends with chosen: the result of the
// votes v, where v is like claim_votes. Most votes win, then https, then the earliest vote. Variants
// of a title have their votes together, and the best one is shown: not cut, not all in capitals,
// without the name of the site.
// The description and the picture are those that most of the title's voters give. An empty one
// wins only if there is no other. The title and the description of the page take precedence
// over the votes. param is the parameter with the links, as in among.
func chosen(param int, links []int64) string {
	return countingCards(param, links) + `, ` + chosenByVotes
}

// variants is a common table expression: the claims c with a title that somebody votes for, and in
// variant the title of which it is a variant. A title with a name at the end is a variant of the one
// without it, if there is one or if it is the name of the site; a title that was cut is one of the
// next longer title. It joins nothing: see everyVote.
const variants = `variants AS (
    SELECT h.*, CASE WHEN h.cut AND char_length(h.whole) >= 8
        AND starts_with(h.longer, h.whole) THEN split_part(h.longer, E'\n', 2) ELSE h.same END AS variant
    FROM (
        SELECT h.*, min(CASE WHEN NOT h.cut THEN h.whole || E'\n' || h.same END)
                    OVER (PARTITION BY h.link_id ORDER BY h.whole DESC, h.cut ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS longer
        FROM (
            SELECT h.*, CASE WHEN bool_or(h.whole = h.head AND NOT h.cut) OVER (PARTITION BY h.link_id, h.head)
                THEN h.head ELSE h.whole END AS same
            FROM (
                SELECT c.*, c.key LIKE '%…' AS cut, c.key LIKE E'%\n%' AS named, split_part(rtrim(c.key, '…'), E'\n', 1) AS head,
                       rtrim(replace(rtrim(c.key, '…'), E'\n', ' ')) AS whole
                FROM c WHERE c.titles > 0
            ) AS h
        ) AS h
    ) AS h
)`

var chosenByVotes = `
c AS (
    SELECT v.claim_id, v.link_id, CASE WHEN` +
	isWall("c") + `THEN 0 ELSE v.titles END AS titles, v.title_at, v.title_from, v.urls, v.url_at, v.url_from,
           c.url, c.site, c.title, coalesce(nullif(c.title_key, ''), c.title) AS key, c.description, c.image
    FROM v JOIN claims AS c ON c.id = v.claim_id
), ` + variants + `, best AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.variant
    FROM (
        SELECT c.link_id, c.variant, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM variants AS c GROUP BY c.link_id, c.variant
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), voters AS (
    SELECT c.* FROM variants AS c JOIN best AS b ON b.link_id = c.link_id AND b.variant = c.variant
), title AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.title, g.uri
    FROM (
        SELECT c.link_id, c.title, bool_and(c.cut) AS cut, bool_and(c.named) AS named, sum(c.titles) AS n, min(c.title_at) AS at,
               (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c GROUP BY c.link_id, c.title
    ) AS g
    ORDER BY g.link_id, g.cut, g.title IN (upper(g.title), lower(g.title)) AND upper(g.title) <> lower(g.title), g.named, g.n DESC,
        g.at, g.uri COLLATE "C"
), description AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.description
    FROM (
        SELECT c.link_id, c.description, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c WHERE c.description <> '' GROUP BY c.link_id, c.description
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), picture AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, 'blob:' || split_part(g.uri, '/', 3) || '/' || g.image AS image
    FROM (
        SELECT c.link_id, c.image, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c WHERE c.image <> '' GROUP BY c.link_id, c.image
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), spelling AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.url, g.site
    FROM (
        SELECT c.link_id, c.url, min(c.site) AS site, sum(c.urls) AS n, min(c.url_at) AS at,
            (array_agg(c.url_from ORDER BY c.url_at, c.url_from COLLATE "C"))[1] AS uri
        FROM c WHERE c.urls > 0 GROUP BY c.link_id, c.url
    ) AS g
    ORDER BY g.link_id, g.n DESC, starts_with(g.url, 'https:') DESC, g.at, g.uri COLLATE "C"
), chosen AS MATERIALIZED (
    SELECT k.link_id AS link, coalesce(u.url, '') AS url, coalesce(u.site, '') AS site, coalesce(g.title, t.title, '') AS title,
           coalesce(nullif(g.description, ''), d.description, '') AS description, coalesce(p.image, '') AS image,
               coalesce(g.address, t.uri, '') AS "from"
    FROM (SELECT c.link_id FROM c UNION SELECT g.link_id FROM pages AS g) AS k
    LEFT JOIN pages AS g ON g.link_id = k.link_id
    LEFT JOIN spelling AS u ON u.link_id = k.link_id
    LEFT JOIN title AS t ON t.link_id = k.link_id
    LEFT JOIN description AS d ON d.link_id = k.link_id
    LEFT JOIN picture AS p ON p.link_id = k.link_id
)`

// readHeadlines returns the headlines of links, using the changed rows of claim_votes. Links
// without votes are missing.
func readHeadlines(ctx context.Context, db schema.DB, links []int64, changed map[claimed]*claimSums) ([]headline, error) {
	if len(links) == 0 {
		return nil, nil
	}
	sql := `
WITH v AS MATERIALIZED (
    SELECT v.claim_id, v.link_id, v.titles, v.title_at, v.title_from, v.urls, v.url_at, v.url_from
    FROM claim_votes AS v
    WHERE v.link_id = ANY ($9) AND (v.claim_id, v.link_id) NOT IN (SELECT * FROM unnest($10::bigint[], $11::bigint[]))
    UNION ALL
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::timestamptz[], $5::text[], $6::int[], $7::timestamptz[], $8::text[])
),` + chosen(9, links) + `
SELECT * FROM chosen`
	columns, gone := newSumColumns(changed)
	return schema.All(ctx, db, "choose the headlines", pgx.RowToStructByName[headline], sql,
		append(columns.args(), links, append(gone.claims, columns.claims...), append(gone.links, columns.links...))...)
}

// recountHeadlines returns the same, computed from the shares.
func recountHeadlines(ctx context.Context, db schema.DB, s state, links []int64) ([]headline, error) {
	sql := `
WITH ` + wallsOf(s) + `own AS (` + ownPosts(`s.link_id = ANY ($2)`) + `),` + everyVote + `, v AS MATERIALIZED (` +
		sumOfVotes("votes AS f WHERE true") + `),` + chosen(2, links) + `
SELECT * FROM chosen`
	return schema.All(ctx, db, "choose the headlines from the shares", pgx.RowToStructByName[headline], sql, s.KeptFrom, links)
}

// livingCard is true if the link may keep its card although nobody votes for a title: the card
// is from the page, the link is kept without shares, or a post with a title is older than the
// votes. page is the condition that the link has a page whose title counts.
func livingCard(link, page string) string {
	return ` (` + page + ` OR ` + link + `.card_from NOT LIKE 'http%' AND (` + link + `.kept_at IS NOT NULL OR EXISTS (
    SELECT FROM judged_shares AS s JOIN claims AS c ON c.id = s.claim_id
    WHERE s.link_id = ` + link + `.id AND s.subject_did IS NULL AND c.title <> '' AND NOT` + isWall("c") + `AND s.why IS NULL))) `
}

// headlineDiffers is a condition: the link l has another headline than the chosen one h.
const headlineDiffers = `(h.url <> '' AND (l.url, l.site) IS DISTINCT FROM (h.url, h.site)
    OR h.title <> '' AND (l.title, l.description, l.image, l.card_from) IS DISTINCT FROM (h.title, h.description, h.image, h."from"))`

// queueHeadlines queues the statement that writes the headlines of some links from the stored votes; nil: of all.
func queueHeadlines(q *pgx.Batch, links []int64) {
	q.Queue(`
WITH v AS MATERIALIZED (SELECT v.* FROM claim_votes AS v WHERE `+among("v.link_id", 1, links)+`),`+chosen(1, links)+`
UPDATE links AS l
SET url         = CASE WHEN h.url = '' THEN l.url ELSE h.url END,
    site        = CASE WHEN h.url = '' THEN l.site ELSE h.site END,
    title       = CASE WHEN h.title = '' THEN l.title ELSE h.title END,
    description = CASE WHEN h.title = '' THEN l.description ELSE h.description END,
    image       = CASE WHEN h.title = '' THEN l.image ELSE h.image END,
    card_from   = CASE WHEN h.title = '' THEN l.card_from ELSE h."from" END
FROM chosen AS h
WHERE l.id = h.link AND `+among("l.id", 1, links)+` AND `+headlineDiffers, links)
}

// queueDropCards queues statements that empty the cards of those of some links for which
// nobody votes any more; nil: of all links. A single
// statement for both cases would get one plan, which reads all links.
func queueDropCards(q *pgx.Batch, links []int64) {
	// OFFSET keeps the planner from joining: if it expects few links with a title, it would
	// read all votes for each.
	q.Queue(`
UPDATE links AS l SET title = '', description = '', image = '', card_from = ''
WHERE `+among("l.id", 1, links)+` AND l.title <> ''
  AND NOT EXISTS (SELECT FROM claim_votes AS v WHERE v.link_id = l.id AND v.titles > 0 AND NOT`+isWall("v")+`OFFSET 0) AND NOT`+
		livingCard("l", hasPageAmong("l", links)), links)
}

// correctHeadlines sets the current headlines of the links of a page. It corrects the counted
// headlines by the pending changes, as the numbers are corrected.
func (r *reader) correctHeadlines(ctx context.Context, page []TrendingLink) error {
	if len(page) == 0 {
		return nil
	}
	shown := make(map[int64]*TrendingLink, len(page))
	for i := range page {
		shown[page[i].ID] = &page[i]
	}
	var links []int64 // whose headlines may be wrong
	var found []headline
	if r.unread == nil {
		for id := range shown {
			links = append(links, id)
		}
		s := r.state
		if !s.Counted || r.from().Before(s.KeptFrom) { // a window in the past has the votes of its own time
			s.KeptFrom = r.end.Add(-LongestWindow - kept)
		}
		var err error
		if found, err = recountHeadlines(ctx, r.tx, s, links); err != nil {
			return err
		}
	} else {
		of := changes{}
		for k, c := range r.unread {
			if shown[k.link] != nil {
				of[k] = c
			}
		}
		posts := slices.DeleteFunc(slices.Clone(r.posts), func(p ownPost) bool { return shown[p.link] == nil })
		if err := of.addVotes(ctx, r.tx, posts); err != nil {
			return err
		}
		links = of.links()
		sums, err := sumVotes(ctx, r.tx, of.ballots())
		if err != nil {
			return err
		}
		if found, err = readHeadlines(ctx, r.tx, links, sums); err != nil {
			return err
		}
	}
	return r.replaceHeadlines(ctx, shown, links, found)
}

func (r *reader) replaceHeadlines(ctx context.Context, shown map[int64]*TrendingLink, links []int64, found []headline) error {
	titled := map[int64]bool{}
	for _, h := range found {
		l := shown[h.Link]
		if h.URL != "" {
			l.URL, l.Site = h.URL, h.Site
		}
		if h.Title != "" {
			l.Title, l.Description, l.Image, l.CardFrom = h.Title, h.Description, h.Image, h.From
			titled[h.Link] = true
		}
	}
	var doubtful []int64
	for _, id := range links {
		if !titled[id] && shown[id].Title != "" {
			doubtful = append(doubtful, id)
		}
	}
	if len(doubtful) == 0 {
		return nil
	}
	dead, err := schema.All(ctx, r.tx, "find the cards without a claim", pgx.RowTo[int64],
		`SELECT l.id FROM links AS l WHERE l.id = ANY ($1) AND NOT`+livingCard("l", hasPage("l")), doubtful)
	if err != nil {
		return fmt.Errorf("correct the headlines: %w", err)
	}
	for _, id := range dead {
		l := shown[id]
		l.Title, l.Description, l.Image, l.CardFrom = "", "", "", ""
	}
	return nil
}

// links returns the links of the changes.
func (c changes) links() (all []int64) {
	seen := make(map[int64]struct{}, len(c))
	for k := range c {
		if _, ok := seen[k.link]; !ok {
			seen[k.link] = struct{}{}
			all = append(all, k.link)
		}
	}
	return all
}
