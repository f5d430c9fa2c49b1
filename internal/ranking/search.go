package ranking

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/words"
	"github.com/weir-social/weir/schema"
)

// texts selects the shares whose posts' texts are searched: posts of the days for which posts are
// still stored, and those with rkeys that name no day, such as notes. $2 is the first of these
// days, as an rkey. The condition is added to both selections.
func texts(columns, condition string) string {
	return `(SELECT ` + columns + ` FROM shares AS s WHERE s.rkey >= $2 AND ` + condition + `)
    UNION ALL (SELECT ` + columns + ` FROM shares_default AS s WHERE s.rkey < $2 AND ` + condition + `)`
}

// The places in which a link may match.
const (
	inAddress = 1 << iota
	inCards
	inPosts
	anywhere = inAddress | inCards | inPosts
)

// matches is a condition: the link matches the text in one of the places. It has the parameters of
// searchArgs. It uses only the shares, so pending changes do not affect it. OFFSET and the empty
// string keep the planner from reading everything that matches once per link.
func matches(link, places string) string {
	in := func(place int) string { return fmt.Sprintf("%s & %d > 0 AND EXISTS", places, place) }
	return ` (` + in(inAddress) + ` (SELECT FROM links AS l WHERE l.id = ANY (` + membersOf(link) + `) AND l.identity || '' ILIKE $3::text)
    OR ` + in(inCards) + ` (
        SELECT FROM (SELECT array_agg(c.id) AS ids
            FROM (SELECT c.id, c.words FROM claims AS c WHERE c.link_id = ANY (` + membersOf(link) + `) OFFSET 0) AS c
            WHERE c.words @@ $1::tsquery) AS c
        CROSS JOIN LATERAL (SELECT s.did, s.claim_id FROM shares AS s WHERE s.link_id = ` + link + ` AND c.ids IS NOT NULL OFFSET 0) AS s
        WHERE s.claim_id = ANY (c.ids) AND` + eligible("s.did") + `)
    OR ` + in(inCards) + ` (
        SELECT FROM cards AS c JOIN links AS m ON m.id = c.link_id
        WHERE m.id = ANY (` + membersOf(link) + `) AND c.words @@ $1::tsquery AND ` + cardCounts + `)
    OR ` + in(inPosts) + ` (
        SELECT FROM (` + texts("s.collection, s.did, s.rkey, s.words", `s.link_id = `+link+` OFFSET 0`) + `) AS s
        WHERE s.words @@ $1::tsquery AND` + eligible("s.did") + `AND ` + stored + `)) `
}

// membersOf returns the ids of a link and of the links that are merged into it.
func membersOf(link string) string {
	return `ARRAY(SELECT ` + link + ` UNION ALL SELECT m.id FROM links AS m WHERE m.merged_into = ` + link + `)`
}

// stored is a condition: the post or the note of the share s is stored, and shown to strangers.
var stored = `CASE s.collection
    WHEN 'app.bsky.feed.post'
        THEN EXISTS (SELECT FROM posts AS p WHERE p.collection = 'app.bsky.feed.post' AND p.did = s.did AND p.rkey = s.rkey)
    ELSE EXISTS (SELECT FROM records_other AS p WHERE p.collection = s.collection AND p.did = s.did AND p.rkey = s.rkey) END
        AND NOT` + schema.Withheld("s.did")

// searched is the text of the query, in the form that matches needs.
type searched struct {
	words.Search
	from string // the first rkey of the partitions of posts
	// places has the links that match, and where. It includes links that matched before something
	// was deleted or hidden.
	places map[int64]int
	rows   int  // how many matches were listed for places
	other  int  // the places with so many matches that none of them are in places
	exact  bool // every link in places matches
}

func (r *reader) searchArgs() []any {
	t := r.text
	if t == nil {
		t = &searched{}
	}
	return []any{t.Words, t.from, t.Address}
}

// readSearch finds the links that may match.
func (r *reader) readSearch(ctx context.Context) (err error) {
	if r.q.Text == "" {
		return nil
	}
	r.text = &searched{Search: words.Parse(r.q.Text)}
	// No rkey of a day comes after '~'.
	const from = `SELECT coalesce(min(lower), '~') FROM partitions WHERE parent = 'posts' AND NOT ahead`
	if r.text.from, err = schema.One(ctx, r.tx, "find the first day of posts", pgx.RowTo[string], from); err != nil {
		return err
	}
	frequent, err := r.expect(ctx)
	if err != nil {
		return err
	}
	r.text.places = map[int64]int{}
	found, err := r.list(ctx, func(place int) int {
		switch {
		case r.text.other&place != 0:
			return 0
		case frequent&place != 0:
			return min(sampled, r.many)
		}
		return r.many
	})
	if err != nil {
		return err
	}
	if found.again != 0 {
		more, err := r.list(ctx, func(place int) int {
			if found.again&place == 0 {
				return 0
			}
			return r.most()
		})
		if err != nil {
			return err
		}
		found.rows, found.named = found.rows+more.rows, append(found.named, more.named...)
	}
	if err := r.countMerged(ctx, found.named); err != nil {
		return err
	}
	r.text.rows = found.rows
	if r.text.other == 0 && found.rows < min(r.few, r.many) {
		return r.matchEach(ctx)
	}
	return nil
}

// sampled is how many rows of a place are listed first if the planner expects r.many.
const sampled = 1000

// most is how many rows of a place are listed if they are of few links.
func (l limits) most() int { return 5 * l.many }

// listing is the result of listing the matches of the places.
type listing struct {
	rows  int
	again int     // places with more matches to list
	named []int64 // links of cards, which may be merged
}

// list lists at most limit matching rows in each place. If there are more, it leaves the place out,
// unless the rows belong to few links: a scan soon finds enough of the place's links.
func (r *reader) list(ctx context.Context, limit func(place int) int) (all listing, err error) {
	// The empty string keeps the planner from using the index for the second condition on the
	// address.
	sql := `
WITH found AS (
    SELECT l.link_id, 1 AS place
    FROM (SELECT l.counts_as AS link_id FROM links AS l WHERE l.identity ILIKE $5::text AND l.identity || '' ILIKE $4::text LIMIT $6) AS l
    UNION ALL (SELECT c.link_id, 2 FROM claims AS c WHERE c.words @@ $1::tsquery LIMIT $7)
    UNION ALL (SELECT c.link_id, 2 FROM cards AS c WHERE c.words @@ $1::tsquery LIMIT $7)
    UNION ALL SELECT s.link_id, 4 FROM (` + texts("s.link_id", "s.words @@ $1::tsquery LIMIT $3") + ` LIMIT $3) AS s
)
SELECT f.place, count(*), array_agg(DISTINCT f.link_id ORDER BY f.link_id) FROM found AS f GROUP BY f.place`
	var place, n int
	var links []int64
	err = schema.Each(ctx, r.tx, "find the links that match", []any{&place, &n, &links}, func() error {
		all.rows += n
		switch at := limit(place); {
		case n >= at && at < r.most() && len(links) < n/4:
			all.again |= place
			return nil
		case n >= at:
			r.text.other |= place
			return nil
		}
		for _, id := range links {
			r.text.places[id] |= place
		}
		if place == inCards {
			all.named = slices.Clone(links)
		}
		return nil
	}, sql, r.text.Words, r.text.from, limit(inPosts), r.text.Address, r.text.Part, limit(inAddress), limit(inCards))
	return all, err
}

// expect asks the planner how many rows match in each place. Reading rows only to find that there
// are too many would take longer than everything else. It marks the places that are not listed, and
// returns the places with many matches.
func (r *reader) expect(ctx context.Context) (frequent int, err error) {
	q := &pgx.Batch{}
	ask := func(place int, from string, args ...any) {
		q.Queue(`EXPLAIN (FORMAT JSON) SELECT FROM `+from, args...).QueryRow(func(row pgx.Row) error {
			var plans [1]struct {
				Plan struct {
					Rows float64 `json:"Plan Rows"`
				}
			}
			err := row.Scan(&plans)
			switch n := plans[0].Plan.Rows; {
			case n >= float64(r.most()):
				r.text.other |= place
			case n >= float64(r.many):
				frequent |= place
			}
			return err
		})
	}
	ask(inAddress, `links AS l WHERE l.identity ILIKE $1::text`, r.text.Part)
	ask(inCards, `claims AS c WHERE c.words @@ $1::tsquery`, r.text.Words)
	ask(inPosts, `shares AS s WHERE s.rkey >= $2 AND s.words @@ $1::tsquery`, r.text.Words, r.text.from)
	if err := r.tx.SendBatch(ctx, q).Close(); err != nil {
		return 0, fmt.Errorf("estimate how many links match: %w", err)
	}
	return frequent, nil
}

// countMerged replaces the links of matching cards, which are the links that were shared, by the
// links as which they count.
func (r *reader) countMerged(ctx context.Context, named []int64) error {
	if len(named) == 0 {
		return nil
	}
	// Only with exactly this condition does Postgres use the index links_merged.
	const sql = `SELECT l.id, l.counts_as FROM links AS l WHERE l.id = ANY ($1) AND l.counts_as <> l.id`
	var id, into int64
	return schema.Each(ctx, r.tx, "find the links that are merged", []any{&id, &into}, func() error {
		r.text.places[into] |= inCards
		if r.text.places[id] &^= inCards; r.text.places[id] == 0 {
			delete(r.text.places, id)
		}
		return nil
	}, sql, named)
}

// matchEach checks each of a few matches. That is faster than checking each link.
func (r *reader) matchEach(ctx context.Context) error {
	links, err := r.matchListed(ctx, slices.Collect(maps.Keys(r.text.places)))
	if err != nil {
		return err
	}
	clear(r.text.places)
	for _, id := range links {
		r.text.places[id] = anywhere
	}
	r.text.exact = true
	return nil
}

// matchListed returns which of the links match, if all matches are listed. It reads all of them, so
// of a link's posts only those that match. Matches in addresses never change.
func (r *reader) matchListed(ctx context.Context, links []int64) ([]int64, error) {
	matching, err := schema.All(ctx, r.tx, "read what matches", pgx.RowTo[int64], listedMatches, append(r.searchArgs()[:2], links)...)
	if err != nil {
		return nil, err
	}
	for _, id := range links {
		if r.text.places[id]&inAddress != 0 {
			matching = append(matching, id)
		}
	}
	return matching, nil
}

// listedMatches selects which of the links match in cards and posts. It reads all matches once,
// rather than the rows of each link.
var listedMatches = `
WITH listed AS (SELECT DISTINCT k.id FROM unnest($3::bigint[]) AS k (id))
SELECT g.link_id
FROM (
    SELECT s.link_id, array_agg(s.collection) AS collections, array_agg(s.did) AS dids, array_agg(s.rkey) AS rkeys
    FROM (` + texts("s.link_id, s.collection, s.did, s.rkey", "s.words @@ $1::tsquery OFFSET 0") + `) AS s
    JOIN listed AS k ON k.id = s.link_id
    GROUP BY s.link_id
) AS g
WHERE EXISTS (
    SELECT FROM (SELECT * FROM unnest(g.collections, g.dids, g.rkeys) AS s (collection, did, rkey)) AS s
    WHERE` + eligible("s.did") + `AND ` + stored + `)
UNION
SELECT g.link_id
FROM (
    SELECT k.id AS link_id, array_agg(c.id) AS claims
    FROM (SELECT c.id, c.link_id FROM claims AS c WHERE c.words @@ $1::tsquery OFFSET 0) AS c
    JOIN links AS l ON l.id = c.link_id JOIN listed AS k ON k.id = l.counts_as
    GROUP BY k.id
) AS g
WHERE EXISTS (
    SELECT FROM (SELECT s.did, s.claim_id FROM shares AS s WHERE s.link_id = g.link_id) AS s
    WHERE s.claim_id = ANY (g.claims) AND` + eligible("s.did") + `)
UNION
SELECT k.id
FROM (SELECT c.* FROM cards AS c WHERE c.words @@ $1::tsquery OFFSET 0) AS c
JOIN links AS m ON m.id = c.link_id JOIN listed AS k ON k.id = m.counts_as
WHERE ` + cardCounts

// found returns the links that may match; nil: all may.
func (t *searched) found() []int64 {
	if t == nil || t.other != 0 {
		return nil
	}
	return slices.AppendSeq(make([]int64, 0, len(t.places)), maps.Keys(t.places))
}

// doubtful reports whether a link that may match must still be checked.
func (t *searched) doubtful() bool { return t != nil && !t.exact }

// keep removes the links that are not of the site, or do not match the text.
func (r *reader) keep(ctx context.Context, of []entry) ([]entry, error) {
	if of = r.leaveOut(of); len(of) == 0 || r.q.Site == "" && !r.text.doubtful() {
		return of, nil
	}
	ids := idsOf(of)
	read := 0 // rows to read when checking each link: few if it matches in a card or its address
	for _, e := range of {
		if r.text.doubtful() && r.text.places[e.ID] == inPosts {
			read += e.Sharers
		}
	}
	if r.q.Site == "" && r.text.other == 0 && read > r.text.rows {
		kept, err := r.matchListed(ctx, ids)
		return only(of, kept), err
	}
	sql, args := `SELECT l.id FROM links AS l WHERE l.id = ANY ($1) AND l.site = $2`, []any{ids, r.q.Site}
	if r.text.doubtful() {
		places := make([]int, len(of))
		for i, id := range ids {
			places[i] = r.text.places[id] | r.text.other
		}
		sql = `
SELECT k.id FROM unnest($4::bigint[], $6::int[]) AS k (id, places)
WHERE ($5 = '' OR (SELECT l.site FROM links AS l WHERE l.id = k.id) = $5) AND` + matches("k.id", "k.places")
		args = append(r.searchArgs(), ids, r.q.Site, places)
	}
	kept, err := schema.All(ctx, r.tx, "filter the links", pgx.RowTo[int64], sql, args...)
	if err != nil {
		return nil, err
	}
	return only(of, kept), nil
}

// only removes the links that are not among the ids.
func only(of []entry, ids []int64) []entry {
	is := make(map[int64]struct{}, len(ids))
	for _, id := range ids {
		is[id] = struct{}{}
	}
	return slices.DeleteFunc(of, func(e entry) bool {
		_, ok := is[e.ID]
		return !ok
	})
}
