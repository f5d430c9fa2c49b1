package bluesky

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/weir-social/weir/internal/guard"
)

const (
	didDocument  = "did_document" // the name of the call in metrics
	documentLife = time.Hour
	maxDocuments = 100_000 // cached
)

// Identity is the content of an account's DID document.
type Identity struct {
	DID    string
	Handle string // claimed, not verified; may be empty
	PDS    string // origin, such as https://morel.us-east.host.bsky.network
}

type document struct {
	Identity
	until time.Time
}

// Identity returns an account's identity, at most an hour old.
func (c *Client) Identity(ctx context.Context, did string) (Identity, error) {
	id, _, err := c.identity(ctx, did)
	return id, err
}

// identity also reports whether the identity was cached.
func (c *Client) identity(ctx context.Context, did string) (id Identity, cached bool, err error) {
	c.mu.Lock()
	d, ok := c.documents[did]
	c.mu.Unlock()
	if ok && time.Now().Before(d.until) {
		return d.Identity, true, nil
	}
	r := request{call: didDocument, method: http.MethodGet}
	if r.origin, r.path, err = c.documentAddress(did); err != nil {
		return Identity{}, false, err
	}
	r.read = func(body []byte) (err error) {
		id, err = c.readDocument(body, did)
		return err
	}
	if err := c.do(ctx, r); err != nil {
		return Identity{}, false, err
	}
	c.remember(did, document{Identity: id, until: time.Now().Add(documentLife)})
	return id, false, nil
}

func (c *Client) remember(did string, d document) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.documents) >= maxDocuments {
		for other := range c.documents { // any one: it is read again when needed
			delete(c.documents, other)
			break
		}
	}
	c.documents[did] = d
}

func (c *Client) forgetDocument(did string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.documents, did)
}

// documentAddress returns the URL of a DID's document.
func (c *Client) documentAddress(did string) (base, path string, err error) {
	parsed, err := syntax.ParseDID(did)
	if err != nil {
		return "", "", badInput(didDocument, "%q is not a DID", did)
	}
	switch parsed.Method() {
	case "plc":
		return c.directory, "/" + url.PathEscape(did), nil
	case "web":
		host, err := url.PathUnescape(parsed.Identifier())
		if err != nil {
			return "", "", badInput(didDocument, "%q names no host", did)
		}
		raw := "https://" + host
		if name, _, _ := strings.Cut(host, ":"); c.loopback && isLoopback(name) {
			raw = "http://" + host
		}
		base, err := origin(raw)
		if err != nil || strings.Contains(parsed.Identifier(), ":") || strings.Contains(host, ":") && !c.loopback {
			return "", "", badInput(didDocument, "%q names no host: expected did:web and a domain name", did)
		}
		return base, "/.well-known/did.json", nil
	}
	return "", "", badInput(didDocument, "%q is of a method that is not known: expected did:plc or did:web", did)
}

// readDocument returns the handle and the PDS of a document. A valid document
// without a PDS is a permanent error of the account.
func (c *Client) readDocument(body []byte, did string) (Identity, error) {
	fields, err := readObject(body)
	if err != nil {
		return Identity{}, err
	}
	if text(fields["id"]) != did {
		return Identity{}, malformed("expected the document of %s, received that of %q", did, text(fields["id"]))
	}
	id := Identity{DID: did, Handle: claimedHandle(fields["alsoKnownAs"])}
	services, err := items(fields["service"])
	if err != nil {
		return Identity{}, err
	}
	for _, v := range services {
		service, err := readObject(v)
		if err != nil {
			continue
		}
		if name := text(service["id"]); name != "#atproto_pds" && name != did+"#atproto_pds" ||
			text(service["type"]) != "AtprotoPersonalDataServer" {
			continue
		}
		endpoint := text(service["serviceEndpoint"])
		if id.PDS, err = c.untrustedOrigin(endpoint); err != nil {
			return Identity{},
				&Error{Class: Permanent, Name: nameRefused, Message: oneLine(did + " names a PDS that is not called: " + endpoint), cause: err}
		}
		return id, nil
	}
	return Identity{}, &Error{Class: Permanent, Name: nameNoPDS, Message: did + " names no PDS in its DID document"}
}

// untrustedOrigin returns the origin of an untrusted URL.
func (c *Client) untrustedOrigin(raw string) (string, error) {
	o, err := origin(strings.ToLower(raw))
	if err != nil {
		return "", err
	}
	if _, ok := c.own[o]; ok || strings.HasPrefix(o, "https://") {
		return o, nil
	}
	u, err := url.Parse(o)
	if err != nil || !c.loopback || !isLoopback(u.Hostname()) {
		return "", guard.ErrPrivate
	}
	return o, nil
}

func claimedHandle(v jsontext.Value) string {
	names, err := items(v)
	if err != nil {
		return ""
	}
	for _, name := range names {
		if raw, ok := strings.CutPrefix(text(name), "at://"); ok {
			if handle, err := syntax.ParseHandle(raw); err == nil {
				return handle.Normalize().String()
			}
		}
	}
	return ""
}
