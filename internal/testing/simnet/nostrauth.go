package simnet

import (
	"encoding/hex"
	"math/big"
	"slices"
	"strings"
	"time"
)

// nostrAnswer is the event with which a client authenticates, see NIP-42.
type nostrAnswer struct {
	ID        string     `json:"id"`
	Author    string     `json:"pubkey"`
	CreatedAt int64      `json:"created_at"`
	Kind      int        `json:"kind"`
	Tags      [][]string `json:"tags"`
	Content   string     `json:"content"`
	Sig       string     `json:"sig"`
}

// challengeWithin is how far the date of such an event may be from now.
const challengeWithin = 10 * time.Minute

// recognise returns why the event is invalid; "": the client is authenticated.
func (r *nostrRelay) recognise(a *nostrAnswer, now time.Time) string {
	e := NostrEvent{ID: a.ID, Author: a.Author, Sig: a.Sig, CreatedAt: a.CreatedAt, Kind: a.Kind, Tags: a.Tags, Content: a.Content}
	tagged := func(name, value string) bool {
		return slices.ContainsFunc(a.Tags, func(t []string) bool { return len(t) > 1 && t[0] == name && strings.TrimSuffix(t[1], "/") == value })
	}
	switch {
	case a.Kind != 22242:
		return "invalid: another kind"
	case !tagged("challenge", "who is there"):
		return "invalid: another challenge"
	case !tagged("relay", r.url()):
		return "invalid: of another relay"
	case now.Sub(time.Unix(a.CreatedAt, 0)).Abs() > challengeWithin:
		return "invalid: not of now"
	case e.hash() != a.ID:
		return "invalid: not the id of the event"
	case !r.curve.verified(&e):
		return "invalid: not signed by its author"
	}
	return ""
}

// verified reports whether an event has the BIP-340 signature of its author.
func (c *k256) verified(e *NostrEvent) bool {
	key, keyErr := hex.DecodeString(e.Author)
	sig, sigErr := hex.DecodeString(e.Sig)
	message, idErr := hex.DecodeString(e.ID)
	if keyErr != nil || sigErr != nil || idErr != nil || len(key) != 32 || len(sig) != 64 {
		return false
	}
	x, s := new(big.Int).SetBytes(key), new(big.Int).SetBytes(sig[32:])
	right := new(big.Int).Exp(x, big.NewInt(3), c.p)
	y := new(big.Int).ModSqrt(right.Add(right, big.NewInt(7)).Mod(right, c.p), c.p)
	if x.Cmp(c.p) >= 0 || s.Sign() == 0 || s.Cmp(c.n) >= 0 || y == nil {
		return false
	}
	if y.Bit(0) == 1 {
		y.Sub(c.p, y)
	}
	challenge := schnorrChallenge(sig[:32], key, message)
	challenge.Sub(c.n, challenge.Mod(challenge, c.n))
	baseX, baseY := c.point(s)
	nonce := c.add([2]residue{residueOf(baseX), residueOf(baseY)}, c.times([2]residue{residueOf(x), residueOf(y)}, challenge))
	return nonce[1].number().Bit(0) == 0 && nonce[0].number().Cmp(new(big.Int).SetBytes(sig[:32])) == 0
}

// times returns a point times k, which is not zero. It is slow.
func (c *k256) times(point [2]residue, k *big.Int) [2]residue {
	sum := point
	for bit := k.BitLen() - 2; bit >= 0; bit-- {
		if sum = c.add(sum, sum); k.Bit(bit) == 1 {
			sum = c.add(sum, point)
		}
	}
	return sum
}
