package schema_test

import (
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

func TestCreatedAtIsClamped(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	tid := "3mptbyqhi7s2f" // 2026-07-04T14:38:…: later than the event
	old := "3jzfcijpj2z2a" // 2023
	for name, c := range map[string]struct {
		record, rkey string
		want         time.Time
	}{
		"as claimed":               {`{"createdAt":"2026-07-04T10:00:00.5Z"}`, "r", at.Add(-2*time.Hour + 500*time.Millisecond)},
		"another zone":             {`{"text":"x","createdAt":"2026-07-04T12:00:00+03:00"}`, "r", at.Add(-3 * time.Hour)},
		"the future":               {`{"createdAt":"2999-01-01T00:00:00Z"}`, "r", at},
		"before there were clocks": {`{"createdAt":"0001-01-01T00:00:00Z"}`, "r", time.Unix(0, 0)},
		"absent":                   {`{"text":"x"}`, "r", at},
		"absent, rkey tells":       {`{"text":"x"}`, old, mustTID(t, old)},
		"absent, rkey lies":        {`{"text":"x"}`, tid, at},
		"not a time":               {`{"createdAt":"yesterday"}`, "r", at},
		"not a string":             {`{"createdAt":12}`, "r", at},
		"of another object":        {`{"embed":{"createdAt":"2001-01-01T00:00:00Z"}}`, "r", at},
		"after another object": {
			`{"embed":{"createdAt":"2001-01-01T00:00:00Z"},"createdAt":"2026-07-04T11:00:00Z"}`, "r", at.Add(-time.Hour),
		},
	} {
		got := schema.CreatedAt([]byte(c.record), c.rkey, at)
		require.True(t, got.Equal(c.want), "%s: %s, expected %s", name, got.UTC(), c.want.UTC())
	}
}

func mustTID(t *testing.T, tid string) time.Time {
	t.Helper()
	at, err := syntax.ParseTID(tid)
	require.NoError(t, err)
	return at.Time()
}
