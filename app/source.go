package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-social/weir/archive"
	"github.com/weir-social/weir/collection"
	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/firehose"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/schema"
)

// The values of WEIR_SOURCE.
const (
	SourceJetstream = "jetstream"
	SourceFirehose  = "firehose"
)

// The values of WEIR_VERIFY.
const (
	VerifyWhole   = "whole"   // hashes and structure
	VerifySigned  = "signed"  // and the signature of the account
	VerifyChained = "chained" // and that no commit of a followed account is missing
)

// userAgent identifies Weir to the services.
const userAgent = "weir (+https://github.com/weir-social/weir)"

// SetSource sets what the stream is read from.
func (c *Config) SetSource(source string) error {
	if source != SourceJetstream && source != SourceFirehose {
		return fmt.Errorf("%q is no source: expected %s or %s", source, SourceJetstream, SourceFirehose)
	}
	c.Source = source
	return nil
}

// checkSource returns an error if the source or the verification is unknown, or if too
// many Nostr relays are configured.
func (c *Config) checkSource() error {
	if err := c.SetSource(c.Source); err != nil {
		return fmt.Errorf("WEIR_SOURCE: %w", err)
	}
	if c.Verify != VerifyWhole && c.Verify != VerifySigned && c.Verify != VerifyChained {
		return fmt.Errorf("WEIR_VERIFY is %q: expected %s, %s or %s", c.Verify, VerifyWhole, VerifySigned, VerifyChained)
	}
	if c.NostrAuthorRelays < 0 || c.NostrAuthorRelays > 200 {
		return errors.New("WEIR_NOSTR_AUTHOR_RELAYS must be 0 to 200")
	}
	return nil
}

// Reads returns the configured source in words.
func (c Config) Reads() string {
	if c.Source == SourceFirehose {
		return "the relays"
	}
	return "the public Jetstream"
}

// endpoints returns the endpoints of the configured source, and their variable.
func (c Config) endpoints() (all []string, variable string) {
	if c.Source == SourceFirehose {
		return c.Relays, "WEIR_RELAYS"
	}
	return c.Jetstream, "WEIR_JETSTREAM"
}

// newSource returns the configured source of the stored collections. filter and
// dictionary are only for servers that filter and compress.
func (c Config) newSource(s socket.Config, stored collection.Registry, verifier *firehose.Verifier, filter consumer.Filter, dictionary func(context.Context) ([]byte, error)) (consumer.Source, error) {
	s.UserAgent = userAgent
	if c.Source == SourceFirehose {
		return firehose.New(firehose.Config{Config: s, Wanted: stored.Stores, Verifier: verifier})
	}
	filter.Collections = stored.Repositories().Filter()
	return jetstream.New(jetstream.Config{Config: s, Filter: filter, Compress: c.Compress, Dictionary: dictionary, Wanted: stored.Stores})
}

// source returns the source that reads the stream. It requests no account until its
// filter is set.
func (p App) source(log *slog.Logger, metrics prometheus.Registerer) (consumer.Source, error) {
	verifier, err := p.signatures.verifier(p)
	if err != nil {
		return nil, err
	}
	endpoints, _ := p.cfg.endpoints()
	return p.cfg.newSource(socket.Config{Endpoints: endpoints, QuietAfter: p.cfg.QuietAfter, Logger: log, Registerer: metrics}, p.stored, verifier, consumer.Filter{}, p.dictionary)
}

// wires returns the wires whose dead letters this binary can decode, for one
// goroutine.
func (p App) wires() (map[string]consumer.Wire, error) {
	verifier, err := p.signatures.verifier(p)
	if err != nil {
		return nil, err
	}
	if verifier != nil {
		verifier = verifier.Patient(p.cfg.JobTimeout / 4)
	}
	return p.wiresWith(verifier), nil
}

// archivedWires returns the wires of archived records, for one goroutine. The signatures
// of commits were checked before the records were archived, and the hashes of the
// segments protect them since. Archived requests to vanish took effect then, whatever
// relay they name.
func (p App) archivedWires() map[string]consumer.Wire {
	wires := p.wiresWith(nil)
	wires[nostr.WireName] = p.nostrWire(nil)
	wires[schema.WireSnapshot] = consumer.Wire{Name: schema.WireSnapshot, Decode: decodeSnapshot}
	return wires
}

// decodeSnapshot checks a part of a snapshot. Snapshots contain no events.
func decodeSnapshot(record []byte, arrived time.Time, m *consumer.Message) {
	m.Reset(record, arrived)
	if _, err := schema.ParseSnapshotPart(record); err != nil {
		m.Refuse(&consumer.Malformed{Cause: err.Error(), Raw: record})
	}
}

// archivedWire returns the wire of a segment's records, for one goroutine.
func (p App) archivedWire(m archive.Manifest) (consumer.Wire, error) {
	wire, ok := p.archivedWires()[m.Wire]
	if !ok {
		return wire, fmt.Errorf("segment %s: this version of Weir does not know the wire %s", m.Name, m.Wire)
	}
	return wire, nil
}

func (p App) wiresWith(verifier *firehose.Verifier) map[string]consumer.Wire {
	wires := map[string]consumer.Wire{}
	for _, wire := range []consumer.Wire{jetstream.Wire(p.stored.Stores), firehose.Wire(p.stored.Stores, verifier), p.nostrWire(append([]string{}, p.cfg.Nostr...))} { // never nil
		wires[wire.Name] = wire
	}
	return wires
}

// dictionary returns the zstd dictionary from the database, or downloads it on the
// first use.
func (p App) dictionary(ctx context.Context) ([]byte, error) {
	kept, err := schema.Dictionary(ctx, p.pool, p.cfg.DictionarySHA256)
	if err == nil {
		return kept, nil
	}
	if !errors.Is(err, schema.ErrNoRows) {
		return nil, err
	}
	fetched, err := jetstream.Dictionary(ctx, http.DefaultClient, p.cfg.DictionaryURL, p.cfg.DictionarySHA256)
	if err != nil {
		return nil, err
	}
	if err := schema.StoreDictionary(ctx, p.pool, p.cfg.DictionarySHA256, p.cfg.DictionaryURL, fetched, time.Now()); err != nil {
		p.log.Warn("dictionary_not_kept", "error", err)
	}
	return fetched, nil
}
