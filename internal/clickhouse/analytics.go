package clickhouse

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// shown selects the posts that may be shown. It leaves out deleted posts, and posts of
// accounts whose last known state is not active.
const shown = `collection = 'app.bsky.feed.post' AND operation IN ('create', 'update')
  AND (author, rkey) NOT IN (SELECT author, rkey FROM events
                             WHERE collection = 'app.bsky.feed.post' AND operation = 'delete')
  AND author NOT IN (SELECT author FROM events WHERE operation = 'account'
                     GROUP BY author HAVING argMax(body, bitAnd(segment, 4294967295) * 4294967296 + position) != '')`

// SharedLink is a link and the number of accounts that shared it.
type SharedLink struct {
	Link    string `json:"link"` // its identity
	Sharers uint32 `json:"sharers"`
	Posts   uint32 `json:"posts"`
}

// TopLinksSQL is the query of TopLinks.
func TopLinksSQL(days, limit uint32) string {
	return fmt.Sprintf(`SELECT link, toUInt32(uniqExact(author)) AS sharers, toUInt32(uniqExact(author, rkey)) AS posts
FROM (SELECT author, rkey, arrayJoin(links) AS link
FROM events
WHERE created_at >= now() - %d * 86400
  AND %s)
GROUP BY link
ORDER BY sharers DESC, posts DESC, link
LIMIT %d`, days, shown, limit)
}

// TopLinks returns the links that the most accounts shared within the last days.
func (x *Index) TopLinks(ctx context.Context, days, limit uint32) ([]SharedLink, error) {
	return rowsAs[SharedLink](ctx, x, TopLinksSQL(days, limit))
}

// DayOfLinks counts the links that were shared on a day.
type DayOfLinks struct {
	Day     string `json:"day"`
	Links   uint32 `json:"links"`
	Sharers uint32 `json:"sharers"`
	Posts   uint32 `json:"posts"` // with a link
}

// LinksByDaySQL is the query of LinksByDay.
func LinksByDaySQL(days uint32) string {
	return fmt.Sprintf(`SELECT day, toUInt32(uniqExact(link)) AS links,
       toUInt32(uniqExact(author)) AS sharers, toUInt32(uniqExact(author, rkey)) AS posts
FROM (SELECT author, rkey, arrayJoin(links) AS link, toString(toDate(created_at, 'UTC')) AS day
FROM events
WHERE created_at >= now() - %d * 86400
  AND %s)
GROUP BY day
ORDER BY day`, days, shown)
}

// LinksByDay counts the links that were shared on each of the last days, in UTC.
func (x *Index) LinksByDay(ctx context.Context, days uint32) ([]DayOfLinks, error) {
	return rowsAs[DayOfLinks](ctx, x, LinksByDaySQL(days))
}

// Sharer is an account that shared a link, and when it first did, in UTC.
type Sharer struct {
	Author  string `json:"author"`
	FirstAt string `json:"first_at"`
}

// FirstSharersSQL is the query of FirstSharers.
func FirstSharersSQL(link string, limit uint32) string {
	return fmt.Sprintf(`SELECT author, toString(min(created_at), 'UTC') AS first_at
FROM events
WHERE has(links, %s)
  AND %s
GROUP BY author
ORDER BY min(created_at), author
LIMIT %d`, quote(link), shown, limit)
}

// FirstSharers returns the accounts that shared a link first. link is an identity. The
// times are the accounts' claims.
func (x *Index) FirstSharers(ctx context.Context, link string, limit uint32) ([]Sharer, error) {
	return rowsAs[Sharer](ctx, x, FirstSharersSQL(link, limit))
}

// quote returns a text as a literal.
func quote(s string) string {
	return `'` + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + `'`
}

// rowsAs runs a query and decodes its rows.
func rowsAs[T any](ctx context.Context, x *Index, sql string) ([]T, error) {
	answer, err := x.query(ctx, sql+"\nFORMAT JSONEachRow")
	if err != nil {
		return nil, err
	}
	var rows []T
	for line := range strings.Lines(string(answer)) {
		var row T
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			return nil, fmt.Errorf("%w: a row that cannot be read: %s", ErrAway, strconv.QuoteToASCII(line[:min(len(line), 100)]))
		}
		rows = append(rows, row)
	}
	return rows, nil
}
