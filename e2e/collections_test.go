package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ops/doctor"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestAnyCollection stores records of two collections, one configured by its
// full name and one by a prefix. The records come from a followed account's
// past and from the stream. Records that the database refused are stored by a
// retry. Metrics count records by their entry in WEIR_COLLECTIONS, and trace
// and doctor know both collections.
func TestAnyCollection(t *testing.T) {
	t.Parallel()
	n, err := simnet.New(simnet.Config{Seed: 12, Accounts: 10, History: 50, HistorySpan: time.Hour})
	require.NoError(t, err)
	startNetwork(t, n)
	did := n.Accounts()[0].DID
	const document, persona, mark = "site.standard.document", "pub.layers.persona", "pub.layers.annotation.mark"
	put := func(collection, rkey, text string) {
		t.Helper()
		_, err := n.PutRecord(did, collection, rkey, json.RawMessage(`{"$type":"`+collection+`","text":"`+text+`"}`))
		require.NoError(t, err)
	}
	put(document, "self", "of before")
	put(persona, "self", "of before")

	url := schematest.NewURL(t)
	pool := open(t, url)
	env := append(follower(n, url), "WEIR_COLLECTIONS=app.bsky.feed.post,pub.layers.*=0,"+document+"=24h")
	executes(t, url, `ALTER TABLE records_other ADD CONSTRAINT strict CHECK (record ->> 'text' <> 'refused')`,
		`INSERT INTO watches (target, kind) VALUES ('`+did+`', 'account')`)
	serve := start(t, env, "serve")
	records := func(want ...string) {
		t.Helper()
		eventually.True(t, func() bool {
			return strings.Join(texts(t, pool, `SELECT collection || '/' || rkey || ' ' || (record ->> 'text') FROM records_other ORDER BY 1`),
				"\n") == strings.Join(want, "\n")
		}, 20*time.Millisecond, "%v", want)
	}
	records(persona+"/self of before", document+"/self of before")
	becomes(t, serve.opsURL(t), "quiet")

	put(persona, "self", "of the stream")
	put(document, "second", "of the stream")
	put(mark, "self", "refused")
	put("com.example.else", "self", "not stored")
	eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM dead_letters`) == 1 }, 20*time.Millisecond)
	records(persona+"/self of the stream", document+"/second of the stream", document+"/self of before")
	executes(t, url, `ALTER TABLE records_other DROP CONSTRAINT strict`)
	succeed(t, env, "deadletter", "retry", "--all")
	records(mark+"/self refused", persona+"/self of the stream", document+"/second of the stream", document+"/self of before")
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM dead_letters WHERE state = 'retried' AND collection = '`+mark+`'`))

	labels := map[string]bool{}
	for _, s := range scrape(t, serve.opsURL(t)) {
		if c, ok := s.labels["collection"]; ok {
			labels[c] = true
		}
	}
	require.True(t, labels["pub.layers.*"] && labels[document], "%v", labels)
	require.False(t, labels[persona] || labels[mark], "a metric label contains a name that matched a prefix, which is untrusted: %v", labels)

	require.Contains(t, succeed(t, env, "trace", "at://"+did+"/"+persona+"/self"), "It is stored. Records of its collection share no links.")
	require.Contains(t, succeed(t, env, "trace", "at://"+did+"/com.example.else/self"), "WEIR_COLLECTIONS does not name its collection")
	sum := succeed(t, env, "audit", "--all", "--settle", "0s")
	require.Contains(t, sum, "0 missing, 0 extra, 0 stale", sum)
	found, _ := examined(t, env)
	require.Equal(t, doctor.OK, finding(t, found, "collections").Level)
	found, _ = examined(t, append(env, "WEIR_COLLECTIONS=app.bsky.feed.post"))
	left := finding(t, found, "collections")
	require.Equal(t, doctor.Warn, left.Level)
	require.Contains(t, left.Message, mark+", "+persona+", "+document)
}
