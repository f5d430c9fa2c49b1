package workers

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
)

// TestComparisonRestoresEditsAndDeletions compares a repository that has one post more, one less and
// one edited. A post whose stored revision is later than the repository's is left to the stream.
func TestComparisonRestoresEditsAndDeletions(t *testing.T) {
	t.Parallel()
	hour := time.Now().Add(-time.Hour).UnixMicro()
	rkey := func(i int64) string { return syntax.NewTID(hour+i*1000, 0).String() }
	const missing, deleted, edited, later = 4, 3, 2, 1
	const before = "bafyreidfayvfuwqa7qlnopdjiqrxzs6blmoeu4rujcjtnci5beludirz2a"
	const after = "bafyreiapzyf65cmq55jklpnrihiygze2jmmdqvvkwqeiomd72pbp2iazuu"
	r := rigOfPDS(t, func(w http.ResponseWriter, _ *http.Request) {
		var records []string
		for _, i := range []int64{missing, edited} {
			records = append(records, fmt.Sprintf(`{"uri": %q, "cid": %q, "value": {"text": "x"}}`, uri(alice, rkey(i)), after))
		}
		fmt.Fprintf(w, `{"records": [%s]}`, strings.Join(records, ","))
	})
	for i, rev := range map[int64]string{deleted: "2", edited: "2", later: syntax.NewTID(time.Now().Add(time.Hour).UnixMicro(), 0).String()} {
		r.execute(`INSERT INTO posts (collection, did, rkey, rev, cid, created_at, indexed_at, record)
			VALUES ('app.bsky.feed.post', $1, $2, $3, $4, now(), now(), '{"text": "x"}')`, alice, rkey(i), rev, before)
	}
	log := slog.New(slog.DiscardHandler)
	queue, err := Queue(r.pool, log)
	require.NoError(t, err)
	sum, _, err := (&Auditor{
		Shared: Shared{Pool: r.pool, Bluesky: r.api, Projections: registered(t, r.pool), Logger: log},
		Client: queue, Window: 24 * time.Hour, Repair: true,
	}).Audit(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{1, 1}, []int{sum.Missing, sum.Stale})
	require.Equal(t, []string{rkey(later) + " " + before, rkey(edited) + " " + after, rkey(missing) + " " + after},
		strs(t, r.pool, `SELECT rkey || ' ' || cid FROM posts ORDER BY rkey`))
	require.Equal(t, []string{rkey(deleted)}, strs(t, r.pool, `SELECT rkey FROM tombstones`))
}

// listed is a listing of one page.
type listed struct {
	listing
	page []bluesky.FeedPost
}

func (l listed) Records(context.Context, string, string, string, int) ([]bluesky.FeedPost, string, error) {
	return l.page, "", nil
}

// TestPagesEndAtTheLimits shows that a page is cut off at the limit of records or of bytes, and that
// the listing then has a next page.
func TestPagesEndAtTheLimits(t *testing.T) {
	t.Parallel()
	all := listed{
		page: []bluesky.FeedPost{{Rkey: "c", Record: []byte("1234")}, {Rkey: "b", Record: []byte("1234")}, {Rkey: "a", Record: []byte("1234")}},
	}
	for _, c := range []struct {
		records, bytes int64
		want           int
		next           string
	}{{9, 99, 3, ""}, {2, 99, 2, "b"}, {9, 5, 2, "b"}, {1, 1, 1, "c"}} {
		l := limited{listing: all, records: c.records, bytes: c.bytes}
		page, next, err := l.Records(t.Context(), alice, persona, "", repositoryPage)
		require.NoError(t, err)
		require.Len(t, page, c.want)
		require.Equal(t, c.next, next)
	}
}
