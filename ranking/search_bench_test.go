package ranking

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// benchWords is a tsvector of random words of row n: that with the number 0 is in most
// texts, those with the highest of 50,000 numbers in a few. The condition has each row
// draw anew.
func benchWords(prefix string, words int) string {
	return fmt.Sprintf(`(SELECT string_agg('''%[1]s' || floor(50000 * random() ^ 5) || ''':' || g, ' ') FROM generate_series(1, %[2]d) AS g WHERE n IS NOT NULL)::tsvector`, prefix, words)
}

// benchClaims gives each link one claim.
var benchClaims = `
INSERT INTO claims (id, link_id, hash, url, site, title, words) OVERRIDING SYSTEM VALUE
SELECT n, n, '', l.url, l.site, l.title, ` + benchWords("t", 10) + ` || array_to_tsvector(ARRAY['site' || n % 5000, 'example', 'an', 'article', n::text])
FROM (SELECT id AS n, url, site, title FROM links) AS l`

// benchSearch measures pages of 50 links that match a text, while shares arrive, beside
// the same ranking without a text.
func benchSearch(b *testing.B, pool *pgxpool.Pool) {
	b.Helper()
	stop := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- live(b, pool, stop) }()
	for _, kind := range []struct{ name, text string }{
		{"none", ""}, {"no-such-word", "nowhere"}, {"rare-title", `"t40000"`}, {"rare-post", `"p40000"`}, {"seldom-post", `"p3000"`},
		{"often-post", `"p200"`}, {"frequent-post", `"p10"`}, {"most-posts", `"p0"`}, {"often-title", `"t200"`}, {"frequent-title", `"t10"`},
		{"two-words", `"p10" "p20"`}, {"prefix", "p123"}, {"short-prefix", "p12"}, {"host", "site17.example"}, {"address", "site17.example/an/article/12000"}, {"every-address", "example/an"},
	} {
		for _, q := range []Query{{Sort: Sharers}, {Sort: Newest}, {Sort: Sharers, Watch: "reader.example"}} {
			b.Run(fmt.Sprintf("text=%s/sort=%s/watch=%t", kind.name, q.Sort, q.Watch != ""), func(b *testing.B) {
				q.Window, q.Text, q.Limit = Windows()[longestSpeed].Length, kind.text, 50
				for b.Loop() {
					benchPage(b, pool, q, false)
				}
			})
		}
	}
	close(stop)
	require.NoError(b, <-ended)
}
