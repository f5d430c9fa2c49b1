package nostr_test

import (
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/nostr"
)

func bytes32(t testing.TB, digits string) (b [32]byte) {
	t.Helper()
	n, err := hex.Decode(b[:], []byte(digits))
	require.NoError(t, err)
	require.Equal(t, 32, n)
	return b
}

// signed returns an event with its id, signed by a fixed key.
func signed(t testing.TB, e nostr.Event) *nostr.Event {
	t.Helper()
	require.NoError(t, e.Sign([32]byte{31: 7}))
	return &e
}

// TestIDEscapesAsEveryoneDoes compares with an event that another program signed. It contains each
// character that some JSON encoder escapes differently.
func TestIDEscapesAsEveryoneDoes(t *testing.T) {
	t.Parallel()
	e := nostr.Event{CreatedAt: 1700000000, Kind: 1, Tags: [][]string{{"t", "<a&b>"}},
		Content: "a\x01\x1f\x7f\u2028\u2029 </script> \\ \" / é 😀",
		PubKey:  bytes32(t, "989c0b76cb563971fdc9bef31ec06c3560f3249d6ee9e5d83c57625596e05f6f")}
	id := e.Hash()
	require.Equal(t, "a833e2d95abad46ee2dcded5d7884162e1670c47477b1c0b4867857b74659dea", hex.EncodeToString(id[:]))
	require.Contains(t, string(e.AppendCanonical(nil)), `"a\u0001\u001f`+"\x7f\u2028\u2029"+` </script> \\ \" / é 😀"`)
}

// TestIDIsOfWhatWasDecoded checks that escapes on the wire do not change the id.
func TestIDIsOfWhatWasDecoded(t *testing.T) {
	t.Parallel()
	e := signed(t, nostr.Event{CreatedAt: 1, Kind: 1, Tags: [][]string{{"t", "é"}}, Content: "A/b\b\f\n\r\t😀"})
	text := string(e.AppendJSON(nil))
	text = strings.Replace(text, `"A/b`, `"\u0041\/b`, 1)
	text = strings.Replace(text, `😀`, `\ud83d\uDE00`, 1)
	text = strings.Replace(text, `{"id"`, `{"unknown":[{"null":null}], "id"`, 1)
	got, err := nostr.Decode([]byte(text))
	require.NoError(t, err)
	require.Equal(t, e, got)
	require.NoError(t, got.CheckID())
	require.NoError(t, got.CheckSignature())
}

func TestForgeriesAreRefused(t *testing.T) {
	t.Parallel()
	e := signed(t, nostr.Event{CreatedAt: 1700000000, Kind: 1, Tags: [][]string{}, Content: "hello"})
	require.NoError(t, e.CheckID())
	require.NoError(t, e.CheckSignature())
	for name, forge := range map[string]func(*nostr.Event){
		"content":    func(e *nostr.Event) { e.Content = "hullo" },
		"created_at": func(e *nostr.Event) { e.CreatedAt++ },
		"kind":       func(e *nostr.Event) { e.Kind++ },
		"tags":       func(e *nostr.Event) { e.Tags = [][]string{{"p"}} },
		"author":     func(e *nostr.Event) { e.PubKey[0] ^= 1 },
	} {
		forged := *e
		forge(&forged)
		require.ErrorContains(t, forged.CheckID(), "the id is not the hash", name)
		forged.ID = forged.Hash()
		require.Error(t, forged.CheckSignature(), name)
	}
	forged := *e
	forged.Sig[63] ^= 1
	require.ErrorContains(t, forged.CheckSignature(), "the signature is not of the author")
	forged.PubKey = [32]byte{} // not on the curve
	require.ErrorContains(t, forged.CheckSignature(), "not a public key")
}

// TestPublishedSignatures checks vectors of BIP-340 whose message is a hash.
func TestPublishedSignatures(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		key, message, sig string
		valid             bool
	}{
		{
			"f9308a019258c31049344f85f89d5229b531c845836f99b08601f113bce036f9", "0000000000000000000000000000000000000000000000000000000000000000",
			"e907831f80848d1069a5371b402410364bdf1c5f8307b0084c55f1ce2dca821525f66a4a85ea8b71e482a74f382d2ce5ebeee8fdb2172f477df4900d310536c0", true,
		},
		{
			"dff1d77f2a671c5f36183726db2341be58feae1da2deced843240f7b502ba659", "243f6a8885a308d313198a2e03707344a4093822299f31d0082efa98ec4e6c89",
			"6896bd60eeae296db48a229ff71dfe071bde413e6d43f917dc8dcf8c78de33418906d11ac976abccb20b091292bff4ea897efcb639ea871cfa95f6de339e4b0a", true,
		},
		{
			"dff1d77f2a671c5f36183726db2341be58feae1da2deced843240f7b502ba659", "243f6a8885a308d313198a2e03707344a4093822299f31d0082efa98ec4e6c89",
			"fff97bd5755eeea420453a14355235d382f6472f8568a18b2f057a14602975563cc27944640ac607cd107ae10923d9ef7a73c643e166be5ebeafa34b1ac553e2",
			false,
		},
	} {
		e := nostr.Event{PubKey: bytes32(t, v.key), ID: bytes32(t, v.message)}
		_, err := hex.Decode(e.Sig[:], []byte(v.sig))
		require.NoError(t, err)
		require.Equal(t, v.valid, e.CheckSignature() == nil, v.sig)
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	e := signed(t, nostr.Event{CreatedAt: 1700000000, Kind: 1, Tags: [][]string{{"t", "a"}}, Content: "hello"})
	valid := string(e.AppendJSON(nil))
	for _, change := range []struct{ old, new, want string }{
		{`"hello"`, `"\ud800"`, "surrogate"},
		{`"hello"`, "\"\xff\"", "UTF-8"},
		{`"hello"`, `null`, "wrong type at /content"},
		{`"hello"`, `7`, "wrong type at /content"},
		{`,"content":"hello"`, ``, "a field is missing at /content"},
		{`,"content":"hello"`, `,"content":"hello","content":"hello"`, "duplicate"},
		{`[["t","a"]]`, `[["t",null]]`, "wrong type at /tags/0"},
		{`[["t","a"]]`, `[["t"],"a"]`, "wrong type at /tags/1"},
		{`[["t","a"]]`, `{}`, "wrong type at /tags"},
		{`[["t","a"]]`, `[[]` + strings.Repeat(",[]", 30_000) + `]`, "too many tags at /tags"},
		{`[["t","a"]]`, `[[""` + strings.Repeat(`,""`, 120_000) + `]]`, "too many values of tags at /tags/0"},
		{`1700000000`, `-0`, "/created_at"},
		{`1700000000`, `1.7e9`, "/created_at"},
		{`1700000000`, `9007199254740992`, "/created_at"},
		{`1700000000`, `"1"`, "/created_at"},
		{`"kind":1`, `"kind":65536`, "/kind"},
		{`"id":"`, `"id":"A`, "wrong length or digits at /id"},
		{`"}`, `"} {}`, "text follows"},
		{`"}`, `"`, "not the JSON"},
	} {
		require.Contains(t, valid, change.old)
		_, err := nostr.Decode([]byte(strings.Replace(valid, change.old, change.new, 1)))
		require.ErrorContains(t, err, change.want, change.new)
	}
	_, err := nostr.Decode([]byte(strings.Replace(valid, hex.EncodeToString(e.ID[:]), strings.ToUpper(hex.EncodeToString(e.ID[:])), 1)))
	require.ErrorContains(t, err, "/id")
	_, err = nostr.Decode([]byte(`[1]`))
	require.ErrorContains(t, err, "expected an object")
}

func TestClassOf(t *testing.T) {
	t.Parallel()
	for kind, want := range map[int]nostr.Class{0: nostr.Replaceable, 1: nostr.Regular, 3: nostr.Replaceable, 5: nostr.Regular,
		999: nostr.Regular, 1000: nostr.Regular,
		10_000: nostr.Replaceable, 19_999: nostr.Replaceable, 20_000: nostr.Ephemeral, 29_999: nostr.Ephemeral, 30_000: nostr.Addressable,
		39_999: nostr.Addressable, 40_000: nostr.Regular} {
		require.Equal(t, want, nostr.ClassOf(kind), kind)
	}
}

// FuzzDecode checks that a decoded event is unchanged after encoding in both forms, and that its
// canonical text is JSON of the same strings, according to an independent decoder.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{}`))
	f.Add(signed(f, nostr.Event{
		Kind: 1, Tags: [][]string{{"t", "<a&b>", ""}, {}}, Content: "a\x00\x01\x7f\u2028 \\ \" / é 😀",
	}).AppendJSON(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := nostr.Decode(data)
		if err != nil {
			return
		}
		again, err := nostr.Decode(e.AppendJSON(nil))
		require.NoError(t, err)
		require.Equal(t, e, again)
		packed, err := nostr.DecodeNotepack(e.AppendNotepack(nil))
		require.NoError(t, err)
		require.Equal(t, e, packed)
		var text struct {
			zero, author, date, kind any
			tags                     [][]string
			content                  string
		}
		require.NoError(t, json.Unmarshal(e.AppendCanonical(nil),
			&[]any{&text.zero, &text.author, &text.date, &text.kind, &text.tags, &text.content}))
		require.Equal(t, e.Content, text.content)
		require.True(t, slices.EqualFunc(e.Tags, text.tags, slices.Equal[[]string]), text.tags)
		require.Equal(t, []any{0.0, hex.EncodeToString(e.PubKey[:]), float64(e.CreatedAt), float64(e.Kind)},
			[]any{text.zero, text.author, text.date, text.kind})
	})
}

// FuzzCanonical checks the text that is hashed with an independent reader.
func FuzzCanonical(f *testing.F) {
	f.Add("a\x01\x1f\x7f\u2028\u2029 </script> \\ \" / é 😀", "<a&b>")
	f.Fuzz(func(t *testing.T, content, tag string) {
		e := nostr.Event{Tags: [][]string{{"t", tag}}, Content: content}
		text := jsontext.Value(e.AppendCanonical(nil))
		valid := text.IsValid()
		require.Equal(t, utf8.ValidString(content) && utf8.ValidString(tag), valid)
		if !valid {
			return
		}
		before := string(text)
		require.NoError(t, text.Compact(jsontext.PreserveRawStrings(false), jsontext.EscapeForHTML(false), jsontext.EscapeForJS(false)))
		require.Equal(t, string(text), before, "the text must have the fewest escapes, in their shortest form")
	})
}
