package clickhouse

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// shown selects the posts that may be shown. It leaves out deleted posts, and posts of
// accounts whose last known state is not active.
const shown = `collection = 'app.bsky.feed.post' AND operation IN ('create', 'update')
  AND (author, rkey) NOT IN (SELECT author, rkey FROM events
                             WHERE collection = 'app.bsky.feed.post' AND operation = 'delete')
  AND author NOT IN (SELECT author FROM events WHERE operation = 'account'
                     GROUP BY author HAVING argMax(body, bitAnd(segment, 4294967295) * 4294967296 + position) != '')`

// topLinks is the query for the links that the most accounts shared within the last days.
func topLinks(days, limit uint32) string {
	return fmt.Sprintf(`SELECT link, toUInt32(uniqExact(author)) AS sharers, toUInt32(uniqExact(author, rkey)) AS posts
FROM (SELECT author, rkey, arrayJoin(links) AS link
FROM events
WHERE created_at >= now() - %d * 86400
  AND %s)
GROUP BY link
ORDER BY sharers DESC, posts DESC, link
LIMIT %d`, days, shown, limit)
}

// linksByDay is the query for how many links, and posts with a link, were shared on each of the last days, in UTC.
func linksByDay(days uint32) string {
	return fmt.Sprintf(`SELECT day, toUInt32(uniqExact(link)) AS links,
       toUInt32(uniqExact(author)) AS sharers, toUInt32(uniqExact(author, rkey)) AS posts
FROM (SELECT author, rkey, arrayJoin(links) AS link, toString(toDate(created_at, 'UTC')) AS day
FROM events
WHERE created_at >= now() - %d * 86400
  AND %s)
GROUP BY day
ORDER BY day`, days, shown)
}

// firstSharers is the query for the accounts that shared a link first. link is an identity. The
// times are the accounts' claims, in UTC.
func firstSharers(link string, limit uint32) string {
	return fmt.Sprintf(`SELECT author, toString(min(created_at), 'UTC') AS first_at
FROM events
WHERE has(links, %s)
  AND %s
GROUP BY author
ORDER BY min(created_at), author
LIMIT %d`, quote(link), shown, limit)
}

// quote returns a text as a literal.
func quote(s string) string {
	return `'` + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + `'`
}

// read runs a query and returns its rows, by column.
func (x *Index) read(ctx context.Context, sql string) ([]map[string]any, error) {
	answer, err := x.query(ctx, sql+"\nFORMAT JSONEachRow")
	if err != nil {
		return nil, err
	}
	var rows []map[string]any
	for lines := json.NewDecoder(bytes.NewReader(answer)); ; {
		lines.UseNumber()
		var row map[string]any
		if err := lines.Decode(&row); errors.Is(err, io.EOF) {
			return rows, nil
		} else if err != nil {
			return nil, fmt.Errorf("%w: a row that cannot be read: %w", ErrAway, err)
		}
		rows = append(rows, row)
	}
}
