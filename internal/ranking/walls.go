package ranking

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-social/weir/internal/links/link/title"
	"github.com/weir-social/weir/schema"
)

// A title that stands on three pages of one site is that of a wall, or of a series: it tells no
// article apart. The table walls has these titles. It depends on claim_votes alone, and only the
// counter writes it, in the transaction that changes the votes.

// wallPages is on how many pages of a site such a title stands.
const wallPages = 3

// titleGroup returns the group of a title of a page; nil: it is in none, as it says nothing, or the
// page is the front page.
func titleGroup(key, site, address string) *int64 {
	_, rest, _ := strings.Cut(address, "://")
	rest, _, _ = strings.Cut(rest, "?")
	_, path, _ := strings.Cut(rest, "/")
	if key == "" || strings.Trim(path, "/") == "" {
		return nil
	}
	group := title.Group(key, site)
	return &group
}

// isWall is a condition: the title of a row is in walls. It is scalar: no planner makes a join of it.
func isWall(row string) string {
	return ` coalesce((SELECT true FROM walls AS w WHERE w.title_group = ` + row + `.title_group), false) `
}

// pageOf is the SQL expression for the page of a link: the path of its identity. If its last part
// names an article, by a number or several words, then the rest does not matter: one article stands
// below several sections or editions of a site.
func pageOf(link string) string {
	return `CASE WHEN ` + namesArticle(link) + ` THEN ` + lastPart(link) + ` ELSE split_part(` + link + `.identity, '?', 1) END`
}

// lastPart and namesArticle are as in the index links_page.
func lastPart(link string) string {
	return `substring(split_part(` + link + `.identity, '?', 1) FROM '[^/]*$')`
}

func namesArticle(link string) string {
	return lastPart(link) + ` ~ '[0-9]{5}|[^-]-[^-]+-[^-]+-[^-]'`
}

// crowded is a query of the groups of titles that stand on several pages, by the rows v of
// claim_votes. No account makes them so alone: without any one of them, two pages remain.
func crowded(votes string) string {
	return fmt.Sprintf(`
    SELECT p.title_group
    FROM (
        SELECT p.*, count(*) OVER (PARTITION BY p.title_group, p.did) AS of_one
        FROM (
            SELECT v.title_group, v.page, CASE WHEN bool_and(v.did <> '') AND min(v.did) = max(v.did) THEN min(v.did) END AS did
            FROM (
                SELECT v.title_group, %s AS page,
                       CASE WHEN sum(v.titles) = 1 THEN split_part(min(v.title_from), '/', 3) ELSE '' END AS did
                FROM %s JOIN links AS l ON l.id = v.link_id
                GROUP BY v.title_group, l.id
            ) AS v
            GROUP BY v.title_group, v.page
        ) AS p
    ) AS p
    GROUP BY p.title_group
    HAVING count(*) >= %d AND count(*) - coalesce(max(p.of_one) FILTER (WHERE p.did IS NOT NULL), 0) >= %d`,
		pageOf("l"), votes, wallPages, wallPages-1)
}

// wallsOf is a common table expression in place of the table walls: the titles of the links $2 that
// are walls by the shares. It is empty, and the table serves, once something has been counted.
func wallsOf(s state) string {
	if s.Counted {
		return ""
	}
	return `walls AS (
    WITH peers AS MATERIALIZED (
        SELECT l.counts_as AS link_id FROM claims AS c JOIN links AS l ON l.id = c.link_id
        WHERE c.title_group IN (SELECT c.title_group FROM shares AS s JOIN claims AS c ON c.id = s.claim_id WHERE s.link_id = ANY ($2))
    ), own AS (` + ownPosts(`s.link_id IN (SELECT p.link_id FROM peers AS p)`) + `),` + everyVote + `,
    v AS MATERIALIZED (` + sumOfVotes("votes AS f WHERE true") + `), titled AS (
        SELECT v.*, c.title_group FROM v JOIN claims AS c ON c.id = v.claim_id WHERE v.titles > 0 AND c.title_group IS NOT NULL
    )` + crowded(`titled AS v`) + `
), `
}

// doubtful are titles that may have become walls, or are none any more: those of claims that the
// first or the second account votes for, or the last but one.
type doubtful struct {
	claimedColumns                         // claims that have votes now
	groups         pgtype.FlatArray[int64] // of claims that had votes
}

func newDoubtful(sums map[claimed]*claimSums) (d doubtful) {
	for k, s := range sums {
		switch {
		case min(s.before, s.title.n) >= 2 || s.before+s.title.n == 0:
		case s.group != nil:
			d.groups = append(d.groups, *s.group)
		case s.before == 0:
			d.claims, d.links = append(d.claims, k.claim), append(d.links, k.link)
		}
	}
	return d
}

// judge brings walls up to date, after the votes were written, and then the headlines of the links
// with titles that became walls or ceased to be.
func (d doubtful) judge(ctx context.Context, tx pgx.Tx) error {
	if len(d.groups)+len(d.claims) == 0 {
		return nil
	}
	sql := `
WITH asked AS (
    SELECT unnest($1::bigint[]) AS title_group
    UNION
    SELECT v.title_group
    FROM unnest($2::bigint[], $3::bigint[]) AS k (claim_id, link_id)
    JOIN claim_votes AS v ON v.claim_id = k.claim_id AND v.link_id = k.link_id
    WHERE v.title_group IS NOT NULL
), voted AS (
    SELECT v.* FROM asked AS a
    JOIN claim_votes AS v ON v.title_group = a.title_group AND v.titles > 0
), standing AS (` + crowded(`voted AS v`) + `
), gone AS (
    DELETE FROM walls AS w WHERE w.title_group IN (SELECT a.title_group FROM asked AS a EXCEPT SELECT s.title_group FROM standing AS s)
    RETURNING w.title_group
), new AS (
    INSERT INTO walls SELECT s.title_group FROM standing AS s ON CONFLICT DO NOTHING RETURNING title_group
)
SELECT title_group FROM gone UNION ALL SELECT title_group FROM new`
	changed, err := schema.All(ctx, tx, "find the titles of walls", pgx.RowTo[int64], sql, d.groups, d.claims, d.links)
	if err != nil || len(changed) == 0 {
		return err
	}
	links, err := schema.All(ctx, tx, "read the links with titles of walls", pgx.RowTo[int64], `
SELECT l.counts_as FROM claims AS c JOIN links AS l ON l.id = c.link_id WHERE c.title_group = ANY ($1)
UNION
SELECT l.counts_as FROM cards AS c JOIN links AS l ON l.id = c.link_id WHERE c.title_group = ANY ($1)`, changed)
	if err != nil {
		return err
	}
	return writeHeadlines(ctx, tx, links)
}

// queueEveryWall queues the statements that make walls match claim_votes.
func queueEveryWall(q *pgx.Batch) {
	q.Queue(`DELETE FROM walls`)
	q.Queue(`INSERT INTO walls` + crowded(`(SELECT v.* FROM claim_votes AS v WHERE v.title_group IS NOT NULL AND v.titles > 0) AS v`))
}

// checkWalls compares walls with claim_votes, for the titles of some links. It skips titles with a
// vote on a link that has expired: the vote is pending.
func checkWalls(ctx context.Context, tx pgx.Tx, links []int64, found func(Difference)) error {
	sql := `
WITH asked AS (
    SELECT v.title_group FROM claim_votes AS v WHERE v.title_group IS NOT NULL AND ` + among("v.link_id", 1, links) + `
    UNION
    SELECT w.title_group FROM walls AS w WHERE $1::bigint[] IS NULL
), voted AS (
    SELECT v.* FROM claim_votes AS v WHERE v.title_group IN (SELECT a.title_group FROM asked AS a) AND v.titles > 0
), t AS MATERIALIZED (` + crowded(`voted AS v`) + `
)
SELECT coalesce((SELECT min(v.link_id) FROM claim_votes AS v WHERE v.title_group = a.title_group), 0), '',
       coalesce('the wall ' || k.title_group, ''), coalesce('the wall ' || t.title_group, '')
FROM asked AS a
LEFT JOIN walls AS k ON k.title_group = a.title_group
LEFT JOIN t ON t.title_group = a.title_group
WHERE (k.title_group IS NULL) <> (t.title_group IS NULL)
  AND NOT EXISTS (SELECT FROM claim_votes AS v WHERE v.title_group = a.title_group
                  AND NOT EXISTS (SELECT FROM links AS l WHERE l.id = v.link_id))
ORDER BY 1`
	return differences(ctx, tx, found, sql, links)
}
