package simnet

import (
	"encoding/binary"
	"math/big"
	"math/bits"
)

// k256 is the curve secp256k1, for signatures only. The standard library does not
// have it, and the available library is the one that verifies in the code under
// test.
type k256 struct {
	p, n  *big.Int
	table [64][15][2]residue // the base point times 1 to 15, times each power of 16
}

func newK256() *k256 {
	number := func(hex string) *big.Int {
		n, _ := new(big.Int).SetString(hex, 16) // the constants below are valid
		return n
	}
	c := &k256{
		p: number("fffffffffffffffffffffffffffffffffffffffffffffffffffffffefffffc2f"),
		n: number("fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"),
	}
	x := number("79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798")
	y := number("483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8")
	one := [2]residue{residueOf(x), residueOf(y)}
	for i := range c.table {
		for j := range c.table[i] {
			if j == 0 {
				c.table[i][j] = one
			} else {
				c.table[i][j] = c.add(c.table[i][j-1], one)
			}
		}
		one = c.add(c.table[i][14], one)
	}
	return c
}

// add returns the sum of two points that are not opposite.
func (c *k256) add(a, b [2]residue) [2]residue {
	rise, run := b[1].minus(a[1]), b[0].minus(a[0])
	if run == (residue{}) { // the same point: the tangent
		square := a[0].times(a[0])
		rise, run = square.plus(square).plus(square), a[1].plus(a[1])
	}
	slope := rise.times(c.inverse(run))
	x := slope.times(slope).minus(a[0]).minus(b[0])
	return [2]residue{x, slope.times(a[0].minus(x)).minus(a[1])}
}

// inverse returns the number by which a multiplied is one.
func (c *k256) inverse(a residue) residue {
	n := a.number()
	return residueOf(n.ModInverse(n, c.p))
}

// point returns the base point times k, which is neither 0 nor a multiple of the
// order.
func (c *k256) point(k *big.Int) (x, y *big.Int) {
	var at [2]residue
	var z residue // at, divided by its square and its cube, is the sum so far; zero: nothing was added
	digits := k.FillBytes(make([]byte, 32))
	for i := range c.table {
		digit := digits[31-i/2] >> (4 * (i % 2)) & 15
		if digit == 0 {
			continue
		}
		power := c.table[i][digit-1]
		if z == (residue{}) {
			at, z = power, residue{1}
			continue
		}
		square := z.times(z)
		h, r := power[0].times(square).minus(at[0]), power[1].times(z.times(square)).minus(at[1])
		h2 := h.times(h)
		h3, v := h.times(h2), at[0].times(h2)
		at[0] = r.times(r).minus(h3).minus(v).minus(v)
		at[1] = r.times(v.minus(at[0])).minus(at[1].times(h3))
		z = z.times(h)
	}
	inverse := c.inverse(z)
	square := inverse.times(inverse)
	return at[0].times(square).number(), at[1].times(inverse.times(square)).number()
}

// sign returns a signature of a hash, made with a nonce.
func (c *k256) sign(secret, nonce, hash *big.Int) (r, s *big.Int) {
	r, _ = c.point(nonce)
	r.Mod(r, c.n)
	s = new(big.Int).Mul(r, secret)
	s.Add(s, hash)
	s.Mul(s, new(big.Int).ModInverse(nonce, c.n))
	return r, s.Mod(s, c.n)
}

// residue is a number modulo the prime of the curve, the lowest word first.
type residue [4]uint64

// fold is 2^256 minus the prime of the curve. So modulo the prime, 2^256 equals
// fold.
const fold = 1<<32 + 977

func residueOf(n *big.Int) (a residue) {
	raw := n.FillBytes(make([]byte, 32))
	for i := range a {
		a[i] = binary.BigEndian.Uint64(raw[24-8*i:])
	}
	return a
}

func (a residue) number() *big.Int {
	raw := make([]byte, 32)
	for i := range a {
		binary.BigEndian.PutUint64(raw[24-8*i:], a[i])
	}
	return new(big.Int).SetBytes(raw)
}

func (a residue) plus(b residue) residue { return a.minus(residue{}.minus(b)) }

func (a residue) minus(b residue) residue {
	var under uint64
	for i := range a {
		a[i], under = bits.Sub64(a[i], b[i], under)
	}
	if under == 0 {
		return a
	}
	a, _ = a.less(fold) // the subtraction made it 2^256 too large
	return a
}

// less returns a-n. If that is below zero, it returns a-n+2^256 and one.
func (a residue) less(n uint64) (residue, uint64) {
	for i := range a {
		a[i], n = bits.Sub64(a[i], n, 0)
	}
	return a, n
}

func (a residue) times(b residue) residue {
	var all [8]uint64
	for i := range a {
		var carry uint64
		for j := range b {
			high, low := bits.Mul64(a[i], b[j])
			var over uint64
			low, over = bits.Add64(low, carry, 0)
			high += over
			all[i+j], over = bits.Add64(all[i+j], low, 0)
			carry = high + over
		}
		all[i+4] = carry
	}
	sum, over := residue(all[:4]), uint64(0)
	for i, word := range all[4:] { // the part above 2^256 counts fold times
		high, low := bits.Mul64(word, fold)
		var carry uint64
		low, carry = bits.Add64(low, over, 0)
		high += carry
		sum[i], carry = bits.Add64(sum[i], low, 0)
		over = high + carry
	}
	return sum.reduced(over)
}

// reduced returns a plus over times 2^256, modulo the prime.
func (a residue) reduced(over uint64) residue {
	for over > 0 {
		high, low := bits.Mul64(over, fold)
		a[0], over = bits.Add64(a[0], low, 0)
		a[1], over = bits.Add64(a[1], high, over)
		a[2], over = bits.Add64(a[2], 0, over)
		a[3], over = bits.Add64(a[3], 0, over)
	}
	p := residue{}.minus(residue{1}) // the largest residue
	if a[3] == p[3] && a[2] == p[2] && a[1] == p[1] && a[0] > p[0] {
		a = residue{a[0] - p[0] - 1}
	}
	return a
}
