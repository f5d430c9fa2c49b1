package bluesky

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

const (
	describeRepo = "com.atproto.repo.describeRepo"
	getRepo      = "com.atproto.sync.getRepo"
	getProof     = "com.atproto.sync.getRecord"
)

const (
	maxCAR     = 128 << 20       // bytes of a repository, which is read into memory
	carTimeout = 4 * time.Minute // large repositories need more than half a minute
)

// ErrTooLong is wrapped by the error of Repository if the repository is too large to be
// read into memory.
var ErrTooLong = errors.New("the repository is too long")

// Mirrored reports whether there are mirrors.
func (c *Client) Mirrored() bool { return len(c.mirrors) > 0 }

// Repository fetches an account's repository and calls read with it as a CAR, from its own PDS or, if
// that does not respond, from one mirror after the other, named by its URL, until read accepts a copy,
// which may lag. If none is accepted, the error is that of the PDS.
func (c *Client) Repository(ctx context.Context, did string, read func(mirror string, car []byte) error) error {
	r := request{call: getRepo, method: http.MethodGet, path: xrpcPath(getRepo, url.Values{"did": {did}}), car: true}
	var car []byte
	r.read = func(body []byte) error {
		car = body
		return nil
	}
	err := c.queryPDS(ctx, did, r)
	if err == nil {
		return read("", car)
	}
	for _, r.origin = range c.mirrors {
		if Classify(err) != Transient || ctx.Err() != nil {
			break
		}
		failed := c.do(ctx, r)
		if failed == nil {
			failed = read(r.origin, car)
		}
		if failed == nil {
			c.log.Info("mirror_used", "did", did, "mirror", r.origin, "error", err)
			return nil
		}
		c.log.Info("mirror_failed", "did", did, "mirror", r.origin, "error", failed)
	}
	return err
}

// RecordProof returns the proof that an account's repository contains a record, from its
// own PDS, as a CAR. It does not check the content. If there is no such record, the
// error is permanent.
func (c *Client) RecordProof(ctx context.Context, did, collection, rkey string) (car []byte, err error) {
	r := request{
		call: getProof, method: http.MethodGet, path: xrpcPath(getProof, url.Values{"did": {did}, "collection": {collection}, "rkey": {rkey}}),
		proof: true,
	}
	r.read = func(body []byte) error {
		car = body
		return nil
	}
	err = c.queryPDS(ctx, did, r)
	return car, err
}

// Collections returns the collections with records in an account's repository, from its
// own PDS, sorted. Invalid names are omitted and counted.
func (c *Client) Collections(ctx context.Context, did string) (names []string, err error) {
	r := request{call: describeRepo, method: http.MethodGet, path: xrpcPath(describeRepo, url.Values{"repo": {did}})}
	r.read = func(body []byte) error {
		fields, err := readObject(body)
		if err != nil {
			return err
		}
		if fields["collections"].Kind() != '[' {
			return malformed("expected an array collections")
		}
		found, err := items(fields["collections"])
		if err != nil {
			return err
		}
		names = names[:0]
		for _, v := range found {
			name, err := syntax.ParseNSID(text(v))
			if err != nil {
				c.countOmitted(describeRepo, errors.New("a collection is not an NSID"))
				continue
			}
			names = append(names, name.String())
		}
		slices.Sort(names)
		names = slices.Compact(names)
		return nil
	}
	if err := c.queryPDS(ctx, did, r); err != nil {
		return nil, err
	}
	return names, nil
}
