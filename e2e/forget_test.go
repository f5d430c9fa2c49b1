package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/dir"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// putSegment archives records of a stream by hand.
func putSegment(t *testing.T, store archive.Store, number int64, records []string, at time.Time) {
	t.Helper()
	var file bytes.Buffer
	w, err := archive.NewWriter(&file)
	require.NoError(t, err)
	for _, r := range records {
		require.NoError(t, w.Add([]byte(r)))
	}
	sum, err := w.Close()
	require.NoError(t, err)
	m := archive.NewManifest(number, "jetstream", "jetstream", sum, at, at)
	m.FirstAt, m.LastAt = at, at
	require.NoError(t, store.Put(t.Context(), m.Name, bytes.NewReader(file.Bytes()), sum.StoredBytes))
	_, err = archive.PutManifest(t.Context(), store, m)
	require.NoError(t, err)
}

// tid returns the TID of a time, as a revision or an rkey.
func tid(at time.Time) string {
	const digits = "234567abcdefghijklmnopqrstuvwxyz"
	n := uint64(at.UnixMicro()) << 10 // the time is after 1970
	b := make([]byte, 13)
	for i := range b {
		b[12-i] = digits[n>>(5*i)&31]
	}
	return string(b)
}

// TestForgottenStaysForgotten reads an archive with an account that was deleted and came back,
// whose segment has not been rewritten yet. Neither a rebuild nor an export contains records older
// than the deletion.
func TestForgottenStaysForgotten(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	store, err := dir.New(root)
	require.NoError(t, err)
	const gone, stays = "did:plc:gggggggggggggggggggggggg", "did:plc:ssssssssssssssssssssssss"
	began := time.Now().Add(-time.Hour).Truncate(time.Second)
	post := func(did string, minute int) string {
		at := began.Add(time.Duration(minute) * time.Minute)
		return fmt.Sprintf(`{"did":%q,"time_us":%d,"kind":"commit","commit":{"rev":%q,"operation":"create","collection":"app.bsky.feed.post",`+
			`"rkey":%q,`+
			`"record":{"$type":"app.bsky.feed.post","text":"minute %d of %s","createdAt":%q},`+
			`"cid":"bafyreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"}}`,
			did, at.UnixMicro(), tid(at), tid(at), minute, did, at.UTC().Format(time.RFC3339))
	}
	account := func(did string, minute int, active bool, status string) string {
		at := began.Add(time.Duration(minute) * time.Minute)
		return fmt.Sprintf(`{"did":%q,"time_us":%d,"kind":"account","account":{"active":%t,"did":%q,"seq":%d,"status":%q,"time":%q}}`,
			did, at.UnixMicro(), active, did, minute, status, at.UTC().Format(time.RFC3339))
	}
	putSegment(t, store, 1, []string{
		post(gone, 1), post(stays, 2), post(gone, 3), account(gone, 4, false, "deleted"), account(gone, 5, true, "active"), post(gone, 6),
	}, began)
	_, err = archive.PutForgotten(t.Context(), store,
		[]archive.Forgotten{{DID: gone, Until: began.Add(4 * time.Minute), Reason: archive.ReasonDeleted}})
	require.NoError(t, err)

	n := busyNetwork(t)
	url := schematest.NewURL(t)
	pool := open(t, url)
	env := append(reads(n, url), "WEIR_ARCHIVE=dir:"+root)
	succeed(t, env, "archive", "rebuild", "--database")
	require.Equal(t, []string{"minute 2 of " + stays, "minute 6 of " + gone},
		texts(t, pool, `SELECT record ->> 'text' FROM posts ORDER BY created_at`))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM forgotten WHERE listed_at IS NOT NULL AND did = '`+gone+`'`))
	exported := succeed(t, env, "archive", "export")
	require.Equal(t, 4, strings.Count(exported, "\n"))
	for _, minute := range []string{"minute 1 ", "minute 3 "} {
		require.NotContains(t, exported, minute)
	}
	require.Contains(t, exported, `"deleted"`)
	require.Contains(t, succeed(t, env, "archive", "verify"), "6 records")

	lists, err := filepath.Glob(filepath.Join(root, "forgotten", "*"))
	require.NoError(t, err)
	require.Len(t, lists, 1)
	require.NoError(t, os.WriteFile(lists[0], []byte("{}\n"), 0o600))
	_, stderr, code := weir(t, env, "archive", "export")
	require.NotZero(t, code, "an export must fail if the list of forgotten accounts is damaged")
	require.Contains(t, stderr, "its name is not its hash")
}
