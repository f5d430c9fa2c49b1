package nostr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/internal/nostr"
)

// errFilter ends a connection when the followed accounts change.
var errFilter = errors.New("the followed accounts have changed")

// conn is one connection. One goroutine calls Next. Another calls Decode, which requests
// one page after another.
type conn struct {
	*socket.Conn
	client  *Client
	began   time.Time   // before the first subscription
	arrived atomic.Bool // the past has been read
	answer  *time.Timer // ends the connection if the relay does not respond while the past is read

	// Used by the decoding goroutine.
	decoder decoder
	filters []filter
	live    map[string]filter // the subscriptions to new events
	opening map[string]bool   // those of live that have not had an EOSE
	from    consumer.Cursor
	past    past
	paging
	notices int
	authentication
}

// paging is the page of the past that is being read.
type paging struct {
	again   bool   // the events since the beginning of the connection are being read once more
	sub     string // the subscription of the current page; "": none
	pages   int
	refused int // how many times in a row the relay refused the page
}

// authentication is for a relay that requires it.
type authentication struct {
	waiting    map[string]filter // the subscriptions that it refused before that
	accepted   bool              // it has accepted a response to its challenge
	challenges int
}

// maxChallenges limits how many challenges of one connection get a response: each costs a
// signature.
const maxChallenges = 10

func newConn(c *Client, ws *socket.Conn, filters []filter, limits limits, from consumer.Cursor) *conn {
	k := &conn{Conn: ws, client: c, began: time.Now(), filters: filters, from: from, live: map[string]filter{}, opening: map[string]bool{},
		authentication: authentication{waiting: map[string]filter{}},
		decoder:        decoder{relays: c.cfg.Endpoints, verifier: c.cfg.Verifier}, past: past{limit: limits.Page, named: limits.named}}
	for i, f := range filters {
		f.Limit = 1 // some relays take 0 as their default; there is no date, so late events come too
		sub := liveSub + strconv.Itoa(i)
		k.live[sub], k.opening[sub] = f, true
	}
	k.answer = time.AfterFunc(c.cfg.AnswerWithin, func() {
		k.Fail(fmt.Errorf("the relay has not answered a request for %s", c.cfg.AnswerWithin))
	})
	k.arrived.Store(len(filters) == 0) // nobody is followed
	k.answered()
	return k
}

// answered restarts the timer for the relay's next response. It stops the timer once the
// past has been read.
func (k *conn) answered() {
	if k.arrived.Load() {
		k.answer.Stop()
	} else {
		k.answer.Reset(k.client.cfg.AnswerWithin)
	}
}

// subscribe subscribes to new events.
func (k *conn) subscribe(ctx context.Context) error {
	for sub, f := range k.live {
		if err := k.open(ctx, sub, f); err != nil {
			return err
		}
	}
	return nil
}

// open sends a REQ.
func (k *conn) open(ctx context.Context, sub string, f filter) error {
	request, err := f.request(sub)
	if err != nil {
		return err
	}
	return k.Send(ctx, request)
}

// Proven returns the latest time at which nothing was unread. While the past is being read,
// it returns a time before the connection.
func (k *conn) Proven() time.Time {
	if !k.arrived.Load() {
		return k.began
	}
	return k.Conn.Proven()
}

// Decode decodes a message, and requests the next page at the end of one. An error ends the
// connection.
func (k *conn) Decode(f consumer.Frame, m *consumer.Message) error {
	err := k.decode(f, m)
	if err != nil {
		k.Refuses(err)
	}
	return err
}

func (k *conn) decode(f consumer.Frame, m *consumer.Message) error {
	m.Reset(f.Data, f.Arrived)
	if f.Truncated {
		k.decoder.refuse(m, &nostr.Invalid{Cause: "the message is too long"}, causeUnreadable)
		return k.paged(nil) // it may be an event of the page
	}
	msg, err := parse(f.Data)
	if err != nil {
		k.decoder.refuse(m, &nostr.Invalid{Cause: "not a message of a relay: " + err.Error()}, causeUnreadable)
		return k.paged(nil)
	}
	switch msg.kind {
	case "EVENT":
		e := k.decoder.event(&msg, f.Arrived, f.Earliest, m)
		m.Still = !k.arrived.Load()
		if msg.sub == k.sub {
			k.answered()
			return k.paged(e)
		}
	case "EOSE":
		defer k.answered()
		return k.ended(&msg, f.Arrived, m)
	case "CLOSED":
		defer k.answered()
		return k.closed(&msg)
	case "AUTH":
		return k.authenticate(msg.sub)
	case "OK":
		defer k.answered()
		return k.authenticated(&msg)
	case "NOTICE":
		k.notice(msg.text)
	}
	return nil
}

// paged adds an event to the page that is being read, if there is one; nil stands for an
// event that cannot be read. It returns an error if the page is too long: a relay that
// never ends a page would be read for ever.
func (k *conn) paged(e *nostr.Event) error {
	if k.sub == "" {
		return nil
	}
	if k.past.event(e); k.past.page.events > k.past.most() {
		return k.past.tooMany()
	}
	return nil
}

// ended handles an EOSE: the end of a subscription's stored events.
func (k *conn) ended(msg *message, now time.Time, m *consumer.Message) error {
	sub := msg.sub
	if k.opening[sub] {
		if delete(k.opening, sub); len(k.opening) > 0 {
			return nil
		}
		if k.from.Kind != consumer.CursorNone {
			k.past.add(k.filters, max(0, k.since()))
		}
		return k.next(now, m)
	}
	if sub == "" || sub != k.sub {
		return nil
	}
	if err := k.send([]any{"CLOSE", sub}); err != nil {
		return err
	}
	k.refused, k.past.page.said = 0, msg.text
	m.Missed = k.past.end(now)
	return k.next(now, m)
}

// since returns the cursor in seconds, or 0 without a time cursor.
func (k *conn) since() int64 {
	if k.from.Kind == consumer.CursorTime {
		return k.from.Value / 1e6
	}
	return 0
}

// next requests the next page. After the last one it reads the events since the connection
// began once more: a relay may look up its stored events before it subscribes, and miss
// those in between. Then the position moves to the beginning of the connection, by the
// clock as it is now.
func (k *conn) next(now time.Time, m *consumer.Message) error {
	f, more := k.past.request()
	if !more && !k.again {
		k.again = true
		k.past.add(k.filters, k.began.Add(-time.Minute).Unix())
		f, more = k.past.request()
	}
	if !more {
		k.sub = ""
		k.arrived.Store(true)
		k.Serves() // not earlier: a relay that fails in its past is read from its newest page again
		m.TimeUS = now.Add(-now.Sub(k.began)).UnixMicro()
		return nil
	}
	k.namePage()
	return k.openNow(k.sub, f)
}

// namePage names the subscription of the next page.
func (k *conn) namePage() {
	k.pages++
	k.sub = pageSub + strconv.Itoa(k.pages)
}

// openNow sends a REQ from the decoding goroutine, which has no context. The send has its
// own timeout.
func (k *conn) openNow(sub string, f filter) error { return k.open(context.Background(), sub, f) }

func (k *conn) send(message []any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return k.Send(context.Background(), text)
}

// closed handles the end of a subscription. Most refusals end the connection earlier, see
// refused.
func (k *conn) closed(msg *message) error {
	f, live := k.live[msg.sub]
	if !live && (k.sub == "" || msg.sub != k.sub) {
		return nil // a page that has been read
	}
	err := refusal(msg)
	_, again := k.waiting[msg.sub]
	opened := live && !k.opening[msg.sub] // events that arrived since may be lost: the next connection reads them
	switch auth := k.client.cfg.Key != nil && errors.Is(err, errAuth); {
	case auth && (again || opened):
		return errKey
	case auth:
		if !live {
			f, _ = k.past.request()
		}
		if k.waiting[msg.sub] = f; k.accepted { // the relay had not read the response to its challenge before this request
			return k.openNow(msg.sub, f)
		}
		return nil
	case live || !passes(msg) || k.refused >= maxRefused:
		return err
	}
	k.askAgain(msg)
	return nil
}

// maxRefused is how many times in a row a page is requested again. Each wait is twice the
// one before; together they take about a minute. A new connection would have to begin with
// the newest page.
const maxRefused = 7

// askAgain requests a page that the relay has refused again, after a wait.
func (k *conn) askAgain(msg *message) {
	wait := k.client.cfg.MinWait << k.refused
	k.refused++
	k.client.log.Info("page_refused", "host", k.Host(), "message", consumer.Shorten(msg.text), "wait", wait)
	f, _ := k.past.request()
	k.namePage()
	sub := k.sub
	time.AfterFunc(wait, func() {
		if err := k.openNow(sub, f); err != nil {
			k.Fail(err)
		}
	})
}

// authenticate responds to the challenge of a relay, see NIP-42.
func (k *conn) authenticate(challenge string) error {
	if k.client.cfg.Key == nil {
		return nil // the relay may serve clients that do not authenticate, too
	}
	if k.challenges++; k.challenges > maxChallenges {
		return errors.New("the relay does not stop asking who reads it")
	}
	text, err := answer(*k.client.cfg.Key, k.client.cfg.Endpoints[0], challenge)
	if err != nil {
		return err
	}
	return k.Send(context.Background(), text)
}

// authenticated reopens the subscriptions that the relay had refused. They stay in waiting,
// because one that is refused again ends the connection.
func (k *conn) authenticated(msg *message) error {
	if !msg.ok {
		return refusedAnswer(msg)
	}
	if k.accepted {
		return nil
	}
	k.accepted = true
	for sub, f := range k.waiting {
		if err := k.openNow(sub, f); err != nil {
			return err
		}
	}
	return nil
}

// notice logs a message that a relay sends for people to read.
func (k *conn) notice(text string) {
	const logged = 10
	k.client.notices.Inc()
	if k.notices++; k.notices <= logged {
		k.client.log.Warn("relay_notice", "host", k.Host(), "message", consumer.Shorten(text))
	}
}
