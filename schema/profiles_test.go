package schema_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestNamesReadBeforeARenameDoNotUndoIt renames an account between the request for its name and the answer's storage. A
// handle that a wrong clock put into the future does not stay.
func TestNamesReadBeforeARenameDoNotUndoIt(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	renamed := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	reset := func(at time.Time) {
		execute(t, pool, `INSERT INTO accounts (did, handle, handle_at) VALUES ('a', 'new.example', '`+at.Format(time.RFC3339)+`')
			ON CONFLICT (did) DO UPDATE SET handle = excluded.handle, handle_at = excluded.handle_at`)
	}
	for _, c := range []struct {
		stored, asked time.Time
		want          string
	}{
		{renamed, renamed.Add(-time.Second), "new.example"},
		{renamed, renamed.Add(time.Second), "read.example"},
		{renamed.AddDate(1, 0, 0), renamed, "read.example"},
	} {
		reset(c.stored)
		require.NoError(t, schema.RecordNames(t.Context(), pool, []string{"a"}, []schema.Member{{DID: "a", Handle: "read.example"}}, c.asked))
		require.Equal(t, []string{c.want}, column(t, pool, `SELECT handle FROM accounts`))
	}
}

// TestNamesReadByAClockAheadDoNotOutlastARename reads a name while our clock is an hour ahead. The account is renamed a
// minute later.
func TestNamesReadByAClockAheadDoNotOutlastARename(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	noon := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	lease := take(t, pool, "a")
	execute(t, pool, `UPDATE streams SET last_event_at = '`+noon.Format(time.RFC3339)+`'`)
	read := []schema.Member{{DID: "did:plc:a", Handle: "read.example"}}
	require.NoError(t, schema.RecordNames(t.Context(), pool, []string{"did:plc:a"}, read, noon.Add(time.Hour)))
	require.Equal(t, []string{"read.example"}, column(t, pool, `SELECT handle FROM accounts`))
	_, err := apply(t.Context(), pool, lease, schema.Batch{
		Handles: []schema.Handle{{DID: "did:plc:a", Handle: "new.example", At: noon.Add(time.Minute)}},
	})
	require.NoError(t, err)
	require.Equal(t, []string{"new.example"}, column(t, pool, `SELECT handle FROM accounts`))
}
