// Package wellknown asks a domain which public key one of its names has, see NIP-05. The
// domain is untrusted: every request is guarded, no redirect is followed, and time and
// bytes are limited.
package wellknown

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/weir-social/weir/internal/guard"
	"github.com/weir-social/weir/internal/nostr"
)

// maxBytes limits a document: some domains send all their names.
const maxBytes = 1 << 20

// Config configures a Client.
type Config struct {
	Transport *http.Transport // http.DefaultTransport when nil; it is always guarded
	Guard     guard.Config    // tests name their servers
	Port      string          // 443 when empty; tests have another
	Timeout   time.Duration   // for everything; 10 s when zero
	UserAgent string
}

// Client asks domains. It is safe for concurrent use.
type Client struct {
	cfg  Config
	http *http.Client
}

// New returns a client.
func New(cfg Config) *Client {
	cfg.Timeout = cmp.Or(cfg.Timeout, 10*time.Second)
	of := cfg.Transport
	if of == nil {
		of = http.DefaultTransport.(*http.Transport) // it is one
	}
	t := cfg.Guard.Transport(of)
	t.DisableKeepAlives = true // each domain is asked once a day
	return &Client{cfg, &http.Client{
		Transport:     t,
		Timeout:       cfg.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Denied is the error of a domain that names no key for a name. An early retry would not
// help.
type Denied struct{ Why string }

func (e *Denied) Error() string { return e.Why }

// Found is a domain's answer about a name.
type Found struct {
	Key    [32]byte
	Relays []string // relays that may have the account, unchecked; at most five, may be empty
}

// LookUp asks the domain of a name such as alice@example.com, which nostr.ParseName05 has
// accepted. It returns a *Denied, or another error if the domain could not be asked
// now.
func (c *Client) LookUp(ctx context.Context, name string) (Found, error) {
	local, domain, ok := strings.Cut(name, "@")
	if !ok {
		return Found{}, &Denied{"not a name: expected name@domain"}
	}
	host := domain
	if c.cfg.Port != "" {
		host = net.JoinHostPort(domain, c.cfg.Port)
	}
	at := url.URL{Scheme: "https", Host: host, Path: "/.well-known/nostr.json", RawQuery: url.Values{"name": {local}}.Encode()}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return Found{}, &Denied{"its domain is not valid"}
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", c.cfg.UserAgent)
	response, err := c.http.Do(request)
	if errors.Is(err, guard.ErrPrivate) {
		return Found{}, &Denied{domain + " is in a private network"}
	}
	if err != nil {
		return Found{}, fmt.Errorf("ask %s: %w", domain, err)
	}
	defer response.Body.Close() // it was read
	switch {
	case response.StatusCode/100 == 3:
		return Found{}, &Denied{domain + " redirects, which NIP-05 forbids"}
	case response.StatusCode == http.StatusTooManyRequests, response.StatusCode/100 == 5:
		return Found{}, fmt.Errorf("%s answers %d", domain, response.StatusCode)
	case response.StatusCode != http.StatusOK:
		return Found{}, &Denied{fmt.Sprintf("%s answers %d", domain, response.StatusCode)}
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBytes+1))
	if err != nil {
		return Found{}, fmt.Errorf("read the names of %s: %w", domain, err)
	}
	if len(body) > maxBytes {
		return Found{}, &Denied{fmt.Sprintf("the names of %s have more than %d bytes", domain, maxBytes)}
	}
	return read(body, local, domain)
}

// read finds a name in a domain's document.
func read(body []byte, local, domain string) (Found, error) {
	var document struct {
		Names  map[string]any `json:"names"`
		Relays map[string]any `json:"relays"`
	}
	if err := json.Unmarshal(body, &document); err != nil {
		return Found{}, &Denied{"what " + domain + " sends is not a list of names"}
	}
	text, _ := document.Names[local].(string)
	key, ok := nostr.ParseKey(text)
	if !ok {
		return Found{}, &Denied{domain + " has no key for this name"}
	}
	found := Found{Key: key}
	relays, _ := document.Relays[text].([]any)
	for _, one := range relays {
		if relay, ok := one.(string); ok {
			if relay, ok = nostr.ParseRelay(relay); ok && len(found.Relays) < nostr.MaxHints {
				found.Relays = append(found.Relays, relay)
			}
		}
	}
	return found, nil
}
