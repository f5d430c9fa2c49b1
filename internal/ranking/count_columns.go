package ranking

import (
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-social/weir/schema"
)

type sharingColumns struct {
	links pgtype.FlatArray[int64]
	dids  pgtype.FlatArray[string]
}

func (c *sharingColumns) add(k sharing) {
	c.links, c.dids = append(c.links, k.link), append(c.dids, k.did)
}

type sharerColumns struct {
	sharingColumns
	post, quote, repost pgtype.FlatArray[*time.Time]
	title, url          voteColumns
}

func (c *sharerColumns) add(k sharing, t times) {
	c.sharingColumns.add(k)
	post, quote, repost := schema.NullTime(t.post), schema.NullTime(t.quote), schema.NullTime(t.repost)
	c.post, c.quote, c.repost = append(c.post, post), append(c.quote, quote), append(c.repost, repost)
	c.title.add(t.votes.title)
	c.url.add(t.votes.url)
}

type tallyColumns struct {
	links   pgtype.FlatArray[int64]
	sharers pgtype.FlatArray[int32]
	in      [windows]pgtype.FlatArray[int32]
	last    pgtype.FlatArray[time.Time]
}

func (c *tallyColumns) add(link int64, t tally) {
	c.links, c.sharers, c.last = append(c.links, link), append(c.sharers, int32(t.total)), append(c.last, t.last)
	for i := range c.in {
		c.in[i] = append(c.in[i], int32(t.in[i]))
	}
}

// countColumns holds the rows of a table of counts that change, and those to
// delete.
type countColumns struct {
	tallies tallyColumns
	dropped pgtype.FlatArray[int64]
}

func (c *countColumns) add(all map[int64]*corrected) {
	for link, t := range all {
		switch {
		case t.now.total >= 2 && !(t.row && t.now.equal(t.old)):
			c.tallies.add(link, t.now)
		case t.now.total < 2 && t.row:
			c.dropped = append(c.dropped, link)
		}
	}
}

func (c *countColumns) len() int { return len(c.tallies.links) + len(c.dropped) }

func (c *countColumns) queue(q *pgx.Batch, table string) {
	if t := c.tallies; len(t.links) > 0 {
		q.Queue(`
INSERT INTO `+table+` (link_id, sharers, in_1h, in_3h, in_6h, in_12h, in_24h, in_7d, last_at)
SELECT t.link_id, t.sharers, t.in_1h, t.in_3h, t.in_6h, t.in_12h, t.in_24h, t.in_7d, t.last_at
FROM unnest($1::bigint[], $2::int[], $3::int[], $4::int[], $5::int[], $6::int[], $7::int[], $8::int[], $9::timestamptz[])
     AS t (link_id, sharers, in_1h, in_3h, in_6h, in_12h, in_24h, in_7d, last_at)
ON CONFLICT (link_id) DO UPDATE
SET sharers = excluded.sharers, in_1h = excluded.in_1h, in_3h = excluded.in_3h, in_6h = excluded.in_6h, in_12h = excluded.in_12h,
    in_24h = excluded.in_24h, in_7d = excluded.in_7d,
        last_at = excluded.last_at`, t.links, t.sharers, t.in[0], t.in[1], t.in[2], t.in[3], t.in[4], t.in[5], t.last)
	}
	if len(c.dropped) > 0 {
		q.Queue(`DELETE FROM `+table+` WHERE link_id = ANY ($1)`, c.dropped)
	}
}
