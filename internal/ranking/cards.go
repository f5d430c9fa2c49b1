package ranking

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/links/link/title"
	"github.com/weir-social/weir/internal/words"
	"github.com/weir-social/weir/schema"
)

// The title that a page gives itself takes precedence over the votes. It counts for the
// link of the page, and for the link that this one is merged into. Code that changes what
// counts (reading a page, a merge, a split) writes the headlines in the same transaction.
// So at any time a headline depends only on claim_votes and cards.

// cardCounts is a condition: the title of the page c of the link m counts.
var cardCounts = `c.title <> '' AND c.status = '' AND NOT ` + isWall("c") + `
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand'))`

// countingCards returns the common table expression pages: for each of some links, the page
// whose title counts. The link's own page takes precedence over that of a link merged into
// it. param is as in among.
func countingCards(param int, links []int64) string {
	of := func(column string) string { return among(column, param, links) }
	return `
pages AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.title, g.description, g.address
    FROM (
        SELECT c.link_id, c.title, c.description, c.address, c.fetched_at, c.link_id AS of, 1 AS n
        FROM cards AS c JOIN links AS m ON m.id = c.link_id WHERE ` + of("c.link_id") + ` AND m.merged_into IS NULL AND ` + cardCounts + `
        UNION ALL
        SELECT m.merged_into, c.title, c.description, c.address, c.fetched_at, c.link_id, 2
        FROM links AS m JOIN cards AS c ON c.link_id = m.id
        WHERE ` + of("m.merged_into") + ` AND m.merged_into IS NOT NULL AND ` + cardCounts + `
    ) AS g
    ORDER BY g.link_id, g.n, g.fetched_at, g.of
)`
}

// hasPage is a condition: the title of a page counts for the link.
func hasPage(link string) string {
	return `
(EXISTS (SELECT FROM cards AS c JOIN links AS m ON m.id = c.link_id
    WHERE c.link_id = ` + link + `.id AND m.merged_into IS NULL AND ` + cardCounts + `)
    OR EXISTS (SELECT FROM links AS m JOIN cards AS c ON c.link_id = m.id WHERE m.merged_into = ` + link + `.id AND ` + cardCounts + `))`
}

// hasPageAmong is hasPage for some links, or for all if links is nil. It then reads all
// pages once.
func hasPageAmong(link string, links []int64) string {
	if links != nil {
		return hasPage(link)
	}
	return link + `.id IN (SELECT m.counts_as FROM cards AS c JOIN links AS m ON m.id = c.link_id WHERE ` + cardCounts + `)`
}

// FetchedPage describes a link's page, as the page describes itself.
type FetchedPage struct {
	Title       string    `json:"title,omitempty"`
	Description string    `json:"description,omitempty"`
	SiteName    string    `json:"site_name,omitempty"`
	Address     string    `json:"address,omitempty"` // where the redirects ended
	FetchedAt   time.Time `json:"fetched_at"`
	Counts      bool      `json:"counts"`        // the title is shown
	Why         string    `json:"why,omitempty"` // why the title is not shown
}

// fetchedPage returns the page whose title counts for a link. If there is none, it returns
// the page of the link itself, or of one that is merged into it; nil: no page was fetched.
func fetchedPage(ctx context.Context, db schema.DB, link int64) (*FetchedPage, error) {
	sql := `
SELECT c.title, c.description, c.site_name, c.address, c.fetched_at, coalesce(` + cardCounts + `, false) AS counts,
       CASE WHEN ` + cardCounts + ` THEN '' WHEN c.status <> '' THEN c.status
            WHEN` + isWall("c") + `THEN 'other pages of the site have this title' ELSE 'it is a page of another site' END AS why
FROM links AS m
JOIN cards AS c ON c.link_id = m.id
WHERE (m.id = $1 OR m.merged_into = $1) AND c.fetched_at IS NOT NULL
ORDER BY counts DESC, m.id = $1 DESC, c.fetched_at, c.link_id
LIMIT 1`
	p, err := schema.One(ctx, db, "read the page of the link", pgx.RowToStructByPos[FetchedPage], sql, link)
	if errors.Is(err, schema.ErrNoRows) {
		return nil, nil // there is none
	}
	return &p, err
}

// queueLockPages queues a lock on those of some links whose titles come from pages; nil: of
// all links. The counter does so before it changes their votes. If the page has stopped
// counting since the counter's snapshot, its transaction fails and is repeated. If the page
// is about to stop, refreshHeadlines waits for the new votes. The counter's own changes of
// a headline need no lock.
func queueLockPages(q *pgx.Batch, links []int64) {
	q.Queue(`
SELECT FROM links AS l WHERE `+among("l.id", 1, links)+` AND (`+hasPageAmong("l", links)+`) ORDER BY l.id FOR NO KEY UPDATE OF l`, links)
}

// refreshHeadlines writes the headlines of links after their pages have changed. It locks
// the links first, as the counter does.
func refreshHeadlines(ctx context.Context, tx pgx.Tx, links ...int64) error {
	found, err := schema.One(ctx, tx, "look for pages", pgx.RowTo[bool],
		`SELECT EXISTS (SELECT FROM links AS m JOIN cards AS c ON c.link_id = m.id WHERE m.id = ANY ($1) OR m.merged_into = ANY ($1))`, links)
	if err != nil || !found {
		return err
	}
	if _, err := tx.Exec(ctx, `SELECT FROM links AS l WHERE l.id = ANY ($1) ORDER BY l.id FOR NO KEY UPDATE`, links); err != nil {
		return fmt.Errorf("lock the links of a page: %w", err)
	}
	return writeHeadlines(ctx, tx, links)
}

// writeHeadlines writes the headlines of links from what is stored.
func writeHeadlines(ctx context.Context, tx pgx.Tx, links []int64) error {
	q := &pgx.Batch{}
	queueHeadlines(q, links)
	queueDropCards(q, links)
	return schema.Send(ctx, tx, "write the headlines", q)
}

// PageCard describes a fetched page, as the page describes itself.
type PageCard struct {
	Title       string
	Description string
	SiteName    string
	Address     string    // where the redirects ended
	SameSite    bool      // Address has the registrable domain of the link's URL
	To          link.Link // Address as a link; zero: it is not one
	Canonical   link.Link // the address that the page names as its own; zero: none, or one on another site
	Why         string    // why it is not the page of an article; empty: it is one
}

// maxEnds is how many links of a host may end at an address that another link has. If more
// do, the address is a page for logins or errors, and not the article of all these links.
const maxEnds = 3

// StoreCard stores the page of a link, and merges the link with the page's target: the
// address that the page names as its own, or else the end of the redirects. It does nothing
// if the link has expired, or if a later fetch of it has started.
func StoreCard(ctx context.Context, tx pgx.Tx, f CardFetch, p PageCard, now time.Time) error {
	if err := waitForMerges(ctx, tx); err != nil { // before links are locked; transactions that store pages see each other's merges
		return err
	}
	var own, site string
	var counts int64
	err := tx.QueryRow(ctx, `
SELECT l.identity, l.site, l.counts_as FROM links AS l WHERE l.id = $1 FOR NO KEY UPDATE`, f.Link).Scan(&own, &site, &counts)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lock the link of a page: %w", err)
	}
	s := &storing{tx: tx, now: now, host: hostOf(f.URL), affected: []int64{f.Link, counts}}
	s.group = titleGroup(title.Key(schema.Text(p.Title), site), site, f.URL)
	if stored, err := s.store(ctx, f, p); err != nil || !stored {
		return err
	}
	if err := s.distrustTitle(ctx); err != nil {
		return err
	}
	ends, err := s.target(ctx, p.To, own, "ends_at")
	if err != nil {
		return err
	}
	canonical, err := s.target(ctx, p.Canonical, own, "canonical")
	if err != nil {
		return err
	}
	to, why := canonical, Canonical
	if to == (link.Link{}) {
		to, why = ends, Redirected
	}
	if p.Why == "" && !s.crowded && to != (link.Link{}) {
		into, err := mergeInto(ctx, tx, to, Merge{Link: f.Link, Why: why, Now: now})
		if err != nil {
			return err
		}
		s.affected = append(s.affected, into)
	}
	if s.group != nil { // the counter may find now that the title is that of a wall, and not see the page yet
		if _, err := tx.Exec(ctx, `INSERT INTO pending_counts (link_id) SELECT l.counts_as FROM links AS l WHERE l.id = $1`, f.Link); err != nil {
			return fmt.Errorf("ask for a count of the link of a page: %w", err)
		}
		if err := s.wantVariants(ctx, f.Link); err != nil {
			return err
		}
	}
	slices.Sort(s.affected)
	return refreshHeadlines(ctx, tx, slices.Compact(s.affected)...)
}

// wantVariants has the pages of links fetched to which sharers give the title of the page: they may be
// the same article.
func (s *storing) wantVariants(ctx context.Context, link int64) error {
	if s.crowded {
		return nil
	}
	const sql = `
INSERT INTO cards (link_id, sharers, fetch_at)
SELECT l.id, coalesce((SELECT $3::smallint FROM link_counts AS n WHERE n.link_id = l.id), 1), now()
FROM (
    SELECT DISTINCT o.link_id FROM claim_votes AS o
    WHERE o.title_group = $1 AND o.titles > 0 AND o.link_id <> (SELECT l.counts_as FROM links AS l WHERE l.id = $2)
      AND NOT EXISTS (SELECT FROM cards AS c WHERE c.link_id = o.link_id)
    ORDER BY o.link_id LIMIT $4
) AS o
CROSS JOIN LATERAL (SELECT l.id FROM links AS l WHERE l.id = o.link_id AND l.merged_into IS NULL LIMIT 1 FOR KEY SHARE) AS l
ON CONFLICT DO NOTHING`
	return schema.Exec(ctx, s.tx, "ask for the pages of variants", sql, *s.group, link, fetchedUntitledAt, mostVariants)
}

// hostOf returns the host of a URL, without "www.".
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(strings.ToLower(u.Hostname()), "www.")
}

// storing is a page that is being stored.
type storing struct {
	tx       pgx.Tx
	now      time.Time
	host     string
	affected []int64 // links whose headlines may change, besides merged and split ones
	group    *int64  // of the title
	crowded  bool    // too many links end at the page, or have its title
}

// store stores the page. It reports whether the fetch was the latest.
func (s *storing) store(ctx context.Context, f CardFetch, p PageCard) (bool, error) {
	const sql = `
UPDATE cards
SET fetch_at = NULL, fetched_at = now(), status = $3, host = $4, address = $5, ends_at = $6, canonical = $7, same_site = $8,
    title = $9, description = $10, site_name = $11,
    words = coalesce($12, '')::tsvector, title_group = $13
WHERE link_id = $1 AND tries = $2`
	name, description := schema.Text(p.Title), schema.Text(p.Description)
	n, err := schema.Change(ctx, s.tx, "store a page", sql, f.Link, f.Try, schema.Text(p.Why), s.host, schema.Text(p.Address),
		p.To.Identity, p.Canonical.Identity, p.SameSite,
		name, description, schema.Text(p.SiteName), words.Vector(name, description), s.group)
	return n > 0, err
}

// target returns the link to merge the page's link with; zero: there is none. column is
// the column of cards with the target's identity. If too many links of the host end there,
// the ones that were merged into it because of their pages are split again.
func (s *storing) target(ctx context.Context, to link.Link, own, column string) (none link.Link, err error) {
	if to.Identity == "" || to.Identity == own {
		return none, nil
	}
	many, err := schema.One(ctx, s.tx, "count the links that end there", pgx.RowTo[int], `
SELECT count(*)
FROM (SELECT FROM cards AS c JOIN links AS l ON l.id = c.link_id
    WHERE c.host = $1 AND c.`+column+` = $2 AND l.identity <> $2 LIMIT $3) AS k`, s.host, to.Identity, maxEnds+1)
	if err != nil {
		return none, err
	}
	if many > maxEnds {
		return none, s.distrust(ctx, to.Identity, column)
	}
	if u, err := url.Parse(to.URL); err != nil || strings.Trim(u.Path, "/") == "" {
		return none, nil // the address cannot be merged into
	}
	return to, nil
}

// distrust splits the links of the host from the address at which they end. If they were
// redirected there, their titles do not belong to them.
func (s *storing) distrust(ctx context.Context, identity, column string) error {
	if column == "ends_at" {
		s.crowded = true
		why := fmt.Sprintf("more than %d links of %s lead to this page", maxEnds, s.host)
		if err := s.discount(ctx, why, "c.host = $1 AND c.ends_at = $2 AND l.identity <> $2", s.host, identity); err != nil {
			return err
		}
		return s.split(ctx, "c.host = $1 AND c.ends_at = $2", s.host, identity)
	}
	return s.split(ctx, "c.host = $1 AND c.canonical = $2 AND i.identity = $2", s.host, identity)
}

// split undoes the merges that pages c caused, if they meet a condition.
func (s *storing) split(ctx context.Context, which string, args ...any) error {
	merged, err := schema.All(ctx, s.tx, "read which links were merged", pgx.RowTo[int64], `
SELECT g.link_id
FROM cards AS c
JOIN link_merges AS g ON g.link_id = c.link_id
JOIN links AS i ON i.id = g.into_id
WHERE g.split_at IS NULL AND g.why <> '`+ByHand+`' AND `+which+`
ORDER BY g.link_id`, args...)
	if err != nil {
		return err
	}
	for _, link := range merged {
		if err := SplitLink(ctx, s.tx, link, s.now); err != nil && !errors.Is(err, ErrNotMerged) {
			return err
		}
	}
	return nil
}

// distrustTitle discounts a title that too many pages of the site have: their redirects lead to
// several addresses of one page, or to no article. A title for which accounts vote on several pages
// leads to no merge either.
func (s *storing) distrustTitle(ctx context.Context) error {
	if s.group == nil {
		return nil
	}
	sql := `
SELECT count(DISTINCT k.page), EXISTS (SELECT FROM walls AS w WHERE w.title_group = $1)
FROM (SELECT l.counts_as, min(` + pageOf("l") + `) AS page FROM cards AS c JOIN links AS l ON l.id = c.link_id
    WHERE c.title_group = $1 GROUP BY l.counts_as LIMIT 100) AS k`
	var pages int
	if err := s.tx.QueryRow(ctx, sql, *s.group).Scan(&pages, &s.crowded); err != nil {
		return fmt.Errorf("count the pages with the title: %w", err)
	}
	if pages < wallPages {
		return nil
	}
	s.crowded = true
	if err := s.discount(ctx, fmt.Sprintf("%d pages of the site or more have this title", wallPages), "c.title_group = $1",
		*s.group); err != nil {
		return err
	}
	return s.split(ctx, "c.title_group = $1", *s.group)
}

// discount discounts the titles of those pages c that meet a condition.
func (s *storing) discount(ctx context.Context, why, which string, args ...any) error {
	pages, err := schema.All(ctx, s.tx, "lock the links of the pages", pgx.RowToStructByPos[struct{ Link, Counts int64 }], `
SELECT l.id, l.counts_as FROM cards AS c JOIN links AS l ON l.id = c.link_id
WHERE c.status = '' AND `+which+`
ORDER BY l.id FOR NO KEY UPDATE OF l`, args...)
	if err != nil {
		return err
	}
	links := make([]int64, len(pages))
	for i, p := range pages {
		links[i] = p.Link
		s.affected = append(s.affected, p.Link, p.Counts)
	}
	return schema.Exec(ctx, s.tx, "discount the titles of pages", `UPDATE cards SET status = $2 WHERE link_id = ANY ($1)`,
		links, schema.Text(why))
}
