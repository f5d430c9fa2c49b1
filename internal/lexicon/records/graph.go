package records

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// Limits of a walk.
const (
	MaxDepth = 6
	MaxEdges = 10_000

	maxFan  = 500 // edges that are followed from one node in each direction
	maxType = 200 // characters of an edge's type, which strangers choose
)

// A Graph is the part of the records that can be reached from a record by references, in
// both directions.
//
// A record that describes an edge, such as pub.layers.graph.graphEdge, is treated as one:
// it has a reference at /source/recordRef and one at /target/recordRef, or several such
// pairs in a list. Its two ends are neighbours of each other, connected by an edge of its
// type.
type Graph struct {
	Nodes []Node `json:"nodes"` // nearest first
	Edges []Edge `json:"edges"`
	// Truncated: within this depth, some edges were left out.
	Truncated bool `json:"truncated"`
}

// A Node is a record, which may not be stored.
type Node struct {
	URI     string `json:"uri"`
	Depth   int    `json:"depth"`
	State   string `json:"state"` // Stored, Deleted or Missing
	Verdict string `json:"verdict,omitempty"`
	Text    string `json:"text,omitempty"` // the beginning of the text that people wrote in it
}

// An Edge is a reference, or the edge that a record describes.
type Edge struct {
	From string `json:"from"`
	To   string `json:"to"`
	// the path of the reference without its indexes, such as "annotations.ontologyTypeRef"; or the type in the record
	Type string `json:"type"`
	Via  string `json:"via,omitempty"` // the at-uri of the record that describes the edge

	path string
}

// step is one level of a walk.
type step struct {
	Depth               int
	From, To, Via, Path []string
	Cut                 bool
}

// ends is a condition: a reference is one end of an edge that its record describes. It
// matches the index record_refs_ends.
func ends(path string) string {
	return path + ` ~ '^(/[A-Za-z]{1,40}/[0-9]{1,9})?/(source|target)/recordRef$'`
}

// name returns a record's name in a walk: its at-uri without the scheme.
func name(did, collection, rkey string) string {
	return fmt.Sprintf(`%s || '/' || %s || '/' || %s`, did, collection, rkey)
}

// walk visits the edges around a record, level by level: $1 is the record, $2 the depth,
// $3 the maximum number of edges, $4 the maximum per node and direction. Each row is a
// level, with the edges that were first visited there. It skips the record that describes
// an edge.
var walk = `
WITH RECURSIVE walk AS (
    SELECT 0 AS depth, ARRAY[$1::text] COLLATE "C" AS frontier, ARRAY[$1::text] COLLATE "C" AS seen, $3::bigint AS remaining,
           '{}'::text[] COLLATE "C" AS froms, '{}'::text[] COLLATE "C" AS tos, '{}'::text[] COLLATE "C" AS vias,
           '{}'::text[] AS paths, false AS cut
    UNION ALL
    SELECT w.depth + 1, n.frontier, w.seen || n.frontier, w.remaining - n.visited, n.froms, n.tos, n.vias, n.paths, n.visited > w.remaining
        OR n.cut
    FROM walk AS w
    CROSS JOIN LATERAL (
        WITH visited AS (
            SELECT e.*
            FROM (SELECT f.node, split_part(f.node, '/', 1) COLLATE "C" AS did, split_part(f.node, '/', 2) COLLATE "C" AS collection,
                split_part(f.node, '/', 3) COLLATE "C" AS rkey FROM unnest(w.frontier) AS f (node)) AS f
            CROSS JOIN LATERAL (
                (SELECT f.node AS from_, ` + name("r.to_did", "r.to_collection", "r.to_rkey") + ` AS to_, '' AS via, r.path,
                    true AS forward, r.to_did AS other, row_number() OVER () AS n
                 FROM record_refs AS r
                 WHERE r.did = f.did AND r.collection = f.collection AND r.rkey = f.rkey AND r.to_rkey IS NOT NULL AND` + shown("r.did") + `
                 LIMIT $4 + 1)
                UNION ALL
                (SELECT coalesce(` + name("o.to_did", "o.to_collection", "o.to_rkey") + `, ` + name("r.did", "r.collection", "r.rkey") + `),
                    f.node,
                        CASE WHEN o.to_did IS NULL THEN '' ELSE ` + name("r.did", "r.collection", "r.rkey") + ` END, r.path,
                        o.to_did IS NULL OR r.path LIKE '%/target/recordRef', coalesce(o.to_did, r.did), r.n
                 FROM (SELECT r.*, row_number() OVER () AS n FROM record_refs AS r
                       WHERE r.to_did = f.did AND r.to_collection = f.collection AND r.to_rkey = f.rkey AND` + shown("r.did") + `
                       LIMIT $4 + 1) AS r
                 LEFT JOIN LATERAL (
                     SELECT o.to_did, o.to_collection, o.to_rkey FROM record_refs AS o
                     WHERE ` + ends("r.path") + ` AND ` + ends("o.path") + ` AND o.did = r.did AND o.collection = r.collection
                         AND o.rkey = r.rkey AND o.to_rkey IS NOT NULL
                       AND o.path = left(r.path, -16) || CASE WHEN r.path LIKE '%/source/recordRef' THEN 'target/recordRef'
                           ELSE 'source/recordRef' END
                     LIMIT 1
                 ) AS o ON true)
            ) AS e
            WHERE` + shown("e.other") + `
            LIMIT w.remaining + 1
        )
        SELECT count(*) AS visited, coalesce(bool_or(v.n > $4), false) AS cut,
               array_agg(CASE WHEN v.forward THEN v.from_ ELSE v.to_ END) AS froms,
                   array_agg(CASE WHEN v.forward THEN v.to_ ELSE v.from_ END) AS tos, array_agg(v.via) AS vias, array_agg(v.path) AS paths,
               ARRAY(
                   SELECT DISTINCT n.node FROM (SELECT v.from_ AS node FROM visited AS v UNION ALL SELECT v.to_ FROM visited AS v) AS n
                   WHERE NOT EXISTS (SELECT FROM unnest(w.seen) AS s (node) WHERE s.node = n.node)
               ) AS frontier
        FROM visited AS v
    ) AS n
    WHERE w.depth < $2 AND cardinality(w.frontier) > 0 AND w.remaining > 0
)
SELECT w.depth, w.froms, w.tos, w.vias, w.paths, w.cut FROM walk AS w WHERE w.depth > 0 AND w.froms IS NOT NULL ORDER BY w.depth`

// visit walks from a record, and returns the edges that it visited, each once.
func visit(ctx context.Context, db DB, from schema.Key, depth, edges int) (found []Edge, truncated bool, err error) {
	steps, err := schema.All(ctx, db, "walk from a record", pgx.RowToStructByPos[step], walk, strings.TrimPrefix(from.URI(), "at://"), depth,
		edges, maxFan)
	if err != nil {
		return nil, false, err
	}
	seen := map[Edge]bool{}
	for _, s := range steps {
		truncated = truncated || s.Cut
		for i := range s.From {
			e := Edge{From: "at://" + s.From[i], To: "at://" + s.To[i], path: s.Path[i]}
			if s.Via[i] != "" {
				e.Via = "at://" + s.Via[i]
				e.path = strings.TrimSuffix(e.path[:len(e.path)-len("source/recordRef")], "/") // of the edge in its record
			}
			if !seen[e] {
				seen[e] = true
				found = append(found, e)
			}
		}
	}
	return found, truncated, nil
}

// Neighbourhood returns the graph around a record, up to depth edges away.
func Neighbourhood(ctx context.Context, db DB, of schema.Key, depth, edges int) (Graph, error) {
	found, truncated, err := visit(ctx, db, of, depth, edges)
	if err != nil {
		return Graph{}, err
	}
	g := Graph{Edges: found, Truncated: truncated}
	around := neighbours(found)
	distance := distances(around, of.URI(), depth)
	g.Nodes = append(g.Nodes, Node{URI: of.URI()})
	for i := 0; i < len(g.Nodes); i++ {
		for _, e := range around[g.Nodes[i].URI] {
			next := e.other(g.Nodes[i].URI)
			if d, ok := distance[next]; ok && d > 0 {
				g.Nodes = append(g.Nodes, Node{URI: next, Depth: d})
				delete(distance, next)
			}
		}
	}
	return g, describe(ctx, db, &g)
}

// other returns the end of an edge that is not end.
func (e Edge) other(end string) string {
	if e.From == end {
		return e.To
	}
	return e.From
}

// neighbours returns the edges of each node.
func neighbours(edges []Edge) map[string][]Edge {
	around := map[string][]Edge{}
	for _, e := range edges {
		around[e.From] = append(around[e.From], e)
		if e.To != e.From {
			around[e.To] = append(around[e.To], e)
		}
	}
	return around
}

// distances returns how many edges away each node is, up to depth.
func distances(around map[string][]Edge, from string, depth int) map[string]int {
	distance := map[string]int{from: 0}
	for open := []string{from}; len(open) > 0; open = open[1:] {
		d := distance[open[0]]
		if d == depth {
			break
		}
		for _, e := range around[open[0]] {
			next := e.other(open[0])
			if _, ok := distance[next]; !ok {
				distance[next] = d + 1
				open = append(open, next)
			}
		}
	}
	return distance
}

// describe adds the states and texts of the nodes, and the types of the edges.
func describe(ctx context.Context, db DB, g *Graph) error {
	nodes := make([]schema.Key, len(g.Nodes))
	for i := range g.Nodes {
		nodes[i] = keyOf(g.Nodes[i].URI)
	}
	about := `
SELECT ` + state() + `,
    coalesce((SELECT v.verdict FROM verdicts AS v WHERE v.did = k.did AND v.collection = k.collection AND v.rkey = k.rkey), ''),
       coalesce((SELECT left(t.text, 200) FROM record_texts AS t WHERE t.did = k.did AND t.collection = k.collection AND t.rkey = k.rkey),
           '')
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS k (collection, did, rkey, n)
ORDER BY k.n`
	collections, dids, rkeys := schema.Columns(len(nodes), func(i int) schema.Key { return nodes[i] })
	rows, err := db.Query(ctx, about, collections, dids, rkeys)
	if err != nil {
		return fmt.Errorf("read about the nodes: %w", err)
	}
	at := 0
	var n Node
	if _, err := pgx.ForEachRow(rows, []any{&n.State, &n.Verdict, &n.Text}, func() error {
		node := &g.Nodes[at]
		node.State, node.Verdict, node.Text = n.State, n.Verdict, n.Text
		if n.State == Hidden {
			node.Verdict, node.Text = "", ""
		}
		at++
		return nil
	}); err != nil {
		return fmt.Errorf("read about the nodes: %w", err)
	}
	return typed(ctx, db, g.Edges)
}

// typed sets the types of edges. A record that describes many edges is read once, because
// it may have a megabyte.
func typed(ctx context.Context, db DB, edges []Edge) error {
	var via []int
	for i := range edges {
		if edges[i].Via != "" {
			via = append(via, i)
		} else {
			edges[i].Type = typeOf(edges[i].path)
		}
	}
	if len(via) == 0 {
		return nil
	}
	slices.SortStableFunc(via, func(a, b int) int { return strings.Compare(edges[a].Via, edges[b].Via) })
	var of []schema.Key
	var first, last []int // indexes of a record's paths, from 1
	paths := make([]string, len(via))
	for n, i := range via {
		if n == 0 || edges[i].Via != edges[via[n-1]].Via {
			of, first, last = append(of, keyOf(edges[i].Via)), append(first, n+1), append(last, n)
		}
		last[len(last)-1]++
		paths[n] = edges[i].path
	}
	const sql = `
SELECT left(coalesce(d.record #>> (string_to_array(substr(p.path, 2), '/') || 'edgeType'::text), d.record ->> 'edgeType',
    d.record ->> 'kind', ''), $7)
FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::int[]) WITH ORDINALITY AS k (collection, did, rkey, first, last, n)
LEFT JOIN LATERAL (
    SELECT r.record || '{}' AS record -- what is concatenated is in memory, and not read for each path
    FROM records AS r WHERE r.collection = k.collection AND r.did = k.did AND r.rkey = k.rkey
    OFFSET 0
) AS d ON true
CROSS JOIN LATERAL unnest(($6::text[])[k.first:k.last]) WITH ORDINALITY AS p (path, m)
ORDER BY k.n, p.m`
	collections, dids, rkeys := schema.Columns(len(of), func(n int) schema.Key { return of[n] })
	types, err := schema.All(ctx, db, "read the types of the edges", pgx.RowTo[string], sql, collections, dids, rkeys, first, last, paths,
		maxType)
	for n := range types {
		edges[via[n]].Type = types[n]
	}
	return err
}

// typeOf returns the path of a reference without its indexes.
func typeOf(path string) string {
	var parts []string
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if part != "" && strings.Trim(part, "0123456789") != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ".")
}

// keyOf returns the record of an at-uri that a walk made.
func keyOf(uri string) schema.Key {
	did, rest, _ := strings.Cut(strings.TrimPrefix(uri, "at://"), "/")
	collection, rkey, _ := strings.Cut(rest, "/")
	return schema.Key{Collection: collection, DID: did, Rkey: rkey}
}
