package ranking

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// giftOf selects the latest gift among the shares of the link k.id. A gift is deleted with
// the record that gave it, and is not shown while its giver does not count. A gift for a link that is merged into this one opens
// another address.
const giftOf = `
    SELECT s.gift FROM shares AS s
    WHERE s.link_id = k.id AND s.gift IS NOT NULL AND s.named_id = s.link_id AND`

// gift is the gift of one link.
type gift struct {
	Link int64
	URL  string
}

// queueGifts queues the query that reads the gifts of some links.
func queueGifts(q *pgx.Batch, links []int64, to *[]gift) {
	sql := `
SELECT k.id, g.gift FROM unnest($1::bigint[]) AS k (id)
CROSS JOIN LATERAL (` + giftOf + eligible("s.did") + `ORDER BY s.shared_at DESC LIMIT 1) AS g`
	schema.QueueAll(q, "read the gifts", pgx.RowToStructByPos[gift], to, sql, links)
}

// addGift adds its gift to a link.
func (r *linkReader) addGift(ctx context.Context, l *LinkCard) error {
	q, found := &pgx.Batch{}, []gift{}
	queueGifts(q, []int64{l.ID}, &found)
	err := send(ctx, r.tx, q)
	for _, g := range found {
		l.Gift = g.URL
	}
	return err
}
