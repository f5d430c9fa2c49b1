package nostr

import (
	"errors"
	"strings"
)

// maxBech32 is the longest text of NIP-19. Bech32's own limit of 90 characters does
// not apply.
const maxBech32 = 5000

const bech32Digits = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"

var errBech32 = errors.New("not bech32: a character or the checksum is wrong")

// decodeBech32 returns the prefix and the bytes of a bech32 text.
func decodeBech32(s string) (prefix string, data []byte, err error) {
	lower := strings.ToLower(s)
	if len(s) > maxBech32 || s != lower && s != strings.ToUpper(s) {
		return "", nil, errBech32
	}
	at := strings.LastIndexByte(lower, '1')
	if at < 1 || len(lower)-at-1 < 6 {
		return "", nil, errBech32
	}
	prefix = lower[:at]
	groups := make([]byte, 0, len(lower)-at-1)
	for _, c := range []byte(lower[at+1:]) {
		digit := strings.IndexByte(bech32Digits, c)
		if digit < 0 {
			return "", nil, errBech32
		}
		groups = append(groups, byte(digit)) // below 32
	}
	for i := range len(prefix) {
		if c := prefix[i]; c < '!' || c > '~' {
			return "", nil, errBech32
		}
	}
	if checksum(prefix, groups) != 1 { // not bech32m
		return "", nil, errBech32
	}
	groups = groups[:len(groups)-6]
	data = make([]byte, 0, len(groups)*5/8)
	var bits, n uint
	for _, g := range groups {
		bits, n = bits<<5|uint(g), n+5
		if n >= 8 {
			n -= 8
			data = append(data, byte(bits>>n)) // the upper bits are done
			bits &= 1<<n - 1
		}
	}
	if n >= 5 || bits != 0 {
		return "", nil, errBech32 // the padding is too long, or not zero
	}
	return prefix, data, nil
}

// encodeBech32 returns the bech32 text of some bytes.
func encodeBech32(prefix string, data []byte) string {
	groups := make([]byte, 0, len(data)*8/5+7)
	var bits, n uint
	for _, c := range data {
		bits, n = bits<<8|uint(c), n+8
		for n >= 5 {
			n -= 5
			groups = append(groups, byte(bits>>n&31))
		}
		bits &= 1<<n - 1
	}
	if n > 0 {
		groups = append(groups, byte(bits<<(5-n)&31))
	}
	sum := checksum(prefix, append(groups[:len(groups):len(groups)], 0, 0, 0, 0, 0, 0)) ^ 1
	for i := range 6 {
		groups = append(groups, byte(sum>>(5*(5-i))&31)) // five bits
	}
	text := make([]byte, len(groups))
	for i, g := range groups {
		text[i] = bech32Digits[g]
	}
	return prefix + "1" + string(text)
}

// checksum returns the remainder of bech32's polynomial.
func checksum(prefix string, groups []byte) uint32 {
	sum := uint32(1)
	add := func(v byte) {
		top := sum >> 25
		sum = sum&0x1ffffff<<5 ^ uint32(v)
		for i, term := range [...]uint32{0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3} {
			if top>>i&1 == 1 {
				sum ^= term
			}
		}
	}
	for i := range len(prefix) {
		add(prefix[i] >> 5)
	}
	add(0)
	for i := range len(prefix) {
		add(prefix[i] & 31)
	}
	for _, g := range groups {
		add(g)
	}
	return sum
}
