package simnet

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Nostr is a simulated network of authors and of relays whose events overlap. It writes and
// signs events with code of its own. Its methods are safe for concurrent use.
type Nostr struct {
	cfg    NostrConfig
	curve  *k256
	relays []*nostrRelay

	mu      sync.Mutex // guards what follows
	random  *rand.Rand
	now     int64 // the date of the next event, in seconds
	authors []*nostrAuthor
	written []*NostrEvent
	forged  []*NostrEvent

	rightClocks bool
}

// NostrConfig configures a simulated network.
type NostrConfig struct {
	Seed    uint64
	Authors int
	Forged  float64      // the fraction of events that are followed by a forged or unreadable one
	Now     time.Time    // the date of the first event
	Relays  []NostrRelay // each event is stored by one to all of them
	Refer   bool         // some events repost or quote others, or expire within seconds
}

type nostrAuthor struct {
	secret *big.Int
	key    string // public, in hexadecimal
	notes  []*NostrEvent
}

// NostrEvent is an event as its author wrote it, in the network's spelling.
type NostrEvent struct {
	ID, Author, Sig string
	CreatedAt       int64
	Kind            int
	Tags            [][]string
	Content         string

	text string // its JSON
}

// NewNostr makes a network and starts its relays.
func NewNostr(cfg NostrConfig) (*Nostr, error) {
	n := &Nostr{cfg: cfg, curve: newK256(), random: rand.New(rand.NewPCG(cfg.Seed, 9)), now: cfg.Now.Unix()} // not for real keys
	for i := range cfg.Authors {
		hash := sha256.Sum256(fmt.Appendf(nil, "author %d %d", cfg.Seed, i))
		a := &nostrAuthor{secret: new(big.Int).SetBytes(hash[:])}
		x, y := n.curve.point(a.secret)
		if y.Bit(0) == 1 { // a public key stands for the point with the even half
			a.secret.Sub(n.curve.n, a.secret)
		}
		a.key = hex.EncodeToString(x.FillBytes(make([]byte, 32)))
		n.authors = append(n.authors, a)
	}
	for _, cfg := range cfg.Relays {
		r, err := startNostrRelay(cfg, n.curve)
		if err != nil {
			n.Stop()
			return nil, err
		}
		n.relays = append(n.relays, r)
	}
	return n, nil
}

// Stop stops the relays.
func (n *Nostr) Stop() {
	for _, r := range n.relays {
		r.stop()
	}
}

// URLs returns the addresses of the relays.
func (n *Nostr) URLs() []string {
	var all []string
	for _, r := range n.relays {
		all = append(all, r.url())
	}
	return all
}

// Cut ends all connections of all relays.
func (n *Nostr) Cut() {
	for _, r := range n.relays {
		r.cut()
	}
}

// Events returns the events that authors wrote, without forged events.
func (n *Nostr) Events() []*NostrEvent {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.written)
}

// Forged returns the forged events.
func (n *Nostr) Forged() []*NostrEvent {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.forged)
}

// Play makes the authors write some events. They reach the relays in a different order.
func (n *Nostr) Play(count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var published []*NostrEvent
	for range count {
		e := n.write()
		n.written = append(n.written, e)
		published = append(published, e)
		if n.random.Float64() < n.cfg.Forged {
			forged := n.forge(e)
			n.forged = append(n.forged, forged)
			published = append(published, forged)
		}
	}
	n.random.Shuffle(len(published), func(i, j int) { published[i], published[j] = published[j], published[i] })
	for _, e := range published {
		n.publish(e)
	}
}

// Write makes the first author write an event. All relays get it.
func (n *Nostr) Write(createdAt int64, kind int, tags [][]string, content string) *NostrEvent {
	return n.WriteAs(0, nil, createdAt, kind, tags, content)
}

// WriteAs makes an author write an event. The relays in at get it; all relays if at is nil.
func (n *Nostr) WriteAs(author int, at []int, createdAt int64, kind int, tags [][]string, content string) *NostrEvent {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.sign(n.authors[author], createdAt, kind, tags, content)
	n.written = append(n.written, e)
	for i, r := range n.relays {
		if at == nil || slices.Contains(at, i) {
			r.store(e)
		}
	}
	return e
}

// Put sends an event to a relay once more, as a client or another relay does.
func (n *Nostr) Put(relay int, e *NostrEvent) { n.relays[relay].store(e) }

// Key returns the public key of an author, in hexadecimal.
func (n *Nostr) Key(author int) string { return n.authors[author].key }

// Forge returns an event with the author's key that the author has not signed.
func (n *Nostr) Forge(author int, createdAt int64, kind int, tags [][]string, content string) *NostrEvent {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.sign(n.authors[author], createdAt, kind, tags, content)
	e.Sig = e.Sig[:64] + strings.Repeat("0", 63) + "1"
	e.text = e.json()
	return e
}

// Requests returns the requests that a relay received, in order.
func (n *Nostr) Requests(relay int) []NostrRequest {
	r := n.relays[relay]
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked)
}

// Compared returns how many sets of events clients have compared with a relay's set.
func (n *Nostr) Compared(relay int) int {
	r := n.relays[relay]
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.compared
}

// publish stores an event on one to all relays.
func (n *Nostr) publish(e *NostrEvent) {
	at := n.random.Perm(len(n.relays))
	for _, i := range at[:1+n.random.IntN(len(at))] {
		n.relays[i].store(e)
	}
}

// write makes one event of a random author.
func (n *Nostr) write() *NostrEvent {
	if n.random.IntN(8) == 0 { // many events have the same date
		n.now++
	}
	at := n.now
	if n.random.IntN(20) == 0 && !n.rightClocks { // an author whose clock is wrong
		at += int64(n.random.IntN(6*86400)) - 3*86400
	}
	a := n.authors[n.random.IntN(len(n.authors))]
	text := fmt.Sprintf("note %d <a&b> \u2028 \\ \"quoted\"\n\x01 é 😀 https://news.example/%d", len(n.written), n.random.IntN(50))
	if n.random.IntN(300) == 0 {
		return n.sign(a, at, 62, [][]string{{"relay", "ALL_RELAYS"}}, "")
	}
	if n.cfg.Refer && n.random.IntN(4) == 0 {
		if e := n.refer(a, at, text); e != nil {
			return e
		}
	}
	switch d := n.random.IntN(100); {
	case d < 8:
		return n.sign(a, at, 0, nil, `{"name":"`+text[:8]+`"}`)
	case d < 14:
		return n.sign(a, at, 3, [][]string{{"p", n.authors[0].key}, {"p", "junk"}}, "")
	case d < 26:
		return n.sign(a, at, 30023, [][]string{{"d", n.address()}}, text)
	case d < 38:
		return n.sign(a, at, 5, n.deletion(a), "")
	case d < 42:
		return n.sign(a, at, 1, [][]string{{"expiration", strconv.FormatInt(n.now-10*86400, 10)}}, text)
	case d < 44:
		return n.sign(a, at, 1, nil, text+"\x00")
	}
	e := n.sign(a, at, 1, [][]string{{"t", "<tag>"}, {}}, text)
	a.notes = append(a.notes, e)
	return e
}

// RightClocks corrects the clocks of all authors: the next events are dated from now on.
func (n *Nostr) RightClocks(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rightClocks, n.now = true, now.Unix()
}

// refer makes an event that reposts or quotes another one, or expires soon. It returns nil
// if there is no event to refer to.
func (n *Nostr) refer(a *nostrAuthor, at int64, text string) *NostrEvent {
	of := n.authors[n.random.IntN(len(n.authors))]
	soon := []string{"expiration", strconv.FormatInt(time.Now().Unix()+1+int64(n.random.IntN(4)), 10)}
	article := []string{"a", "30023:" + of.key + ":" + n.address()}
	kind := n.random.IntN(8)
	if kind < 4 && len(of.notes) == 0 {
		return nil
	}
	switch kind {
	case 0:
		note := of.notes[n.random.IntN(len(of.notes))]
		return n.sign(a, at, 6, [][]string{{"e", note.ID}, {"p", of.key}}, "")
	case 1:
		note := of.notes[n.random.IntN(len(of.notes))]
		return n.sign(a, at, 6, [][]string{{"e", note.ID}}, note.text)
	case 2:
		note := of.notes[n.random.IntN(len(of.notes))]
		return n.sign(a, at, 1, [][]string{{"q", note.ID, "", of.key}}, "look at note "+strconv.Itoa(len(n.written)))
	case 3:
		note := of.notes[n.random.IntN(len(of.notes))]
		return n.sign(a, at, 16, [][]string{{"e", note.ID}, {"k", "1"}, {"p", of.key}}, "")
	case 4:
		return n.sign(a, at, 16, [][]string{article, {"k", "30023"}}, "")
	case 5:
		return n.sign(a, at, 30023, [][]string{{"d", n.address()}, soon}, text)
	}
	e := n.sign(a, at, 1, [][]string{soon}, text)
	a.notes = append(a.notes, e)
	return e
}

// address returns one of a few d tags.
func (n *Nostr) address() string {
	return []string{"", "one", "two words", "#three", strings.Repeat("long", 200)}[n.random.IntN(5)]
}

// deletion returns the tags of a deletion request: for an event of the author, which other
// relays may bring later, for somebody else's event, or for an address.
func (n *Nostr) deletion(a *nostrAuthor) [][]string {
	other := n.authors[n.random.IntN(len(n.authors))]
	if n.random.IntN(3) == 0 {
		return [][]string{{"a", "30023:" + a.key + ":" + n.address()}, {"a", "30023:" + other.key + ":one"}, {"a", "3:" + other.key + ":"}}
	}
	var tags [][]string
	for _, of := range []*nostrAuthor{a, other} {
		if len(of.notes) > 0 {
			tags = append(tags, []string{"e", of.notes[n.random.IntN(len(of.notes))].ID})
		}
	}
	return append(tags, []string{"e", "junk"}, []string{"e"})
}

// forge returns an event that nobody has signed, or that cannot be read.
func (n *Nostr) forge(e *NostrEvent) *NostrEvent {
	f := *e
	switch n.random.IntN(5) {
	case 0: // another text under the same id
		f.Content += " forged"
	case 1: // another text, with the id that it would have
		f.Content += " forged"
		f.ID = f.hash()
	case 2: // another author
		f.Author = n.authors[n.random.IntN(len(n.authors))].key
		f.CreatedAt++
		f.ID = f.hash()
	case 3: // a signature of something else
		f.Sig = f.Sig[:64] + strings.Repeat("0", 63) + "1"
		f.Content += " "
		f.ID = f.hash()
	case 4: // not an event
		f.text = strings.Replace(e.text, `"kind":`, `"kind":"1`, 1)
		return &f
	}
	f.text = f.json()
	return &f
}

// sign returns a signed event.
func (n *Nostr) sign(a *nostrAuthor, createdAt int64, kind int, tags [][]string, content string) *NostrEvent {
	e := &NostrEvent{Author: a.key, CreatedAt: createdAt, Kind: kind, Tags: tags, Content: content}
	e.ID = e.hash()
	e.Sig = n.schnorr(a, e.ID)
	e.text = e.json()
	return e
}

// hash returns the event's id.
func (e *NostrEvent) hash() string {
	sum := sha256.Sum256(fmt.Appendf(nil, `[0,"%s",%d,%d,%s,%s]`, e.Author, e.CreatedAt, e.Kind, nostrTags(e.Tags), nostrText(e.Content)))
	return hex.EncodeToString(sum[:])
}

func (e *NostrEvent) json() string {
	return fmt.Sprintf(`{"sig":"%s","content":%s,"tags":%s,"kind":%d,"created_at":%d,"pubkey":"%s","id":"%s"}`,
		e.Sig, nostrText(e.Content), nostrTags(e.Tags), e.Kind, e.CreatedAt, e.Author, e.ID)
}

func nostrTags(tags [][]string) string {
	all := make([]string, len(tags))
	for i, tag := range tags {
		quoted := make([]string, len(tag))
		for j, s := range tag {
			quoted[j] = nostrText(s)
		}
		all[i] = "[" + strings.Join(quoted, ",") + "]"
	}
	return "[" + strings.Join(all, ",") + "]"
}

func nostrText(s string) string {
	const escaped = "\"\\\n\r\t\b\f"
	text := append(make([]byte, 0, len(s)+2), '"')
	for i := range len(s) {
		switch at := strings.IndexByte(escaped, s[i]); {
		case at >= 0:
			text = append(text, '\\', `"\nrtbf`[at])
		case s[i] < 32:
			text = fmt.Appendf(text, `\u%04x`, s[i])
		default:
			text = append(text, s[i])
		}
	}
	return string(append(text, '"'))
}

// schnorrChallenge returns the number by which a signature multiplies the secret key.
func schnorrChallenge(r, key, message []byte) *big.Int {
	tag := sha256.Sum256([]byte("BIP0340/challenge"))
	hash := sha256.Sum256(slices.Concat(tag[:], tag[:], r, key, message))
	return new(big.Int).SetBytes(hash[:])
}

// schnorr returns the BIP-340 signature of an id.
func (n *Nostr) schnorr(a *nostrAuthor, id string) string {
	c := n.curve
	message, _ := hex.DecodeString(id)
	key, _ := hex.DecodeString(a.key)
	hash := sha256.Sum256(append(a.secret.FillBytes(make([]byte, 32)), message...))
	nonce := new(big.Int).SetBytes(hash[:])
	x, y := c.point(nonce)
	if y.Bit(0) == 1 {
		nonce.Sub(c.n, nonce)
	}
	r := x.FillBytes(make([]byte, 32))
	s := schnorrChallenge(r, key, message)
	s.Mul(s, a.secret).Add(s, nonce).Mod(s, c.n)
	return hex.EncodeToString(append(r, s.FillBytes(make([]byte, 32))...))
}
