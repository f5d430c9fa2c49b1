package e2e

import (
	"fmt"
	"slices"

	"github.com/stretchr/testify/require"
)

// mergeLinks merges popular links with the real binary, three of them in a chain, and splits one
// again.
func (c *chaos) mergeLinks() {
	c.t.Helper()
	var ids []int64
	var urls []string
	const popular = `
SELECT array_agg(p.id), array_agg(p.url)
FROM (
    SELECT l.id, 'https://' || l.identity AS url FROM links AS l JOIN shares AS s ON s.link_id = l.id
    WHERE l.merged_into IS NULL GROUP BY l.id ORDER BY count(*) DESC, l.id LIMIT 6
) AS p`
	require.NoError(c.t, c.pool.QueryRow(c.t.Context(), popular).Scan(&ids, &urls))
	require.Len(c.t, ids, 6)
	link := func(command string, of ...int) {
		args := []string{"link", command}
		for _, i := range of {
			args = append(args, fmt.Sprint(ids[i]))
		}
		succeed(c.t, c.env, args...)
	}
	for _, pair := range [][2]int{{1, 0}, {2, 1}, {4, 3}, {3, 5}} {
		c.mu.Lock()
		c.everMerged = append(c.everMerged, [2]string{urls[pair[0]], urls[pair[1]]})
		c.mu.Unlock()
		link("merge", pair[0], pair[1])
		c.merged[urls[pair[0]]] = urls[pair[1]]
	}
	link("split", 3)
	delete(c.merged, urls[3])
	c.progress(3)
}

// everOneWith returns the URLs of a link and of the links that were merged with it at any time.
func (c *chaos) everOneWith(url string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := []string{url}
	for i := 0; i < len(all); i++ {
		for _, pair := range c.everMerged {
			for side, other := range pair {
				if other == all[i] && !slices.Contains(all, pair[1-side]) {
					all = append(all, pair[1-side])
				}
			}
		}
	}
	return all
}
