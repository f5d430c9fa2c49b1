package records

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/lexicon"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestPagesShowEachRecordOnce shows that pages have every record of a collection once, the last
// first, however large the records are. Records of hidden accounts are omitted.
func TestPagesShowEachRecordOnce(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	const collection, total = "com.example.town.tree", 33
	large := `{"text": "` + strings.Repeat("x", 1<<20-100) + `"}`
	var want []string
	for i := range total {
		key := schema.Key{Collection: collection, DID: fmt.Sprintf("did:plc:%d", i%3), Rkey: fmt.Sprintf("k%02d", i)}
		value := large
		if i > 15 {
			value = `{}`
		}
		store(t, pool, key.Collection, key.DID, key.Rkey, value)
		execute(t, pool, `
UPDATE records
SET indexed_at = timestamptz '2026-05-04' + $1::int / 4 * interval '1 hour'
WHERE rkey = $2`, i, key.Rkey)
		want = append(want, key.URI())
	}
	store(t, pool, collection+"s", "did:plc:0", "other", `{}`)
	store(t, pool, collection, "did:plc:hidden", "k", `{}`)
	execute(t, pool, `INSERT INTO accounts (did, status) VALUES ('did:plc:hidden', 'suspended')`)
	slices.Sort(want)
	for _, limit := range []int{1, 7, 100} {
		var got []string
		for after, pages := Cursor(""), 0; ; pages++ {
			page, err := List(t.Context(), pool, collection, limit, after)
			require.NoError(t, err)
			size := 0
			for _, r := range page.Records {
				got = append(got, r.URI)
				size += len(r.Value)
			}
			require.LessOrEqual(t, len(page.Records), limit)
			require.LessOrEqual(t, size, pageBytes+readAtOnce<<20)
			if after = page.Next; after == "" {
				require.True(t, limit < total || pages > 0, "a page must end before it is too large")
				break
			}
		}
		slices.Sort(got)
		require.Equal(t, want, got)
	}
	first, err := List(t.Context(), pool, collection, 1, "")
	require.NoError(t, err)
	require.Contains(t, first.Records[0].URI, "/k3")
	for _, cursor := range []Cursor{"x", "e30", first.Next + "x", position{Of: "list another"}.cursor()} {
		_, err = List(t.Context(), pool, collection, 1, cursor)
		require.ErrorIs(t, err, ErrCursor, cursor)
	}
	_, err = List(t.Context(), pool, collection, 1, position{Of: "list " + collection, Key: schema.Key{DID: "a\x00"}}.cursor())
	require.ErrorIs(t, err, ErrCursor)
}

// TestRecordsOfAnAccount shows that they are in the order of their keys, in both directions.
func TestRecordsOfAnAccount(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for i := range 5 {
		store(t, pool, "com.example.town.tree", "did:plc:a", fmt.Sprintf("k%d", i), `{}`)
		store(t, pool, "com.example.town.tree", "did:plc:b", fmt.Sprintf("k%d", i), `{}`)
	}
	for reverse, want := range map[bool]string{false: "k4 k3 k2 k1 k0", true: "k0 k1 k2 k3 k4"} {
		var got []string
		for after, more := "", true; more; more = after != "" {
			page, next, err := ListOf(t.Context(), pool, "did:plc:a", "com.example.town.tree", 2, after, reverse)
			require.NoError(t, err)
			for _, r := range page {
				require.Contains(t, r.URI, "did:plc:a")
				got = append(got, r.URI[strings.LastIndexByte(r.URI, '/')+1:])
			}
			after = next
		}
		require.Equal(t, want, strings.Join(got, " "))
	}
}

// TestRecordsHaveReferencesAndReferrers shows that a record has its verdict, its references, and
// its referrers.
func TestRecordsHaveReferencesAndReferrers(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	tree := node(1)
	store(t, pool, tree.Collection, tree.DID, tree.Rkey, `{"height": 3}`)
	execute(t, pool, `
INSERT INTO verdicts (collection, did, rkey, cid, schema_hash, verdict, state, dangling, warnings)
VALUES ($1, $2, $3, 'cid-1', 'h', 'valid', 'parked', true, '[{"rule": "high"}]')`, tree.Collection, tree.DID, tree.Rkey)
	execute(t, pool, `
INSERT INTO parked (collection, did, rkey, to_collection, to_did, to_rkey)
VALUES ($1, $2, $3, 'com.example.town.park', 'did:plc:p', '1')`, tree.Collection, tree.DID, tree.Rkey)
	store(t, pool, node(2).Collection, node(2).DID, node(2).Rkey, `{}`)
	execute(t, pool, `
INSERT INTO tombstones (collection, did, rkey, rev, deleted_at)
VALUES ($1, $2, $3, '1', now())`, node(3).Collection, node(3).DID, node(3).Rkey)
	execute(t, pool, `INSERT INTO accounts (did, status) VALUES ($1, 'takendown')`, node(5).DID)
	for i := 2; i <= 5; i++ {
		refer(t, pool, tree, fmt.Sprintf("/near/%d", i), node(i))
		refer(t, pool, node(i), "/of", tree)
	}
	execute(t, pool, `
INSERT INTO record_refs (collection, did, rkey, path, kind, target, declared)
VALUES ($1, $2, $3, '/picture', 'blob', 'bafkreiabc', true)`, tree.Collection, tree.DID, tree.Rkey)

	d, err := Read(t.Context(), pool, tree, 100)
	require.NoError(t, err)
	require.Equal(t, []any{"valid", "parked", true, []string{"at://did:plc:p/com.example.town.park/1"}},
		[]any{d.Verdict, d.Projection, d.Dangling, d.WaitsFor})
	require.JSONEq(t, `[{"rule": "high"}]`, string(d.Warnings))
	states := map[string]string{}
	for _, r := range d.References.List {
		states[r.Path] = fmt.Sprint(r.State, " ", r.Dangling)
	}
	require.Equal(t, map[string]string{"/near/2": "stored false", "/near/3": "deleted true", "/near/4": "missing false",
		"/near/5": "hidden false", "/picture": " false"}, states)
	require.Len(t, d.Referrers.List, 3, "references by a hidden account must be omitted")

	var paths []string
	for after := Cursor(""); ; {
		page, err := ReadReferences(t.Context(), pool, tree, 2, after)
		require.NoError(t, err)
		for _, r := range page.List {
			paths = append(paths, r.Path)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	require.Equal(t, []string{"/near/2", "/near/3", "/near/4", "/near/5", "/picture"}, paths)
	var referrers []string
	for after := Cursor(""); ; {
		page, err := ReadReferrers(t.Context(), pool, tree, 1, after)
		require.NoError(t, err)
		for _, r := range page.List {
			referrers = append(referrers, r.URI)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	require.Equal(t, []string{node(2).URI(), node(3).URI(), node(4).URI()}, referrers)
	_, err = Read(t.Context(), pool, node(3), 1)
	require.ErrorIs(t, err, schema.ErrNoRows)
}

// TestLongCursors shows that cursors after the longest keys, paths and targets are accepted.
func TestLongCursors(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	long := schema.Key{
		DID: "did:web:" + strings.Repeat("d", 248), Collection: "com.example." + strings.Repeat("c", 300), Rkey: strings.Repeat("r", 512),
	}
	path, to := "/"+strings.Repeat("\x01", 2047), node(1)
	for i := range 3 {
		execute(t, pool, `
INSERT INTO record_refs (collection, did, rkey, path, kind, target, to_collection, to_did, to_rkey, declared)
VALUES ($1, $2, $3, $4, 'at-uri', $5, $6, $7, $8, true)`,
			long.Collection, long.DID, long.Rkey, path, to.URI()+strings.Repeat("<", 100_000)+fmt.Sprint(i), to.Collection, to.DID, to.Rkey)
	}
	var targets []string
	for after := Cursor(""); ; {
		page, err := ReadReferences(t.Context(), pool, long, 1, after)
		require.NoError(t, err)
		targets = append(targets, page.List[0].Target[len(page.List[0].Target)-1:])
		if after = page.Next; after == "" {
			break
		}
	}
	require.Equal(t, []string{"0", "1", "2"}, targets)
	page, err := ReadReferrers(t.Context(), pool, to, 1, "")
	require.NoError(t, err)
	require.LessOrEqual(t, len(page.Next), maxCursor)
	_, err = ReadReferrers(t.Context(), pool, to, 1, page.Next)
	require.NoError(t, err)
	for _, cursor := range []Cursor{position{Of: "references " + long.URI(), Skip: -1}.cursor(), page.Next} {
		_, err = ReadReferences(t.Context(), pool, long, 1, cursor)
		require.ErrorIs(t, err, ErrCursor)
	}
}

// TestSearchFindsWords shows that the best matches come first, each once, of one collection or of
// all.
func TestSearchFindsWords(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for i := range 9 {
		execute(t, pool, `
INSERT INTO record_texts (collection, did, rkey, text, words) SELECT $1, $2, $3, t, to_tsvector('simple', t)
FROM (SELECT repeat('heron ', $4) || 'river' AS t) AS t`,
			[]string{"com.example.town.tree", "com.example.town.bird"}[i%2], fmt.Sprintf("did:plc:%d", i), "k", i%4)
	}
	execute(t, pool, `INSERT INTO accounts (did, status) VALUES ('did:plc:3', 'suspended')`)
	for _, c := range []struct {
		words, collection string
		want              int
	}{{"'heron'", "", 5}, {"'heron'", "com.example.town.bird", 3}, {"'river' & 'heron'", "", 5}, {"'river'", "", 8}, {"'swan'", "", 0},
		{"", "", 0}} {
		var got []string
		last := float32(1e30)
		for after := Cursor(""); ; {
			page, err := Search(t.Context(), pool, Query{Words: c.words, Collection: c.collection}, 2, after)
			require.NoError(t, err)
			require.False(t, page.Truncated)
			for _, m := range page.Matches {
				require.LessOrEqual(t, m.Rank, last)
				last = m.Rank
				got = append(got, m.URI)
			}
			if after = page.Next; after == "" {
				break
			}
		}
		slices.Sort(got)
		require.Len(t, slices.Compact(got), c.want, "%s in %s", c.words, c.collection)
	}
}

// TestSearchFilters searches by what records declare, among them values that no filter may contain.
func TestSearchFilters(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	catalog, err := lexicon.New()
	require.NoError(t, err)
	for rkey, record := range map[string]string{
		"none": `{}`, "swiss": `{"languages": ["de-CH", "gsw"]}`, "german": `{"languages": ["de"], "mimeType": "Audio/MPEG"}`,
		"post": `{"langs": ["den", "DE-Latn-AT"]}`,
		"film": `{"languages": ["fr"], "mediaBlob": {"mimeType": "video/mp4"}, "blob": "x"}`,
		"sound": `{"blob": {"$type": "blob", "ref": {"$link": "bafkreih5aznjvttude6c3wbvqeebb6rlx5wkbzyppv7garjiubll2ceym4"},
			"mimeType": "audio/x-wav", "size": 9}}`,
		"hostile": `{"languages": ["de'", "", "'x':1A", "de\\", 7, null, {"de": "de"}, "=language=de"],
			"langs": "de", "mimeType": ["audio"], "blob": {"mimeType": "audio/'"}}`,
		"many": `{"languages": [` + strings.Repeat(`"aa",`, 200) + `"de"]}`,
	} {
		filters := Filters(catalog.Validate("com.example.text", rkey, []byte(record)).Root)
		execute(t, pool, `
INSERT INTO record_texts (collection, did, rkey, text, words)
VALUES ('com.example.text', 'did:plc:a', $1, 'a heron',
    $$'heron':1 'language':2 $$::tsvector || coalesce($2::tsvector, ''))`, rkey, filters)
	}
	found := func(q Query) string {
		t.Helper()
		var keys []string
		for after := Cursor(""); ; {
			page, err := Search(t.Context(), pool, q, 2, after)
			require.NoError(t, err)
			for _, m := range page.Matches {
				keys = append(keys, m.key.Rkey)
				require.Positive(t, m.Rank)
			}
			if after = page.Next; after == "" {
				break
			}
		}
		slices.Sort(keys)
		return strings.Join(keys, " ")
	}
	const word = "'heron'"
	for want, q := range map[string]Query{
		"german post swiss": {Words: word, Language: "DE"},
		"swiss":             {Words: word, Language: "de-ch"},
		"german":            {Words: word, Language: "de", MediaType: "audio"},
		"german sound":      {Words: word, MediaType: "audio"},
		"sound":             {Words: word, MediaType: "audio/x-wav"},
		"film":              {Words: word, Language: "fr", MediaType: "video/mp4"},
		"many":              {Words: word, Language: "aa"},
		"":                  {Words: "", Language: "de"},
		"film german hostile many none post sound swiss": {Words: "'language':*"},
	} {
		require.Equal(t, want, found(q), "%+v", q)
	}
	for _, bad := range []string{"", "d", "de_CH", "de'", "de & x", "=de", strings.Repeat("a", 9), "de-" + strings.Repeat("x-", 9)} {
		require.False(t, ValidLanguage(bad), bad)
		require.False(t, ValidMediaType(bad+"/'"), bad)
	}
}
