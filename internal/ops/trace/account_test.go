package trace_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ops/trace"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestAccountIsTraced shows of each account why it counts or does not, since when and by what, and what is stored of it.
func TestAccountIsTraced(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := pool.Exec(t.Context(), `
ALTER TABLE watches DISABLE TRIGGER USER;
INSERT INTO watches (target) VALUES ('alice.example');
INSERT INTO watch_members (watch_id, did) SELECT w.id, did
FROM watches AS w, unnest('{did:plc:active,did:plc:hidden,did:plc:down,did:plc:gone}'::text[]) AS did;
INSERT INTO accounts (did, handle, status, status_at, purged_for) VALUES
    ('did:plc:active', 'a.example', 'active',    NULL, NULL),
    ('did:plc:hidden', 'h.example', 'hidden',    '2026-11-01T00:00:00Z', NULL),
    ('did:plc:down',   'd.example', 'takendown', '2026-11-02T00:00:00Z', NULL),
    ('did:plc:block',  'b.example', 'blocked',   '2026-11-02T00:00:00Z', NULL),
    ('did:plc:gone',   NULL,        'deleted',   '2026-11-03T00:00:00Z', '2026-11-03T00:00:00Z');
INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
SELECT c, 'did:plc:active', '3mptdaeh3622' || n, 'r', 'c', ('2026-11-0' || n || 'T00:00:00Z')::timestamptz, '{}'
FROM unnest('{app.bsky.feed.post,app.bsky.feed.repost,com.example.note}'::text[]) AS c, generate_series(2, 4) AS n;
INSERT INTO dead_letters (key, stage, did, cause, raw, raw_bytes, first_seen, last_seen)
VALUES ('x', 'lexicon', 'did:plc:active', '', '', 0, now(), now())`)
	require.NoError(t, err)
	shelf := trace.Feature{Account: func(_ context.Context, _ schema.DB, a *trace.AccountTrace) error {
		if a.DID == "did:plc:gone" {
			a.Said = append(a.Said, trace.Said{Field: "shelf", Text: `a "high" one`})
		}
		return nil
	}}
	for did, want := range map[string]string{
		"did:plc:active": "It counts: it is active, and followed.",
		"did:plc:hidden": "It does not count: at 2026-11-01T00:00:00Z, the listing of alice.example no longer showed it, and its server has " +
			"not said why.",
		"did:plc:down":     "It does not count: it is takendown, as its server said at 2026-11-02T00:00:00Z.",
		"did:plc:gone":     "It does not count: it was deleted at 2026-11-03T00:00:00Z, as its server or the directory says, and purged.",
		"did:plc:block":    "It does not count: it is blocked. `weir block list` shows the blocks.",
		"did:plc:stranger": "It does not count: no watch includes it.",
	} {
		a, err := trace.OfAccount(t.Context(), pool, did, []trace.Feature{shelf})
		require.NoError(t, err)
		require.Equal(t, want, a.Message)
		require.Equal(t, did != "did:plc:stranger", a.Known)
		raw, err := json.Marshal(a)
		require.NoError(t, err)
		require.True(t, json.Valid(raw))
		require.Equal(t, did == "did:plc:gone", strings.HasSuffix(string(raw), `,"shelf":"a \"high\" one"}`), "%s", raw)
		if did == "did:plc:active" {
			oldest, newest := time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC), time.Date(2026, 11, 4, 0, 0, 0, 0, time.UTC)
			require.Len(t, a.Stored, 3)
			for i, name := range []string{"app.bsky.feed.post", "app.bsky.feed.repost", "com.example.note"} {
				require.Equal(t, name, a.Stored[i].Name)
				require.EqualValues(t, 3, a.Stored[i].Records)
				require.True(t, a.Stored[i].Oldest.Equal(oldest) && a.Stored[i].Newest.Equal(newest))
			}
			require.EqualValues(t, 1, a.DeadLetters)
			continue
		}
		require.Empty(t, a.Stored)
	}
	_, err = pool.Exec(t.Context(), `UPDATE accounts SET not_recommended = true WHERE did = 'did:plc:active'`)
	require.NoError(t, err)
	a, err := trace.OfAccount(t.Context(), pool, "did:plc:active", nil)
	require.NoError(t, err)
	require.Equal(t, "It counts: it is active, and followed.", a.Message)
	_, err = pool.Exec(t.Context(), `DELETE FROM watches`)
	require.NoError(t, err)
	a, err = trace.OfAccount(t.Context(), pool, "did:plc:active", nil)
	require.NoError(t, err)
	require.Equal(t, "It does not count: it asks not to be recommended, and no watch includes it.", a.Message)
	for _, name := range []string{"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa", "@did:plc:aaaaaaaaaaaaaaaaaaaaaaaa",
		"https://bsky.app/profile/did:plc:aaaaaaaaaaaaaaaaaaaaaaaa"} {
		target, err := trace.Parse(name, nil)
		require.NoError(t, err)
		require.Equal(t, trace.Target{Actor: "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa"}, target)
	}
}
