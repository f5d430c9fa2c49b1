package links

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestExpiredPostThatIsWrittenAnewInOneBatchLosesItsShare deletes a post whose record has expired, and writes another
// one under its key. In two batches, the share goes with the deletion. In one batch, it must go, too.
func TestExpiredPostThatIsWrittenAnewInOneBatchLosesItsShare(t *testing.T) {
	t.Parallel()
	for name, together := range map[string]bool{"in two batches": false, "in one batch": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := schematest.New(t)
			p := registered(t, pool)
			a, w := newAuthor(t, pool), worker(pool)
			linking := plain("1", "1")
			linking.Record = []byte(`{"$type":"app.bsky.feed.post","text":"see https://x.example/"}`)
			require.NoError(t, a.commit(p, schema.Batch{Writes: []schema.Write{linking}}))
			a.works(w)
			require.Equal(t, []string{"1 https://x.example/"}, shares(t, pool))
			_, err := pool.Exec(t.Context(), `DELETE FROM posts`) // the record has expired
			require.NoError(t, err)
			deletion := schema.Deletion{Key: linking.Key, Rev: "2", At: time.Now()}
			if together {
				require.NoError(t, a.commit(p, schema.Batch{Deletions: []schema.Deletion{deletion}, Writes: []schema.Write{plain("1", "3")}}))
			} else {
				require.NoError(t, a.commit(p, schema.Batch{Deletions: []schema.Deletion{deletion}}))
				require.NoError(t, a.commit(p, schema.Batch{Writes: []schema.Write{plain("1", "3")}}))
			}
			a.works(w)
			require.Empty(t, shares(t, pool))
		})
	}
}

// TestErasureEndsTheSharesOfExpiredNotes has an author demand to vanish, or delete a note by its id, after the note has
// expired: its share must go.
func TestErasureEndsTheSharesOfExpiredNotes(t *testing.T) {
	t.Parallel()
	note := nostrKey("1", "a", noteID("b"))
	for name, b := range map[string]schema.Batch{
		"deletion of the address": {Deletions: []schema.Deletion{{Key: note, Rev: "~", At: time.Now(), Lasting: true}}},
		"deletion by id": {Deletions: []schema.Deletion{{
			Key: schema.Key{Collection: "nostr.*", DID: note.DID, Rkey: note.Rkey}, Rev: "~", At: time.Now(), Lasting: true}}},
		"erasure": {Erasures: []schema.Erasure{{DID: note.DID, Rev: "2", At: time.Now()}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newTown(t)
			c.event(note, "1", c.news)
			c.work(note)
			require.Equal(t, []string{"post news.example/1"}, c.sharedBy(note))
			c.execute(`DELETE FROM records WHERE collection = 'nostr.1'`) // the record has expired
			c.apply(schema.Batch{Erasures: []schema.Erasure{{DID: note.DID, Rev: "1", At: time.Unix(0, 0)}}})
			require.NotEmpty(t, c.sharedBy(note), "it was written after that erasure")
			c.apply(b)
			require.Empty(t, c.sharedBy(note))
		})
	}
}
