package ranking

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-social/weir/schema"
)

// sum is the number of votes of one kind for a claim, and the earliest of them.
type sum struct {
	n   int
	at  time.Time
	uri string
}

func (s *sum) add(did string, v vote) {
	s.n++
	s.earlier(v.at, v.uri(did))
}

func (s *sum) earlier(at time.Time, uri string) {
	if s.uri == "" || at.Before(s.at) || at.Equal(s.at) && uri < s.uri {
		s.at, s.uri = at, uri
	}
}

// claimed identifies a row of claim_votes.
type claimed struct{ claim, link int64 }

// claimSums holds the other columns of the row.
type claimSums struct {
	title, url sum
	before     int    // the votes for the title that are stored
	group      *int64 // of the title, if the row is stored
}

func (c *claimSums) empty() bool { return c.title.n+c.url.n == 0 }

// sumVotes returns the rows of claim_votes that the ballots change, with these changes. It
// reads one row for each claim, however many accounts vote for it. If the earliest vote is
// removed, it also looks for the next one.
func sumVotes(ctx context.Context, db schema.DB, ballots []ballot) (map[claimed]*claimSums, error) {
	all := map[claimed]*claimSums{}
	if len(ballots) == 0 {
		return all, nil
	}
	of := func(claim, link int64) *claimSums {
		k := claimed{claim, link}
		if all[k] == nil {
			all[k] = &claimSums{}
		}
		return all[k]
	}
	var pairs sharingColumns
	var lostTitles, lostURLs pgtype.FlatArray[string] // the posts of the removed votes
	for _, b := range ballots {
		pairs.add(b.sharing)
		if v := b.folded.title; v.claim != 0 {
			of(v.claim, b.link).title.n--
			lostTitles = append(lostTitles, v.uri(b.did))
		}
		if v := b.folded.url; v.claim != 0 {
			of(v.claim, b.link).url.n--
			lostURLs = append(lostURLs, v.uri(b.did))
		}
		if v := b.truth.title; v.claim != 0 {
			of(v.claim, b.link).title.add(b.did, v)
		}
		if v := b.truth.url; v.claim != 0 {
			of(v.claim, b.link).url.add(b.did, v)
		}
	}
	var ids, links pgtype.FlatArray[int64]
	for k := range all {
		ids, links = append(ids, k.claim), append(links, k.link)
	}
	sql := `
SELECT v.claim_id, v.link_id, v.title_group, v.titles, v.urls, CASE WHEN v.title_lost THEN t.at ELSE v.title_at END, CASE
    WHEN v.title_lost THEN t.uri ELSE v.title_from END,
       CASE WHEN v.url_lost THEN u.at ELSE v.url_at END, CASE WHEN v.url_lost THEN u.uri ELSE v.url_from END
FROM unnest($1::bigint[], $2::bigint[]) AS k (id, link_id)
CROSS JOIN LATERAL (
    SELECT v.*, v.title_from = ANY ($5::text[]) AS title_lost, v.url_from = ANY ($6::text[]) AS url_lost
    FROM claim_votes AS v
    WHERE v.claim_id = k.id AND v.link_id = k.link_id
    LIMIT 1
) AS v
LEFT JOIN LATERAL (` + earliestVote("title") + `) AS t ON true
LEFT JOIN LATERAL (` + earliestVote("url") + `) AS u ON true`
	var k claimed
	var group *int64
	var titles, urls int
	var titleAt, urlAt *time.Time
	var titleFrom, urlFrom *string
	err := schema.Each(ctx, db, "read the sums of votes", []any{
		&k.claim, &k.link, &group, &titles, &urls, &titleAt, &titleFrom, &urlAt, &urlFrom,
	}, func() error {
		c := all[k]
		c.title.n, c.url.n, c.before, c.group = c.title.n+titles, c.url.n+urls, titles, group
		if titleAt != nil {
			c.title.earlier(*titleAt, *titleFrom)
		}
		if urlAt != nil {
			c.url.earlier(*urlAt, *urlFrom)
		}
		return nil
	}, sql, ids, links, pairs.links, pairs.dids, lostTitles, lostURLs)
	if err != nil {
		return nil, err
	}
	return all, nil
}

// earliestVote reads the earliest remaining vote for the claim k.id of the link k.link_id,
// if the earliest of all is removed. A popular link has thousands.
func earliestVote(kind string) string {
	return strings.ReplaceAll(`
    SELECT f.KIND_at AS at, 'at://' || f.did || '/' || f.KIND_key AS uri
    FROM sharers AS f
    WHERE v.KIND_lost AND f.KIND_claim = k.id AND f.link_id = k.link_id
        AND (f.link_id, f.did) NOT IN (SELECT * FROM unnest($3::bigint[], $4::text[]))
    ORDER BY f.KIND_at, 'at://' || f.did || '/' || f.KIND_key COLLATE "C"
    LIMIT 1`, "KIND", kind)
}

// claimedColumns identify rows of claim_votes, as columns.
type claimedColumns struct{ claims, links pgtype.FlatArray[int64] }

// sumColumns are rows of claim_votes, as columns.
type sumColumns struct {
	claimedColumns
	titles, urls       pgtype.FlatArray[int32]
	titleAt, urlAt     pgtype.FlatArray[*time.Time]
	titleFrom, urlFrom pgtype.FlatArray[*string]
}

func newSumColumns(all map[claimed]*claimSums) (c sumColumns, gone claimedColumns) {
	for k, s := range all {
		if s.empty() {
			gone.claims, gone.links = append(gone.claims, k.claim), append(gone.links, k.link)
			continue
		}
		c.claims, c.links = append(c.claims, k.claim), append(c.links, k.link)
		at, from := s.title.columns()
		c.titles, c.titleAt, c.titleFrom = append(c.titles, int32(s.title.n)), append(c.titleAt, at), append(c.titleFrom, from) // accounts
		at, from = s.url.columns()
		c.urls, c.urlAt, c.urlFrom = append(c.urls, int32(s.url.n)), append(c.urlAt, at), append(c.urlFrom, from) // accounts
	}
	return c, gone
}

func (s sum) columns() (at *time.Time, uri *string) {
	if s.n == 0 {
		return nil, nil
	}
	return &s.at, &s.uri
}

func (c sumColumns) args() []any {
	return []any{c.claims, c.links, c.titles, c.titleAt, c.titleFrom, c.urls, c.urlAt, c.urlFrom}
}
