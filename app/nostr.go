package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/consumer/socket"
	protocol "github.com/weir-social/weir/nostr"
	"github.com/weir-social/weir/schema"
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
	if len(all) > 0 && len(c.registry().Kinds(nostrNetwork)) == 0 {
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

// nostrSource returns the source that reads a relay.
func (p App) nostrSource(relay string) sourceOf {
	return func(log *slog.Logger, metrics prometheus.Registerer) (consumer.Source, error) {
		key, err := p.cfg.nostrKey()
		if err != nil {
			return nil, err
		}
		return nostr.New(nostr.Config{Kinds: p.stored.Kinds(nostrNetwork), Key: key, Verifier: p.signatures.events(p),
			Config: socket.Config{Endpoints: []string{relay}, QuietAfter: p.cfg.QuietAfter, Logger: log, Registerer: metrics, UserAgent: userAgent}})
	}
}

// nostrWire returns the wire of the stored kinds. Requests to vanish take effect if they name one
// of these relays; if relays is nil, always.
func (p App) nostrWire(relays []string) consumer.Wire {
	return nostr.Wire(p.stored.Kinds(nostrNetwork), p.signatures.events(p), relays)
}

// coveredAtOnce is how many tombstones one transaction adds.
const coveredAtOnce = 10_000

// coverDeletions adds tombstones in the stored kinds for deletions by id that were read before
// these kinds were stored. A relay may bring the deleted events at any time, and does not bring the
// requests to delete again, because they were seen.
func (p App) coverDeletions(ctx context.Context, stream string) error {
	var collections []string
	for _, kind := range p.stored.Kinds(nostrNetwork) {
		if nostr.DeletesByID(kind) {
			collections = append(collections, protocol.Collection(kind))
		}
	}
	covered, err := schema.CoversDeletions(ctx, p.pool, stream, append([]string{}, collections...))
	if err != nil || covered {
		return err
	}
	for more := true; more; {
		err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
			n, err := schema.CoverDeletions(ctx, tx, p.projections.Rows(), nostrNetwork+".", nostr.EveryRevision, collections, coveredAtOnce)
			more = n > 0
			return err
		})
		if err != nil {
			return err
		}
	}
	return schema.RecordDeletionsCovered(ctx, p.pool, stream, append([]string{}, collections...))
}

// events returns the verifier of Nostr events, which all relays share.
func (s *signatures) events(p App) *nostr.Verifier {
	s.nostrOnce.Do(func() { s.nostr = nostr.NewVerifier(nostr.VerifierConfig{Registerer: p.metrics}) })
	return s.nostr
}

// network returns the network of an account, or "" if the account has a repository.
func network(did string) string {
	if _, ok := protocol.ParseDID(did); ok {
		return nostrNetwork
	}
	return ""
}
