package ranking

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// LinkSummary is a link and how it is counted. Shares are records; sharers are accounts,
// each counted once. So a link that one account shared often differs from one that many
// accounts shared.
type LinkSummary struct {
	LinkCard
	FirstSeen   time.Time      `json:"first_seen"`
	At          time.Time      `json:"generated_at"`
	Shares      int            `json:"shares"`      // in the ledger
	Accounts    int            `json:"accounts"`    // that these are by
	Sharers     int            `json:"sharers"`     // accounts that count in the window
	Windows     map[string]int `json:"windows"`     // accounts that count in each window
	Ways        map[string]int `json:"ways"`        // shares by how
	NotCounted  map[Reason]int `json:"not_counted"` // shares that do not count in the window, by why
	FirstShared *time.Time     `json:"first_shared,omitempty"`
	LastShared  *time.Time     `json:"last_shared,omitempty"`
	Merged      []MergedLink   `json:"merged,omitempty"` // at most 100 links that are merged into it, the latest first
}

// ErrLink means that there is no link with an id.
var ErrLink = errors.New("there is no such link")

// ReadLink returns a link and how it is counted. It returns ErrLink if there is none, and
// a *MergedError if it is merged into another.
func ReadLink(ctx context.Context, db Beginner, of LinkQuery) (l LinkSummary, err error) {
	err = readLink(ctx, db, of, func(r *linkReader) error {
		const sql = `SELECT l.id, l.url, l.site, l.title, l.description, l.image, l.card_from, l.first_seen FROM links AS l WHERE l.id = $1`
		l.At = r.of.At
		l, err = schema.One(ctx, r.tx, "read the link", func(row pgx.CollectableRow) (_ LinkSummary, err error) {
			return l, row.Scan(&l.ID, &l.URL, &l.Site, &l.Title, &l.Description, &l.Image, &l.CardFrom, &l.FirstSeen)
		}, sql, of.ID)
		if errors.Is(err, schema.ErrNoRows) {
			return ErrLink
		}
		if err != nil {
			return err
		}
		if l.Merged, err = mergedInto(ctx, r.tx, l.ID); err != nil {
			return err
		}
		return r.count(ctx, &l)
	})
	return l, err
}

// count counts the shares of the link.
func (r *linkReader) count(ctx context.Context, l *LinkSummary) error {
	columns, to := []string{"count(*)", "count(DISTINCT s.did)", "min(s.shared_at)", "max(s.shared_at)"}, []any{&l.Shares, &l.Accounts, &l.FirstShared, &l.LastShared}
	numbers := func(n int, condition func(i int) string) []int {
		counted := make([]int, n)
		for i := range counted {
			columns, to = append(columns, "count(*) FILTER (WHERE "+condition(i)+")"), append(to, &counted[i])
		}
		return counted
	}
	words := append([]Reason{Counts}, reasons()...)
	why := numbers(len(words), func(i int) string { return fmt.Sprintf("s.why = '%s'", words[i]) })
	how := numbers(len(ways()), func(i int) string { return fmt.Sprintf("s.how = '%s'", ways()[i]) })
	in := numbers(windows, func(i int) string {
		return fmt.Sprintf("s.latest AND s.shared_at > $5::timestamptz - interval '%d hours'", int(Windows()[i].Length.Hours()))
	})
	sql := `
WITH marked AS MATERIALIZED (
    SELECT s.did, s.how, s.shared_at, s.collection, s.rkey, s.named_id, coalesce(` + notCounted + `, '') AS why
    FROM shares AS s
    LEFT JOIN LATERAL (SELECT a.status FROM accounts AS a WHERE a.did = s.did LIMIT 1) AS a ON true
    WHERE s.link_id = $4
), ordered AS (
    SELECT s.did, s.how, s.shared_at, s.why,
           s.why IN ('', 'outside_window')
           AND row_number() OVER (PARTITION BY s.did ORDER BY s.why IN ('', 'outside_window') DESC, s.shared_at DESC, s.collection DESC, s.rkey DESC, s.named_id DESC) = 1 AS latest
    FROM marked AS s
), s AS (
    SELECT o.did, o.how, o.shared_at, o.latest, CASE WHEN o.why = '' AND NOT o.latest THEN 'same_person' ELSE o.why END AS why
    FROM ordered AS o
)
SELECT `
	for i, column := range columns {
		if i > 0 {
			sql += ", "
		}
		sql += column
	}
	rows, err := r.tx.Query(ctx, sql+` FROM s`, r.args(r.of.ID, r.of.At)...)
	if err == nil {
		_, err = pgx.ForEachRow(rows, to, func() error { return nil })
	}
	if err != nil {
		return fmt.Errorf("count the shares of the link: %w", err)
	}
	l.Sharers, l.NotCounted, l.Ways, l.Windows = why[0], map[Reason]int{}, map[string]int{}, map[string]int{}
	for i, n := range why[1:] {
		if n > 0 {
			l.NotCounted[words[i+1]] = n
		}
	}
	for i, way := range ways() {
		l.Ways[way] = how[i]
	}
	for i, w := range Windows() {
		l.Windows[w.Name] = in[i]
	}
	return nil
}
