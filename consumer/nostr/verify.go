package nostr

import (
	"cmp"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/nostr"
)

// VerifierConfig configures a Verifier. Zero values take the defaults.
type VerifierConfig struct {
	Workers    int                   // signatures checked at once; default: the number of processors
	Refused    int                   // 100: forged or unreadable events that leave dead letters, and one more every ten minutes
	Registerer prometheus.Registerer // nil: not exposed
}

// Verifier checks signatures, for all relays of a process. It is safe for concurrent use.
type Verifier struct {
	pool     chan struct{} // a token per check
	kept     *consumer.Bucket
	verified prometheus.Counter
	refused  *prometheus.CounterVec
}

// Why an event is refused, in metrics.
const (
	causeUnreadable = "unreadable"
	causeID         = "id"        // not the hash of the event
	causeSignature  = "signature" // the signature is not the author's
	causeDeletions  = "deletions" // the rest of a request that deletes too many records
	causeProtected  = "protected" // a repost with an event in it that only its author may publish
)

// NewVerifier sets the defaults.
func NewVerifier(cfg VerifierConfig) *Verifier {
	f := promauto.With(cfg.Registerer)
	v := &Verifier{
		pool: make(chan struct{}, cmp.Or(cfg.Workers, runtime.GOMAXPROCS(0))),
		kept: consumer.NewBucket(cmp.Or(cfg.Refused, 100)),
		verified: f.NewCounter(prometheus.CounterOpts{Name: "weir_nostr_verified_events_total",
			Help: "Events whose signature is of their author."}),
		refused: f.NewCounterVec(prometheus.CounterOpts{Name: "weir_nostr_refused_events_total",
			Help: "Events refused, by cause: unreadable, id (not the hash of the event), signature (not of the author), deletions (a request " +
				"that names more than 2,000), protected (a repost with a protected event in it). Expect zero: a relay forwards forgeries."},
			[]string{"cause"}),
	}
	for _, cause := range []string{causeUnreadable, causeID, causeSignature, causeDeletions, causeProtected} {
		v.refused.WithLabelValues(cause)
	}
	return v
}

// keeps counts a refused event, and reports whether it leaves a dead letter. Anybody can
// send as many of them as a relay forwards. A dead letter would publish a protected event.
func (v *Verifier) keeps(cause string) bool {
	v.refused.WithLabelValues(cause).Inc()
	return cause != causeProtected && v.kept.Take(1)
}

// proof is the check of one event's signature, see consumer.Proof.
type proof struct {
	verifier *Verifier
	event    *nostr.Event
	done     chan error
}

// Start waits for a place in the pool. When the pool is full, the wait is about a
// millisecond.
func (p *proof) Start() {
	p.done = make(chan error, 1)
	p.verifier.pool <- struct{}{}
	go func() {
		err := p.event.CheckSignature()
		<-p.verifier.pool
		p.done <- err
	}()
}

// Outcome returns what was shown.
func (p *proof) Outcome() consumer.ProofOutcome {
	if err := <-p.done; err != nil {
		return consumer.ProofOutcome{Cause: err.Error(), Drop: !p.verifier.keeps(causeSignature)}
	}
	p.verifier.verified.Inc()
	return consumer.ProofOutcome{}
}
