package firehose

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
)

// directory is a key source that tests change.
type directory struct {
	mu      sync.Mutex
	keys    map[string]atcrypto.PublicKey
	err     error // returned by every lookup
	lookups int
}

func (d *directory) key(_ context.Context, did string) (atcrypto.PublicKey, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lookups++
	switch key, ok := d.keys[did]; {
	case d.err != nil:
		return nil, d.err
	case !ok:
		return nil, fmt.Errorf("%w: %s is not registered", ErrNoKey, did)
	default:
		return key, nil
	}
}

func (d *directory) set(did string, key atcrypto.PrivateKey, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	if key != nil {
		public, _ := key.PublicKey() // of a valid key
		d.keys[did] = public
	}
}

func (d *directory) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lookups
}

// newDirectory returns a directory that has the key of a repository, and a verifier that uses it.
func newDirectory(r *repository, cfg VerifierConfig) (*directory, *Verifier) {
	d := &directory{keys: map[string]atcrypto.PublicKey{}}
	if r != nil {
		d.set(testDID, r.key, nil)
	}
	if cfg.Key == nil {
		cfg.Key = d.key
	}
	if cfg.Spacing == 0 {
		cfg.Spacing = time.Nanosecond
	}
	return d, NewVerifier(cfg)
}

// next returns the frame of a commit with another post.
func (r *repository) next() []byte {
	r.t.Helper()
	return commitFrame(r.t, r.commit(write{"app.bsky.feed.post/" + r.clock.Next().String(), post(r.t, "a")}))
}

// outcomeOf decodes a frame and returns the outcome of its proof.
func outcomeOf(t testing.TB, v *Verifier, frame []byte) consumer.ProofOutcome {
	t.Helper()
	var m consumer.Message
	Wire(nil, v).Decode(frame, arrival(), &m)
	require.Empty(t, m.Malformed)
	require.NotNil(t, m.Proof)
	m.Proof.Start()
	return m.Proof.Outcome()
}

func newKeys(t testing.TB) (p256, k256 atcrypto.PrivateKeyExportable) {
	t.Helper()
	p, err := atcrypto.GeneratePrivateKeyP256()
	require.NoError(t, err)
	k, err := atcrypto.GeneratePrivateKeyK256()
	require.NoError(t, err)
	return p, k
}

// highS is a private key that signs in the non-canonical form, with a high S.
type highS struct{ atcrypto.PrivateKeyExportable }

func (k highS) HashAndSign(content []byte) ([]byte, error) {
	sig, err := k.PrivateKeyExportable.HashAndSign(content)
	order := "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551"
	if _, ok := k.PrivateKeyExportable.(*atcrypto.PrivateKeyK256); ok {
		order = "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"
	}
	n, _ := new(big.Int).SetString(order, 16)
	n.Sub(n, new(big.Int).SetBytes(sig[32:])).FillBytes(sig[32:])
	return sig, err
}

func TestSignaturesOfBothCurvesAreChecked(t *testing.T) {
	t.Parallel()
	p256, k256 := newKeys(t)
	otherP, otherK := newKeys(t)
	for _, c := range []struct{ key, other atcrypto.PrivateKeyExportable }{{p256, otherP}, {k256, otherK}, {p256, otherK}, {k256, otherP}} {
		metrics := prometheus.NewRegistry()
		r := newRepository(t)
		r.key = c.key
		_, v := newDirectory(r, VerifierConfig{Registerer: metrics})
		require.Equal(t, consumer.ProofOutcome{}, outcomeOf(t, v, r.next()))
		r.key = highS{c.key}
		require.Equal(t, "the signature is not in the canonical form", outcomeOf(t, v, r.next()).Cause)
		r.key = c.other
		got := outcomeOf(t, v, r.next())
		require.Equal(t, consumer.ProofOutcome{Cause: "the signature is not of the account's key", Lost: true}, got)
		r.key = c.key
		require.Equal(t, consumer.ProofOutcome{}, outcomeOf(t, v, r.next()))
		require.Equal(t, map[string]float64{"signature": 1, "high_s": 1, "no_key": 0, "gone": 0},
			counters(t, metrics, "weir_source_refused_commits_total"))
		require.Equal(t, map[string]float64{"": 2}, counters(t, metrics, "weir_source_verified_commits_total"))
	}
}

// counters returns the values of a metric by its label.
func counters(t testing.TB, r *prometheus.Registry, name string) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	require.NoError(t, err)
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != name {
				continue
			}
			label := ""
			if labels := m.GetLabel(); len(labels) > 0 {
				label = labels[0].GetValue()
			}
			all[label] = m.GetCounter().GetValue()
		}
	}
	return all
}

// TestEverySignedByteCounts changes single bits of the signed commit and then corrects all CIDs, as
// a relay could.
func TestEverySignedByteCounts(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	_, v := newDirectory(r, VerifierConfig{})
	var d decoder
	require.Nil(t, d.read(r.next()))
	require.Nil(t, d.readSigned())
	signed := d.signed
	require.Empty(t, v.check(&signed, v.keys.of(testDID)).Cause)
	for i := range signed.raw {
		changed := signed
		changed.raw = append([]byte(nil), signed.raw...)
		changed.raw[i] ^= 1
		if i >= signed.sigAt && i < signed.sigEnd { // the signature itself is removed before the check
			changed.sig = append([]byte(nil), signed.sig...)
			changed.sig[i%64] ^= 1
		}
		require.NotEmpty(t, v.check(&changed, v.keys.of(testDID)).Cause, i)
	}
}

// TestRotatedKeyIsFetched shows that a rotated key is fetched with the #identity, or once when a
// signature does not match.
func TestRotatedKeyIsFetched(t *testing.T) {
	t.Parallel()
	for _, announced := range []bool{true, false} {
		r := newRepository(t)
		d, v := newDirectory(r, VerifierConfig{Refresh: time.Nanosecond})
		require.Empty(t, outcomeOf(t, v, r.next()).Cause)
		require.Empty(t, outcomeOf(t, v, r.next()).Cause)
		require.Equal(t, 1, d.count())
		former := r.key
		r.key, _ = newKeys(t)
		d.set(testDID, r.key, nil)
		if announced {
			var m consumer.Message
			Wire(nil, v).Decode(identityFrame(t, 7), arrival(), &m)
			r.key = former
			require.Equal(t, "the signature is not of the account's key", outcomeOf(t, v, r.next()).Cause)
			require.LessOrEqual(t, d.count(), 3, "once for the #identity, once more for the failure")
			continue
		}
		require.Empty(t, outcomeOf(t, v, r.next()).Cause)
		require.Equal(t, 2, d.count())
		r.key = former
		require.NotEmpty(t, outcomeOf(t, v, r.next()).Cause)
	}
}

// TestCommitBeforeIdentityHasFormerKey checks that the order in the stream decides which key is
// used, if the former key is cached.
func TestCommitBeforeIdentityHasFormerKey(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	d, v := newDirectory(r, VerifierConfig{})
	require.Empty(t, outcomeOf(t, v, r.next()).Cause)
	wire := Wire(nil, v)
	var before, m consumer.Message
	wire.Decode(r.next(), arrival(), &before)
	before.Proof.Start()
	r.key, _ = newKeys(t)
	d.set(testDID, r.key, nil)
	wire.Decode(identityFrame(t, 7), arrival(), &m)
	require.Empty(t, before.Proof.Outcome().Cause)
	require.Empty(t, outcomeOf(t, v, r.next()).Cause)
}

// TestForgeriesCauseFewLookups checks that a flood of forgeries in the name of an
// account reads its document at most once per Refresh.
func TestForgeriesCauseFewLookups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRepository(t)
		d, v := newDirectory(r, VerifierConfig{})
		r.key, _ = newKeys(t)
		for range 3 {
			for range 50 {
				require.NotEmpty(t, outcomeOf(t, v, r.next()).Cause)
			}
			time.Sleep(31 * time.Second) // synctest's
		}
		require.LessOrEqual(t, d.count(), 4)
		_, made := newDirectory(nil, VerifierConfig{Key: d.key})
		d.set(testDID, nil, fmt.Errorf("%w: made up", ErrNoKey))
		before := d.count()
		for range 50 {
			require.Contains(t, outcomeOf(t, made, r.next()).Cause, "made up")
		}
		require.Equal(t, before+1, d.count())
	})
}

// TestRefusedCommitsLeaveFewDeadLetters shows that only a few dead letters are left, and more after
// a while.
func TestRefusedCommitsLeaveFewDeadLetters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRepository(t)
		_, v := newDirectory(r, VerifierConfig{Refused: 3})
		r.key, _ = newKeys(t)
		kept := func() (n int) {
			for range 20 {
				if !outcomeOf(t, v, r.next()).Drop {
					n++
				}
			}
			return n
		}
		require.Equal(t, 3, kept())
		require.Zero(t, kept())
		time.Sleep(21 * time.Minute) // synctest's
		require.Equal(t, 2, kept())
	})
}

// TestKeyThatCannotBeFetchedNowIsNoForgery checks that verification does not wait for a directory
// that is down, and at most Wait for one that does not respond.
func TestKeyThatCannotBeFetchedNowIsNoForgery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRepository(t)
		frame := r.next()
		d, v := newDirectory(r, VerifierConfig{})
		d.set(testDID, nil, errors.New("the directory is down"))
		start := time.Now()
		require.Equal(t, consumer.ProofOutcome{
			Cause: "the account's key cannot be fetched: the directory is down", Retry: true,
		}, outcomeOf(t, v, frame))
		require.Less(t, time.Since(start), time.Second)
		d.set(testDID, nil, nil)
		require.Equal(t, consumer.ProofOutcome{}, outcomeOf(t, v, frame), "a failure is not cached")

		release := make(chan struct{})
		slow := NewVerifier(VerifierConfig{Key: func(ctx context.Context, did string) (atcrypto.PublicKey, error) {
			<-release
			return d.key(ctx, did)
		}})
		start = time.Now()
		require.True(t, outcomeOf(t, slow, frame).Retry)
		require.Equal(t, 3*time.Second, time.Since(start))
		close(release)
		synctest.Wait()
		require.Equal(t, consumer.ProofOutcome{}, outcomeOf(t, slow, frame), "a key that arrives late must be used for the retry")
		d.set(testDID, nil, fmt.Errorf("%w: %w", ErrNoKey, ErrGone))
		_, gone := newDirectory(nil, VerifierConfig{Key: d.key})
		require.True(t, outcomeOf(t, gone, frame).Drop)

		d.set(testDID, nil, fmt.Errorf("%w: %w: no such page", ErrNoKey, ErrUncertain))
		_, uncertain := newDirectory(nil, VerifierConfig{Key: d.key})
		require.True(t, outcomeOf(t, uncertain, frame).Retry)
		d.set(testDID, r.key, nil)
		asked := d.count()
		require.True(t, outcomeOf(t, uncertain, frame).Retry)
		require.Equal(t, asked, d.count(), "the key must not be looked up for every commit")
		time.Sleep(6 * time.Minute) // synctest's
		require.Equal(t, consumer.ProofOutcome{}, outcomeOf(t, uncertain, frame))
	})
}

// TestSilentDirectoryBlocksNoThousandCommits floods the pool with commits of accounts
// whose keys do not arrive.
func TestSilentDirectoryBlocksNoThousandCommits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		v := NewVerifier(VerifierConfig{Key: func(context.Context, string) (atcrypto.PublicKey, error) {
			<-release
			return nil, errors.New("too late")
		}})
		start := time.Now()
		proofs := make([]*proof, 3*maxProofs)
		for i := range proofs {
			proofs[i] = &proof{verifier: v, commit: commit{did: fmt.Sprint("did:plc:", i), raw: []byte{0xa1}}}
			proofs[i].Start()
		}
		for _, p := range proofs {
			require.True(t, p.Outcome().Retry)
		}
		require.LessOrEqual(t, time.Since(start), 10*time.Second)
		require.LessOrEqual(t, len(v.keys.pending), maxPending)
		close(release)
		time.Sleep(time.Minute) // synctest's
		synctest.Wait()
		require.Zero(t, len(v.keys.pending)) // it would print them all
		p := &proof{verifier: v, deadLetters: 1, commit: commit{did: "did:web:slow.example", raw: []byte{0xa1}}}
		v.unreadable.Size = 0
		p.Start()
		<-p.done
		require.Equal(t, []bool{true, true}, []bool{p.Outcome().Retry, p.Outcome().Drop},
			"a did:web account must not fill the table of dead letters")
	})
}

// TestServersOfTheirOwnDocumentsFillNoTable covers did:web accounts. Their large commits leave
// fewer dead letters than small ones. Accounts with commits that leave none are read from the
// repository. A retry does not count against the limit and drops nothing.
func TestServersOfTheirOwnDocumentsFillNoTable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := func(context.Context, string) (atcrypto.PublicKey, error) { return nil, errors.New("it is down") }
		v := NewVerifier(VerifierConfig{Key: down, Unreadable: 20})
		r := newRepository(t)
		kept := func(v *Verifier, frame []byte) (n int) {
			var m consumer.Message
			Wire(nil, v).Decode(frame, arrival(), &m)
			for range 100 {
				p := *m.Proof.(*proof) // the proof is of this type
				p.commit.did = "did:web:down.example"
				p.Start()
				outcome := p.Outcome()
				require.True(t, outcome.Retry)
				require.Equal(t, outcome.Drop, outcome.Lost, "a commit that leaves no dead letter must be read from the repository")
				if !outcome.Drop {
					n++
				}
			}
			return n
		}
		large := commitFrame(t,
			r.commit(write{"app.bsky.feed.post/" + r.clock.Next().String(), record(t, map[string]any{"text": strings.Repeat("a", 100<<10)})}))
		small := r.next()
		require.Equal(t, 100, kept(v.Patient(time.Minute), small), "a retry must keep every dead letter")
		require.Equal(t, 2, kept(v, large))
		require.Equal(t, 6, kept(v, small))
		time.Sleep(31 * time.Second) // synctest's
		require.Equal(t, 3, kept(v, small))
	})
}
