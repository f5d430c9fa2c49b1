package nostr

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/coder/websocket"

	"github.com/weir-social/weir/internal/nostr"
)

// asking is a connection that requests a relay's stored events. One goroutine uses it.
type asking struct {
	ws       *websocket.Conn
	relay    string
	key      *[32]byte
	timeout  time.Duration
	query    Query
	pages    int
	accepted bool // the relay has accepted the response to its challenge
}

// errAuth is the error of a relay that requires authentication.
var errAuth = errors.New("the relay serves only those who authenticate: set WEIR_NOSTR_KEY")

// errKey is the error of a relay that refuses although the client has authenticated.
var errKey = errors.New("the relay does not serve the key in WEIR_NOSTR_KEY")

// dial connects to a relay.
func (r *Reader) dial(ctx context.Context, client *http.Client, relay string, key *[32]byte) (*asking, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	// the response has no body
	ws, _, err := websocket.Dial(ctx, relay, &websocket.DialOptions{
		HTTPClient: client, HTTPHeader: http.Header{"User-Agent": {r.cfg.UserAgent}},
	})
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(-1) // see receive
	return &asking{ws: ws, relay: relay, key: key, timeout: r.cfg.Timeout}, nil
}

// askedPage is the maximum number of events requested per page. maxPageMemory is the number of
// bytes at which a page ends early: all its events are in memory, and several relays are read at
// once.
const (
	askedPage     = 250
	maxPageMemory = 16 << 20
)

// memory returns about how many bytes an event takes in memory. With short tags that is more than
// on the wire.
func memory(e *nostr.Event) int {
	n := len(e.Content)
	for _, tag := range e.Tags {
		n += 100
		for _, value := range tag {
			n += 16 + len(value)
		}
	}
	return n
}

// page requests a page and reads it to its end, or until it takes too much memory. Events that
// cannot be read, or were not requested, count towards the page but are not returned.
func (a *asking) page(ctx context.Context, f filter, pages *past) ([]*nostr.Event, error) {
	a.pages++
	sub := "q" + strconv.Itoa(a.pages)
	request, err := f.request(sub)
	if err != nil {
		return nil, err
	}
	if err := a.send(ctx, request); err != nil {
		return nil, err
	}
	var events []*nostr.Event
	refused := false // the relay refused this request because the client had not authenticated
	held := 0
	for most := pages.most(); ; most-- {
		msg, err := a.receive(ctx)
		switch {
		case err != nil && !errors.Is(err, errUnreadable):
			return nil, err
		case most == 0:
			return nil, pages.tooMany()
		}
		switch {
		case err != nil:
			pages.event(nil)
		case msg.kind == "EVENT" && msg.sub == sub:
			e := a.wanted(&msg)
			if pages.event(e); e == nil {
				continue
			}
			events = append(events, e)
			if held += memory(e); held > maxPageMemory {
				pages.page.short = true
				return events, a.sendJSON(ctx, []any{"CLOSE", sub})
			}
		case msg.kind == "EOSE" && msg.sub == sub:
			pages.page.said = msg.text
			return events, a.sendJSON(ctx, []any{"CLOSE", sub})
		case msg.kind == "CLOSED" && msg.sub == sub:
			err := refusal(&msg)
			switch {
			case a.key == nil || !errors.Is(err, errAuth):
				return nil, err
			case refused:
				return nil, errKey
			}
			if refused = true; !a.accepted {
				continue
			}
			if err := a.send(ctx, request); err != nil { // the relay had not read the response to its challenge before this request
				return nil, err
			}
		default:
			again, err := a.recognised(ctx, &msg, refused)
			if err == nil && again {
				err = a.send(ctx, request)
			}
			if err != nil {
				return nil, err
			}
		}
	}
}

// recognised handles a relay's messages about authentication. It reports whether a request that was
// refused for lack of it must be sent again.
func (a *asking) recognised(ctx context.Context, msg *message, refused bool) (again bool, err error) {
	switch {
	case msg.kind == "AUTH" && a.key != nil:
		return false, a.authenticate(ctx, msg.sub)
	case msg.kind == "OK" && !msg.ok:
		return false, refusedAnswer(msg)
	case msg.kind == "OK" && !a.accepted:
		a.accepted = true
		return refused, nil
	}
	return false, nil
}

// wanted returns the event of a message. It returns nil if the event cannot be read, was not
// requested, republishes a protected event, or is a request to vanish from other relays: the
// decoder does not know which relay an event came from.
func (a *asking) wanted(msg *message) *nostr.Event {
	e, err := nostr.Decode(msg.event)
	switch {
	case err != nil,
		e.Kind == nostr.KindVanish && !demanded(e, []string{a.relay}),
		!a.query.Every && !slices.Contains(a.query.Kinds, e.Kind),
		!a.query.Everyone && !slices.Contains(a.query.Authors, e.PubKey),
		nostr.ClassOf(e.Kind) == nostr.Ephemeral, e.Republishes(), e.CheckID() != nil:
		return nil
	}
	return e
}

// errUnreadable is wrapped by the error of a message that cannot be read. The next message may be
// readable.
var errUnreadable = errors.New("the message cannot be read")

// receive reads a message.
func (a *asking) receive(ctx context.Context) (message, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, a.timeout, errors.New("the relay sends nothing"))
	defer cancel()
	_, r, err := a.ws.Reader(ctx)
	var frame []byte
	if err == nil {
		frame, err = io.ReadAll(io.LimitReader(r, readLimit+1))
	}
	if err == nil && len(frame) > readLimit {
		_, err = io.Copy(io.Discard, r)
	}
	if err != nil {
		return message{}, cmp.Or(context.Cause(ctx), err)
	}
	if len(frame) > readLimit {
		return message{}, fmt.Errorf("%w: it is longer than %d bytes", errUnreadable, readLimit)
	}
	msg, err := parse(frame)
	if err != nil {
		return msg, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return msg, nil
}

func (a *asking) send(ctx context.Context, text []byte) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	return a.ws.Write(ctx, websocket.MessageText, text)
}

func (a *asking) sendJSON(ctx context.Context, message []any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return a.send(ctx, text)
}

// authenticate responds to the challenge of a relay.
func (a *asking) authenticate(ctx context.Context, challenge string) error {
	text, err := answer(*a.key, a.relay, challenge)
	if err != nil {
		return err
	}
	return a.send(ctx, text)
}

// answer returns the message that responds to a relay's challenge, see NIP-42.
func answer(key [32]byte, relay, challenge string) ([]byte, error) {
	e := &nostr.Event{CreatedAt: time.Now().Unix(), Kind: nostr.KindAuth, Tags: [][]string{{"relay", relay}, {"challenge", challenge}}}
	if err := e.Sign(key); err != nil {
		return nil, err
	}
	return json.Marshal([]any{"AUTH", json.RawMessage(e.AppendJSON(nil))})
}
