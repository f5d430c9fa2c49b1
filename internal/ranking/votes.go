package ranking

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-social/weir/schema"
)

// An account that counts for a link has one vote for the link's headline and one for its
// spelling. They are in its row of sharers; claim_votes has the sums for each claim. Votes
// come from the posts that contain the link, dated after kept_from, as the shares in
// sharers do. A post that names another link, which is merged into this one, votes for the
// headline only: its spelling leads there only through the other link.

// vote is a vote of an account for a claim.
type vote struct {
	claim int64     // 0: none
	at    time.Time // the date of the account's earliest post with the same title, or spelling
	key   string    // the collection and rkey of that post
}

func (v vote) equal(other vote) bool {
	return v.claim == other.claim && v.at.Equal(other.at) && v.key == other.key
}

// uri returns the AT-URI of the post.
func (v vote) uri(did string) string { return "at://" + did + "/" + v.key }

// votes are the votes of an account on a link.
type votes struct{ title, url vote }

func (v votes) equal(other votes) bool { return v.title.equal(other.title) && v.url.equal(other.url) }

// everyVote is a list of common table expressions that ends with votes: the votes of the
// accounts with the posts own. own has did, link_id, claim_id, shared_at, collection and
// rkey of posts that contain links, and the title and url of their claims. An empty title
// or url is not a vote. It joins nothing: without statistics, the planner would compare all
// posts with all.
const everyVote = `
latest AS (
    SELECT o.*, o.collection || '/' || o.rkey AS key, first_value(o.claim_id) OVER titles AS title_claim,
        first_value(o.title) OVER titles AS vote,
           first_value(o.claim_id) OVER urls AS url_claim, first_value(o.url) OVER urls AS spelling
    FROM own AS o
    WINDOW titles AS (PARTITION BY o.link_id, o.did
        ORDER BY o.title = '', o.shared_at DESC, o.rkey DESC, o.collection DESC, o.claim_id DESC),
           urls   AS (PARTITION BY o.link_id, o.did ORDER BY o.url = '', o.shared_at DESC, o.rkey DESC, o.collection DESC, o.claim_id DESC)
), votes AS MATERIALIZED (
    SELECT l.link_id, l.did,
           min(l.title_claim) FILTER (WHERE l.vote <> '')                                              AS title_claim,
           min(l.shared_at) FILTER (WHERE l.title = l.vote AND l.vote <> '')                           AS title_at,
           (array_agg(l.key ORDER BY l.shared_at, l.key) FILTER (WHERE l.title = l.vote AND l.vote <> ''))[1] AS title_key,
           min(l.url_claim) FILTER (WHERE l.spelling <> '')                                            AS url_claim,
           min(l.shared_at) FILTER (WHERE l.url = l.spelling AND l.spelling <> '')                     AS url_at,
           (array_agg(l.key ORDER BY l.shared_at, l.key) FILTER (WHERE l.url = l.spelling AND l.spelling <> ''))[1] AS url_key
    FROM latest AS l
    GROUP BY l.link_id, l.did
)`

// ownPosts is the definition of own for the shares s that meet a condition: $1 is
// kept_from.
func ownPosts(of string) string {
	return `
    SELECT s.did, s.link_id, s.claim_id, s.shared_at, s.collection, s.rkey, c.title,
        CASE WHEN s.named_id = s.link_id THEN c.url ELSE '' END AS url
    FROM judged_shares AS s
    JOIN claims AS c ON c.id = s.claim_id
    WHERE s.subject_did IS NULL AND s.shared_at > $1 AND ` + of + ` AND s.why IS NULL`
}

// sumOfVotes returns the rows that claim_votes should have for some rows f with votes.
func sumOfVotes(of string) string {
	return `
    SELECT coalesce(t.claim_id, u.claim_id) AS claim_id, coalesce(t.link_id, u.link_id) AS link_id,
           coalesce(t.n, 0) AS titles, t.at AS title_at, t.uri AS title_from, coalesce(u.n, 0) AS urls, u.at AS url_at, u.uri AS url_from
    FROM (
        SELECT f.title_claim AS claim_id, f.link_id, count(*)::int AS n, min(f.title_at) AS at,
               (array_agg('at://' || f.did || '/' || f.title_key
                   ORDER BY f.title_at, 'at://' || f.did || '/' || f.title_key COLLATE "C"))[1] AS uri
        FROM ` + of + ` AND f.title_claim IS NOT NULL GROUP BY f.title_claim, f.link_id
    ) AS t
    FULL JOIN (
        SELECT f.url_claim AS claim_id, f.link_id, count(*)::int AS n, min(f.url_at) AS at,
               (array_agg('at://' || f.did || '/' || f.url_key
                   ORDER BY f.url_at, 'at://' || f.did || '/' || f.url_key COLLATE "C"))[1] AS uri
        FROM ` + of + ` AND f.url_claim IS NOT NULL GROUP BY f.url_claim, f.link_id
    ) AS u ON u.claim_id = t.claim_id AND u.link_id = t.link_id`
}

// ownPost is a post that contains a link, by an account whose votes are read.
type ownPost struct {
	sharing
	claim            int64
	named            bool // the post names this link, not one that is merged into it
	at               time.Time
	collection, rkey string
}

// addVotes adds the votes of the shares to changes, whose own posts are these.
func (c changes) addVotes(ctx context.Context, db schema.DB, posts []ownPost) error {
	const sql = `
WITH own AS (
    SELECT a.link_id, a.did, a.claim_id, a.shared_at, a.collection COLLATE "C" AS collection, a.rkey COLLATE "C" AS rkey, c.title,
        CASE WHEN a.named THEN c.url ELSE '' END AS url
    FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::boolean[], $5::timestamptz[], $6::text[], $7::text[])
         AS a (link_id, did, claim_id, named, shared_at, collection, rkey)
    JOIN claims AS c ON c.id = a.claim_id
),` + everyVote + `
SELECT v.link_id, v.did, v.title_claim, v.title_at, v.title_key, v.url_claim, v.url_at, v.url_key FROM votes AS v`
	if len(posts) == 0 {
		return nil
	}
	var of sharingColumns
	var claims pgtype.FlatArray[int64]
	var named pgtype.FlatArray[bool]
	var at pgtype.FlatArray[time.Time]
	var collections, rkeys pgtype.FlatArray[string]
	for _, p := range posts {
		of.add(p.sharing)
		claims, named, at = append(claims, p.claim), append(named, p.named), append(at, p.at)
		collections, rkeys = append(collections, p.collection), append(rkeys, p.rkey)
	}
	var k sharing
	var title, url nullVote
	return schema.Each(ctx, db, "read the votes", slices.Concat([]any{&k.link, &k.did}, title.targets(), url.targets()), func() error {
		change := c[k]
		change.truth.votes = votes{title.vote(), url.vote()}
		c[k] = change
		return nil
	}, sql, of.links, of.dids, claims, named, at, collections, rkeys)
}

// nullVote is a vote as read from a row.
type nullVote struct {
	claim *int64
	at    *time.Time
	key   *string
}

func (n *nullVote) targets() []any { return []any{&n.claim, &n.at, &n.key} }

func (n *nullVote) vote() vote {
	if n.claim == nil {
		return vote{}
	}
	return vote{*n.claim, *n.at, *n.key}
}

// ballot is the change of the votes of an account on a link.
type ballot struct {
	sharing
	folded, truth votes
}

// ballots returns the changed votes.
func (c changes) ballots() (all []ballot) {
	for k, change := range c {
		if !change.folded.votes.equal(change.truth.votes) {
			all = append(all, ballot{k, change.folded.votes, change.truth.votes})
		}
	}
	return all
}

// voteColumns are votes, as columns.
type voteColumns struct {
	claims pgtype.FlatArray[*int64]
	at     pgtype.FlatArray[*time.Time]
	keys   pgtype.FlatArray[*string]
}

func (c *voteColumns) add(v vote) {
	if v.claim == 0 {
		c.claims, c.at, c.keys = append(c.claims, nil), append(c.at, nil), append(c.keys, nil)
		return
	}
	c.claims, c.at, c.keys = append(c.claims, &v.claim), append(c.at, &v.at), append(c.keys, &v.key)
}

// addOldVotes adds the remaining rows of sharers with a vote of a post that is too old.
func (p *pending) addOldVotes(ctx context.Context, db schema.DB, keptFrom time.Time) error {
	var k sharing
	return schema.Each(ctx, db, "read the old votes", []any{&k.link, &k.did}, func() error {
		old := k
		p.add(&old.link, &old.did, nil, nil)
		return nil
	}, `SELECT link_id, did FROM sharers WHERE voted_at <= $1 AND voted_at < at AND at > $1`, keptFrom)
}

// choose computes the rows of claim_votes that a step writes, and the links whose headlines it writes: those whose
// votes change, and those that are counted as a whole.
func (w *written) choose(ctx context.Context, db schema.DB, c changes, gone []ballot, whole []int64) error {
	ballots := c.ballots()
	for _, b := range gone {
		if b.folded != (votes{}) {
			ballots = append(ballots, b)
		}
	}
	sums, err := sumVotes(ctx, db, ballots)
	if err != nil {
		return err
	}
	links := map[int64]struct{}{}
	for k := range sums {
		links[k.link] = struct{}{}
	}
	for _, link := range whole {
		links[link] = struct{}{}
	}
	w.elected = slices.Sorted(maps.Keys(links))
	w.sums, w.unvoted = newSumColumns(sums)
	w.doubtful = newDoubtful(sums)
	return err
}

// queueVotes queues the statements that write what choose computed.
func (w *written) queueVotes(q *pgx.Batch) {
	const store = `
INSERT INTO claim_votes (claim_id, link_id, titles, title_at, title_from, urls, url_at, url_from, title_group)
SELECT k.*, (SELECT c.title_group FROM claims AS c WHERE c.id = k.claim_id)
FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::timestamptz[], $5::text[], $6::int[], $7::timestamptz[], $8::text[])
     AS k (claim_id, link_id, titles, title_at, title_from, urls, url_at, url_from)
ON CONFLICT (claim_id, link_id) DO UPDATE
SET titles = excluded.titles, title_at = excluded.title_at, title_from = excluded.title_from, urls = excluded.urls,
    url_at = excluded.url_at, url_from = excluded.url_from`
	if links := slices.Concat(w.sums.links, w.unvoted.links); len(links) > 0 {
		queueLockPages(q, links)
	}
	if len(w.sums.claims) > 0 {
		q.Queue(store, w.sums.args()...)
	}
	if len(w.unvoted.claims) > 0 {
		q.Queue(`
			DELETE FROM claim_votes AS v USING unnest($1::bigint[], $2::bigint[]) AS k (claim_id, link_id)
			WHERE v.claim_id = k.claim_id AND v.link_id = k.link_id`,
			w.unvoted.claims, w.unvoted.links)
	}
	if len(w.elected) > 0 {
		queueHeadlines(q, w.elected)
	}
	if len(w.links) > 0 {
		queueDropCards(q, w.links)
	}
}

// everySharerAndVote is a list of common table expressions that ends with truth: the rows
// that sharers should have for some shares s. Its parameters are those of everySharer.
func everySharerAndVote(of string) string {
	return `sharing AS MATERIALIZED (` + everySharer(of) + `), own AS (` + ownPosts(of) + `),` + everyVote + `, truth AS (
    SELECT s.*, v.title_claim, v.title_at, v.title_key, v.url_claim, v.url_at, v.url_key
    FROM sharing AS s
    LEFT JOIN votes AS v ON v.did = s.did AND v.link_id = s.link_id
)`
}

// queueEveryVote queues the statements that make claim_votes and the headlines match
// sharers.
func queueEveryVote(q *pgx.Batch) {
	queueLockPages(q, nil)
	q.Queue(`DELETE FROM claim_votes`)
	q.Queue(`
INSERT INTO claim_votes (claim_id, link_id, titles, title_at, title_from, urls, url_at, url_from, title_group)
SELECT k.*, c.title_group FROM (` + sumOfVotes(`sharers AS f WHERE true`) + `) AS k LEFT JOIN claims AS c ON c.id = k.claim_id`)
	queueEveryWall(q)
	queueHeadlines(q, nil)
	queueDropCards(q, nil)
}
