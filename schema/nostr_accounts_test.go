package schema_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

func nostrAccount(digit string) string { return "did:nostr:" + strings.Repeat(digit, 64) }

// TestSecretKeyIsNoTarget shows that a secret key is refused as a target, also by SQL.
func TestSecretKeyIsNoTarget(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	const secret = "nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5"
	for _, target := range []string{secret, "nostr:" + strings.ToUpper(secret), secret + "@example.com"} {
		_, err := pool.Exec(t.Context(), `INSERT INTO watches (target) VALUES ($1)`, target)
		require.ErrorContains(t, err, "name the public key (npub)")
		require.NotContains(t, strings.ToLower(err.Error()), secret[5:20])
	}
	do(t, pool, `INSERT INTO watches (target) VALUES ('nsec1.example')`)
	_, err := pool.Exec(t.Context(), `UPDATE watches SET target = $1`, secret)
	require.ErrorContains(t, err, "secret key")
}

// TestGapsConcernTheirNetwork shows that a gap of one network's stream does not wait for accounts
// of the other. Audits and histories only read repositories.
func TestGapsConcernTheirNetwork(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	do(t, pool, `INSERT INTO watches (target) VALUES ('x')`)
	do(t, pool, `
		INSERT INTO watch_members (watch_id, did, added_at) SELECT 1, d, now() - interval '1 day'
		FROM unnest(ARRAY['did:plc:a', 'did:plc:b', '`+nostrAccount("a")+`', '`+nostrAccount("b")+`']) AS d`)
	do(t, pool, `
		INSERT INTO accounts (did, status, read_since)
		SELECT did, CASE WHEN did ~ 'b$' THEN 'hidden' ELSE 'active' END, now() - interval '1 day' FROM watch_members`)
	for stream, want := range map[string]string{"jetstream": "did:plc:a", "nostr:relay.example": nostrAccount("a")} {
		do(t, pool, `INSERT INTO gaps (stream, from_at, to_at, reason, problem, opened_at) VALUES ('`+stream+
			`', now() - interval '1 hour', now(), 'a test', '', now())`)
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			started, open, err := schema.StartGap(t.Context(), tx, ask[int64](t, pool, `SELECT max(id) FROM gaps`), time.Now())
			require.True(t, open)
			require.Equal(t, []string{want}, started.DIDs)
			require.Equal(t, 1, started.Later)
			return err
		}))
	}
	sample, pending, err := schema.AuditSample(t.Context(), pool, 10)
	require.NoError(t, err)
	require.Len(t, sample, 1)
	require.Equal(t, "did:plc:a", sample[0].DID)
	require.Zero(t, pending)
}

// TestPurgedEventsMayComeAgain shows that purged events can be stored again if their author is
// followed again.
func TestPurgedEventsMayComeAgain(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	gone, kept := nostrAccount("a"), nostrAccount("b")
	do(t, pool, `INSERT INTO watches (target) VALUES ('x')`)
	do(t, pool, `INSERT INTO watch_members (watch_id, did) VALUES (1, '`+gone+`'), (1, '`+kept+`')`)
	lease := take(t, pool, "me")
	var b schema.Batch
	for i, did := range []string{gone, kept} {
		id := strings.Repeat(string("12"[i]), 64)
		b.Writes = append(b.Writes, schema.Write{
			Key: schema.Key{Collection: "nostr.1", DID: did, Rkey: id}, Rev: "1", CreatedAt: time.Now(), Record: []byte(`{"id":"` + id + `"}`),
		})
		b.Seen = append(b.Seen, [16]byte{0: byte(0x11 * (i + 1))})
	}
	for i := range b.Seen {
		for j := range b.Seen[i] {
			b.Seen[i][j] = byte(0x11 * (i + 1))
		}
	}
	_, err := apply(t.Context(), pool, lease, b)
	require.NoError(t, err)
	require.Equal(t, 2, ask[int](t, pool, `SELECT count(*)::int FROM seen`))
	do(t, pool, `DELETE FROM watch_members WHERE did = '`+gone+`'`)
	for _, did := range []string{gone, kept} {
		_, err = schema.PurgeRecords(t.Context(), pool, did, []schema.KeepRule{{Pattern: "nostr.1"}}, 10)
		require.NoError(t, err)
	}
	require.Equal(t, kept, ask[string](t, pool, `SELECT did FROM records`))
	left, err := schema.SeenIDs(t.Context(), pool, b.Seen)
	require.NoError(t, err)
	require.Equal(t, b.Seen[1:], left)
}

// TestErasedAccountStaysErased shows that an erasure deletes what it covers, that nothing covered by
// it is stored again, and that what the author wrote later stays.
func TestErasedAccountStaysErased(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	did := nostrAccount("a")
	note := func(rkey, rev string) schema.Write {
		return schema.Write{Key: schema.Key{Collection: "nostr.1", DID: did, Rkey: rkey}, Rev: rev, CreatedAt: time.Now(), Record: []byte(`{}`)}
	}
	stores := func(b schema.Batch) {
		t.Helper()
		_, err := apply(t.Context(), pool, lease, b)
		require.NoError(t, err)
	}
	stores(schema.Batch{Writes: []schema.Write{note("before", "1"), note("later", "3")}})
	stores(schema.Batch{Erasures: []schema.Erasure{{DID: did, Rev: "2", At: time.Now()}}})
	stores(schema.Batch{Writes: []schema.Write{note("again", "2"), note("before", "1"), note("new", "3")}})
	require.Equal(t, []string{"later", "new"}, column(t, pool, `SELECT rkey FROM records ORDER BY rkey`))
}
