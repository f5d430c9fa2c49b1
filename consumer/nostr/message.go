package nostr

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/weir-social/weir/consumer"
)

// message is a message from a relay. Fields that its kind does not have are empty.
type message struct {
	kind  string         // EVENT, EOSE, CLOSED, NOTICE, AUTH, OK, NEG-MSG, NEG-ERR or an unknown one
	sub   string         // the subscription; for OK the event, for AUTH the challenge
	event jsontext.Value // of EVENT; it may be invalid JSON
	text  string         // of CLOSED, NOTICE, OK, NEG-MSG and NEG-ERR; the third element of EOSE, see NIP-67
	ok    bool           // of OK
}

// plainEvent reads an EVENT with the usual spelling, which all relays use. It does not check
// the event; nostr.Decode does. It returns false for any other message.
func plainEvent(frame []byte) (message, bool) {
	rest, ok := bytes.CutPrefix(frame, []byte(`["EVENT","`))
	sub, rest, found := bytes.Cut(rest, []byte(`",{`))
	if !ok || !found || !bytes.HasSuffix(rest, []byte(`}]`)) {
		return message{}, false
	}
	for _, c := range sub { // our names contain only these
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return message{}, false
		}
	}
	return message{kind: "EVENT", sub: string(sub), event: frame[len(frame)-len(rest)-1 : len(frame)-1]}, true
}

// parse reads a message of a relay.
func parse(frame []byte) (message, error) {
	if m, ok := plainEvent(frame); ok {
		return m, nil
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(frame))
	if t, err := d.ReadToken(); err != nil || t.Kind() != '[' {
		return message{}, errors.New("a message is an array")
	}
	m := message{}
	text := func(to *string) error {
		t, err := d.ReadToken()
		if err == nil && t.Kind() != '"' {
			err = errors.New("a string is missing")
		}
		if err == nil {
			*to = t.String()
		}
		return err
	}
	err := text(&m.kind)
	switch m.kind {
	case "EVENT":
		if err = text(&m.sub); err == nil {
			m.event, err = d.ReadValue()
		}
	case "CLOSED", "EOSE", "NEG-MSG", "NEG-ERR":
		if err = text(&m.sub); err == nil && d.PeekKind() == '"' {
			err = text(&m.text)
		}
	case "AUTH":
		err = text(&m.sub)
	case "NOTICE":
		err = text(&m.text)
	case "OK":
		if err = text(&m.sub); err != nil {
			break
		}
		var t jsontext.Token
		if t, err = d.ReadToken(); err == nil {
			if m.ok = t.Kind() == 't'; d.PeekKind() == '"' {
				err = text(&m.text)
			}
		}
	}
	return m, err
}

// Prefixes of a relay's reasons.
const authRequired = "auth-required:"

// The prefixes of the names of a connection's subscriptions. A number follows.
const (
	liveSub = "live"
	pageSub = "page"
)

// passes reports whether a relay that closed a subscription may serve it later.
func passes(m *message) bool {
	return strings.HasPrefix(m.text, "error:") || strings.HasPrefix(m.text, "rate-limited:")
}

// refused returns an error if a relay refuses a subscription to new events for any other
// reason than missing authentication. The error ends the connection, and the next attempt
// waits longer.
func refused(frame []byte) error {
	if !bytes.HasPrefix(frame, []byte(`["CLOSED"`)) {
		return nil
	}
	m, err := parse(frame)
	if err != nil || !strings.HasPrefix(m.sub, liveSub) || strings.HasPrefix(m.text, authRequired) {
		return nil // Decode knows whether it matters: some relays report the end of a subscription that this side closed
	}
	return fmt.Errorf("the relay closed the subscription: %s", consumer.Shorten(m.text))
}
