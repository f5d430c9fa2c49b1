package ranking

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// giftOf selects the latest gift among the shares of the link k.id. It goes with the record
// that gave it, and is not offered while its giver does not count. $2 says whether only
// members of watches count. A gift of a link that is merged into this one opens another
// address.
const giftOf = `
    SELECT s.gift FROM shares AS s
    WHERE s.link_id = k.id AND s.gift IS NOT NULL AND s.named_id = s.link_id AND`

// readGifts returns the gifts of some links.
func readGifts(ctx context.Context, db schema.DB, links []int64, watching bool) (map[int64]string, error) {
	gifts := map[int64]string{}
	sql := `SELECT k.id, g.gift FROM unnest($1::bigint[]) AS k (id) CROSS JOIN LATERAL (` + giftOf + eligible("s.did", "$2") + `ORDER BY s.shared_at DESC LIMIT 1) AS g`
	_, err := schema.All(ctx, db, "read the gifts", func(row pgx.CollectableRow) (id int64, err error) {
		var gift string
		err = row.Scan(&id, &gift)
		gifts[id] = gift
		return id, err
	}, sql, links, watching)
	return gifts, err
}

// addGifts adds the gifts to the links of a page.
func (r *reader) addGifts(ctx context.Context, page []TrendingLink) error {
	ids := make([]int64, len(page))
	for i := range page {
		ids[i] = page[i].ID
	}
	gifts, err := readGifts(ctx, r.tx, ids, r.state.Watching)
	for i := range page {
		page[i].Gift = gifts[page[i].ID]
	}
	return err
}

// addGift adds its gift to a link.
func (r *linkReader) addGift(ctx context.Context, l *LinkCard) error {
	gifts, err := readGifts(ctx, r.tx, []int64{l.ID}, r.state.Watching)
	l.Gift = gifts[l.ID]
	return err
}
