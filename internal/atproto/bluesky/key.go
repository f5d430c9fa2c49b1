package bluesky

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/mr-tron/base58"
)

// ErrNoKey is wrapped by the error of SigningKey if the account has no key: the account
// does not exist, or its DID document has no valid key. Other errors do not concern the
// account.
var ErrNoKey = errors.New("the account has no signing key")

// ErrUncertain is wrapped together with ErrNoKey if only the account's own server reports
// that there is no key. That server may be failing for a moment.
var ErrUncertain = errors.New("its own server says so")

// ErrGone is wrapped by errors of an account that is deleted: the directory reports that its
// DID was, or the server that its DID document names has no such repository.
var ErrGone = errors.New("the account is deleted")

// SigningKey returns the key with which an account signs its commits, from its current
// DID document. It replaces a cached document.
func (c *Client) SigningKey(ctx context.Context, did string) (key atcrypto.PublicKey, err error) {
	r := request{call: didDocument, method: http.MethodGet}
	if r.origin, r.path, err = c.documentAddress(did); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoKey, err)
	}
	var invalid error
	r.read = func(body []byte) error {
		id, err := c.readDocument(body, did)
		switch {
		case err == nil:
			c.remember(did, document{Identity: id, until: time.Now().Add(documentLife)})
		case Classify(err) != Permanent:
			return err
		default: // an account without a reachable PDS may still have a key
			c.forgetDocument(did)
		}
		key, invalid = readKey(body, did)
		return nil
	}
	noKey := ErrNoKey
	if r.origin != c.directory {
		noKey = fmt.Errorf("%w: %w", ErrNoKey, ErrUncertain)
	}
	if err := c.do(ctx, r); err != nil {
		if e, ok := errors.AsType[*Error](err); ok {
			switch {
			case e.Status == http.StatusGone && r.origin == c.directory:
				c.forgetDocument(did)
				return nil, fmt.Errorf("%w: %w: %w", ErrNoKey, ErrGone, err)
			case e.Name == nameRefused, e.Status == http.StatusNotFound, e.Status == http.StatusGone, e.Status == http.StatusBadRequest:
				c.forgetDocument(did)
				return nil, fmt.Errorf("%w: %w", noKey, err)
			}
		}
		return nil, err
	}
	if invalid != nil {
		return nil, fmt.Errorf("%w: %s: %w", noKey, did, invalid)
	}
	return key, nil
}

// readKey returns the key of the verification method #atproto of a document.
func readKey(body []byte, did string) (atcrypto.PublicKey, error) {
	fields, err := readObject(body)
	if err != nil {
		return nil, err
	}
	methods, err := items(fields["verificationMethod"])
	if err != nil {
		return nil, err
	}
	for _, v := range methods {
		method, err := readObject(v)
		if err != nil {
			continue
		}
		if id := text(method["id"]); id != "#atproto" && id != did+"#atproto" {
			continue
		}
		return parseKey(method)
	}
	return nil, errors.New("the DID document has no #atproto key")
}

// parseKey parses a key in each of the forms that documents use.
func parseKey(method map[string]jsontext.Value) (key atcrypto.PublicKey, err error) {
	encoded := text(method["publicKeyMultibase"])
	const longest = 100 // an uncompressed point has 89
	if len(encoded) < 2 || len(encoded) > longest || encoded[0] != 'z' {
		return nil, errors.New("the #atproto key is not in base58")
	}
	raw, err := base58.Decode(encoded[1:])
	if err != nil {
		return nil, fmt.Errorf("the #atproto key is not in base58: %w", err)
	}
	switch kind := text(method["type"]); kind {
	case "Multikey":
		key, err = atcrypto.ParsePublicMultibase(encoded)
	case "EcdsaSecp256r1VerificationKey2019":
		key, err = atcrypto.ParsePublicUncompressedBytesP256(raw)
	case "EcdsaSecp256k1VerificationKey2019":
		key, err = atcrypto.ParsePublicUncompressedBytesK256(raw)
	default:
		return nil, fmt.Errorf("the #atproto key is of the unknown type %q", oneLine(kind))
	}
	if err != nil {
		return nil, fmt.Errorf("the #atproto key is invalid: %w", err)
	}
	return key, nil
}
