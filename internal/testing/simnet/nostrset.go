package simnet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"sort"
	"strings"
)

// NostrSync says how a relay compares sets of events, see NIP-77.
type NostrSync int

// Most of these are faults.
const (
	SyncUnknown  NostrSync = iota // it does not know the message: it sends a notice
	SyncAnswers                   // it follows the specification
	SyncBlocked                   // it refuses
	SyncExpires                   // it forgets the comparison after its first reply
	SyncSilent                    // it does not reply
	SyncNonsense                  // its messages are invalid
	SyncEndless                   // it always finds another difference
	SyncInvents                   // it names events that do not exist
)

// nostrSet is the set that a client compares, ordered by date, oldest first, and then by id.
type nostrSet struct {
	events  []*NostrEvent
	answers int
}

// compare handles NEG-OPEN, NEG-MSG and NEG-CLOSE.
func (s *nostrSession) compare(kind string, parts []json.RawMessage) error {
	var sub, text string
	if err := json.Unmarshal(parts[1], &sub); err != nil {
		return err
	}
	r := s.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.cfg.Sync == SyncUnknown:
		return errors.New("bad message: unknown cmd")
	case kind == `"NEG-CLOSE"`:
		delete(s.sets, sub)
		return nil
	case len(parts) < 3 || json.Unmarshal(parts[len(parts)-1], &text) != nil:
		return errors.New("a message is missing")
	case r.cfg.Auth && !s.known:
		s.queue(fmt.Sprintf(`["NEG-ERR","%s","auth-required: who are you?"]`, sub))
		return nil
	case r.cfg.Sync == SyncBlocked:
		s.queue(fmt.Sprintf(`["NEG-ERR","%s","blocked: too many query results"]`, sub))
		return nil
	case r.cfg.Sync == SyncSilent:
		return nil
	}
	if kind == `"NEG-OPEN"` {
		var f nostrFilter
		if err := json.Unmarshal(parts[2], &f); err != nil {
			return err
		}
		set := &nostrSet{}
		for _, e := range r.stored {
			if f.matches(e) {
				set.events = append(set.events, e)
			}
		}
		slices.SortFunc(set.events, func(a, b *NostrEvent) int {
			if a.CreatedAt != b.CreatedAt {
				return int(a.CreatedAt - b.CreatedAt)
			}
			return strings.Compare(a.ID, b.ID)
		})
		s.sets[sub] = set
		r.compared++
	}
	set := s.sets[sub]
	if set == nil || r.cfg.Sync == SyncExpires && set.answers > 0 {
		s.queue(fmt.Sprintf(`["NEG-ERR","%s","closed: unknown subscription handle"]`, sub))
		return nil
	}
	set.answers++
	message, err := hex.DecodeString(text)
	if err != nil {
		return err
	}
	var reply []byte
	switch r.cfg.Sync {
	case SyncNonsense:
		reply = []byte("no message")
	case SyncEndless:
		reply = append([]byte{0x61, 0, 0, 1}, make([]byte, 16)...)
	case SyncInvents:
		reply = []byte{0x61, 0, 0, 2, 100}
		for i := range 100 {
			id := sha256.Sum256(fmt.Appendf(nil, "invented %d", i))
			reply = append(reply, id[:]...)
		}
	default:
		if reply, err = set.reply(message); err != nil {
			return err
		}
	}
	s.queue(fmt.Sprintf(`["NEG-MSG","%s","%x"]`, sub, reply))
	return nil
}

// nostrBound is the end of a range.
type nostrBound struct {
	at  int64 // -1: after everything
	hex string
}

// reply replies to a message of a client. For a range with ids it sends the relay's ids. For
// a range whose fingerprint differs it sends the ids of the range, or the fingerprints of
// four parts of it.
func (c *nostrSet) reply(message []byte) ([]byte, error) {
	in := &nostrBytes{left: message}
	if in.one() != 0x61 {
		return []byte{0x61}, nil
	}
	out := []byte{0x61}
	var read, wrote int64
	var from int
	skipped := false
	var last nostrBound
	write := func(b nostrBound, mode uint64) {
		if since := b.at - wrote + 1; b.at < 0 {
			out = nostrNumber(out, 0)
		} else {
			out, wrote = nostrNumber(out, uint64(since)), b.at // dates ascend
		}
		prefix, _ := hex.DecodeString(b.hex)
		out = append(nostrNumber(out, uint64(len(prefix))), prefix...)
		out = nostrNumber(out, mode)
	}
	begin := func(b nostrBound, mode uint64) {
		if skipped {
			write(last, 0)
			skipped = false
		}
		write(b, mode)
	}
	for len(in.left) > 0 && !in.broken {
		end := nostrBound{at: -1}
		if since := in.number(); since > 0 {
			read += int64(since) - 1 // the client is ours
			end.at = read
		}
		end.hex = hex.EncodeToString(in.some(int(in.number()))) // some checks the length
		to := len(c.events)
		if end.at >= 0 {
			to = sort.Search(to, func(i int) bool {
				e := c.events[i]
				return e.CreatedAt > end.at || e.CreatedAt == end.at && e.ID >= end.hex
			})
		}
		part := c.events[min(from, to):to]
		switch in.number() {
		case 0:
			skipped = true
		case 1:
			switch theirs := in.some(16); {
			case string(theirs) == string(nostrFingerprint(part)):
				skipped = true
			case len(part) < 8:
				begin(end, 2)
				out = nostrIDs(out, part)
			default:
				for i := range 4 {
					first, next := len(part)*i/4, len(part)*(i+1)/4
					until := end
					if i < 3 { // the whole id: no shorter than necessary, but correct
						until = nostrBound{part[next].CreatedAt, part[next].ID}
					}
					begin(until, 1)
					out = append(out, nostrFingerprint(part[first:next])...)
				}
			}
		case 2:
			in.some(32 * int(in.number())) // some checks the length
			begin(end, 2)
			out = nostrIDs(out, part)
		}
		from, last = to, end
	}
	if in.broken {
		return nil, errors.New("the message is cut")
	}
	return out, nil
}

// nostrFingerprint computes a fingerprint as the specification describes it.
func nostrFingerprint(events []*NostrEvent) []byte {
	sum := new(big.Int)
	for _, e := range events {
		id, _ := hex.DecodeString(e.ID)
		slices.Reverse(id)
		sum.Add(sum, new(big.Int).SetBytes(id))
	}
	sum.And(sum, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1)))
	b := sum.FillBytes(make([]byte, 32))
	slices.Reverse(b)
	hash := sha256.Sum256(nostrNumber(b, uint64(len(events))))
	return hash[:16]
}

func nostrIDs(out []byte, events []*NostrEvent) []byte {
	out = nostrNumber(out, uint64(len(events)))
	for _, e := range events {
		id, _ := hex.DecodeString(e.ID)
		out = append(out, id...)
	}
	return out
}

// nostrNumber appends a number in base 128.
func nostrNumber(out []byte, n uint64) []byte {
	digits := []byte{byte(n % 128)}
	for n /= 128; n > 0; n /= 128 {
		digits = append(digits, 128+byte(n%128))
	}
	slices.Reverse(digits)
	return append(out, digits...)
}

// nostrBytes reads a message.
type nostrBytes struct {
	left   []byte
	broken bool
}

func (b *nostrBytes) some(n int) []byte {
	if n < 0 || n > len(b.left) {
		b.left, b.broken = nil, true
		return nil
	}
	taken := b.left[:n]
	b.left = b.left[n:]
	return taken
}

func (b *nostrBytes) one() byte {
	if taken := b.some(1); len(taken) == 1 {
		return taken[0]
	}
	return 0
}

func (b *nostrBytes) number() (n uint64) {
	for {
		digit := b.one()
		if n = n*128 + uint64(digit%128); digit < 128 {
			return n
		}
	}
}
