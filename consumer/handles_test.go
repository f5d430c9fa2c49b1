package consumer

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestHandleDoesNotDependOnBatches cuts the events of an account into batches in every way. The handle
// is stored in lower case, an invalid one removes the earlier one, and an event without a handle
// removes none.
func TestHandleDoesNotDependOnBatches(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	began := time.Date(2026, 7, 4, 0, 0, 0, 0, time.UTC)
	for story, c := range map[string]struct {
		known  bool
		events []string // the handles of identity events, or a post
		want   string
	}{
		"nameless":       {false, []string{"post", "Alice.Example", "", ""}, "alice.example"},
		"invalid":        {false, []string{"post", "was-valid.example", InvalidHandle, ""}, "none"},
		"valid again":    {false, []string{"post", "handle.invalid", "b.example", "A.example"}, "a.example"},
		"before a post":  {false, []string{"a.example", "post", ""}, "unknown"},
		"and after it":   {false, []string{"a.example", "post", "b.example"}, "b.example"},
		"known account":  {true, []string{"a.example", "post", ""}, "a.example"},
		"known nameless": {true, []string{"", "a.example", ""}, "a.example"},
	} {
		for cuts := range 1 << (len(c.events) - 1) {
			did := fmt.Sprintf("did:web:%x.%d.example", story, cuts)
			if c.known {
				_, err := pool.Exec(t.Context(), `INSERT INTO accounts (did) VALUES ($1)`, did)
				require.NoError(t, err)
			}
			var events []Event
			for i, handle := range c.events {
				ev := Event{
					Kind: KindIdentity, Author: did, Handle: handle, At: began.Add(time.Duration(i) * time.Second), Arrived: began.Add(time.Hour),
				}
				if handle == "post" {
					ev = write("3kaaaaaaaaa2a", "3kaaaaaaaaa2a")
					ev.Author, ev.Arrived = did, began
				}
				if events = append(events, ev); cuts&(1<<i) == 0 && i < len(c.events)-1 {
					continue
				}
				folded := (&batch{events: events}).fold()
				events = nil
				require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					_, err := folded.Apply(t.Context(), tx, schema.Lease{})
					return err
				}))
			}
			var handle string
			const sql = `
				SELECT coalesce((SELECT CASE a.handle WHEN '' THEN 'none' ELSE a.handle END FROM accounts AS a
				    WHERE a.did = $1 AND (a.handle_unverified OR a.handle IS NULL)), 'unknown')`
			require.NoError(t, pool.QueryRow(t.Context(), sql, did).Scan(&handle))
			require.Equal(t, c.want, handle, "%s, cut %b", story, cuts)
		}
	}
}
