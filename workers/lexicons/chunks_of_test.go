package lexicons

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

// TestChunksAreBounded shows that chunks are bounded by records and by bytes. A
// record that is larger than a chunk is in a chunk of its own.
func TestChunksAreBounded(t *testing.T) {
	t.Parallel()
	var keys []schema.Key
	sizes := map[schema.Key]int{}
	add := func(count, bytes int) {
		for range count {
			k := schema.Key{Collection: "c", DID: "d", Rkey: tidOf(len(keys))}
			keys, sizes[k] = append(keys, k), bytes
		}
	}
	add(judgedAtOnce+2, 10)
	add(1, judgedBytesAtOnce+1)
	add(3, judgedBytesAtOnce/2)
	var lengths []int
	var all []schema.Key
	for chunk := range chunksOf(keys, sizes) {
		lengths, all = append(lengths, len(chunk)), append(all, chunk...)
	}
	require.Equal(t, []int{judgedAtOnce, 2, 1, 2, 1}, lengths)
	require.Equal(t, keys, all)
	require.Empty(t, slices.Collect(chunksOf(nil, nil)))
}
