package doctor

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
)

// eventWithin is how long to wait for an event on a connection that was made.
const eventWithin = 3 * time.Second

// JetstreamCheck dials each endpoint with the consumer's own client, side by
// side, and reads one event at the live tip. cfg.Endpoints are those. Where one
// of them answers, the others are a warning: Weir would use that one.
func JetstreamCheck(cfg jetstream.Config, within time.Duration) Check {
	return Check{"jetstream", func(ctx context.Context) []Finding {
		var checks []Check
		for _, endpoint := range cfg.Endpoints {
			name := "jetstream " + hostOf(endpoint)
			one := cfg
			one.Endpoints = []string{endpoint}
			checks = append(checks, Check{name, func(ctx context.Context) []Finding { return dial(ctx, name, one) }})
		}
		found := Run(ctx, within, checks...)
		answers := slices.ContainsFunc(found, func(f Finding) bool { return f.Level == OK && strings.HasPrefix(f.Check, "jetstream ") })
		for i := range found {
			if answers && found[i].Level == Fail && strings.HasPrefix(found[i].Check, "jetstream ") {
				found[i].Level = Warn
			}
		}
		return found
	}}
}

// hostOf is an endpoint's host: nothing else of the URL is said.
func hostOf(endpoint string) string {
	if u, err := url.Parse(endpoint); err == nil && u.Host != "" {
		return u.Host
	}
	return "(no URL)"
}

func dial(ctx context.Context, name string, cfg jetstream.Config) []Finding {
	const do = "check the network, a proxy or firewall in between, and WEIR_JETSTREAM"
	client, err := jetstream.New(cfg)
	if err != nil {
		return []Finding{Failed(name, "correct WEIR_JETSTREAM or WEIR_COLLECTIONS", err)}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	started := time.Now()
	// The first failure is the answer: a consumer would go on trying.
	conn, err := client.Connect(ctx, func(string) consumer.Cursor { return consumer.Cursor{} }, func(a consumer.Attempt) { cancel(a.Err) })
	if err != nil {
		return []Finding{Failed(name, do, context.Cause(ctx))}
	}
	defer conn.Close() //nolint:errcheck // it is over
	took := time.Since(started).Round(time.Millisecond)
	waiting, stop := context.WithTimeout(ctx, eventWithin)
	defer stop()
	frame, err := conn.Next(waiting)
	if waiting.Err() != nil {
		return []Finding{ok(name, "accepted in %s; nothing happened there within %s", took, eventWithin)}
	}
	if err != nil {
		return []Finding{Failed(name, do, err)}
	}
	event, err := conn.Decode(frame)
	if err != nil {
		return []Finding{warn(name, "look at dead_letters; weir doctor again may find another", "accepted in %s, and its first event cannot be read: %s", took, err)}
	}
	found := []Finding{ok(name, "accepted in %s", took)}
	// An event may be late, by a little; one from the future is a clock's fault.
	if ahead := time.UnixMicro(event.TimeUS).Sub(frame.Arrived); ahead > 0 || ahead < -clockFail {
		found = append(found, clock("clock of "+name, ahead, 0))
	}
	return found
}

// Service is one of the services that are asked by HTTP.
type Service struct {
	Name      string // such as appview
	Variable  string // that names it
	URL       string // that is asked: scheme, host, path
	Lenient   bool   // any answer below 500 is one
	UserAgent string
	Client    *http.Client
}

// ServiceCheck asks a service, and compares its clock with ours.
func ServiceCheck(s Service) Check {
	name := s.Name + " " + hostOf(s.URL)
	return Check{name, func(ctx context.Context) []Finding {
		do := "check the network, a proxy or firewall in between, and " + s.Variable
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
		if err != nil {
			return []Finding{fail(name, "correct "+s.Variable, "it is no URL")}
		}
		request.Header.Set("User-Agent", s.UserAgent)
		started := time.Now()
		response, err := s.Client.Do(request)
		if err != nil {
			if wrapped, is := errors.AsType[*url.Error](err); is {
				err = wrapped.Err // without the URL
			}
			return []Finding{Failed(name, do, err)}
		}
		defer response.Body.Close()
		io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20)) //nolint:errcheck // its status is what matters
		took := time.Since(started)
		var found []Finding
		switch code := response.StatusCode; {
		case code == http.StatusOK, s.Lenient && code < http.StatusInternalServerError:
			found = append(found, ok(name, "answered in %s", took.Round(time.Millisecond)))
		case code == http.StatusTooManyRequests:
			found = append(found, warn(name, "raise WEIR_CALL_SPACING, or wait: somebody at this address asks too much", "it wants to be left alone for now (429)"))
		default:
			found = append(found, fail(name, do, "it answered %d", code))
		}
		if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
			// A header counts whole seconds.
			found = append(found, clock("clock of "+name, date.Add(500*time.Millisecond).Sub(started.Add(took/2)), 500*time.Millisecond+took/2))
		}
		return found
	}}
}

// DictionaryCheck looks whether the zstd dictionary is kept or can be had.
func DictionaryCheck(dictionary func(context.Context) ([]byte, error)) Check {
	return Check{"dictionary", func(ctx context.Context) []Finding {
		bytes, err := dictionary(ctx)
		if err != nil {
			return []Finding{warn("dictionary", "check WEIR_DICTIONARY_URL and WEIR_DICTIONARY_SHA256, or set WEIR_COMPRESS=false", "%s; the stream comes uncompressed, at twice the bandwidth", err)}
		}
		return []Finding{ok("dictionary", "%d bytes, as pinned", len(bytes))}
	}}
}
