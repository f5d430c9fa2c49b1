package lexicons

import (
	"fmt"
	"testing"

	"github.com/caarlos0/env/v11"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/schema"
)

// TestQueuesOfNamespaces shows that the queues of pub.layers exist by default if its records are compared with
// lexicons, and that records of other projections are not. An invalid queue is an error that says why.
func TestQueuesOfNamespaces(t *testing.T) {
	t.Parallel()
	var v Variables
	require.NoError(t, env.Parse(&v))
	core := func(collections ...string) feature.Core {
		stored, err := collection.Parse(collections, 0)
		require.NoError(t, err)
		return feature.Core{Registry: stored, Queues: []string{"network", "process"},
			Projections: schema.Projections{{Collections: []string{"app.bsky.feed.post"}}}}
	}
	names := func(core feature.Core) (all []string) {
		parts, err := v.open(core)
		require.NoError(t, err)
		for _, p := range parts.Projections {
			for _, q := range p.Separate {
				all = append(all, fmt.Sprintf("%s %d:%d", q.Name, q.Workers, q.Priority))
			}
		}
		return all
	}
	some := core("app.bsky.feed.post", "pub.layers.graph.*", "pub.layers.media.media", "com.example.note")
	require.Empty(t, names(some))
	v.Lexicons = t.TempDir()
	require.Equal(t, []string{"layers_graph 2:2", "layers_integration 1:3"}, names(some))
	require.Equal(t, []string{"com.example.note", "pub.layers.graph.*", "pub.layers.media.media"}, v.judged(some))
	all := names(core("app.bsky.feed.post", "pub.layers.*"))
	require.Len(t, all, 10)
	require.Equal(t, []string{"layers_expression 4:1", "layers_segmentation 4:1", "layers_annotation 4:1", "layers_ontology 2:2"}, all[:4])

	for entry, problem := range map[string]string{
		"notes": "expected a name", "Notes=com.example.note:1:1": "expected a name", "notes=com.example.note:1": "expected a name",
		"notes=note:1:1": "is not a collection", "notes=com.*.note:1:1": "is not a prefix",
		"notes=com.example.note:0:1": "is not a number of jobs",
		"notes=com.example.note:4:5": "is not a priority", "network=com.example.note:4:1": "there is another queue",
		"process=com.example.note:4:1": "there is another queue",
	} {
		v.Queues = []string{entry}
		_, err := v.open(some)
		require.ErrorContains(t, err, "WEIR_QUEUES")
		require.ErrorContains(t, err, problem, entry)
	}
	v.Queues = []string{"notes=com.example.note|com.example.memo.*:4:1", " notes=com.example.other:1:1"}
	_, err := v.open(some)
	require.ErrorContains(t, err, "there is another queue notes")
}
