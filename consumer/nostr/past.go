package nostr

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/nostr"
)

// past reads a relay's stored events, window by window and page by page. The relay sends the newest
// events first and may cut a page without saying so. So each page ends at the second at which the page
// before began, until a page brings nothing new, or the relay says that the page is complete.
type past struct {
	windows []window
	limit   int  // events to request per page
	named   bool // the relay states no lower limit

	cut     int  // events of the largest page that turned out to be cut, because more events followed
	mixed   bool // the relay does not send the newest events first
	divided int  // how many windows were divided by dates

	// Used for the first window.
	page     page
	previous int               // events of the page before; 0: none
	before   map[[32]byte]bool // the events that earlier pages brought of the second at which this page ends
}

// window is an interval to read, by the authors' dates in seconds, both ends inclusive.
type window struct {
	filter
	since, until int64
	after        int // events of the previous page, if all were of the second after until and it may have been cut; 0: none
}

// newest is the end of a window that ends with the newest event. No event has this date.
const newest = nostr.MaxCreatedAt + 1

// page summarises the events of a page so far.
type page struct {
	events int
	oldest int64             // the oldest date
	at     map[[32]byte]bool // the events of that date
	last   int64             // the date of the last event
	fresh  bool              // an event is new
	short  bool              // the page was not read to its end
	mixed  bool              // an older event came before a newer one
	said   string            // whether the page is complete, if the relay says so
}

// What a relay says at the end of a page, see NIP-67.
const (
	saidComplete = "finish"
	saidCut      = "more"
)

// mayBeCut is the number of events from which a page may have been cut, if the relay states no
// limit and no other page is known to be cut.
const mayBeCut = 20

// maxSecond is how many events of one second are read.
const maxSecond = 100_000

// maxDivided is how many times a window is divided because its page cannot be used for dates: none
// of its events can be read, or the newest ones did not come first. Finding where unreadable events
// end takes some fifty pages.
const maxDivided = 200

// add adds a window for each filter.
func (p *past) add(filters []filter, since int64) {
	for _, f := range filters {
		p.windows = append(p.windows, window{filter: f, since: since, until: newest})
	}
}

// request returns the filter of the next page; false if all windows are read.
func (p *past) request() (filter, bool) {
	if len(p.windows) == 0 {
		return filter{}, false
	}
	w := &p.windows[0]
	p.page = page{oldest: w.until, last: w.until, at: map[[32]byte]bool{}}
	f := w.filter
	f.Since, f.Limit = &w.since, p.limit
	if w.until != newest {
		until := w.until
		f.Until = &until
	}
	return f, true
}

// rest returns the date until which the unread windows are; zero if that is the newest event.
func (p *past) rest() (until time.Time) {
	last := int64(0)
	for i := range p.windows {
		last = max(last, p.windows[i].until)
	}
	if last == newest {
		return time.Time{}
	}
	return time.Unix(last, 0)
}

// most returns how many events of a page are read: some relays send events that were not requested.
func (p *past) most() int { return 2*p.limit + 100 }

func (p *past) tooMany() error {
	return fmt.Errorf("the relay sends more than the %d events of a page", p.limit)
}

// event adds an event to the page. nil is a refused event, which only counts.
func (p *past) event(e *nostr.Event) {
	p.page.events++
	w := &p.windows[0]
	switch {
	case e == nil, e.CreatedAt < w.since, e.CreatedAt > w.until:
		return
	case e.CreatedAt < p.page.oldest:
		p.page.oldest, p.page.at = e.CreatedAt, map[[32]byte]bool{}
	}
	if e.CreatedAt == p.page.oldest {
		p.page.at[e.ID] = true
	}
	p.page.mixed = p.page.mixed || e.CreatedAt > p.page.last
	p.page.last = e.CreatedAt
	p.page.fresh = p.page.fresh || e.CreatedAt < w.until || !p.before[e.ID]
}

// end ends a page. It returns the interval that the relay cannot be made to send, or nil.
func (p *past) end(now time.Time) *consumer.Missed {
	w := &p.windows[0]
	if w.after > 0 && p.page.events > 0 { // this page shows that the page before was cut
		p.cut = max(p.cut, w.after)
		w.after = 0
		p.windows = slices.Insert(p.windows, 1, window{filter: w.filter, since: w.until + 1, until: w.until + 1})
		w = &p.windows[0]
	}
	if p.page.said == saidComplete && !p.page.short {
		p.take()
		return nil
	}
	p.mixed = p.mixed || p.page.mixed
	if p.mixed && p.page.events >= mayBeCut && w.until > w.since {
		return p.divide(now, "the relay does not send the newest events first")
	}
	if p.page.fresh && len(p.before) < maxSecond {
		p.follow()
		return nil
	}
	read := *w
	full := p.full()
	switch {
	case full && len(p.page.at) == 0 && read.until > read.since:
		return p.divide(now, "the relay sends pages of events that cannot be read")
	case !full && p.page.oldest == read.until && read.until > read.since && p.page.events >= mayBeCut:
		p.take(window{read.filter, read.since, read.until - 1, p.page.events}) // if there are more events, the page was cut
		return nil
	}
	p.take()
	if !full {
		return nil
	}
	if read.until > read.since {
		p.windows = slices.Insert(p.windows, 0, window{filter: read.filter, since: read.since, until: read.until - 1})
	}
	if a, b, ok := read.halves(); ok {
		p.windows = slices.Insert(p.windows, 0, window{filter: a, since: read.until, until: read.until},
			window{filter: b, since: read.until, until: read.until})
		return nil
	}
	return missed(read.until, read.until+1, "the relay has more events of one second than it sends in a page")
}

// follow continues the first window at the end of its page.
func (p *past) follow() {
	w := &p.windows[0]
	if p.previous > 0 {
		p.cut = max(p.cut, p.previous)
	}
	if w.until != p.page.oldest || p.before == nil {
		p.before = map[[32]byte]bool{}
	}
	maps.Copy(p.before, p.page.at)
	if p.previous, w.until = p.page.events, p.page.oldest; p.page.short {
		p.previous = 0 // we cut the page, not the relay
	}
}

// take replaces the first window with others.
func (p *past) take(others ...window) {
	p.windows = append(others, p.windows[1:]...)
	p.previous, p.before = 0, nil
}

// divide divides the first window. If windows were divided too often, it returns the window as
// missed.
func (p *past) divide(now time.Time, reason string) *consumer.Missed {
	w := p.windows[0]
	if p.divided++; p.divided > maxDivided {
		p.take()
		return missed(w.since, min(w.until, max(w.since, now.Unix()))+1, reason)
	}
	first, second := w.divide(now)
	p.take(first, second)
	return nil
}

// divide divides a window in two by dates, the later half first. Dates after tomorrow are wrong, so
// they are read last.
func (w window) divide(now time.Time) (first, second window) {
	first, second = w, w
	if tomorrow := now.Add(24 * time.Hour).Unix(); w.until == newest && w.since <= tomorrow {
		first.until, second.since, second.until = tomorrow, tomorrow+1, nostr.MaxCreatedAt
		return first, second
	}
	middle := w.since + (w.until-w.since)/2
	first.since, second.until = middle+1, middle
	return first, second
}

// full reports whether a page has so many events that the relay may have cut it.
func (p *past) full() bool {
	if p.page.short || p.page.said == saidCut || p.cut > 0 && p.page.events >= p.cut {
		return true
	}
	return p.page.events >= p.limit || (p.mixed || !p.named && p.cut == 0) && p.page.events >= mayBeCut
}

// missed returns an interval that includes from. Dates after the year 9999 become its last second
// but one day, which is in that year in every time zone.
func missed(from, to int64, reason string) *consumer.Missed {
	const latest = maxTime - 24*60*60
	return &consumer.Missed{
		From: time.Unix(min(from, latest-1), 0), To: time.Unix(min(to, latest), 0), Reason: reason,
		Problem: "no repository has what a relay does not send",
	}
}
