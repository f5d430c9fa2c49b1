package app

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/firehose"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/archive/frames"
	protocol "github.com/weir-social/weir/internal/nostr"
)

// sources returns what Weir can read, the default of WEIR_SOURCE first.
func sources() []sourceEntry {
	return []sourceEntry{
		{
			name: "jetstream", wire: jetstream.WireName, words: "the public Jetstream",
			variable: "WEIR_JETSTREAM", endpoints: func(c Config) []string { return c.Jetstream },
			open: App.openJetstream, newWire: App.jetstreamWire,
		},
		{
			name: "firehose", wire: firehose.WireName, words: "the relays",
			variable: "WEIR_RELAYS", endpoints: func(c Config) []string { return c.Relays },
			open: App.openFirehose, newWire: App.firehoseWire,
		},
		{
			name: nostrNetwork, wire: nostr.WireName, variable: "WEIR_NOSTR", network: protocol.DIDPrefix, streams: Config.nostrStreams,
			open: App.openNostr, newWire: App.nostrWire,
		},
	}
}

// sourceEntry is what Weir must know of a source: a new source is a new entry. Whatever
// concerns all sources asks the entries, and never which one it is.
type sourceEntry struct {
	name     string // in WEIR_SOURCE and the findings of the doctor
	wire     string // the name of its wire in dead letters and segments
	variable string // of the endpoints
	network  string // of its accounts: how their DIDs begin; empty: the network of repositories

	// Of a source that WEIR_SOURCE names.
	words     string // what it reads
	endpoints func(Config) []string

	// streams returns the streams of a source that is read besides that of WEIR_SOURCE, which
	// cannot name it; nil: WEIR_SOURCE can.
	streams func(Config) ([]configuredStream, error)

	open func(App, opening) (consumer.Source, error)
	// newWire returns its wire, for one goroutine. archived: it decodes the archive. The
	// signatures were checked before its records were archived; since then the hashes of the
	// segments vouch for them. Demands to vanish that were archived were obeyed.
	newWire func(p App, archived bool, wanted func(collection string) bool) (consumer.Wire, error)
}

// configuredStream is a stream to read.
type configuredStream struct {
	name      string
	endpoints []string
	from      sourceEntry
}

// opening is what a source needs besides the process.
type opening struct {
	socket.Config
	filter consumer.Filter // the first one, for a server that filters
}

// fetchedWire is the wire that decodes what the archive has of fetched records, see catalog.Hook.
const fetchedWire = jetstream.WireName

// The values of WEIR_VERIFY.
const (
	VerifyWhole   = "whole"   // hashes and structure
	VerifySigned  = "signed"  // and the signature of the account
	VerifyChained = "chained" // and that no commit of a followed account is missing
)

// userAgent identifies Weir to the services.
const userAgent = "weir (+https://github.com/weir-social/weir)"

// SourceNames returns the values of WEIR_SOURCE, the default first.
func SourceNames() (names []string) {
	for _, s := range sources() {
		if s.streams == nil {
			names = append(names, s.name)
		}
	}
	return names
}

// source returns the source that WEIR_SOURCE names.
func (c Config) source() (sourceEntry, error) {
	for _, s := range sources() {
		if s.name == c.Source && s.streams == nil {
			return s, nil
		}
	}
	return sourceEntry{}, fmt.Errorf("%q is no source: expected %s", c.Source, strings.Join(SourceNames(), " or "))
}

// sourceOf returns the source of a wire.
func sourceOf(wire string) (s sourceEntry, known bool) {
	for _, s := range sources() {
		if s.wire == wire {
			return s, true
		}
	}
	return sourceEntry{}, false
}

// strip returns how what must be forgotten is taken out of a segment's records, in one
// goroutine.
func (p App) strip(m archive.Manifest) (archive.Strip, error) {
	if m.Wire == catalog.WireSnapshot {
		return catalog.StripSnapshot, nil
	}
	s, known := sourceOf(m.Wire)
	if !known {
		return nil, fmt.Errorf("segment %s: this version of Weir does not know the wire %s", m.Name, m.Wire)
	}
	wire, err := s.newWire(p, true, nil) // what is not stored is archived too
	return frames.Strip(wire), err
}

// networkOf returns the network of an account.
func networkOf(all []sourceEntry, did string) string {
	for i := range all {
		if network := all[i].network; network != "" && strings.HasPrefix(did, network) {
			return network
		}
	}
	return ""
}

// SetSource sets what the stream is read from.
func (c *Config) SetSource(name string) error {
	_, err := Config{Source: name}.source()
	if err == nil {
		c.Source = name
	}
	return err
}

// checkSource returns an error if the source or the verification is unknown, or if too
// many Nostr relays are configured.
func (c *Config) checkSource() error {
	if _, err := c.source(); err != nil {
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
	s, _ := c.source()
	return s.words
}

// streams returns the streams to read.
func (c Config) streams() ([]configuredStream, error) {
	chosen, err := c.source()
	if err != nil {
		return nil, err
	}
	all := []configuredStream{{name: c.Stream, endpoints: chosen.endpoints(c), from: chosen}}
	for _, s := range sources() {
		if s.streams == nil {
			continue
		}
		further, err := s.streams(c)
		if err != nil {
			return nil, err
		}
		for _, one := range further {
			one.from = s
			all = append(all, one)
		}
	}
	return all, nil
}

// source returns the source of a stream, which logs and counts there. It requests no
// account until its filter is set.
func (p App) source(of configuredStream, log *slog.Logger, metrics prometheus.Registerer) (consumer.Source, error) {
	return of.from.open(p, opening{Config: socket.Config{Endpoints: of.endpoints, QuietAfter: p.cfg.QuietAfter, Logger: log, Registerer: metrics, UserAgent: userAgent}})
}

func (p App) openJetstream(o opening) (consumer.Source, error) {
	o.filter.Collections = p.stored.Repositories().Filter()
	return jetstream.New(jetstream.Config{Config: o.Config, Filter: o.filter, Compress: p.cfg.Compress, Wanted: p.stored.Stores})
}

func (p App) jetstreamWire(_ bool, wanted func(string) bool) (consumer.Wire, error) {
	return jetstream.Wire(wanted), nil
}

func (p App) openFirehose(o opening) (consumer.Source, error) {
	verifier, err := p.signatures.verifier(p)
	if err != nil {
		return nil, err
	}
	return firehose.New(firehose.Config{Config: o.Config, Wanted: p.stored.Stores, Verifier: verifier})
}

func (p App) firehoseWire(archived bool, wanted func(string) bool) (consumer.Wire, error) {
	if archived {
		return firehose.Wire(wanted, nil), nil
	}
	verifier, err := p.signatures.verifier(p)
	if err != nil {
		return consumer.Wire{}, err
	}
	if verifier != nil {
		verifier = verifier.Patient(p.cfg.JobTimeout / 4)
	}
	return firehose.Wire(wanted, verifier), nil
}

// wires returns the wires whose dead letters this binary can decode, or those of archived
// records, for one goroutine.
func (p App) wires(archived bool) (map[string]consumer.Wire, error) {
	wires := map[string]consumer.Wire{}
	for _, s := range sources() {
		wire, err := s.newWire(p, archived, p.stored.Stores)
		if err != nil {
			return nil, err
		}
		wires[s.wire] = wire
	}
	if archived {
		wires[catalog.WireSnapshot] = consumer.Wire{Name: catalog.WireSnapshot, Decode: decodeSnapshot}
	}
	return wires, nil
}

// decodeSnapshot checks a part of a snapshot. Snapshots contain no events.
func decodeSnapshot(record []byte, arrived time.Time, m *consumer.Message) {
	m.Reset(record, arrived)
	if _, err := catalog.ParseSnapshotPart(record); err != nil {
		m.Refuse(&consumer.Malformed{Cause: err.Error(), Raw: record})
	}
}
