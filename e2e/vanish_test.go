package e2e

import (
	varint "encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// noteOf reads the kind and the content of an event in the notepack format, according to its
// specification.
func noteOf(t *testing.T, record []byte) (kind uint64, content string) {
	t.Helper()
	require.Equal(t, byte(1), record[0])
	rest := record[1+32+32+64:]
	number := func() uint64 {
		v, n := varint.Uvarint(rest)
		require.Positive(t, n)
		rest = rest[n:]
		return v
	}
	number() // skip the date
	kind = number()
	return kind, string(rest[:number()])
}

// TestVanishedAuthorIsForgotten has an author of Nostr request to vanish, and kills the process
// before the database knows the new version of a segment. The archive then has the other author's
// notes and what the author wrote later, each once. So does a database that is rebuilt from it.
func TestVanishedAuthorIsForgotten(t *testing.T) {
	t.Parallel()
	b, url := newBucket(t), schematest.NewURL(t)
	nostr, err := simnet.NewNostr(simnet.NostrConfig{Seed: 5, Authors: 2, Now: time.Now(), Relays: []simnet.NostrRelay{{Page: 20}}})
	require.NoError(t, err)
	t.Cleanup(nostr.Stop)
	date := time.Now().Unix() - 100
	for i := range 20 {
		nostr.WriteAs(i%2, nil, date+int64(i), 1, nil, fmt.Sprint("note ", i, " of ", i%2))
	}
	n := network(t, 5)
	settings := append(b.env(), "WEIR_COLLECTIONS=nostr.1=0", "WEIR_NOSTR="+nostr.URLs()[0], "WEIR_ARCHIVE_INTERVAL=1s",
		"WEIR_ARCHIVE_FORGET=1s", "TMPDIR="+t.TempDir(), "WEIR_NOSTR_KEY=0000000000000000000000000000000000000000000000000000000000000007")
	k := &archiveKills{killing: &killing{t: t, net: n, env: append(reads(n, url), settings...)}, bucket: b, pool: open(t, url)}
	k.process = start(t, k.env, "serve")
	eventually.True(t, func() bool {
		archived, err := tryCount(k.pool, `SELECT coalesce(sum(records), 0) FROM segments WHERE stream LIKE 'nostr%' AND synced_at IS NOT NULL`)
		return err == nil && archived == 20
	}, 20*time.Millisecond)
	reached := b.holds("after PUT later manifest", 1)
	nostr.WriteAs(0, nil, date+50, 62, [][]string{{"relay", "ALL_RELAYS"}}, "forget me")
	reached(k.process)
	k.kills()
	nostr.WriteAs(0, nil, date+60, 1, nil, "note 20 of 0")
	k.process = start(t, k.env, "serve")
	eventually.True(t, func() bool {
		archived, err := tryCount(k.pool, `SELECT coalesce(sum(records), 0) FROM segments WHERE stream LIKE 'nostr%' AND synced_at IS NOT NULL`)
		return err == nil && archived == 12
	}, 20*time.Millisecond, "ten notes of the other author, the demand, and the later note")
	stopServe(t, k.process)
	b.ages()
	k.process = start(t, k.env, "serve")
	eventually.True(t, b.once, 50*time.Millisecond, "replaced versions are left in the bucket")
	stopServe(t, k.process)

	want := []string{"1 note 20 of 0", "62 forget me"}
	for i := 1; i < 20; i += 2 {
		want = append(want, fmt.Sprintf("1 note %d of 1", i))
	}
	var got []string
	for _, record := range recordsIn(t, b, "nostr") {
		kind, content := noteOf(t, record)
		got = append(got, fmt.Sprint(kind, " ", content))
	}
	require.ElementsMatch(t, want, got)
	second := schematest.NewURL(t)
	env := append(reads(n, second), settings...)
	exported := succeed(t, env, "archive", "export")
	require.NotContains(t, exported, "note 0 of 0")
	require.Contains(t, exported, "note 1 of 1")
	succeed(t, env, "archive", "rebuild", "--database")
	notes := texts(t, open(t, second), `SELECT '1 ' || (record ->> 'content') FROM records WHERE collection = 'nostr.1'`)
	require.ElementsMatch(t, slices.DeleteFunc(want, func(s string) bool { return s == "62 forget me" }), notes)
}
