package simnet

import "math/big"

// k256 is the curve secp256k1, for signatures only. The standard library does not
// have it, and a library would be the one that verifies.
type k256 struct {
	p, n   *big.Int
	powers [256][2]*big.Int // the base point times each power of two
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
	for i := range c.powers {
		c.powers[i] = [2]*big.Int{x, y}
		slope := c.mul(c.mul(big.NewInt(3), c.mul(x, x)), new(big.Int).ModInverse(new(big.Int).Lsh(y, 1), c.p))
		twice := c.sub(c.sub(c.mul(slope, slope), x), x)
		x, y = twice, c.sub(c.mul(slope, c.sub(x, twice)), y)
	}
	return c
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
	for i := range k.BitLen() {
		if k.Bit(i) == 0 {
			continue
		}
		power := c.powers[i]
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
