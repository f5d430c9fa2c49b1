package simnet

import "math/big"

// k256 is the curve secp256k1, for signatures only. The standard library does not
// have it, and a library would be the one that verifies.
type k256 struct {
	p, n  *big.Int
	table [64][15][2]*big.Int // the base point times 1 to 15, times each power of 16
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
	one := [2]*big.Int{x, y}
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
func (c *k256) add(a, b [2]*big.Int) [2]*big.Int {
	rise, run := c.sub(b[1], a[1]), c.sub(b[0], a[0])
	if run.Sign() == 0 { // the same point: the tangent
		rise, run = c.mul(big.NewInt(3), c.mul(a[0], a[0])), new(big.Int).Lsh(a[1], 1)
	}
	slope := c.mul(rise, new(big.Int).ModInverse(run, c.p))
	x := c.sub(c.sub(c.mul(slope, slope), a[0]), b[0])
	return [2]*big.Int{x, c.sub(c.mul(slope, c.sub(a[0], x)), a[1])}
}

func (c *k256) mul(a, b *big.Int) *big.Int {
	out := new(big.Int).Mul(a, b)
	return out.Mod(out, c.p)
}

func (c *k256) sub(a, b *big.Int) *big.Int {
	out := new(big.Int).Sub(a, b)
	return out.Mod(out, c.p)
}

// point returns the base point times k, which is neither 0 nor a multiple of the
// order.
func (c *k256) point(k *big.Int) (x, y *big.Int) {
	var z *big.Int // x and y are to be divided by its square and its cube; nil: nothing was added yet
	digits := k.FillBytes(make([]byte, 32))
	for i := range c.table {
		digit := digits[31-i/2] >> (4 * (i % 2)) & 15
		if digit == 0 {
			continue
		}
		power := c.table[i][digit-1]
		if z == nil {
			x, y, z = power[0], power[1], big.NewInt(1)
			continue
		}
		square := c.mul(z, z)
		h, r := c.sub(c.mul(power[0], square), x), c.sub(c.mul(power[1], c.mul(z, square)), y)
		h2 := c.mul(h, h)
		h3, v := c.mul(h, h2), c.mul(x, h2)
		x = c.sub(c.sub(c.mul(r, r), h3), new(big.Int).Lsh(v, 1))
		y = c.sub(c.mul(r, c.sub(v, x)), c.mul(y, h3))
		z = c.mul(z, h)
	}
	inverse := new(big.Int).ModInverse(z, c.p)
	square := c.mul(inverse, inverse)
	return c.mul(x, square), c.mul(y, c.mul(inverse, square))
}

// sign returns a signature of a hash with a nonce.
func (c *k256) sign(secret, nonce, hash *big.Int) (r, s *big.Int) {
	r, _ = c.point(nonce)
	r.Mod(r, c.n)
	s = new(big.Int).Mul(r, secret)
	s.Add(s, hash)
	s.Mul(s, new(big.Int).ModInverse(nonce, c.n))
	return r, s.Mod(s, c.n)
}
