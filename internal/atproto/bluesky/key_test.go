package bluesky_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/mr-tron/base58"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
)

// keyed returns a DID document with verification methods.
func keyed(did, pds, methods string) string {
	return strings.Replace(didDocument(did, pds), `"service":`, `"verificationMethod":[`+methods+`],"service":`, 1)
}

func method(id, kind, key string) string {
	return fmt.Sprintf(`{"id":%q,"type":%q,"controller":"x","publicKeyMultibase":%q}`, id, kind, key)
}

func publicKeys(t *testing.T) (p256, k256 atcrypto.PublicKey) {
	t.Helper()
	p, err := atcrypto.GeneratePrivateKeyP256()
	require.NoError(t, err)
	k, err := atcrypto.GeneratePrivateKeyK256()
	require.NoError(t, err)
	p256, err = p.PublicKey()
	require.NoError(t, err)
	k256, err = k.PublicKey()
	require.NoError(t, err)
	return p256, k256
}

func TestSigningKeyIsReadInEveryForm(t *testing.T) {
	t.Parallel()
	p256, k256 := publicKeys(t)
	uncompressed := func(k atcrypto.PublicKey) string { return "z" + base58.Encode(k.UncompressedBytes()) }
	var document atomic.Value
	directory, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, 200, document.Load().(string)) })
	c := newClient(t, directory, noRetries)
	other := method(alice+"#other", "Multikey", k256.Multibase())
	for _, good := range []struct {
		methods string
		key     atcrypto.PublicKey
	}{
		{method(alice+"#atproto", "Multikey", p256.Multibase()), p256},
		{"7," + other + "," + method("#atproto", "Multikey", k256.Multibase()), k256},
		{method(alice+"#atproto", "EcdsaSecp256r1VerificationKey2019", uncompressed(p256)), p256},
		{method(alice+"#atproto", "EcdsaSecp256k1VerificationKey2019", uncompressed(k256)), k256},
	} {
		document.Store(keyed(alice, "https://pds.example", good.methods))
		key, err := c.SigningKey(t.Context(), alice)
		require.NoError(t, err, good.methods)
		require.True(t, good.key.Equal(key), good.methods)
	}
	for cause, methods := range map[string]string{
		"has no #atproto key":  other,
		"is not in base58":     method("#atproto", "Multikey", "z0OIl"),
		"unknown type":         method("#atproto", "Ed25519VerificationKey2020", p256.Multibase()),
		"is invalid":           method("#atproto", "Multikey", p256.Multibase()[:30]),
		"key is not in base58": method("#atproto", "Multikey", "z"+strings.Repeat("2", 10_000)),
	} {
		document.Store(keyed(alice, "https://pds.example", methods))
		_, err := c.SigningKey(t.Context(), alice)
		require.ErrorIs(t, err, bluesky.ErrNoKey)
		require.ErrorContains(t, err, cause)
	}
	document.Store(keyed(bob, "https://pds.example", method("#atproto", "Multikey", p256.Multibase())))
	_, err := c.SigningKey(t.Context(), alice)
	require.ErrorContains(t, err, "expected the document of")
	require.NotErrorIs(t, err, bluesky.ErrNoKey, "an error of the directory must not count as a missing key")
	document.Store(keyed(alice, "http://10.0.0.1", method("#atproto", "Multikey", p256.Multibase())))
	_, err = c.SigningKey(t.Context(), alice)
	require.NoError(t, err, "its PDS is not called")
}

// TestSigningKeyIsReadAnew checks that a cached document is not used, and is replaced.
func TestSigningKeyIsReadAnew(t *testing.T) {
	t.Parallel()
	p256, k256 := publicKeys(t)
	directory, looked := serve(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		key := []atcrypto.PublicKey{p256, p256, k256}[n-1]
		reply(w, 200, keyed(alice, fmt.Sprintf("https://pds%d.example", n), method("#atproto", "Multikey", key.Multibase())))
	})
	c := newClient(t, directory, noRetries)
	_, err := c.Identity(t.Context(), alice)
	require.NoError(t, err)
	for _, want := range []atcrypto.PublicKey{p256, k256} {
		key, err := c.SigningKey(t.Context(), alice)
		require.NoError(t, err)
		require.True(t, want.Equal(key))
	}
	id, err := c.Identity(t.Context(), alice)
	require.NoError(t, err)
	require.Equal(t, "https://pds3.example", id.PDS)
	require.Len(t, looked.all(), 3)
}

func TestAccountWithoutKeyIsToldFromFailure(t *testing.T) {
	t.Parallel()
	for status, want := range map[int][]bool{
		400: {true, false}, 404: {true, false}, 410: {true, true}, 403: {false, false}, 429: {false, false}, 500: {false, false},
		503: {false, false},
	} {
		directory, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, status, `{"message":"no"}`) })
		_, err := newClient(t, directory, noRetries).SigningKey(t.Context(), alice)
		require.Error(t, err)
		for i, is := range []error{bluesky.ErrNoKey, bluesky.ErrGone} {
			if want[i] {
				require.ErrorIs(t, err, is, status)
			} else {
				require.NotErrorIs(t, err, is, status)
			}
		}
	}
	c := newClient(t, "http://appview.example", noRetries)
	for _, did := range []string{"did:key:zQ3sh", "did:web:127.0.0.1", "did:web:example.com:path"} {
		_, err := c.SigningKey(t.Context(), did)
		require.ErrorIs(t, err, bluesky.ErrNoKey, did)
		require.Equal(t, did == "did:web:127.0.0.1", errors.Is(err, bluesky.ErrUncertain), did)
	}
}

// TestServerOfItsOwnDocumentMayErr shows that a did:web server's response about the key is not
// final, because it may change at any moment. The directory's response is.
func TestServerOfItsOwnDocumentMayErr(t *testing.T) {
	t.Parallel()
	for status, document := range map[int]string{404: `{}`, 410: `{}`, 400: `{}`, 200: `{"id":"%s"}`} {
		var did string
		base, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
			reply(w, status, strings.ReplaceAll(document, "%s", did))
		})
		did = "did:web:" + strings.Replace(strings.TrimPrefix(base, "http://"), ":", "%3A", 1)
		_, err := newClient(t, "http://127.0.0.1:1", noRetries).SigningKey(t.Context(), did)
		require.ErrorIs(t, err, bluesky.ErrNoKey, status)
		require.ErrorIs(t, err, bluesky.ErrUncertain, status)
		did = alice
		_, err = newClient(t, base, noRetries).SigningKey(t.Context(), did)
		require.ErrorIs(t, err, bluesky.ErrNoKey, status)
		require.NotErrorIs(t, err, bluesky.ErrUncertain, status)
	}
}

// TestHugeDocumentIsNotRead shows that a huge document is not read, because many are read at once.
func TestHugeDocumentIsNotRead(t *testing.T) {
	t.Parallel()
	p256, _ := publicKeys(t)
	whole := keyed(alice, "https://pds.example", method("#atproto", "Multikey", p256.Multibase()))
	var blanks atomic.Int64
	directory, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		reply(w, 200, strings.Repeat(" ", int(blanks.Load()))+whole)
	})
	c := newClient(t, directory, noRetries)
	blanks.Store(100 << 10)
	_, err := c.SigningKey(t.Context(), alice)
	require.NoError(t, err)
	blanks.Store(1 << 20)
	_, err = c.SigningKey(t.Context(), alice)
	require.ErrorContains(t, err, "the answer is longer than")
	require.NotErrorIs(t, err, bluesky.ErrNoKey)
}
