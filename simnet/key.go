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

// keyOf returns the key with which an account signs its commits. The same seed
// gives the same key.
func keyOf(seed uint64, did string) *ecdsa.PrivateKey {
	for i := 0; ; i++ {
		secret := sha256.Sum256(fmt.Appendf(nil, "%d %s %d", seed, did, i))
		if key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), secret[:]); err == nil { // nearly all numbers are keys
			return key
		}
	}
}

// sign signs data: r and s, with the lower of the two possible s, as the network
// requires. The same data gives the same signature.
func sign(key *ecdsa.PrivateKey, data []byte) []byte {
	sum := sha256.Sum256(data)
	der, err := key.Sign(nil, sum[:], crypto.SHA256)
	if err != nil {
		panic(fmt.Sprintf("simnet cannot sign: %v", err))
	}
	var pair struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &pair); err != nil {
		panic(fmt.Sprintf("simnet cannot read its signature: %v", err))
	}
	order := elliptic.P256().Params().N
	if other := new(big.Int).Sub(order, pair.S); other.Cmp(pair.S) < 0 {
		pair.S = other
	}
	out := make([]byte, 64)
	pair.R.FillBytes(out[:32])
	pair.S.FillBytes(out[32:])
	return out
}

// multibase returns a public key as DID documents hold it.
func multibase(key *ecdsa.PrivateKey) string {
	point, err := key.PublicKey.Bytes() // uncompressed: a type and two coordinates
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
