package firehose

import (
	"cmp"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/weir-social/weir/consumer"
)

// VerifierConfig configures a Verifier. Zero values take the defaults.
type VerifierConfig struct {
	Key     KeySource
	Chained bool          // also check the chain of each account's commits
	Wait    time.Duration // 3 s: how long a commit waits for a key
	Timeout time.Duration // 10 s: timeout of one lookup
	Lookups int           // 16: lookups at once in the directory, and as many from accounts' own servers
	Spacing time.Duration // 10 ms: between the starts of two lookups
	Cached  int           // 100,000: accounts whose keys are cached
	Refresh time.Duration // 30 s: a younger key is not fetched again when a signature does not match
	Refused int           // 100: refused commits that leave dead letters, and one more every ten minutes
	// 1,000: dead letters of accounts whose own server does not serve their DID document, and one more every ten seconds
	Unreadable int
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: not exposed
}

// Verifier checks the signatures of commits. It is safe for concurrent use.
type Verifier struct {
	cfg  VerifierConfig
	log  *slog.Logger
	keys *keys
	pool chan struct{} // a token per proof that has begun

	refused, unreadable *consumer.Bucket
	slow                *consumer.Bucket // limits the waits for documents on accounts' own servers that do not arrive

	verified, waiting prometheus.Counter
	refusals          *prometheus.CounterVec
}

// maxProofs limits the proofs that have begun. Most of them only wait for a key.
const maxProofs = 256

// Why a commit is refused, in metrics.
const (
	causeSignature = "signature" // not made with the account's key
	causeHighS     = "high_s"    // made with the account's key, but in the form that anybody can derive from another signature
	causeNoKey     = "no_key"    // the account has no key
	causeGone      = "gone"      // the account's DID was deleted, perhaps after the commit
)

// NewVerifier sets the defaults.
func NewVerifier(cfg VerifierConfig) *Verifier {
	cfg.Wait = cmp.Or(cfg.Wait, 3*time.Second)
	cfg.Refresh = cmp.Or(cfg.Refresh, 30*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	f := promauto.With(cfg.Registerer)
	v := &Verifier{
		cfg: cfg, log: cfg.Logger, pool: make(chan struct{}, maxProofs),
		keys: &keys{source: cfg.Key, timeout: cmp.Or(cfg.Timeout, 10*time.Second), pace: pace{spacing: cmp.Or(cfg.Spacing, 10*time.Millisecond)},
			running: [2]chan struct{}{make(chan struct{}, cmp.Or(cfg.Lookups, 16)), make(chan struct{}, cmp.Or(cfg.Lookups, 16))},
			found:   newLRU(cmp.Or(cfg.Cached, 100_000)), absent: newLRU(maxAbsent), pending: map[string]*lookup{},
			lookups: f.NewCounterVec(prometheus.CounterOpts{Name: "weir_source_key_lookups_total",
				Help: "DID documents read for the keys of accounts, by outcome: found, absent (the account has no key), failed. Expect no failed " +
					"ones."}, []string{"outcome"})},
		refused:    consumer.NewBucket(cmp.Or(cfg.Refused, 100)),
		unreadable: &consumer.Bucket{Size: cmp.Or(cfg.Unreadable, 1000), Refill: 10 * time.Second},
		slow:       &consumer.Bucket{Size: 10, Refill: 30 * time.Second},
		verified: f.NewCounter(prometheus.CounterOpts{Name: "weir_source_verified_commits_total",
			Help: "Commits whose signature is of the account's key."}),
		waiting: f.NewCounter(prometheus.CounterOpts{Name: "weir_source_unverified_commits_total",
			Help: "Commits dead-lettered because the account's key could not be fetched. They are retried. Expect zero."}),
		refusals: f.NewCounterVec(prometheus.CounterOpts{Name: "weir_source_refused_commits_total",
			Help: "Commits refused, by cause: signature (not of the account's key), high_s (not in the canonical form), no_key (the account has " +
				"no key), gone (its DID was deleted since). Expect zero but for gone: a server forwards forgeries."}, []string{"cause"}),
	}
	for _, cause := range []string{causeSignature, causeHighS, causeNoKey, causeGone} {
		v.refusals.WithLabelValues(cause)
	}
	for _, outcome := range []string{"found", "absent", "failed"} {
		v.keys.lookups.WithLabelValues(outcome)
	}
	return v
}

// Patient returns a verifier that waits longer for a key. It has the same keys and
// metrics, and a pool of its own. It is for retries, which delay no stream.
func (v *Verifier) Patient(wait time.Duration) *Verifier {
	patient := *v
	patient.cfg.Wait, patient.pool = wait, make(chan struct{}, maxProofs)
	// a retried input is only a part of a commit, and late
	patient.cfg.Chained = false
	// a retried input stays a dead letter
	patient.refused, patient.unreadable = &consumer.Bucket{Size: v.refused.Size, Refill: v.refused.Refill}, nil
	patient.slow = nil
	return &patient
}

// prove returns the proof of the last commit that d decoded. events is the number of its
// events.
func (v *Verifier) prove(d *decoder, events int) *proof {
	const large = 16 << 10 // every so many bytes of a dead letter count as one more dead letter
	p := &proof{verifier: v, commit: d.signed, deadLetters: events + len(d.data)/large}
	if v.cfg.Chained {
		p.decoder = d
	}
	return p
}

// proof is the check of one commit's signature, see consumer.Proof.
type proof struct {
	verifier    *Verifier
	commit      commit
	deadLetters int      // how many dead letters the commit counts as
	decoder     *decoder // nil: the chain is not checked
	done        chan struct{}
	outcome     consumer.ProofOutcome
}

// Start begins the check with the key that is cached now: the key from before a later
// #identity.
func (p *proof) Start() {
	v := p.verifier
	p.done = make(chan struct{})
	var chained *consumer.ChainedCommit
	if d := p.decoder; d != nil {
		p.decoder = nil // the decoder will decode the next frame
		if bad := d.checkCommit(); bad != nil {
			p.outcome = consumer.ProofOutcome{Cause: bad.Error(), Lost: true}
			close(p.done)
			return
		}
		p.commit, chained = d.signed, d.chained()
	}
	v.pool <- struct{}{}
	key := v.keys.of(p.commit.did)
	go func() {
		p.outcome = v.check(&p.commit, key)
		switch {
		case p.outcome.Cause == "":
			p.outcome.Chained = chained
		case p.outcome.Retry && ownDocument(p.commit.did) && !v.unreadable.Take(p.deadLetters):
			p.outcome.Drop, p.outcome.Lost = true, true
		}
		<-v.pool
		close(p.done)
	}()
}

func (p *proof) Outcome() consumer.ProofOutcome {
	<-p.done
	return p.outcome
}

// check checks a signature. If it does not match, check fetches the key once more, unless
// the key is new: the account may have changed its key without an #identity that was seen.
func (v *Verifier) check(c *commit, key *lookup) consumer.ProofOutcome {
	wait := time.NewTimer(v.cfg.Wait)
	defer wait.Stop()
	unsigned := c.unsigned()
	for again := true; ; again = false {
		if !v.arrives(c.did, key, wait.C) {
			return v.unknown(errors.New("it did not arrive in time"))
		}
		switch {
		case errors.Is(key.err, ErrGone):
			v.refusals.WithLabelValues(causeGone).Inc()
			return consumer.ProofOutcome{Cause: key.err.Error(), Drop: true, Lost: true} // the account's records would be purged, and are
		case errors.Is(key.err, ErrNoKey) && !errors.Is(key.err, ErrUncertain):
			return v.refuse(c, causeNoKey, "the account has no key: "+key.err.Error())
		case key.err != nil:
			return v.unknown(key.err)
		case key.key.HashAndVerify(unsigned, c.sig) == nil:
			v.verified.Inc()
			return consumer.ProofOutcome{}
		case key.key.HashAndVerifyLenient(unsigned, c.sig) == nil:
			return v.refuse(c, causeHighS, "the signature is not in the canonical form")
		case !again || time.Since(key.at) < v.cfg.Refresh:
			return v.refuse(c, causeSignature, "the signature is not of the account's key")
		}
		key = v.keys.again(c.did, key)
	}
}

// arrives waits for a key, and reports whether it has arrived. If too many accounts' own
// servers have been slow lately, it does not wait for such a server: anybody can run one,
// and a batch of the stream waits for the slowest.
func (v *Verifier) arrives(did string, key *lookup, timeout <-chan time.Time) bool {
	select {
	case <-key.done:
		return true
	default:
	}
	if ownDocument(did) && v.slow.Empty() {
		return false
	}
	select {
	case <-key.done:
		return true
	case <-timeout:
		if ownDocument(did) {
			v.slow.Take(1)
		}
		return false
	}
}

// refuse returns the outcome of a forged commit.
func (v *Verifier) refuse(c *commit, cause, words string) consumer.ProofOutcome {
	v.refusals.WithLabelValues(cause).Inc()
	kept := v.refused.Take(1)
	if kept {
		v.log.Warn("commit_refused", "did", c.did, "rev", c.rev, "cause", cause, "error", words)
	}
	// without a key, its repository cannot be verified either
	return consumer.ProofOutcome{Cause: words, Drop: !kept, Lost: cause != causeNoKey}
}

// unknown returns the outcome of a commit whose key cannot be fetched now: it waits as a
// dead letter. If the directory fails, the stream pauses, which limits how many commits
// wait. Anybody can have accounts whose own server fails. For these a bucket limits how
// many commits wait; the rest are read from their repositories.
func (v *Verifier) unknown(err error) consumer.ProofOutcome {
	v.waiting.Inc()
	return consumer.ProofOutcome{Cause: "the account's key cannot be fetched: " + err.Error(), Retry: true}
}
