package workers

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// pastReads is an archive that has everything. It keeps what it was asked for.
type pastReads struct {
	mu   sync.Mutex
	read []NetworkPast
}

func (a *pastReads) Plan(context.Context, NetworkPast) (NetworkPlan, error) {
	return NetworkPlan{Host: "h", Begins: time.Unix(0, 0), Sealed: time.Now()}, nil
}

func (a *pastReads) Read(ctx context.Context, past NetworkPast, _ func(schema.NetworkProgress) error) (NetworkPlan, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.read = append(a.read, past)
	return a.Plan(ctx, past)
}

// TestGapIsReadAsFarBackAsRetentionKeeps shows that what was missed in an outage of two days is read, although it is
// older than a day: nothing has expired while the newest stored event was of then.
func TestGapIsReadAsFarBackAsRetentionKeeps(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO streams (name, wire, host, last_event_at) VALUES ('s', 'jetstream', 'h', now() - interval '36 h')`)
	execute(t, pool, `INSERT INTO gaps (stream, from_at, to_at, reason, opened_at)
		VALUES ('s', now() - interval '48 h', now() - interval '36 h', 'too old', now())`)
	archive := &pastReads{}
	stored := collection.Of(collection.Entry{Pattern: schema.PostCollection, Retention: 24 * time.Hour})
	client, err := New(withPosts(Config{
		Shared: Shared{Pool: pool, Projections: registered(t, pool), Bluesky: unreachable(t), Logger: slog.New(slog.DiscardHandler),
			Collections: stored},
		ID: t.Name(), Reading: Reading{Network: archive},
	}))
	require.NoError(t, err)
	running(t, client)
	becomes(t, pool, []string{"closed"}, `SELECT CASE WHEN closed_at IS NULL THEN 'open' ELSE 'closed' END FROM gaps`)
	var from time.Time
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT from_at FROM gaps`).Scan(&from))
	archive.mu.Lock()
	defer archive.mu.Unlock()
	require.Len(t, archive.read, 1)
	require.False(t, archive.read[0].From.After(from), "the gap begins at %s, and was read from %s", from, archive.read[0].From)
}
