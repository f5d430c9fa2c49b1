package nostr

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/btcsuite/btcd/btcec/v2"
	"github.com/btcsuite/btcd/btcec/v2/schnorr"
)

// Hash returns the id that the event must have: the SHA-256 of its canonical text.
func (e *Event) Hash() [32]byte {
	return sha256.Sum256(e.AppendCanonical(make([]byte, 0, 256+len(e.Content)+e.tagBytes())))
}

// tagBytes estimates the length of the tags in JSON.
func (e *Event) tagBytes() int {
	n := 0
	for _, tag := range e.Tags {
		for _, s := range tag {
			n += len(s) + 4
		}
	}
	return n
}

// AppendCanonical appends the text whose hash is the id.
func (e *Event) AppendCanonical(b []byte) []byte {
	b = append(b, `[0,"`...)
	b = hex.AppendEncode(b, e.PubKey[:])
	b = append(b, `",`...)
	b = strconv.AppendInt(b, e.CreatedAt, 10)
	b = append(b, ',')
	b = strconv.AppendInt(b, int64(e.Kind), 10)
	b = append(b, ',')
	b = e.appendTags(b)
	b = append(b, ',')
	b = appendString(b, e.Content)
	return append(b, ']')
}

// AppendJSON appends the event's JSON. Decode reads it.
func (e *Event) AppendJSON(b []byte) []byte {
	b = append(b, `{"id":"`...)
	b = hex.AppendEncode(b, e.ID[:])
	b = append(b, `","pubkey":"`...)
	b = hex.AppendEncode(b, e.PubKey[:])
	b = append(b, `","created_at":`...)
	b = strconv.AppendInt(b, e.CreatedAt, 10)
	b = append(b, `,"kind":`...)
	b = strconv.AppendInt(b, int64(e.Kind), 10)
	b = append(b, `,"tags":`...)
	b = e.appendTags(b)
	b = append(b, `,"content":`...)
	b = appendString(b, e.Content)
	b = append(b, `,"sig":"`...)
	b = hex.AppendEncode(b, e.Sig[:])
	return append(b, `"}`...)
}

func (e *Event) appendTags(b []byte) []byte {
	b = append(b, '[')
	for i, tag := range e.Tags {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		for j, s := range tag {
			if j > 0 {
				b = append(b, ',')
			}
			b = appendString(b, s)
		}
		b = append(b, ']')
	}
	return append(b, ']')
}

// appendString appends a JSON string with the escapes of NIP-01 and no others. It
// escapes the other control characters as all programs do. The NIP demands them
// verbatim, but that would not be JSON.
func appendString(b []byte, s string) []byte {
	const digits = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		case '\b':
			b = append(b, `\b`...)
		case '\f':
			b = append(b, `\f`...)
		default:
			b = append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
	}
	return append(append(b, s[from:]...), '"')
}

// CheckID returns an error if the id is not the hash of the event.
func (e *Event) CheckID() error {
	if hash := e.Hash(); hash != e.ID {
		return &Invalid{
			Cause: "the id is not the hash of the event", Path: "/id", Expected: hex.EncodeToString(hash[:]), Received: hex.EncodeToString(e.ID[:]),
		}
	}
	return nil
}

// CheckSignature returns an error if the author has not signed the id. Check the id
// as well.
func (e *Event) CheckSignature() error {
	key, err := schnorr.ParsePubKey(e.PubKey[:])
	if err != nil {
		return &Invalid{Cause: "the author is not a public key: " + err.Error(), Path: "/pubkey"}
	}
	sig, err := schnorr.ParseSignature(e.Sig[:])
	if err != nil || !sig.Verify(e.ID[:], key) {
		return &Invalid{Cause: "the signature is not of the author", Path: "/sig"}
	}
	return nil
}

// Sign sets the public key of a secret key as the author, the id and the signature.
func (e *Event) Sign(secret [32]byte) error {
	private, public := btcec.PrivKeyFromBytes(secret[:])
	e.PubKey = [32]byte(schnorr.SerializePubKey(public))
	e.ID = e.Hash()
	sig, err := schnorr.Sign(private, e.ID[:])
	if err != nil {
		return fmt.Errorf("sign an event: %w", err)
	}
	e.Sig = [64]byte(sig.Serialize())
	return nil
}
