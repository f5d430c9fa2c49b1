package ranking

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// benchWords returns a tsvector of random words for row n. The word with the number 0 is in most
// texts, and those with the highest of 50,000 numbers are in a few. The condition makes the planner
// draw anew for each row.
func benchWords(prefix string, words int) string {
	return fmt.Sprintf(`(SELECT string_agg('''%[1]s' || floor(50000 * random() ^ 5) || ''':' || g, ' ')
		FROM generate_series(1, %[2]d) AS g WHERE n IS NOT NULL)::tsvector`, prefix, words)
}

// benchSearch measures pages of 50 links that match a text while shares arrive, and the same
// ranking without a text.
func benchSearch(b *testing.B, pool *pgxpool.Pool) {
	b.Helper()
	for range 2 { // counts the shares that entered the windows since the database was filled
		_, err := Count(b.Context(), pool, time.Now())
		require.NoError(b, err)
	}
	stop := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- live(b, pool, stop) }()
	for _, kind := range []struct{ name, text string }{
		{"none", ""}, {"no-such-word", "nowhere"}, {"rare-title", `"t40000"`}, {"rare-post", `"p40000"`}, {"seldom-post", `"p3000"`},
		{"often-post", `"p200"`}, {"common-post", `"p50"`}, {"frequent-post", `"p10"`}, {"most-posts", `"p0"`},
		{"often-title", `"t200"`}, {"common-title", `"t50"`}, {"frequent-title", `"t10"`},
		{"two-words", `"p10" "p20"`}, {"prefix", "p123"}, {"short-prefix", "p12"}, {"host", "70efdf2ec.example"},
		{"address", "70efdf2ec.example/2026/12"}, {"every-address", ".example/2026"},
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

// BenchmarkWords compares storing shares with and without what the text filter needs, alternately:
// the CPU time of the worker and of Postgres. Most links are new.
func BenchmarkWords(b *testing.B) {
	const size, turns = 100, 120
	kinds := []string{"with", "without"}
	pools, backends := map[string]*pgxpool.Pool{}, map[string]uint32{}
	for _, kind := range kinds {
		pool := schematest.New(b)
		if kind == "without" {
			_, err := pool.Exec(b.Context(), `DROP INDEX shares_words, claims_words, links_address`)
			require.NoError(b, err)
		}
		require.NoError(b, EnsureDays(b.Context(), pool, time.Now(), 7*24*time.Hour))
		pools[kind], backends[kind] = single(b, pool)
		defer pools[kind].Close()
	}
	own := func() time.Duration {
		var u syscall.Rusage
		require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	r := rand.New(rand.NewPCG(5, 6))
	text := func(words int) string {
		var t strings.Builder
		for range words {
			fmt.Fprintf(&t, "word%d, ", int(50_000*math.Pow(r.Float64(), 5)))
		}
		return t.String()
	}
	for b.Loop() {
		spent := map[string]time.Duration{}
		for turn := range turns {
			shares := make([]Share, size)
			keys := make([]schema.Key, size)
			for i := range shares {
				page := fmt.Sprintf("site%d.example/an/article/about/%d", r.IntN(500), int(float64(turns*size)*math.Pow(r.Float64(), 2)))
				keys[i] = schema.Key{
					Collection: schema.PostCollection, DID: fmt.Sprintf("did:plc:%024d", r.IntN(benchAccounts)),
					Rkey: fmt.Sprintf("3m%011d", turn*size+i),
				}
				shares[i] = Share{
					Key:  keys[i],
					Link: link.Link{Identity: page, URL: "https://" + page, Site: "site.example", Card: link.Card{Title: text(9), Description: text(20)}},
					How:  "post", SharedAt: time.Now(), Text: text(18),
				}
			}
			for _, kind := range kinds {
				without := slices.Clone(shares)
				if kind == "without" {
					for i := range without {
						without[i].Text = ""
					}
				}
				began := own() + schematest.CPU(b, backends[kind])
				_, err := EnsureLinks(b.Context(), pools[kind], without, time.Now())
				require.NoError(b, err)
				require.NoError(b, pgx.BeginFunc(b.Context(), pools[kind], func(tx pgx.Tx) error {
					return ReplaceShares(b.Context(), tx, keys, without, time.Now())
				}))
				if turn >= 20 {
					spent[kind] += own() + schematest.CPU(b, backends[kind]) - began
				}
			}
		}
		for _, kind := range kinds {
			b.ReportMetric(float64(spent[kind].Microseconds())/((turns-20)*size), kind+"-µs/share")
		}
		b.ReportMetric(float64(spent["with"])/float64(spent["without"]), "ratio")
		b.ReportMetric(0, "ns/op")
	}
}
