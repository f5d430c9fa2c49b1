package lexicons

import (
	"bytes"
	"context"
	"fmt"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"net"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/bluesky-social/indigo/atproto/repo"
	"github.com/bluesky-social/indigo/atproto/repo/mst"
	blockformat "github.com/ipfs/go-block-format"
	"github.com/ipfs/go-cid"
	blockstore "github.com/ipfs/go-ipfs-blockstore"
	"github.com/ipld/go-car"
	carutil "github.com/ipld/go-car/util"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertest"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// noteSchema returns the schema of a collection whose text has at most this many bytes.
func noteSchema(name string, most int) *fstest.MapFile {
	return &fstest.MapFile{Data: fmt.Appendf(nil, `{"lexicon":1,"id":"example.weir.%s","defs":{"main":{"type":"record","key":"any","record":{
		"type":"object","required":["text"],
		"properties":{"createdAt":{"type":"string","format":"datetime"},"text":{"type":"string","maxLength":%d},
		"refs":{"type":"array","items":{"type":"string","format":"at-uri"}}}}}}}`, name, most)}
}

// TestUpdatedSchemasAreUsed changes schemas without a restart. Exactly the records of the changed
// collections are judged again. A folder that cannot be used changes nothing.
func TestUpdatedSchemasAreUsed(t *testing.T) {
	t.Parallel()
	folder := fstest.MapFS{"a.json": noteSchema("note", 100), "b.json": noteSchema("other", 100)}
	b := newBench(t, func(c *settings) { c.Lexicons.Folder = folder })
	note, other, unknown := schema.Key{
		Collection: "example.weir.note", DID: "did:plc:a", Rkey: "1",
	}, schema.Key{Collection: "example.weir.other", DID: "did:plc:a", Rkey: "1"},
		schema.Key{Collection: "example.weir.unknown", DID: "did:plc:a", Rkey: "1"}
	for _, k := range []schema.Key{note, other, unknown} {
		b.write(k, tidOf(1), `,"text":"ten bytes."`)
	}
	b.settled()
	require.Equal(t, []string{"valid projected", "valid projected", "unknown projected"},
		[]string{b.state(note), b.state(other), b.state(unknown)})
	require.Equal(t, []string{"example.weir.note folder", "example.weir.other folder"},
		strs(t, b.pool, `SELECT nsid || ' ' || source FROM lexicons ORDER BY nsid`))

	execute(t, b.pool, `UPDATE verdicts SET warnings = '[{"rule": "not judged again"}]'`)
	folder["a.json"], folder["c.json"] = noteSchema("note", 5), noteSchema("unknown", 100)
	require.NoError(t, b.storeLexicons())
	b.settled()
	require.Equal(t, []string{"example.weir.note invalid []", `example.weir.other valid [{"rule": "not judged again"}]`,
		"example.weir.unknown valid []"},
		strs(t, b.pool, `SELECT collection || ' ' || verdict || ' ' || warnings FROM verdicts ORDER BY 1`))
	require.Zero(t, count(t, b.pool, `SELECT count(*) FROM record_texts WHERE collection = $1`, note.Collection))
	require.Equal(t, 1, count(t, b.pool, `SELECT count(*) FROM dead_letters WHERE stage = 'lexicon' AND path = '/text' AND state = 'open'`))

	folder["b.json"], folder["d.json"] = noteSchema("other", 1), &fstest.MapFile{Data: []byte(`{"lexicon":1,"id":"example.weir.bad",` +
		`"defs":{"main":{"type":"params"}}}`)}
	require.ErrorContains(t, b.storeLexicons(), "example.weir.bad")
	b.settled()
	require.Equal(t, 1, count(t, b.pool, `SELECT count(*) FROM verdicts WHERE collection = $1 AND verdict = 'valid'`, other.Collection))

	delete(folder, "d.json")
	delete(folder, "b.json")
	folder["a.json"] = noteSchema("note", 50)
	require.NoError(t, b.storeLexicons())
	b.settled()
	require.Equal(t, []string{"valid projected", "unknown projected", "valid projected"},
		[]string{b.state(note), b.state(other), b.state(unknown)})
	require.Zero(t, count(t, b.pool, `SELECT count(*) FROM dead_letters WHERE state = 'open'`), "settled")

	// Rows of expired records are deleted with them.
	execute(t, b.pool, `UPDATE records_other SET indexed_at = now() - interval '2 days' WHERE collection = 'example.weir.note'`)
	due := []schema.ExpiryRule{{Collection: note.Collection, Before: notesBefore(t, b)}}
	require.NoError(t, pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
		n, err := schema.ExpireRecords(t.Context(), tx, due, 10, b.projections.Expiring([]string{note.Collection})...)
		require.Equal(t, 1, n)
		return err
	}))
	require.Equal(t, 2, count(t, b.pool, `SELECT count(*) FROM verdicts`))
	require.Equal(t, 1, count(t, b.pool, `SELECT count(*) FROM record_texts`), "only the stored record with a schema must have a text")
}

// TestStrictSwitchJudgesAgain shows that switching strict on and off judges exactly the affected
// records again.
func TestStrictSwitchJudgesAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *settings) {
		c.Lexicons.Folder = fstest.MapFS{"a.json": noteSchema("own.note", 100), "b.json": noteSchema("other", 100)}
	})
	at := func(collection, rkey string) schema.Key {
		return schema.Key{Collection: "example.weir." + collection, DID: "did:plc:a", Rkey: rkey}
	}
	own, plain, other := at("own.note", "1"), at("own.note", "2"), at("other", "1")
	b.write(own, tidOf(1), `,"text":"t","newer":1`)
	b.write(plain, tidOf(1), `,"text":"t"`)
	b.write(other, tidOf(1), `,"text":"t","newer":1`)
	b.settled()
	stored := func(strict ...string) (again int) {
		t.Helper()
		execute(t, b.pool, `UPDATE verdicts SET warnings = '[{"rule": "not judged again"}]'`)
		b.settings.Lexicons.Strict = strict
		require.NoError(t, b.storeLexicons())
		b.settled()
		require.Equal(t, []string{"valid projected", "valid projected"}, []string{b.state(plain)[:15], b.state(other)[:15]})
		require.NotZero(t, count(t, b.pool, `SELECT count(*) FROM verdicts WHERE collection = $1 AND warnings <> '[]'`, other.Collection))
		return count(t, b.pool, `SELECT count(*) FROM verdicts WHERE warnings = '[]'`)
	}
	require.Equal(t, "valid projected", b.state(own))
	require.Equal(t, 2, stored("example.weir.own.*"))
	require.Equal(t, "invalid refused letter:lexicon", b.state(own))
	require.Equal(t, []string{"undeclared /newer"}, strs(t, b.pool, `SELECT cause || ' ' || path FROM dead_letters WHERE state = 'open'`))
	require.Zero(t, stored("example.weir.own.*"), "an unchanged setting must have nothing judged again")
	require.Equal(t, 2, stored())
	require.Equal(t, "valid projected", b.state(own))
}

func notesBefore(t *testing.T, b *bench) (before time.Time) {
	t.Helper()
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT now() - interval '1 day'`).Scan(&before))
	return before
}

// TestHostileRecordsAreJudged covers records with many references, deep records, and names that a
// stranger chose. No job makes a request or looks up a name, and the rest of the batch is judged.
func TestHostileRecordsAreJudged(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *settings) { c.Lexicons.Folder = fstest.MapFS{"a.json": noteSchema("note", 100)} })
	const many = 10_000
	var refs strings.Builder
	for i := range many {
		fmt.Fprintf(&refs, `%q,`, fmt.Sprintf("at://did:plc:target%d/example.weir.note/%d", i, i))
	}
	at := func(rkey string) schema.Key {
		return schema.Key{Collection: "example.weir.note", DID: "did:plc:a", Rkey: rkey}
	}
	long := "at://did:web:" + strings.Repeat("a.", 800) + "example/example.weir.note/1"
	b.write(at("deep"), tidOf(1), `,"text":"t","unknown":`+strings.Repeat(`{"a":`, 150)+`1`+strings.Repeat(`}`, 150))
	b.write(at("hosts"), tidOf(1), `,"text":"t","any":{"$type":"com.evil.example.thing","at":"`+long+`"}`)
	b.write(at("many"), tidOf(1), `,"text":"t","refs":[`+strings.TrimSuffix(refs.String(), ",")+`]`)
	b.write(at("self"), tidOf(1), `,"text":"t","refs":["`+at("self").URI()+`"]`)
	b.settled()
	require.Equal(t, []string{"deep valid 0", "hosts valid 1", "many valid 10000", "self valid 1"},
		strs(t, b.pool, `
SELECT rkey || ' ' || verdict || ' ' || (SELECT count(*) FROM record_refs AS r WHERE r.rkey = v.rkey)
FROM verdicts AS v
ORDER BY 1`))
	require.Equal(t, 1, count(t, b.pool, `SELECT count(*) FROM record_refs WHERE to_rkey IS NULL`),
		"only the reference that is too long may have no target")
	asked, outside := b.server.requests()
	require.Empty(t, asked)
	require.Empty(t, outside)
}

// proves makes the server prove a record of an account, in a commit that is signed with the key of
// all accounts, or with another one.
func (s *recordServer) proves(t *testing.T, did, collection, rkey string, key atcrypto.PrivateKeyExportable, json string) {
	t.Helper()
	value, err := atdata.UnmarshalJSON([]byte(json))
	require.NoError(t, err)
	record, err := atdata.MarshalCBOR(value)
	require.NoError(t, err)
	var out bytes.Buffer
	blocks := memory{Buffer: &out}
	at := blocks.add(t, record)
	tree := mst.NewEmptyTree()
	_, err = tree.Insert([]byte(collection+"/"+rkey), at)
	require.NoError(t, err)
	root, err := tree.WriteDiffBlocks(t.Context(), &blocks)
	require.NoError(t, err)
	commit := repo.Commit{DID: did, Version: 3, Data: *root, Rev: syntax.NewTIDNow(0).String()}
	require.NoError(t, commit.Sign(key))
	var signed, all bytes.Buffer
	require.NoError(t, commit.MarshalCBOR(&signed))
	head := blocks.add(t, signed.Bytes())
	require.NoError(t, car.WriteHeader(&car.CarHeader{Roots: []cid.Cid{head}, Version: 1}, &all))
	all.Write(out.Bytes())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proofs["at://"+did+"/"+collection+"/"+rkey] = all.Bytes()
}

// memory collects blocks in the form of a CAR.
type memory struct {
	*bytes.Buffer
	blockstore.Blockstore
}

func (m *memory) Put(_ context.Context, b blockformat.Block) error {
	return carutil.LdWrite(m.Buffer, b.Cid().Bytes(), b.RawData())
}

func (m *memory) add(t *testing.T, data []byte) cid.Cid {
	t.Helper()
	id, err := cid.NewPrefixV1(cid.DagCBOR, 0x12).Sum(data)
	require.NoError(t, err)
	b, err := blockformat.NewBlockWithCid(data, id)
	require.NoError(t, err)
	require.NoError(t, m.Put(t.Context(), b))
	return id
}

// TestLexiconIsResolved resolves a lexicon from DNS and the account that it names. It resolves only
// configured names, and only records that the account has signed.
func TestLexiconIsResolved(t *testing.T) {
	t.Parallel()
	var asked []string
	b := newBench(t, func(c *settings) {
		c.Queues = []string{jobs.QueueProcess, jobs.QueueMaintenance} // the test resolves the names
		c.Lexicons.Folder, c.Lexicons.Resolve = nil, []string{"example.weir.note", "example.weir.none"}
	})
	key, err := atcrypto.GeneratePrivateKeyK256()
	require.NoError(t, err)
	other, err := atcrypto.GeneratePrivateKeyK256()
	require.NoError(t, err)
	public, err := key.PublicKey()
	require.NoError(t, err)
	b.server.key = public.Multibase()
	const schemas = "com.atproto.lexicon.schema"
	w := &ResolveLexicon{pool: b.pool, api: b.settings.Bluesky, names: b.settings.Lexicons.Resolve,
		txt: func(_ context.Context, name string) ([]string, error) {
			if asked = append(asked, name); len(asked) > 4 {
				return nil, &net.DNSError{IsNotFound: true}
			}
			return []string{"v=spf1", "did=did:plc:authority"}, nil
		}}
	resolve := func(nsid string) error {
		return w.Work(rivertest.WorkContext(t.Context(), b.client.Client), &river.Job[ResolveLexiconArgs]{Args: ResolveLexiconArgs{NSID: nsid}})
	}
	note := schema.Key{Collection: "example.weir.note", DID: "did:plc:a", Rkey: "1"}
	b.write(note, tidOf(1), `,"text":"too long"`)
	b.settled()
	require.Equal(t, "unknown projected", b.state(note))
	require.ErrorContains(t, resolve("com.evil.example"), "does not name")
	require.Empty(t, asked)
	published := `{"$type":"com.atproto.lexicon.schema",` + string(noteSchema("note", 3).Data[1:])
	b.server.has("at://did:plc:authority/"+schemas+"/example.weir.note", published) // a record without a proof does not count
	b.server.proves(t, "did:plc:authority", schemas, "example.weir.note", other, published)
	require.ErrorContains(t, resolve("example.weir.note"), "is not signed with the account's key")
	b.server.proves(t, "did:plc:authority", schemas, "example.weir.other", key, published)
	proof := "at://did:plc:authority/" + schemas + "/example.weir."
	b.server.proofs[proof+"note"] = b.server.proofs[proof+"other"]
	require.ErrorContains(t, resolve("example.weir.note"), "has no record")
	require.Zero(t, count(t, b.pool, `SELECT count(*) FROM lexicons`))
	b.server.proves(t, "did:plc:authority", schemas, "example.weir.note", key, published)
	require.NoError(t, resolve("example.weir.note"))
	require.Equal(t, []string{"_lexicon.weir.example", "_lexicon.weir.example", "_lexicon.weir.example"}, asked)
	b.settled()
	require.Equal(t, "invalid refused letter:lexicon", b.state(note))
	require.Equal(t, []string{"example.weir.note resolved did:plc:authority"}, strs(t, b.pool, `
SELECT nsid || ' ' || source || ' ' || authority
FROM lexicons`))
	b.server.proves(t, "did:plc:authority", schemas, "example.weir.none", key, string(noteSchema("note", 3).Data))
	require.ErrorContains(t, resolve("example.weir.none"), "it is the schema of")
	require.ErrorContains(t, resolve("example.weir.none"), "has no TXT record")
	require.NoError(t, b.storeLexicons())
	require.Equal(t, 1, count(t, b.pool, `SELECT count(*) FROM lexicons`), "a folder must remove only its own schemas")
}
