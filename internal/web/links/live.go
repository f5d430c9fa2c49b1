package links

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
)

const (
	liveInterval = 2 * time.Second  // shortest time between two computations of a live view
	liveRest     = 3                // after a computation, none begins for this many times its duration
	stillEvery   = 10 * time.Second // a view without changes sends an event this often
	maxStreams   = 1000             // open streams
	maxUnread    = 8                // unread events after which a reader is dropped
)

// errTooManyStreams means that the maximum number of streams is open.
var errTooManyStreams = errors.New("too many streams are open")

// liveViews computes the rankings that are open as streams, one after the other, and
// sends the changes to their readers. Readers of the same view share one computation.
//
// After each computation it rests for three times as long. So all live views together
// use at most a quarter of a core, including Postgres, where a query runs in one
// process. With many views, each is computed less often.
type liveViews struct {
	rank     func(context.Context, ranking.Query) (ranking.Page, error)
	shown    func([]ranking.TrendingLink) []ranking.TrendingLink
	streams  func(context.Context, time.Duration) (streamState, error) // reads the state of the streams, for a window; nil: it is not sent
	log      *slog.Logger
	stopping <-chan struct{}
	wake     chan struct{} // a view was opened or closed

	mu      sync.Mutex
	views   map[string]*openView
	open    int  // readers
	running bool // run is running
	failing bool // the last computation failed
}

// openView is a view with its readers. Everything but query is guarded by liveViews.mu.
type openView struct {
	query   ranking.Query
	due     time.Time
	state   *liveState // nil: not computed yet
	told    time.Time  // when the last event was sent
	streams []byte     // the last event with the state of the streams; nil: none
	readers map[*liveReader]struct{}
}

// liveReader receives the events of a view. Its channel is closed when the reader is too
// slow or the view ends.
type liveReader struct {
	key    string
	events chan []byte
}

func newLiveViews(
	rank func(context.Context, ranking.Query) (ranking.Page, error),
	shown func([]ranking.TrendingLink) []ranking.TrendingLink, stopping <-chan struct{}, log *slog.Logger,
) *liveViews {
	return &liveViews{rank: rank, shown: shown, log: log, stopping: stopping, wake: make(chan struct{}, 1), views: make(map[string]*openView)}
}

// subscribe opens a view for a reader. Its first event is a snapshot.
func (l *liveViews) subscribe(v View) (*liveReader, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= maxStreams {
		return nil, errTooManyStreams
	}
	l.open++
	r := &liveReader{key: v.Key(), events: make(chan []byte, maxUnread)}
	shared := l.views[r.key]
	if shared == nil {
		shared = &openView{query: v.Query, due: time.Now(), readers: make(map[*liveReader]struct{})}
		l.views[r.key] = shared
	}
	shared.readers[r] = struct{}{}
	if shared.state != nil {
		r.events <- shared.state.snapshot()
		if shared.streams != nil {
			r.events <- shared.streams
		}
	}
	if !l.running {
		l.running = true
		go l.run()
	}
	l.rouse()
	return r, nil
}

// rouse wakes run, so that it chooses again what to do.
func (l *liveViews) rouse() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// unsubscribe closes a view for a reader.
func (l *liveViews) unsubscribe(r *liveReader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if v := l.views[r.key]; v != nil {
		delete(v.readers, r)
		if len(v.readers) == 0 {
			delete(l.views, r.key)
			l.rouse()
		}
	}
}

// run computes views until none is open.
func (l *liveViews) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-l.stopping:
			cancel()
		case <-done:
		}
	}()
	rested := time.Time{}
	for {
		v, due := l.next()
		if v == nil {
			return
		}
		if rested.After(due) {
			due = rested
		}
		if wait := time.Until(due); wait > 0 {
			select {
			case <-time.After(wait):
			case <-l.wake:
			case <-ctx.Done():
			}
		} else {
			began := time.Now()
			l.compute(ctx, v)
			rested = time.Now().Add(liveRest * time.Since(began))
		}
		if ctx.Err() != nil {
			l.end()
			return
		}
	}
}

// next returns the view that is due first: views take turns. If no view is open it
// returns nil, and run ends.
func (l *liveViews) next() (first *openView, due time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.views {
		if first == nil || v.due.Before(first.due) {
			first = v
		}
	}
	if first == nil {
		l.running = false
		return nil, due
	}
	return first, first.due
}

// end closes all streams.
func (l *liveViews) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = false
	for key, v := range l.views {
		l.drop(key, v)
	}
}

// drop closes the streams of a view. It is called with mu held.
func (l *liveViews) drop(key string, v *openView) {
	for r := range v.readers {
		close(r.events)
	}
	delete(l.views, key)
}

// compute computes a view and sends the changes.
func (l *liveViews) compute(ctx context.Context, v *openView) {
	ctx, cancel := context.WithTimeout(ctx, web.QueryTimeout)
	defer cancel()
	l.mu.Lock()
	before := v.state
	l.mu.Unlock()
	q := v.query
	q.Bare = true
	page, err := l.rank(ctx, q)
	if err == nil && before != nil && before.misses(page.Links) {
		q.Bare = false // the details of new links are read only in that case
		page, err = l.rank(ctx, q)
	}
	var streams []byte
	if err == nil && l.streams != nil {
		var state streamState
		if state, err = l.streams(ctx, q.Window); err == nil {
			streams = event("state", state)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	v.due = time.Now().Add(liveInterval)
	switch {
	case errors.Is(err, ranking.ErrWatch): // the watch was removed
		for key, other := range l.views {
			if other == v {
				l.drop(key, v)
			}
		}
		return
	case err != nil:
		if !l.failing && ctx.Err() != context.Canceled {
			l.failing = true
			l.log.Error("live_view_failed", "window", q.Window, "error", err)
		}
		return
	}
	l.failing = false
	v.state = newLiveState(page, before)
	switch {
	case before == nil:
		l.tell(v, v.state.snapshot())
	default:
		if event, changed := v.state.changes(before, page.Links, l.shown); changed || time.Since(v.told) >= stillEvery {
			l.tell(v, event)
		}
	}
	if !bytes.Equal(streams, v.streams) {
		v.streams = streams
		l.tell(v, streams)
	}
}

// tell sends an event to all readers, and drops those that have not read the earlier
// ones. It is called with mu held.
func (l *liveViews) tell(v *openView, event []byte) {
	v.told = time.Now()
	for r := range v.readers {
		select {
		case r.events <- event:
		default:
			close(r.events)
			delete(v.readers, r)
		}
	}
}
