package firehose

import (
	"container/list"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/prometheus/client_golang/prometheus"
)

// ErrNoKey is wrapped by the error of KeySource if the account has no key.
var ErrNoKey = errors.New("the account has no signing key")

// ErrUncertain is wrapped together with ErrNoKey if only the account's own server reports
// that there is no key. That server may be failing for a moment.
var ErrUncertain = errors.New("its own server says so")

// ErrGone is wrapped, with ErrNoKey, if the account's DID was deleted.
var ErrGone = errors.New("the account's DID is deleted")

// A KeySource reads the current key of an account from its DID document.
type KeySource func(ctx context.Context, did string) (atcrypto.PublicKey, error)

const (
	keyLife    = 24 * time.Hour // how long a key is used, as in other consumers; an #identity event ends it earlier
	absentLife = 5 * time.Minute
	maxAbsent  = 10_000 // accounts without a key that are cached

	// maxPending limits the lookups that wait or run. Some may have nobody waiting for
	// them any more: their keys are for the next commit.
	maxPending = 1024
)

// errBusy is the error of a lookup that is not made because too many others wait.
var errBusy = errors.New("too many keys are being fetched")

// keys caches the keys of accounts, and fetches what it does not have. It is safe
// for concurrent use.
type keys struct {
	source  KeySource
	timeout time.Duration
	pace    pace
	// a token per running lookup: in the directory, and from accounts' own servers, which anybody can run and which may be slow
	running [2]chan struct{}
	lookups *prometheus.CounterVec

	mu      sync.Mutex
	found   lru // lookups that found a key
	absent  lru // lookups that found no key; separate from found, so that invented accounts evict no key
	pending map[string]*lookup
	own     int // how many of pending are lookups from accounts' own servers
}

// ownDocument reports whether the account's own server serves its document.
func ownDocument(did string) bool { return !strings.HasPrefix(did, "did:plc:") }

// lookup is a key being fetched. Once done is closed, its other fields do not change.
type lookup struct {
	done chan struct{}
	key  atcrypto.PublicKey
	err  error
	at   time.Time // when it was requested

	begun, stale bool    // the document is being read; the account's key may have changed since
	after        *lookup // an earlier lookup of the same account, which must end first
}

// ended returns a lookup that is done.
func ended(err error) *lookup {
	l := &lookup{done: make(chan struct{}), err: err}
	close(l.done)
	return l
}

// of returns the lookup of an account's key. It is done already if the key is cached.
func (k *keys) of(did string) *lookup {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.found.get(did, keyLife); l != nil {
		return l
	}
	if l := k.absent.get(did, absentLife); l != nil {
		return l
	}
	return k.fetch(did)
}

// again returns a later lookup than old, which is done.
func (k *keys) again(did string, old *lookup) *lookup {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.found.get(did, keyLife); l != nil && l != old {
		return l // a lookup that another commit started
	}
	return k.fetch(did)
}

// forget makes the next commit of an account wait for a lookup that begins now or later.
// A pending lookup that has not begun yet is sufficient.
func (k *keys) forget(did string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.found.remove(did)
	k.absent.remove(did)
	if l := k.pending[did]; l != nil {
		l.stale = l.begun
	}
}

// fetch returns the pending lookup of an account, or a new one. An account has at most
// one running and one waiting lookup, however often its key is forgotten. The caller
// holds the lock.
func (k *keys) fetch(did string) *lookup {
	before := k.pending[did]
	switch {
	case before != nil && !before.stale:
		return before
	case before == nil && (len(k.pending) >= maxPending || ownDocument(did) && k.own >= maxPending/2):
		return ended(errBusy)
	}
	if before == nil && ownDocument(did) {
		k.own++
	}
	did = strings.Clone(did) // the DID shares memory with its frame
	l := &lookup{done: make(chan struct{}), at: time.Now(), after: before}
	k.pending[did] = l
	go k.run(did, l)
	return l
}

// run makes a lookup when its turn comes.
func (k *keys) run(did string, l *lookup) {
	if l.after != nil {
		<-l.after.done
		l.after = nil
	}
	running := k.running[0]
	if ownDocument(did) {
		running = k.running[1]
	}
	running <- struct{}{}
	k.pace.wait()
	k.mu.Lock()
	l.begun = true
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), k.timeout)
	l.key, l.err = k.source(ctx, did)
	cancel()
	<-running
	k.mu.Lock()
	if k.pending[did] == l { // otherwise a later lookup waits for this one
		delete(k.pending, did)
		if ownDocument(did) {
			k.own--
		}
		switch {
		case l.stale:
		case l.err == nil:
			k.absent.remove(did)
			k.found.put(did, l)
		case errors.Is(l.err, ErrNoKey):
			k.found.remove(did)
			k.absent.put(did, l)
		}
	}
	k.mu.Unlock()
	outcome := "found"
	switch {
	case errors.Is(l.err, ErrNoKey):
		outcome = "absent"
	case l.err != nil:
		outcome = "failed"
	}
	k.lookups.WithLabelValues(outcome).Inc()
	close(l.done)
}

// pace limits how often lookups start.
type pace struct {
	spacing time.Duration
	mu      sync.Mutex
	next    time.Time
}

func (p *pace) wait() {
	p.mu.Lock()
	at := p.next
	if now := time.Now(); at.Before(now) {
		at = now
	}
	p.next = at.Add(p.spacing)
	p.mu.Unlock()
	time.Sleep(time.Until(at))
}

// lru holds the most recently used lookups.
type lru struct {
	most  int
	at    map[string]*list.Element
	order *list.List // of held, most recently used first
}

type held struct {
	did    string
	lookup *lookup
}

func newLRU(most int) lru { return lru{most: most, at: map[string]*list.Element{}, order: list.New()} }

// get returns the lookup of an account if it is not older than life, or nil.
func (c *lru) get(did string, life time.Duration) *lookup {
	e := c.at[did]
	if e == nil {
		return nil
	}
	l := e.Value.(held).lookup
	if time.Since(l.at) > life {
		c.remove(did)
		return nil
	}
	c.order.MoveToFront(e)
	return l
}

func (c *lru) put(did string, l *lookup) {
	c.remove(did)
	if c.order.Len() >= c.most {
		c.remove(c.order.Back().Value.(held).did)
	}
	c.at[did] = c.order.PushFront(held{did, l})
}

func (c *lru) remove(did string) {
	if e := c.at[did]; e != nil {
		delete(c.at, did)
		c.order.Remove(e)
	}
}
