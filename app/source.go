package app

import (
	"fmt"
	"log/slog"
	"reflect"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/firehose"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/feature"
)

// sources returns what this process can read: those of WEIR_SOURCE, of which one is read, and those of features.
func (p App) sources() []feature.Source {
	all := []feature.Source{
		{Name: SourceJetstream, Wire: jetstream.WireName, Variable: "WEIR_JETSTREAM", Open: p.openJetstream, NewWire: p.jetstreamWire},
		{Name: SourceFirehose, Wire: firehose.WireName, Variable: "WEIR_RELAYS", Open: p.openFirehose, NewWire: p.firehoseWire},
	}
	for i, endpoints := range [][]string{p.cfg.Jetstream, p.cfg.Relays} {
		if all[i].Name == p.cfg.Source {
			all[i].Streams = []feature.Stream{{Name: p.cfg.Stream, Endpoints: endpoints}}
		}
	}
	return append(all, p.parts.Sources...)
}

// configuredStream is a stream to read.
type configuredStream struct {
	feature.Stream
	from feature.Source
}

// The values of WEIR_VERIFY.
const (
	VerifyWhole   = "whole"   // hashes and structure
	VerifySigned  = "signed"  // and the signature of the account
	VerifyChained = "chained" // and that no commit of a followed account is missing
)

// userAgent identifies Weir to the services.
const userAgent = "weir (+https://github.com/weir-social/weir)"

// The values of WEIR_SOURCE.
const (
	SourceJetstream = "jetstream" // the default
	SourceFirehose  = "firehose"
)

// networkOf returns the network of an account.
func networkOf(all []feature.Source, did string) string {
	for i := range all {
		if network := all[i].Network; network != "" && strings.HasPrefix(did, network) {
			return network
		}
	}
	return ""
}

// SetSource sets what the stream is read from.
func (c *Config) SetSource(name string) error {
	if name != SourceJetstream && name != SourceFirehose {
		return fmt.Errorf("%q is no source: expected %s or %s", name, SourceJetstream, SourceFirehose)
	}
	c.Source = name
	return nil
}

// SetEndpoints sets what is read by a source that is read besides that of WEIR_SOURCE.
func (c Config) SetEndpoints(source string, endpoints []string) error {
	for _, s := range New(c, nil).sources() {
		for _, f := range c.features {
			if s.Name != source || f.Config == nil {
				continue
			}
			of := reflect.ValueOf(f.Config).Elem()
			for i := range of.NumField() {
				if of.Type().Field(i).Tag.Get("env") == s.Variable {
					of.Field(i).Set(reflect.ValueOf(endpoints))
					return nil
				}
			}
		}
	}
	return fmt.Errorf("this program has no source %s", source)
}

// checkSource returns an error if the source or the verification is unknown.
func (c *Config) checkSource() error {
	if err := c.SetSource(c.Source); err != nil {
		return fmt.Errorf("WEIR_SOURCE: %w", err)
	}
	if c.Verify != VerifyWhole && c.Verify != VerifySigned && c.Verify != VerifyChained {
		return fmt.Errorf("WEIR_VERIFY is %q: expected %s, %s or %s", c.Verify, VerifyWhole, VerifySigned, VerifyChained)
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

// streams returns the streams to read.
func (p App) streams() (all []configuredStream) {
	for _, s := range p.sources() {
		for _, one := range s.Streams {
			all = append(all, configuredStream{one, s})
		}
	}
	return all
}

// open opens the source of a stream, which logs and counts there. It requests no account until
// its filter is set.
func (p App) open(of configuredStream, log *slog.Logger, metrics prometheus.Registerer) (consumer.Source, error) {
	return of.from.Open(socket.Config{
		Endpoints: of.Endpoints, QuietAfter: p.cfg.QuietAfter, Logger: log, Registerer: metrics, UserAgent: userAgent,
	}, consumer.Filter{})
}

func (p App) openJetstream(cfg socket.Config, filter consumer.Filter) (consumer.Source, error) {
	filter.Collections = p.stored.Repositories().Filter()
	return jetstream.New(jetstream.Config{Config: cfg, Filter: filter, Compress: p.cfg.Compress, Wanted: p.stored.Stores})
}

func (p App) jetstreamWire(of feature.Decoding) (consumer.Wire, error) {
	return jetstream.Wire(of.Wanted), nil
}

func (p App) openFirehose(cfg socket.Config, _ consumer.Filter) (consumer.Source, error) {
	verifier, err := p.signatures.verifier(p)
	if err != nil {
		return nil, err
	}
	return firehose.New(firehose.Config{Config: cfg, Wanted: p.stored.Stores, Verifier: verifier})
}

func (p App) firehoseWire(of feature.Decoding) (consumer.Wire, error) {
	if of.Archived {
		return firehose.Wire(of.Wanted, nil), nil
	}
	verifier, err := p.signatures.verifier(p)
	if err != nil {
		return consumer.Wire{}, err
	}
	if verifier != nil {
		verifier = verifier.Patient(p.cfg.JobTimeout / 4)
	}
	return firehose.Wire(of.Wanted, verifier), nil
}

// wires returns the wires whose dead letters this binary can decode, or those of archived
// frames, for one goroutine.
func (p App) wires(of feature.Decoding) (map[string]consumer.Wire, error) {
	wires := map[string]consumer.Wire{}
	for _, s := range p.sources() {
		wire, err := s.NewWire(of)
		if err != nil {
			return nil, err
		}
		wires[s.Wire] = wire
	}
	return wires, nil
}
