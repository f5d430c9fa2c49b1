package records

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// node returns the key of the n-th record of a test.
func node(n int) schema.Key {
	return schema.Key{Collection: "com.example.town.tree", DID: fmt.Sprintf("did:plc:%03d", n%7), Rkey: fmt.Sprintf("n%d", n)}
}

func uris(nodes []Node) (all []string) {
	for _, n := range nodes {
		all = append(all, n.URI)
	}
	return all
}

// TestRecordsThatDescribeEdgesAreEdges shows that a record that describes an edge connects its
// ends, and that a list of edges connects each pair.
func TestRecordsThatDescribeEdgesAreEdges(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	edge := schema.Key{Collection: "example.weir.graph.graphEdge", DID: "did:plc:e", Rkey: "1"}
	set := schema.Key{Collection: "example.weir.graph.graphEdgeSet", DID: "did:plc:e", Rkey: "2"}
	store(t, pool, edge.Collection, edge.DID, edge.Rkey, `{"edgeType": "causes"}`)
	store(t, pool, set.Collection, set.DID, set.Rkey, `{"edgeType": "part-of", "edges": [{"edgeType": "follows"}, {}]}`)
	store(t, pool, node(1).Collection, node(1).DID, node(1).Rkey, `{}`)
	execute(t, pool, `
INSERT INTO tombstones (collection, did, rkey, rev, deleted_at)
VALUES ($1, $2, $3, '1', now())`, node(2).Collection, node(2).DID, node(2).Rkey)
	refer(t, pool, edge, "/source/recordRef", node(1))
	refer(t, pool, edge, "/target/recordRef", node(2))
	refer(t, pool, set, "/edges/0/source/recordRef", node(3))
	refer(t, pool, set, "/edges/0/target/recordRef", node(1))
	refer(t, pool, set, "/edges/1/source/recordRef", node(1))
	refer(t, pool, set, "/edges/1/target/recordRef", node(4))
	refer(t, pool, set, "/expression", node(1))
	refer(t, pool, node(1), "/branches/12/wood/ref", node(5))

	g, err := Neighbourhood(t.Context(), pool, node(1), 1, 100)
	require.NoError(t, err)
	for i := range g.Edges {
		g.Edges[i].path = ""
	}
	require.ElementsMatch(t, []Edge{
		{From: node(1).URI(), To: node(2).URI(), Type: "causes", Via: edge.URI()},
		{From: node(3).URI(), To: node(1).URI(), Type: "follows", Via: set.URI()},
		{From: node(1).URI(), To: node(4).URI(), Type: "part-of", Via: set.URI()},
		{From: set.URI(), To: node(1).URI(), Type: "expression"},
		{From: node(1).URI(), To: node(5).URI(), Type: "branches.wood.ref"},
	}, g.Edges)
	require.False(t, g.Truncated)
	states := map[string]string{}
	for _, n := range g.Nodes {
		states[n.URI] = n.State
	}
	require.Equal(t, map[string]string{node(1).URI(): Stored, node(2).URI(): Deleted, node(3).URI(): Missing, node(4).URI(): Missing,
		node(5).URI(): Missing, set.URI(): Stored}, states)

	execute(t, pool, `INSERT INTO accounts (did, status) VALUES ('did:plc:e', 'deactivated'), ($1, 'takendown')`, node(5).DID)
	g, err = Neighbourhood(t.Context(), pool, node(1), 1, 100)
	require.NoError(t, err)
	require.Equal(t, []string{node(1).URI()}, uris(g.Nodes), "references by hidden accounts, and their records, must be omitted")

	execute(t, pool, `DELETE FROM accounts`)
	execute(t, pool, `INSERT INTO accounts (did, status) VALUES ($1, 'takendown')`, node(1).DID)
	g, err = Neighbourhood(t.Context(), pool, node(1), 1, 100)
	require.NoError(t, err)
	require.NotContains(t, uris(g.Nodes), node(5).URI(), "what the hidden record itself refers to must be omitted")
	require.Contains(t, uris(g.Nodes), set.URI(), "others refer to it")
}

// TestWalksEqualASearchInMemory shows that in any graph a walk finds the same distances, edges and
// lengths of paths as a search in memory.
func TestWalksEqualASearchInMemory(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	r := rand.New(rand.NewPCG(1, 2))
	const nodes, edges = 60, 70
	var all []Edge
	for i := range edges {
		from, to := node(r.IntN(nodes)), node(r.IntN(nodes))
		path := fmt.Sprintf("/ref%d", i)
		refer(t, pool, from, path, to)
		all = append(all, Edge{From: from.URI(), To: to.URI(), path: path})
	}
	around := neighbours(all)
	for start := range nodes {
		for depth := 1; depth <= 4; depth++ {
			want := distances(around, node(start).URI(), depth)
			g, err := Neighbourhood(t.Context(), pool, node(start), depth, MaxEdges)
			require.NoError(t, err)
			require.False(t, g.Truncated)
			got := map[string]int{}
			for _, n := range g.Nodes {
				got[n.URI] = n.Depth
			}
			require.Equal(t, want, got)
			inside := 0
			for _, e := range all {
				from, is := want[e.From]
				to, also := want[e.To]
				if is && also && min(from, to) < depth {
					inside++
				}
			}
			require.Len(t, g.Edges, inside, "each edge must be found once")
		}
		for _, end := range []int{0, 7, 31} {
			want := distances(around, node(start).URI(), MaxDepth)[node(end).URI()]
			p, err := ShortestPaths(t.Context(), pool, node(start), node(end), MaxDepth, MaxEdges)
			require.NoError(t, err)
			require.Equal(t, want, p.Length, "%d to %d", start, end)
			for _, path := range p.List {
				at := node(start).URI()
				for _, e := range path {
					at = e.other(at)
				}
				require.Len(t, path, want)
				require.Equal(t, node(end).URI(), at)
			}
		}
	}
}

// TestWalksAreBounded shows that a walk ends at its limits, however many references there are, and
// reports that.
func TestWalksAreBounded(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	hub := node(0)
	execute(t, pool, `INSERT INTO record_refs (collection, did, rkey, path, kind, target, to_collection, to_did, to_rkey, declared)
		SELECT $1, 'did:plc:x', 'r' || n, '/hub', 'at-uri', '', $1, $2, $3, true
		FROM generate_series(1, $4) AS n`, hub.Collection, hub.DID, hub.Rkey, maxFan)
	g, err := Neighbourhood(t.Context(), pool, hub, 2, MaxEdges)
	require.NoError(t, err)
	require.Len(t, g.Edges, maxFan)
	require.False(t, g.Truncated)
	refer(t, pool, node(1), "/hub", hub)
	g, err = Neighbourhood(t.Context(), pool, hub, 2, MaxEdges)
	require.NoError(t, err)
	require.True(t, g.Truncated, "the node has one reference more than the limit")
	g, err = Neighbourhood(t.Context(), pool, hub, 2, 10)
	require.NoError(t, err)
	require.LessOrEqual(t, len(g.Edges), 11)
	require.True(t, g.Truncated)
	p, err := ShortestPaths(t.Context(), pool, node(1), node(2), 4, 20)
	require.NoError(t, err)
	require.True(t, p.Truncated)
	require.Empty(t, p.List)
	require.False(t, slices.ContainsFunc(g.Nodes, func(n Node) bool { return n.Depth > 2 }))

	for i := range 3 {
		refer(t, pool, node(10), fmt.Sprintf("/%d", i), node(11))
	}
	g, err = Neighbourhood(t.Context(), pool, node(10), MaxDepth, 6)
	require.NoError(t, err)
	require.Len(t, g.Edges, 3)
	require.False(t, g.Truncated, "the walk must not follow a cycle again and again")
}

// TestLargeRecordOfEdgesIsReadOnce covers a record that describes many edges around a node, and is
// so large that reading it for each of them would take a second.
func TestLargeRecordOfEdgesIsReadOnce(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	const many = 40
	set := schema.Key{Collection: "example.weir.graph.graphEdgeSet", DID: "did:plc:e", Rkey: "1"}
	var edges, pad strings.Builder
	types := map[string]string{} // type by the other end
	for i := range many {
		types[node(i+1).URI()] = fmt.Sprintf("type%d", i)
		fmt.Fprintf(&edges, `{"edgeType": "type%d"},`, i)
		fmt.Fprintf(&pad, "%x", sha256.Sum256([]byte{byte(i)})) // not very compressible
		refer(t, pool, set, fmt.Sprintf("/edges/%d/source/recordRef", i), node(0))
		refer(t, pool, set, fmt.Sprintf("/edges/%d/target/recordRef", i), node(i+1))
	}
	store(t, pool, set.Collection, set.DID, set.Rkey,
		fmt.Sprintf(`{"edges": [%s], "pad": [%q]}`, strings.TrimSuffix(edges.String(), ","), strings.Repeat(pad.String(), 4)))
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		g, err := Neighbourhood(t.Context(), tx, node(0), 1, 1000)
		require.NoError(t, err)
		require.Len(t, g.Edges, many)
		for _, e := range g.Edges {
			require.Equal(t, types[e.To], e.Type)
		}
		var reads int
		require.NoError(t, tx.QueryRow(t.Context(), `
SELECT sum(idx_scan)
FROM pg_stat_xact_all_tables
WHERE relid IN (SELECT reltoastrelid FROM pg_class WHERE relname LIKE 'records%')`).Scan(&reads))
		require.Positive(t, reads)
		require.Less(t, reads, many/4)
		return nil
	}))
}
