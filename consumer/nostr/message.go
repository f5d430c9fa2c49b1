package nostr

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/weir-social/weir/consumer"
)

// message is what a relay sends. Fields that its kind does not have are empty.
type message struct {
	kind  string         // EVENT, EOSE, CLOSED, NOTICE, AUTH, OK or an unknown one
	sub   string         // the subscription; of OK the event, of AUTH the challenge
	event jsontext.Value // of EVENT
	text  string         // of CLOSED, NOTICE and OK
	ok    bool           // of OK
}

// parse reads a message of a relay.
func parse(frame []byte) (message, error) {
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
	case "CLOSED":
		if err = text(&m.sub); err == nil && d.PeekKind() == '"' {
			err = text(&m.text)
		}
	case "EOSE", "AUTH":
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

// The beginnings of a relay's reasons.
const authRequired = "auth-required:"

// How the subscriptions of a connection are named, each with a number.
const (
	liveSub = "live"
	pageSub = "page"
)

// refused returns an error if a relay refuses what arrives for another reason than that it
// wants to know who asks. It ends the connection, and the next attempt waits longer.
func refused(frame []byte) error {
	if !bytes.HasPrefix(frame, []byte(`["CLOSED"`)) {
		return nil
	}
	m, err := parse(frame)
	if err != nil || !strings.HasPrefix(m.sub, liveSub) || strings.HasPrefix(m.text, authRequired) {
		return nil // Decode knows whether it matters: some relays say that they have closed what was closed
	}
	return fmt.Errorf("the relay closed the subscription: %s", consumer.Shorten(m.text))
}
