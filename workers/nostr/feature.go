// Package nostr is the feature that reads Nostr: its relays as streams, the past that they have, and what they know of
// accounts.
package nostr

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weir-social/weir/consumer"
	source "github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/guard"
	"github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/nostr/directory"
	"github.com/weir-social/weir/internal/nostr/wellknown"
	"github.com/weir-social/weir/internal/ops/health"
	page "github.com/weir-social/weir/internal/web/nostr"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Variables configure the feature.
type Variables struct {
	// Nostr relays to read as well, separated by commas, such as wss://relay.example. Each is a
	// stream of its own. WEIR_COLLECTIONS names the kinds to store, or nostr.* for every kind.
	// To rank the links of both networks, add nostr.1,nostr.6,nostr.16,nostr.30023 (notes,
	// their reposts, reposts of other events, articles) to its default. A watch of an npub
	// follows accounts there; if there are only other watches, nothing is read from these
	// relays.
	Relays []string `env:"WEIR_NOSTR"`
	// How many relays are read in addition to WEIR_NOSTR: those that most followed accounts
	// name in their relay lists. They are strangers' servers, read every five minutes, at
	// public addresses only. 0: none.
	AuthorRelays int `env:"WEIR_NOSTR_AUTHOR_RELAYS" envDefault:"20"`
	// Whether these relays may be on this machine. Only for simulated networks: otherwise an
	// author could have Weir call any service that runs here.
	AuthorLoopback bool `env:"WEIR_NOSTR_AUTHOR_LOOPBACK" envDefault:"false"`
	// A secret key, 64 hexadecimal digits, for relays that demand authentication. Make one for
	// Weir alone.
	Key string `env:"WEIR_NOSTR_KEY" secret:"true"`
}

// Feature reads Nostr.
func Feature() feature.Feature {
	v := &Variables{}
	return feature.Feature{Name: "nostr", Tables: directory.Tables, Config: v, Open: func(core feature.Core) (feature.Parts, error) {
		r, err := v.relays(core)
		if err != nil {
			return feature.Parts{}, err
		}
		return feature.Parts{
			Sources: []feature.Source{r.source()}, Network: r, Hooks: []schema.Hook{directory.Hook()},
			Operations: feature.Operations{Health: []health.Feature{directory.Health()}},
			Pages:      []feature.Page{page.Part()}, Workers: r.work,
		}, nil
	}}
}

// network is the part of a collection's name before the kind, and of a stream's name before the host.
const network = "nostr"

// relays returns the configured relays. Its errors never contain the secret key.
func (v *Variables) relays(core feature.Core) (*relays, error) {
	r := &relays{Variables: v, Core: core, names: wellknown.New(wellknown.Config{UserAgent: core.UserAgent})}
	named := map[string]bool{}
	for _, relay := range v.Relays {
		u, err := url.Parse(relay)
		if err != nil || u.Scheme != "ws" && u.Scheme != "wss" || u.Host == "" || u.User != nil {
			return nil, errors.New("WEIR_NOSTR: expected URLs such as wss://relay.example, separated by commas")
		}
		name := network + ":" + u.Host + strings.TrimRight(u.Path, "/") // a host may have several relays
		if named[name] {
			return nil, fmt.Errorf("WEIR_NOSTR: %s occurs twice", u.Host+u.Path)
		}
		named[name] = true
		r.streams = append(r.streams, feature.Stream{Name: name, Endpoints: []string{relay}})
	}
	if r.kinds, r.every = core.Registry.Kinds(network); len(r.streams) > 0 && len(r.kinds) == 0 && !r.every && !core.Unstored {
		return nil, errors.New("WEIR_NOSTR names relays, but WEIR_COLLECTIONS names no kind to store: add nostr.1 for notes")
	}
	if v.AuthorRelays < 0 || v.AuthorRelays > 200 {
		return nil, errors.New("WEIR_NOSTR_AUTHOR_RELAYS must be 0 to 200")
	}
	if v.Key != "" {
		key, err := nostr.ParseSecret(v.Key)
		if err != nil {
			return nil, fmt.Errorf("WEIR_NOSTR_KEY: %w", err)
		}
		r.key = &key
	}
	r.verifier = source.NewVerifier(source.VerifierConfig{Registerer: core.Metrics})
	var guarded *http.Client
	if v.AuthorRelays > 0 {
		transport := http.DefaultTransport.(*http.Transport) // it is one
		guarded = &http.Client{Transport: guard.Config{Loopback: v.AuthorLoopback}.Transport(transport)}
	}
	r.Reader = source.NewReader(source.ReaderConfig{
		Relays: v.Relays, Key: r.key, AuthorRelays: guarded, UserAgent: core.UserAgent, Logger: core.Log,
	})
	return r, nil
}

// source returns the source whose streams are the relays.
func (r *relays) source() feature.Source {
	return feature.Source{Name: network, Wire: source.WireName, Variable: "WEIR_NOSTR", Network: nostr.DIDPrefix, Streams: r.streams,
		Open: func(cfg socket.Config, _ consumer.Filter) (consumer.Source, error) {
			kinds := r.kinds
			if r.every || r.Unstored {
				kinds = nil
			}
			return source.New(source.Config{Config: cfg, Kinds: kinds, Key: r.key, Verifier: r.verifier})
		},
		// The wire applies requests to vanish that name one of the configured relays, or whatever relay they name if they
		// were archived.
		NewWire: func(of feature.Decoding) (consumer.Wire, error) {
			if of.Archived {
				return r.wire(nil), nil
			}
			return r.wire(append([]string{}, r.Relays...)), nil // never nil
		},
	}
}

// wire returns the wire of events. It applies requests to vanish that name one of these relays; nil: whatever relay they
// name.
func (r *relays) wire(relays []string) consumer.Wire { return source.Wire(r.verifier, relays) }

// work adds the workers.
func (r *relays) work(b workers.Bundle) error {
	interruptible, patience := b.Interruptible(), b.JobTimeout/3
	workers.Add(interruptible, &ReadAuthors{relays: r, window: b.Window(), patience: patience})
	workers.Add(interruptible, &ReadRelays{relays: r, most: 4 * mostBackfilled, window: b.Window(), patience: patience})
	workers.Add(interruptible, &AuditRelays{relays: r, patience: b.JobTimeout})
	if r.Check() == nil {
		b.Every(time.Minute, ReadAuthorsArgs{})
		b.Every(time.Minute, ReadRelaysArgs{})
		if b.Audits() {
			b.Every(time.Hour, AuditRelaysArgs{})
		}
	}
	return nil
}
