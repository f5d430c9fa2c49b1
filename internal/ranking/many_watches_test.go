package ranking

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestAThousandWatches shows that each watch has the ranking of its own members, and that an
// account counts once however many watches include it. This holds after members and watches are
// added and removed, before and after the counter has processed that.
func TestAThousandWatches(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	const watches, compared = 1000, 9
	h := &history{pool: schematest.New(t)}
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	h.clock.Store(now.UnixMicro())
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := h.pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	exec(`INSERT INTO links (identity, url, site, first_seen) SELECT n::text, n::text, 's', $1 FROM generate_series(1, 40) AS n`, now)
	exec(`
INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
SELECT 'did:plc:' || lpad((n * 7 % 300)::text, 3, '0'), 'c', n::text, 1 + n * n % 40, 1 + n * n % 40,
    (ARRAY['post', 'repost'])[1 + n % 2], $1::timestamptz - n * interval '1 minute'
FROM generate_series(1, 1500) AS n`, now)
	// Every watch follows 20 of 320 accounts, which others follow too. Each target has two watches.
	exec(`INSERT INTO watches (target, kind) SELECT 'w' || n / 2 || '.example', (ARRAY['follows', 'second-degree'])[1 + n % 2]
		FROM generate_series(0, $1::int - 1) AS n`, watches)
	exec(`INSERT INTO watch_members (watch_id, did)
		SELECT w.id, 'did:plc:' || lpad(((w.id * 13 + n * (1 + w.id % 7)) % 320)::text, 3, '0') FROM watches AS w, generate_series(1, 20) AS n`)

	compare := func() {
		t.Helper()
		queries := []Query{{At: now, Window: 24 * time.Hour, Sort: Sharers, Limit: 50}, {At: now, Window: 24 * time.Hour, Sort: Speed, Limit: 50}}
		for n := range compared {
			q := Query{
				At: now, Window: 24 * time.Hour, Sort: []Sort{Sharers, Speed, Newest}[n%3], Limit: 50,
				Watch: fmt.Sprintf("w%d.example", n*watches/2/compared),
			}
			q.Degree = []Degree{BothDegrees, FirstDegree, SecondDegree}[n/3%3]
			queries = append(queries, q)
		}
		h.compare(t, queries)
	}
	count := func() {
		t.Helper()
		for more := true; more; {
			done, err := Count(t.Context(), h.pool, now)
			require.NoError(t, err)
			more = done.More
		}
		h.check(t)
	}
	count()
	compare()
	for _, change := range []string{
		`DELETE FROM watch_members WHERE did = 'did:plc:007'`,
		`DELETE FROM watch_members WHERE watch_id % 5 = 0 AND did < 'did:plc:100'`,
		`INSERT INTO watch_members (watch_id, did) SELECT id, 'did:plc:007' FROM watches WHERE id % 3 = 0 ON CONFLICT DO NOTHING`,
		`DELETE FROM watches WHERE id % 11 = 1`,
		`INSERT INTO accounts (did, status) VALUES ('did:plc:021', 'takendown')`,
	} {
		exec(change)
		compare()
	}
	count()
	compare()
}
