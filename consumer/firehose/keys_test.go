package firehose

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/stretchr/testify/require"
)

// TestFloodOfIdentitiesCausesFewLookups sends alternating commits and #identity events of an
// account with a slow server. At most one lookup runs at a time, and the key for the last commit
// was looked up after the last #identity.
func TestFloodOfIdentitiesCausesFewLookups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, most, made := 0, 0, 0
		var begun time.Time // the start of the last lookup
		v := NewVerifier(VerifierConfig{Wait: time.Minute, Key: func(context.Context, string) (atcrypto.PublicKey, error) {
			mu.Lock()
			running, made, begun = running+1, made+1, time.Now()
			most = max(most, running)
			mu.Unlock()
			time.Sleep(5 * time.Second) // synctest's
			mu.Lock()
			defer mu.Unlock()
			running--
			return nil, errors.New("it is down")
		}})
		for range 500 {
			v.keys.of(testDID)
			time.Sleep(10 * time.Millisecond) // synctest's
			v.keys.forget(testDID)
		}
		forgotten := time.Now()
		<-v.keys.of(testDID).done
		require.True(t, begun.After(forgotten) || begun.Equal(forgotten), "the key may have changed during an earlier lookup")
		require.Equal(t, 1, most)
		require.LessOrEqual(t, made, 3)
		require.Empty(t, v.keys.pending)
	})
}

// TestSlowServersOfTheirOwnDocumentsDelayNobody shows that did:web servers that hang do not delay
// the lookups of others. After a few waits they do not delay the stream either.
func TestSlowServersOfTheirOwnDocumentsDelayNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := NewVerifier(VerifierConfig{Key: func(ctx context.Context, did string) (atcrypto.PublicKey, error) {
			if ownDocument(did) {
				<-ctx.Done()
			}
			return nil, errors.New("no document")
		}})
		start, waited := time.Now(), 0
		for i := range 2 * maxPending {
			p := &proof{verifier: v, commit: commit{did: fmt.Sprint("did:web:slow", i, ".example"), raw: []byte{0xa1}}}
			p.Start()
			if i%100 == 0 { // a batch is closed
				before := time.Now()
				require.True(t, p.Outcome().Retry)
				if time.Since(before) > 0 {
					waited++
				}
			}
		}
		require.LessOrEqual(t, waited, 5, "of 21 batches")
		require.LessOrEqual(t, time.Since(start), 10*time.Second)
		start = time.Now()
		for i := range 100 {
			<-v.keys.of(fmt.Sprint("did:plc:", i)).done
		}
		require.LessOrEqual(t, time.Since(start), 3*time.Second, "other lookups must not be delayed")
		time.Sleep(time.Hour) // synctest's
		synctest.Wait()
		require.Zero(t, v.keys.own)
		require.Empty(t, v.keys.pending)
	})
}

func TestKeysAreForgottenInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, key := newKeys(t)
		d, v := newDirectory(nil, VerifierConfig{Cached: 3})
		ask := func(name string) {
			d.set(name, key, nil)
			<-v.keys.of(name).done
		}
		for _, name := range []string{"a", "b", "c", "a", "d", "a"} { // b is the one to be evicted
			ask(name)
		}
		require.Equal(t, 4, d.count())
		ask("b")
		require.Equal(t, 5, d.count())
		ask("a")
		require.Equal(t, 5, d.count())
		require.Len(t, v.keys.found.at, 3)
		time.Sleep(25 * time.Hour) // synctest's
		ask("a")
		require.Equal(t, 6, d.count(), "an old key is fetched again")
	})
}
