package records

import (
	"context"

	"github.com/weir-social/weir/schema"
)

// maxPaths is the number of paths that are returned.
const maxPaths = 10

// Paths are the shortest paths between two records.
type Paths struct {
	Length int      `json:"length"` // in edges; 0: there is none within the depth, or both are the same
	List   [][]Edge `json:"paths"`  // some of them; an edge may lead in either direction
	// Truncated: not all edges within the depth were visited. There may be more or
	// shorter paths.
	Truncated bool `json:"truncated"`
}

// ShortestPaths returns the shortest paths between two records with at most depth
// edges. It walks from both ends, each half of the way.
func ShortestPaths(ctx context.Context, db DB, from, to schema.Key, depth, edges int) (p Paths, err error) {
	var all []Edge
	seen := map[Edge]bool{}
	for _, side := range []struct {
		start schema.Key
		depth int
	}{{from, (depth + 1) / 2}, {to, depth / 2}} {
		if side.depth == 0 {
			continue
		}
		found, truncated, err := visit(ctx, db, side.start, side.depth, edges/2)
		if err != nil {
			return p, err
		}
		p.Truncated = p.Truncated || truncated
		for _, e := range found {
			if !seen[e] {
				seen[e] = true
				all = append(all, e)
			}
		}
	}
	p.List = shortest(all, from.URI(), to.URI(), depth)
	if len(p.List) > 0 {
		p.Length = len(p.List[0])
	}
	for i := range p.List {
		if err := typed(ctx, db, p.List[i]); err != nil {
			return p, err
		}
	}
	return p, nil
}

// shortest returns some of the shortest paths.
func shortest(edges []Edge, from, to string, depth int) [][]Edge {
	around := neighbours(edges)
	distance := distances(around, to, depth) // the distance of each node from to
	paths := [][]Edge{}
	if d, ok := distance[from]; !ok || d == 0 {
		return paths
	}
	var extend func(path []Edge, at string)
	extend = func(path []Edge, at string) {
		if at == to {
			paths = append(paths, append([]Edge{}, path...))
			return
		}
		for _, e := range around[at] {
			next := e.other(at)
			if d, ok := distance[next]; ok && d == distance[at]-1 && len(paths) < maxPaths {
				extend(append(path, e), next)
			}
		}
	}
	extend(nil, from)
	return paths
}
