package simnet

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/asn1"
	"fmt"
	"math/big"
	"slices"
)

// key is a key with which an account signs its commits, on one of the network's two
// curves.
type key struct {
	p256   *ecdsa.PrivateKey // nil: the key is on k256
	k256   *k256
	secret *big.Int
}

// keyOf returns an account's first key, or a later one after rotations. The same
// seed gives the same keys, half of them on each curve.
func (n *Net) keyOf(did string, rotation int) key {
	for i := 0; ; i++ {
		secret := sha256.Sum256(fmt.Appendf(nil, "%d %s %d %d", n.cfg.Seed, did, rotation, i))
		if on := sha256.Sum256(fmt.Appendf(nil, "curve %d %s %d", n.cfg.Seed, did, rotation)); on[0]%2 == 0 {
			k := key{k256: n.k256, secret: new(big.Int).SetBytes(secret[:])}
			if k.secret.Cmp(n.k256.n) < 0 && k.secret.Sign() > 0 {
				return k
			}
		} else if p256, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), secret[:]); err == nil { // nearly all numbers are keys
			return key{p256: p256}
		}
	}
}

// sign signs data. The signature is r and s, with the lower of the two possible s,
// as the network requires, or with the higher if high is set. The same data gives
// the same signature.
func (k key) sign(data []byte, high bool) []byte {
	sum := sha256.Sum256(data)
	r, s, order := k.pair(sum[:])
	other := new(big.Int).Sub(order, s)
	if low := s.Cmp(other) <= 0; low == high {
		s = other
	}
	out := make([]byte, 64)
	r.FillBytes(out[:32])
	s.FillBytes(out[32:])
	return out
}

// pair returns a signature and the order of the curve.
func (k key) pair(hash []byte) (r, s, order *big.Int) {
	if k.p256 == nil {
		nonce := sha256.Sum256(append(k.secret.Bytes(), hash...))
		at := new(big.Int).SetBytes(nonce[:])
		r, s = k.k256.sign(k.secret, at.Mod(at, k.k256.n), new(big.Int).SetBytes(hash))
		return r, s, k.k256.n
	}
	der, err := k.p256.Sign(nil, hash, crypto.SHA256)
	if err != nil {
		panic(fmt.Sprintf("simnet cannot sign: %v", err))
	}
	var pair struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &pair); err != nil {
		panic(fmt.Sprintf("simnet cannot read its signature: %v", err))
	}
	return pair.R, pair.S, elliptic.P256().Params().N
}

// multibase returns a public key in the form of DID documents.
func (k key) multibase() string {
	if k.p256 == nil {
		x, y := k.k256.point(k.secret)
		raw := append([]byte{0xe7, 0x01, 2 + byte(y.Bit(0))}, x.FillBytes(make([]byte, 32))...) // 0xe7 as a varint: a key of k256
		return "z" + base58(raw)
	}
	point, err := k.p256.PublicKey.Bytes() // uncompressed: a type and two coordinates
	if err != nil {
		panic(fmt.Sprintf("simnet has an invalid key: %v", err))
	}
	raw := append([]byte{0x80, 0x24, 2 + point[64]&1}, point[1:33]...) // 0x1200 as a varint: a key of P-256
	return "z" + base58(raw)
}

// base58 encodes bytes that do not begin with zero in Bitcoin's alphabet.
func base58(raw []byte) string {
	const alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
	n, base, digit := new(big.Int).SetBytes(raw), big.NewInt(int64(len(alphabet))), new(big.Int)
	var out []byte
	for n.Sign() > 0 {
		n.DivMod(n, base, digit)
		out = append(out, alphabet[digit.Int64()])
	}
	slices.Reverse(out)
	return string(out)
}
