package ranking

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/links/link/title"
	"github.com/weir-social/weir/internal/words"
	"github.com/weir-social/weir/schema"
)

// A claim is what a record says about a link that it contains: a spelling, and a card if it has
// one. Records that say the same have the same claim, so a link that thousands share with one card
// has one row in claims.

// claim is a row of claims.
type claim struct {
	identity                             string
	hash                                 []byte
	url, site, title, description, image string
	short                                bool // the site is a shortener
}

func claimOf(l link.Link) claim {
	c := claim{
		identity: l.Identity, url: l.URL, site: l.Site, title: schema.Text(l.Card.Title), description: schema.Text(l.Card.Description),
		image: l.Card.Image[strings.LastIndexByte(l.Card.Image, '/')+1:], // the CID of the blob
		short: l.Short,
	}
	// No part contains NUL. Half of a SHA-256 is long enough that nobody finds two claims with the
	// same hash.
	sum := sha256.Sum256([]byte(c.url + "\x00" + c.title + "\x00" + c.description + "\x00" + c.image))
	c.hash = sum[:len(sum)/2]
	return c
}

// insertClaims adds the missing claims. LATERAL and LIMIT force index lookups: with old
// statistics, a scan of the whole table looks cheap.
const insertClaims = `
INSERT INTO claims (link_id, hash, url, site, title, description, image, words, title_key, title_group)
SELECT l.id, i.hash, i.url, i.site, i.title, i.description, i.image, coalesce(i.words, '')::tsvector, i.title_key, i.title_group
FROM unnest($1::text[], $2::bytea[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::bigint[])
     AS i (identity, hash, url, site, title, description, image, words, title_key, title_group)
CROSS JOIN LATERAL (SELECT l.id FROM links AS l WHERE l.identity = i.identity LIMIT 1) AS l
WHERE (SELECT c.id FROM claims AS c WHERE c.link_id = l.id AND c.hash = i.hash LIMIT 1) IS NULL
ON CONFLICT (link_id, hash) DO NOTHING`

func queueClaims(q *pgx.Batch, links []link.Link) {
	all := column(links, claimOf)
	slices.SortFunc(all, func(a, b claim) int {
		return cmp.Or(cmp.Compare(a.identity, b.identity), bytes.Compare(a.hash, b.hash))
	})
	all = slices.CompactFunc(all, func(a, b claim) bool { return a.identity == b.identity && bytes.Equal(a.hash, b.hash) })
	if len(all) == 0 {
		return
	}
	q.Queue(insertClaims,
		column(all, func(c claim) string { return c.identity }),
		column(all, func(c claim) []byte { return c.hash }),
		column(all, func(c claim) string { return c.url }),
		column(all, func(c claim) string { return c.site }),
		column(all, func(c claim) string { return c.title }),
		column(all, func(c claim) string { return c.description }),
		column(all, func(c claim) string { return c.image }),
		column(all, func(c claim) *string { return words.Vector(c.title, c.description, readable(c.url)) }),
		column(all, claim.titleKey),
		column(all, func(c claim) *int64 {
			if c.short {
				return nil
			}
			return titleGroup(c.titleKey(), c.site, c.url)
		}))
}

func (c claim) titleKey() string { return title.Key(c.title, c.site) }

// ExpireClaims deletes the claims that no share names, of at most limit links with ids above after.
// The claims of a link that a worker is sharing stay until the next call. The claims of a link that
// is merged into another stay while it is merged. A deleted link's claims are deleted with it.
func ExpireClaims(ctx context.Context, pool Beginner, after int64, limit int) (done Examined, err error) {
	// The second statement sees a share that was committed after the links were locked.
	const lock = `
WITH next AS (
    SELECT l.id FROM links AS l WHERE l.id > $1 ORDER BY l.id LIMIT $2
), named AS (
    SELECT DISTINCT s.link_id, s.claim_id FROM shares AS s
    WHERE s.link_id > $1 AND s.link_id <= (SELECT max(id) FROM next) AND s.claim_id IS NOT NULL
), unnamed AS (
    SELECT DISTINCT c.link_id FROM claims AS c
    WHERE c.link_id > $1 AND c.link_id <= (SELECT max(id) FROM next)
        AND NOT EXISTS (SELECT FROM named AS n WHERE n.link_id = c.link_id AND n.claim_id = c.id)
), locked AS (
    SELECT l.id FROM links AS l WHERE l.id IN (SELECT u.link_id FROM unnamed AS u) AND l.merged_into IS NULL
    ORDER BY l.id FOR UPDATE OF l SKIP LOCKED
)
SELECT coalesce((SELECT max(id) FROM next), $1), (SELECT count(*) FROM next), ARRAY(SELECT id FROM locked)`
	const remove = `
WITH named AS (
    SELECT DISTINCT s.claim_id FROM shares AS s WHERE s.link_id = ANY ($1) AND s.claim_id IS NOT NULL
)
DELETE FROM claims AS c WHERE c.link_id = ANY ($1) AND c.id NOT IN (SELECT n.claim_id FROM named AS n)`
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
		var links []int64
		if err := tx.QueryRow(ctx, lock, after, limit).Scan(&done.Last, &done.Links, &links); err != nil || len(links) == 0 {
			return err
		}
		tag, err := tx.Exec(ctx, remove, links)
		done.Found = int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return Examined{}, fmt.Errorf("expire claims: %w", err)
	}
	return done, nil
}

// readable returns the host and the path of a URL, decoded for readers.
func readable(address string) string {
	_, address, _ = strings.Cut(address, "://")
	address, _, _ = strings.Cut(address, "?")
	if path, err := url.PathUnescape(address); err == nil {
		return path
	}
	return address
}
