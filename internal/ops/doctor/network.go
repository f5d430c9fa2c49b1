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
)

// eventTimeout limits the wait for an event on a connection.
const eventTimeout = 3 * time.Second

// A Stream is a stream that StreamCheck connects to.
type Stream struct {
	Name      string // such as jetstream
	Variable  string // the environment variable with its endpoints
	Endpoints []string
	// Source returns a source that reads one endpoint.
	Source func(endpoint string) (consumer.Source, error)
}

// StreamCheck connects to each endpoint in parallel, with the consumer's client, and
// reads one event at the live tip. If one endpoint works, failures of the others are
// warnings, because Weir uses the one that works.
func StreamCheck(s Stream, within time.Duration) Check {
	return Check{s.Name, func(ctx context.Context) []Finding {
		var checks []Check
		for _, endpoint := range s.Endpoints {
			name := s.Name + " " + hostOf(endpoint)
			checks = append(checks, Check{name, func(ctx context.Context) []Finding { return s.dial(ctx, name, endpoint) }})
		}
		found := Run(ctx, within, checks...)
		connected := slices.ContainsFunc(found, func(f Finding) bool { return f.Level == OK && strings.HasPrefix(f.Check, s.Name+" ") })
		for i := range found {
			if connected && found[i].Level == Fail && strings.HasPrefix(found[i].Check, s.Name+" ") {
				found[i].Level = Warn
			}
		}
		return found
	}}
}

// hostOf returns the host of an endpoint. Findings contain no other part of the URL,
// because it may hold secrets.
func hostOf(endpoint string) string {
	if u, err := url.Parse(endpoint); err == nil && u.Host != "" {
		return u.Host
	}
	return "(not a URL)"
}

func (s *Stream) dial(ctx context.Context, name, endpoint string) []Finding {
	do := "check the network, proxies and firewalls, and " + s.Variable
	client, err := s.Source(endpoint)
	if err != nil {
		return []Finding{Failed(name, "correct "+s.Variable+" or WEIR_COLLECTIONS", err)}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	started := time.Now()
	// Connect retries until ctx ends. The first failure ends it.
	conn, err := client.Connect(ctx, func(string) consumer.Cursor { return consumer.Cursor{} }, func(a consumer.Attempt) { cancel(a.Err) })
	if err != nil {
		return []Finding{Failed(name, do, context.Cause(ctx))}
	}
	defer conn.Close() // it is over
	took := time.Since(started).Round(time.Millisecond)
	waiting, stop := context.WithTimeout(ctx, eventTimeout)
	defer stop()
	frame, err := conn.Next(waiting)
	if waiting.Err() != nil {
		return []Finding{ok(name, "connected in %s; no event within %s", took, eventTimeout)}
	}
	if err != nil {
		return []Finding{Failed(name, do, err)}
	}
	var m consumer.Message
	if err = conn.Decode(frame, &m); err == nil && len(m.Malformed) > 0 {
		err = m.Malformed[0]
	}
	if err != nil {
		return []Finding{warn(name, "see dead_letters; the next run of weir doctor may read another event",
			"connected in %s, but its first event cannot be decoded: %s", took, err)}
	}
	found := []Finding{ok(name, "connected in %s", took)}
	// An event may be slightly late. One from the future means that a clock is wrong.
	if ahead := time.UnixMicro(m.TimeUS).Sub(frame.Arrived); ahead > 0 || ahead < -clockFail {
		found = append(found, clock("clock of "+name, ahead, 0))
	}
	return found
}

// Service is an HTTP service.
type Service struct {
	Name      string // such as appview
	Variable  string // the environment variable with its URL
	URL       string // the URL to request
	Lenient   bool   // any status below 500 counts as success
	UserAgent string
	Client    *http.Client
}

// ServiceCheck sends a request to a service and compares its clock with this machine's.
func ServiceCheck(s Service) Check {
	name := s.Name + " " + hostOf(s.URL)
	return Check{name, func(ctx context.Context) []Finding {
		do := "check the network, proxies and firewalls, and " + s.Variable
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
		if err != nil {
			return []Finding{fail(name, "correct "+s.Variable, "it is not a URL")}
		}
		request.Header.Set("User-Agent", s.UserAgent)
		started := time.Now()
		response, err := s.Client.Do(request)
		if err != nil {
			if wrapped, is := errors.AsType[*url.Error](err); is {
				err = wrapped.Err // does not contain the URL
			}
			return []Finding{Failed(name, do, err)}
		}
		defer response.Body.Close()
		io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20)) // only the status matters
		took := time.Since(started)
		var found []Finding
		switch code := response.StatusCode; {
		case code == http.StatusOK, s.Lenient && code < http.StatusInternalServerError:
			found = append(found, ok(name, "responded in %s", took.Round(time.Millisecond)))
		case code == http.StatusTooManyRequests:
			found = append(found, warn(name, "raise WEIR_API_INTERVAL, or wait: this IP address sends too many requests", "too many requests (429)"))
		default:
			found = append(found, fail(name, do, "responded with status %d", code))
		}
		if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
			// The header has whole seconds.
			found = append(found, clock("clock of "+name, date.Add(500*time.Millisecond).Sub(started.Add(took/2)), 500*time.Millisecond+took/2))
		}
		return found
	}}
}

// TryCheck tries something that Weir must be able to do. done is what worked then.
func TryCheck(name, hint, done string, try func(context.Context) error) Check {
	return Check{name, func(ctx context.Context) []Finding {
		started := time.Now()
		if err := try(ctx); err != nil {
			return []Finding{Failed(name, hint, err)}
		}
		return []Finding{ok(name, "%s in %s", done, time.Since(started).Round(time.Millisecond))}
	}}
}
