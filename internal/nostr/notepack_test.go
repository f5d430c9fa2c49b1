package nostr_test

import (
	_ "embed"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/nostr"
)

// notepacks are the forms of five events, on which an independent encoder agreed.
//
//go:embed testdata/notepack.txt
var notepacks string

// packedEvents returns the events of the five forms.
func packedEvents() []nostr.Event {
	of := func(id, key, sig byte, at int64, kind int, content string, tags ...[]string) nostr.Event {
		e := nostr.Event{CreatedAt: at, Kind: kind, Content: content, Tags: append([][]string{}, tags...)}
		for i := range e.ID {
			e.ID[i], e.PubKey[i], e.Sig[i], e.Sig[32+i] = id, key, sig, sig
		}
		return e
	}
	digits := strings.Repeat
	return []nostr.Event{
		of(0, 0x11, 0x22, 1720000000, 0, "hello", []string{"e", digits("aa", 32), "wss://relay.example.com"}, []string{"p", digits("bb", 32)}),
		of(0xff, 0x01, 0xfe, 0, 1, ""),
		of(0xab, 0xcd, 0xef, 4294967296, 65535, "line\n\"q\" \\ \x01 é 😀", []string{}, []string{""},
			[]string{"t", "ABCD", "abcd", "abc", "12", "0x12", "é"}, []string{"d", ""}),
		of(0x10, 0x20, 0x30, 127, 128, digits("x", 128), []string{"p", digits("33", 32)}, []string{"e", digits("44", 31)},
			[]string{"e", digits("55", 64)}),
		of(0x40, 0x50, 0x60, 1753900182, 30023, "deadbeef", []string{"d", "2024"}, []string{"a", "30023:" + digits("50", 32) + ":2024"},
			[]string{"expiration", "1700000000"}, []string{"r", "https://example.com/a"}),
	}
}

func TestNotepackVectors(t *testing.T) {
	t.Parallel()
	lines := strings.Fields(notepacks)
	events := packedEvents()
	require.Len(t, lines, len(events))
	for i, e := range events {
		require.Equal(t, lines[i], hex.EncodeToString(e.AppendNotepack(nil)))
		got, err := nostr.DecodeNotepack(unhex(t, lines[i]))
		require.NoError(t, err)
		require.Equal(t, &e, got)
	}
}

// TestNotepackIsCanonical checks that an event has only one accepted form.
func TestNotepackIsCanonical(t *testing.T) {
	t.Parallel()
	short := strings.Fields(notepacks)[1] // ends in created_at, kind, content and tags, a byte each
	begin := strings.TrimSuffix(short, "00010000")
	require.NotEqual(t, short, begin)
	for name, form := range map[string]string{
		"another version":         "02" + short[2:],
		"overlong number":         begin + "8000010000",
		"trailing byte":           short + "00",
		"cut off":                 short[:len(short)-2],
		"empty":                   "",
		"more tags than bytes":    begin + "000100ffff03",
		"text that must be bytes": begin + "00010001010461" + "62",
		"no bytes":                begin + "000100010101",
		"invalid UTF-8":           begin + "000101ff00",
		"kind too large":          begin + "00808004" + "0000",
		"created_at too large":    begin + "8080808080808010" + "010000",
	} {
		_, err := nostr.DecodeNotepack(unhex(t, form))
		require.Error(t, err, name)
	}
	_, err := nostr.DecodeNotepack(unhex(t, begin+"000100010106"+"616263"))
	require.NoError(t, err, "hexadecimal text of an odd length must stay text")
}

func FuzzNotepack(f *testing.F) {
	for _, line := range strings.Fields(notepacks) {
		data, err := hex.DecodeString(line)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := nostr.DecodeNotepack(data)
		if err == nil {
			require.Equal(t, data, e.AppendNotepack(nil))
		}
	})
}
