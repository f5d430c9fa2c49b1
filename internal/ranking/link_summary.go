package ranking

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// LinkSummary is a link and its counts. Shares are records; sharers are accounts, each
// counted once. This distinguishes a link that one account shared often from a link that
// many accounts shared.
type LinkSummary struct {
	LinkCard
	FirstSeen   time.Time      `json:"first_seen"`
	At          time.Time      `json:"generated_at"`
	Shares      int            `json:"shares"`      // that are stored
	Accounts    int            `json:"accounts"`    // accounts that wrote the shares
	Sharers     int            `json:"sharers"`     // accounts that count in the window
	Windows     map[string]int `json:"windows"`     // accounts that count in each window
	Ways        map[string]int `json:"ways"`        // shares by way
	NotCounted  map[Reason]int `json:"not_counted"` // shares that do not count in the window, by reason
	FirstShared *time.Time     `json:"first_shared,omitempty"`
	LastShared  *time.Time     `json:"last_shared,omitempty"`
	TitleFrom   string         `json:"title_from,omitempty"` // post or page; empty: there is no title, or its post is unknown
	Page        *FetchedPage   `json:"page,omitempty"`       // how the page describes itself; nil: it was not fetched
	Merged      []MergedLink   `json:"merged,omitempty"`     // at most 100 links that are merged into this one, the latest first
	History     []int          `json:"history"`              // the sharers at the ends of equal parts of the time since HistoryFrom
	// the first share in the window that counts, or would count without a later one; nil: there is none
	HistoryFrom *time.Time `json:"history_from"`
	OtherTitles []Given    `json:"other_titles"` // titles that lost the vote
	OtherURLs   []Given    `json:"other_urls"`   // other spellings

	KeptSharers int        `json:"kept_sharers,omitempty"` // maximum when some of its shares expired; 0: too few to keep the link
	KeptAt      *time.Time `json:"kept_at,omitempty"`      // when some of its shares last expired

	CompleteSince *time.Time `json:"complete_since,omitempty"` // all shares since then are stored; nil: since the window began
}

// Given is a title or spelling that posts give a link, and the number of accounts that
// gave it.
type Given struct {
	Text     string `json:"text"`
	Accounts int    `json:"accounts"`
}

const (
	historyParts = 48
	maxGiven     = 20
)

// ErrLink means that there is no link with an id.
var ErrLink = errors.New("there is no such link")

// ReadLink returns a link and its counts. It returns ErrLink if there is none, and a
// *MergedError if it is merged into another.
func ReadLink(ctx context.Context, db Beginner, of LinkQuery) (l LinkSummary, err error) {
	err = readLink(ctx, db, of, func(r *linkReader) error {
		const sql = `
SELECT l.id, l.url, l.site, l.title, l.description, l.image, l.card_from, l.first_seen, coalesce(l.kept_sharers, 0), l.kept_at
FROM links AS l WHERE l.id = $1`
		l.At = r.of.At
		l, err = schema.One(ctx, r.tx, "read the link", func(row pgx.CollectableRow) (_ LinkSummary, err error) {
			return l, row.Scan(&l.ID, &l.URL, &l.Site, &l.Title, &l.Description, &l.Image, &l.CardFrom, &l.FirstSeen, &l.KeptSharers, &l.KeptAt)
		}, sql, of.ID)
		if err != nil {
			return err
		}
		if err = r.correctCard(ctx, &l.LinkCard); err != nil {
			return err
		}
		if err = r.addGift(ctx, &l.LinkCard); err != nil {
			return err
		}
		if l.Merged, err = mergedInto(ctx, r.tx, l.ID); err != nil {
			return err
		}
		if l.Page, err = fetchedPage(ctx, r.tx, l.ID); err != nil {
			return err
		}
		if l.CompleteSince, err = CompleteAfter(ctx, r.tx, of.At.Add(-of.Window)); err != nil {
			return err
		}
		switch {
		case l.Title == "":
		case strings.HasPrefix(l.CardFrom, "http"):
			l.TitleFrom = "page"
		case strings.HasPrefix(l.CardFrom, "at://"):
			l.TitleFrom = "post"
		}
		if err := r.count(ctx, &l); err != nil {
			return err
		}
		return r.readGiven(ctx, &l)
	})
	return l, err
}

// correctCard corrects the stored card by the pending changes, as the ranking does.
func (r *linkReader) correctCard(ctx context.Context, l *LinkCard) error {
	if r.countable() {
		if _, err := r.readPending(ctx, l.ID); err != nil {
			return err
		}
	}
	page := []TrendingLink{{LinkCard: *l}}
	err := r.correctHeadlines(ctx, page)
	*l = page[0].LinkCard
	return err
}

// count counts the shares of the link, and its sharers over time. Each sharer counts from
// its first share in the window.
func (r *linkReader) count(ctx context.Context, l *LinkSummary) error {
	columns, to := []string{
		"count(*)", "count(DISTINCT s.did)", "min(s.shared_at)", "max(s.shared_at)",
	}, []any{&l.Shares, &l.Accounts, &l.FirstShared, &l.LastShared}
	numbers := func(n int, condition func(i int) string) []int {
		counted := make([]int, n)
		for i := range counted {
			columns, to = append(columns, "count(*) FILTER (WHERE "+condition(i)+")"), append(to, &counted[i])
		}
		return counted
	}
	words := append([]Reason{Counts}, Reasons()...)
	why := numbers(len(words), func(i int) string { return fmt.Sprintf("s.why = '%s'", words[i]) })
	how := numbers(len(Ways()), func(i int) string { return fmt.Sprintf("s.how = '%s'", Ways()[i]) })
	in := numbers(windows, func(i int) string {
		return fmt.Sprintf("s.latest AND s.shared_at > $4::timestamptz - interval '%d hours'", int(Windows()[i].Length.Hours()))
	})
	// The part of the history in which each account began to share the link.
	const began = `
ARRAY(SELECT greatest(1,
    least($5::int,
        1 + floor($5::int * extract(epoch FROM f.at - f.began) / nullif(extract(epoch FROM $4::timestamptz - f.began), 0))))::int FROM f)`
	var parts []int
	columns, to = append(columns, "(SELECT min(f.at) FROM f)", began), append(to, &l.HistoryFrom, &parts)
	sql := markedShares + `, f AS (
    SELECT min(s.shared_at) AS at, min(min(s.shared_at)) OVER () AS began FROM s WHERE s.why IN ('', 'same_person') GROUP BY s.did
)
SELECT ` + strings.Join(columns, ", ") + ` FROM s`
	if err := r.tx.QueryRow(ctx, sql, r.args(r.of.ID, r.of.At, historyParts)...).Scan(to...); err != nil {
		return fmt.Errorf("count the shares of the link: %w", err)
	}
	l.Sharers, l.NotCounted, l.Ways, l.Windows = why[0], map[Reason]int{}, map[string]int{}, map[string]int{}
	for i, n := range why[1:] {
		if n > 0 {
			l.NotCounted[words[i+1]] = n
		}
	}
	for i, way := range Ways() {
		l.Ways[way] = how[i]
	}
	for i, w := range Windows() {
		l.Windows[w.Name] = in[i]
	}
	l.History = make([]int, historyParts)
	for _, part := range parts {
		l.History[part-1]++
	}
	for i := 1; i < historyParts; i++ {
		l.History[i] += l.History[i-1]
	}
	return nil
}

// readGiven reads the titles and the spellings given by posts of accounts that count,
// other than the ones that are shown.
func (r *linkReader) readGiven(ctx context.Context, l *LinkSummary) (err error) {
	others := func(column, shown string) ([]Given, error) {
		sql := `
SELECT c.` + column + ` AS text, count(DISTINCT s.did) AS accounts
FROM judged_shares AS s
JOIN claims AS c ON c.id = s.claim_id
WHERE s.link_id = $1 AND s.subject_did IS NULL AND c.` + column + ` NOT IN ('', $2) AND s.why IS NULL
GROUP BY c.` + column + `
ORDER BY count(DISTINCT s.did) DESC, c.` + column + `
LIMIT $3`
		return schema.All(ctx, r.tx, "read what posts say of the link", pgx.RowToStructByName[Given], sql, r.of.ID, shown, maxGiven)
	}
	if l.OtherTitles, err = others("title", l.Title); err != nil {
		return err
	}
	l.OtherURLs, err = others("url", l.URL)
	return err
}

// markedShares are common table expressions that end with s: the shares of the link $3,
// with the reason why each does not count, and whether it is the account's latest that
// could. $4 is the end of the window; the other parameters are those of whyOf.
const markedShares = `
WITH marked AS (
    SELECT s.did, s.how, s.shared_at, s.collection, s.rkey, s.named_id, coalesce(` + whyOf + `, '') AS why
    FROM judged_shares AS s
    WHERE s.link_id = $3
), ordered AS (
    SELECT s.did, s.how, s.shared_at, s.why,
           s.why IN ('', 'outside_window')
           AND row_number() OVER (PARTITION BY s.did
               ORDER BY s.why IN ('', 'outside_window') DESC, s.shared_at DESC, s.collection DESC, s.rkey DESC,
                   s.named_id DESC) = 1 AS latest
    FROM marked AS s
), s AS (
    SELECT o.did, o.how, o.shared_at, o.latest, CASE WHEN o.why = '' AND NOT o.latest THEN 'same_person' ELSE o.why END AS why
    FROM ordered AS o
)`
