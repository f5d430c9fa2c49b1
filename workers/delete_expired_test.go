package workers

import (
	"log/slog"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// TestRecordsOfTheCoreExpireAtTheirTime shows that records go at the time that their authors set, without any feature.
func TestRecordsOfTheCoreExpireAtTheirTime(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a := newAuthor(t, pool)
	for rkey, in := range map[string]time.Duration{"soon": time.Minute, "later": time.Hour} {
		a.apply(schema.Batch{Writes: []schema.Write{{Key: schema.Key{
			Collection: "nostr.1", DID: "did:nostr:a", Rkey: rkey,
		}, Rev: "1", CreatedAt: time.Now(), Record: []byte(`{}`), Expires: time.Now().Add(in)}}})
	}
	execute(t, pool, `UPDATE expirations SET expires_at = expires_at - interval '2 minutes'`)
	b := NewBundle(Config{Shared: Shared{Pool: pool, Projections: schema.NewProjections(posted()), Logger: slog.New(slog.DiscardHandler)}})
	w := &DeleteExpired{Shared: b.Shared}
	for range 2 {
		require.NoError(t, w.Work(t.Context(), &river.Job[jobs.DeleteExpired]{}))
		require.Equal(t, []string{"later"}, strs(t, pool, `SELECT rkey FROM records`))
	}
}
