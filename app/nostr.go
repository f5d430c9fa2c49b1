package app

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/nostr"
	protocol "github.com/weir-social/weir/internal/nostr"
)

// nostrNetwork is the part of a collection's name before the kind.
const nostrNetwork = "nostr"

// nostrRelay is a configured relay, and the name of its stream.
type nostrRelay struct{ stream, url string }

// nostrRelays returns the configured relays. Its errors never contain the secret key.
func (c Config) nostrRelays() ([]nostrRelay, error) {
	var all []nostrRelay
	names := map[string]bool{}
	for _, relay := range c.Nostr {
		u, err := url.Parse(relay)
		if err != nil || u.Scheme != "ws" && u.Scheme != "wss" || u.Host == "" || u.User != nil {
			return nil, errors.New("WEIR_NOSTR: expected URLs such as wss://relay.example, separated by commas")
		}
		name := nostrNetwork + ":" + u.Host + strings.TrimRight(u.Path, "/") // a host may have several relays
		if names[name] {
			return nil, fmt.Errorf("WEIR_NOSTR: %s occurs twice", u.Host+u.Path)
		}
		names[name] = true
		all = append(all, nostrRelay{name, relay})
	}
	if kinds, every := c.registry().Kinds(nostrNetwork); len(all) > 0 && len(kinds) == 0 && !every && !c.archivesOthers() {
		return nil, errors.New("WEIR_NOSTR names relays, but WEIR_COLLECTIONS names no kind to store: add nostr.1 for notes")
	}
	_, err := c.nostrKey()
	return all, err
}

// nostrKey returns the secret key to authenticate with, or nil.
func (c Config) nostrKey() (*[32]byte, error) {
	if c.NostrKey == "" {
		return nil, nil
	}
	key, err := protocol.ParseSecret(c.NostrKey)
	if err != nil {
		return nil, fmt.Errorf("WEIR_NOSTR_KEY: %w", err)
	}
	return &key, nil
}

// nostrStreams returns a stream for each relay.
func (c Config) nostrStreams() ([]configuredStream, error) {
	relays, err := c.nostrRelays()
	var all []configuredStream
	for _, relay := range relays {
		all = append(all, configuredStream{name: relay.stream, endpoints: []string{relay.url}})
	}
	return all, err
}

func (p App) openNostr(o opening) (consumer.Source, error) {
	key, err := p.cfg.nostrKey()
	if err != nil {
		return nil, err
	}
	kinds, every := p.stored.Kinds(nostrNetwork)
	if every || p.cfg.archivesOthers() {
		kinds = nil
	}
	return nostr.New(nostr.Config{Config: o.Config, Kinds: kinds, Key: key, Verifier: p.signatures.events(p)})
}

// nostrWire returns the wire of events. It obeys demands to vanish that name one of
// the configured relays, or whatever relay they name if they were archived.
func (p App) nostrWire(archived bool, _ func(string) bool) (consumer.Wire, error) {
	if archived {
		return p.nostrWireOf(nil), nil
	}
	return p.nostrWireOf(append([]string{}, p.cfg.Nostr...)), nil // never nil
}

// nostrWireOf returns the wire of events. It obeys demands to vanish that name one of these
// relays; nil: whatever relay they name.
func (p App) nostrWireOf(relays []string) consumer.Wire {
	return nostr.Wire(p.signatures.events(p), relays)
}

// events returns the verifier of Nostr events, which all relays share.
func (s *signatures) events(p App) *nostr.Verifier {
	s.nostrOnce.Do(func() { s.nostr = nostr.NewVerifier(nostr.VerifierConfig{Registerer: p.metrics}) })
	return s.nostr
}
