package negentropy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// events returns the events from one number to another, three per second.
func events(from, to int) (all []Item) {
	for i := from; i < to; i++ {
		all = append(all, Item{At: 1_700_000_000 + int64(i/3), ID: sha256.Sum256(fmt.Appendf(nil, "event %d", i))})
	}
	return all
}

func bytesOf(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	require.NoError(t, err)
	return b
}

// Messages of another implementation, go-nostr.
const (
	ofTwo = "61000002025beeaf427ee0bfcd1a7b6f63010f2745110cf23ae088b859275cd0aad369561bfb378474af5953bec611fcb2602c5b61271c1f233b60c0ad" +
		"ba76d5d6f47a50c4"
	ofHundred = "6186aacfe203018d015e7408d6c0ca68a6e09fd0e848755faa0301ee01416ce3ff63cb9de39676b3ff41f872d104000182ceb142f8ad3300" +
		"02a393fd68e0a3ef0301be01ec4dee5ead71dd90b9cc97abb9de72f3" +
		"0301a201d38dc62c3eeb2134954c675397b294fa03012b01442d9e5139ab3de6bb04d5331c2fa7360301e501c66271d786779c18ae074105" +
		"b4571f7c03015201cd01ddabdcde3a8a8f4615eca3760d7903014d013d84e592af726bf531f02548c49d0048" +
		"03018f01188f73644c4a2dd4945081e9c2cfaed503010701c6577d001ff92ef92140ecd8b31c8102030157015a835c587c4ed8f0f59bce28" +
		"e894967803011801a8daad7d6cf508791fddab5b98246dc2" +
		"03019e010458de0ede3f4f53e936abc40698c2ed03016a0129daac138a4fce9e9ba6ede632b7855e0000010e5e41520464fa796bb85db7dc4634ef"
	// From a relay that has the events 1 to 99, to a client that has 0 to 98.
	replied = "6186aacfe203018d02067f1ee17eb6d4b1815c8c0580dfb7ca0d3d5c3cde523da817ef7d3b1e96f6d5b8fb378474af5953bec611fcb2602c" +
		"5b61271c1f233b60c0adba76d5d6f47a50c4" +
		"2d245d477b973c0895afc098b46762967f728e5aec8555d81ceaf1996d4c33e06c5cd6775eb412207f7f71f11f09047f1475b2b752606319" +
		"5b777a230fe4c2a683f7ef85cb0d5e50e4ff823f62961cc134c90fa0619b8a76606d89382a12bcf9" +
		"15e98ed480b8f8ba9c9b3b94eb7a12a19c5dec19db4e4a5ed9a63ac5c65c14471e0000000002073d28175f1a997d9872f625b6493b8ab729" +
		"337966d2ae41c8bc5819f2a62d16936a4177570b67c5a01fa63c8b9c4bb174c25c43ad9d530bec74d012bacedf4b28" +
		"ec27ac0ed6c22e03d6ae379ddfeaded5845e645da8d4b847569a8f94d6552a1e265d46e6286d3d52b5c67b659f2e4cb7a585676785c48ca3" +
		"55b4c59b2aa199f737df80a82d8574cd382bac37de286557bb73c07426b669ee2b4bd500dca75cecef6a1f37" +
		"68612d786d3bc9c5c4c3ee011c1916f9ccd9feb5db89695160a09fca3f7cbecc2e1f2e2cf76c0650a9f7531f867a791cba29d12137a9e8c8eefa9d41"
)

func TestMessagesAreThoseOfOthers(t *testing.T) {
	t.Parallel()
	require.Equal(t, ofTwo, hex.EncodeToString(New(events(0, 2), 0, 10).Begin()))
	require.Equal(t, ofHundred, hex.EncodeToString(New(events(0, 100), 0, 10).Begin()))
	s := New(events(0, 99), 0, 10)
	reply, err := s.Answer(bytesOf(t, replied))
	require.NoError(t, err)
	require.Nil(t, reply)
	require.Equal(t, [][32]byte{events(99, 100)[0].ID}, s.Missing())
}

func TestHostileMessagesAreRefused(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("ab", 32)
	for name, message := range map[string]string{
		"nothing":                     "",
		"another version":             "62",
		"a bound without an end":      "6186",
		"a number beyond 64 bits":     "61ffffffffffffffffffff7f0002",
		"dates beyond 64 bits":        "6181ffffffffffffffffff7e000081ffffffffffffffffff7e0000",
		"a bound longer than an id":   "61000021" + id + "ab00",
		"a bound that is cut":         "61010210",
		"an unknown mode":             "61000003",
		"a fingerprint that is cut":   "61000001" + id[:30],
		"more ids than there are":     "610000028fffffffffffffff7f" + id,
		"ids that are cut":            "61000002" + "02" + id,
		"bounds that are not ordered": "6102" + "01ff00" + "01" + "01ee00",
		"ranges after the last":       "61000000" + "0101ab00" + "0100",
	} {
		_, err := New(events(0, 40), 0, 10).Answer(bytesOf(t, message))
		require.Error(t, err, name)
	}
	_, err := New(nil, 0, 2).Answer(bytesOf(t, "61000002"+"03"+id+id+id))
	require.ErrorIs(t, err, ErrMany)
}

// TestRestIsLeftForTheNextMessage shows that the reply to a message with many differences is not
// longer than a message may be, and ends with a fingerprint of the rest.
func TestRestIsLeftForTheNextMessage(t *testing.T) {
	t.Parallel()
	have := events(0, 40_000)
	w := writer{buf: []byte{version}}
	for i := 100; i < len(have); i += 100 {
		w.fingerprint(between(have[i-1], have[i]), nil)
	}
	w.fingerprint(infinity, nil)
	s := New(have, 4096, 10)
	reply, err := s.Answer(w.buf)
	require.NoError(t, err)
	require.LessOrEqual(t, len(reply), 4096)
	require.Greater(t, len(reply), 3000)
	r := reader{buf: reply[1:]}
	var last uint64
	for len(r.buf) > 0 {
		to, mode, err := r.rangeEnd()
		require.NoError(t, err)
		require.EqualValues(t, modeFingerprint, mode)
		_, err = r.bytes(fingerprintSize)
		require.NoError(t, err)
		last = to.at
	}
	require.Equal(t, infinity.at, last)
}

// FuzzAnswer checks that no message of a relay makes us ask endlessly for events that do not exist,
// or send a message that is too long.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{ofTwo, ofHundred, replied, "61", "6100000200", "61000001" + strings.Repeat("00", 16)} {
		b, err := hex.DecodeString(seed)
		require.NoError(f, err)
		f.Add(b)
	}
	have := events(0, 100)
	f.Fuzz(func(t *testing.T, message []byte) {
		s := New(have, 4096, 1000)
		reply, err := s.Answer(message)
		require.LessOrEqual(t, len(reply), 4096)
		require.LessOrEqual(t, len(s.Missing()), len(message)/32)
		if err == nil && reply != nil {
			_, err = New(have, 4096, 1000).Answer(reply) // our own messages can be read
			require.NoError(t, err)
		}
	})
}
