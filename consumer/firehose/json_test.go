package firehose

import (
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/ipfs/go-cid"
	"github.com/stretchr/testify/require"
)

// unhex joins CBOR that is given as hexadecimal digits.
func unhex(t testing.TB, parts ...string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(strings.Join(parts, ""), " ", ""))
	require.NoError(t, err)
	return b
}

// inRecord returns a value as the field "a" of a record.
func inRecord(t testing.TB, value string) []byte { return unhex(t, "a1 61 61", value) }

func TestValuesAsJSON(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"00": "0", "17": "23", "1818": "24", "1b7fffffffffffffff": "9223372036854775807",
		"20": "-1", "3b7fffffffffffffff": "-9223372036854775808", "1b0020000000000000": "9007199254740992",
		"1800": "0", "1b0000000000000001": "1", // longer encodings than necessary
		"f4": "false", "f5": "true", "f6": "null",
		"80": "[]", "82 01 81 02": "[1,[2]]", "a0": "{}",
		"60": `""`, "40": `{"$bytes":""}`, "41 ff": `{"$bytes":"/w"}`, "43 010203": `{"$bytes":"AQID"}`, "44 01020304": `{"$bytes":"AQIDBA"}`,
		"fb 3ff8000000000000": "1.5", "fb 3ff0000000000000": "1", "fb 8000000000000000": "-0", "fb 7fefffffffffffff": "1.7976931348623157e+308",
		"fb 3e112e0be826d695": "1e-9", "fb 444b1ae4d6e2ef50": "1e+21", "fb 3eb0c6f7a0b5ed8d": "0.000001",
		"d82a 5825 00 01711220" + strings.Repeat("00", 32): `{"$link":"bafyreiaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`,
		"d82a 5825 00 01551220" + strings.Repeat("ff", 32): `{"$link":"bafkreih777777777777777777777777777777777777777777777777774"}`,
		"a2 62 6262 01 61 63 02":                           `{"bb":1,"c":2}`,
		"a3 61 63 02 62 6161 01 61 62 03":                  `{"aa":1,"b":3,"c":2}`, // not in CBOR's order
		"a1 65 246c696e6b 01":                              `{"$link":1}`,
		"78 01 61":                                         `"a"`,
		"66 22 5c 0a 0d 09 08":                             `"\"\\\n\r\t\b"`,
		"66 0c 01 1f 7f 3c 3e":                             `"\f\u0001\u001f` + "\x7f" + `\u003c\u003e"`,
		"61 26":                                            `"\u0026"`,
		"66 e280a8 e280a9":                                 `"\u2028\u2029"`,
		"67 e280a7 f09f9880":                               `"` + "\u2027😀" + `"`,
		"63 efbfbd":                                        `"` + "\uFFFD" + `"`,
	} {
		var tr transcoder
		out, replaced, bad := tr.transcode(nil, inRecord(t, value))
		require.Nil(t, bad, value)
		require.Equal(t, `{"a":`+want+`}`, string(out))
		require.Zero(t, replaced)
	}
}

func TestCharactersThatCannotBeStoredAreReplaced(t *testing.T) {
	t.Parallel()
	for value, c := range map[string]struct {
		want     string
		replaced int
	}{
		"61 00":                  {`"\ufffd"`, 1},
		"63 61 00 62":            {`"a\ufffdb"`, 1},
		"61 ff":                  {`"\ufffd"`, 1},
		"63 eda080":              {`"\ufffd\ufffd\ufffd"`, 3}, // half a surrogate pair, with indigo's result
		"64 61 f09f98":           {`"a\ufffd\ufffd\ufffd"`, 3},
		"a1 61 00 01":            {`{"\ufffd":1}`, 1},
		"a2 61 00 01 61 62 6100": {`{"\ufffd":1,"b":"\ufffd"}`, 2},
	} {
		var tr transcoder
		out, replaced, bad := tr.transcode([]byte("x"), inRecord(t, value))
		require.Nil(t, bad, value)
		require.Equal(t, `x{"a":`+c.want+`}`, string(out))
		require.Equal(t, c.replaced, replaced)
	}
}

func TestValuesThatAreRefused(t *testing.T) {
	t.Parallel()
	nested := func(n int) string { return strings.Repeat("81", n) + "80" }
	var tr transcoder
	for value, cause := range map[string]string{
		"": "ends within", "18": "ends within", "19 01": "ends within", "62 61": "ends within", "82 01": "ends within", "a1 61 61": "ends within",
		"1b 8000000000000000": "not an integer of 64 bits at /a: expected -2^63 to 2^63-1, received 9223372036854775808",
		"1b ffffffffffffffff": "not an integer of 64 bits", "3b 8000000000000000": "not an integer of 64 bits",
		"3b ffffffffffffffff": "not an integer of 64 bits",
		"5b ffffffffffffffff": "ends within", "7b 7fffffffffffffff 61": "ends within", "9b ffffffffffffffff": "ends within",
		"bb 7fffffffffffffff": "ends within", "9a 00100000": "ends within",
		"f7": "received undefined", "f9 3c00": "received a float of 16 bits", "fa 3f800000": "received a float of 32 bits",
		"f8 20": "received a simple value", "e0": "received a simple value",
		"fb 7ff0000000000000": "not a number", "fb fff0000000000000": "not a number", "fb 7ff8000000000000": "not a number",
		"fb 7ff8":     "ends within",
		"5f 41 00 ff": "an indefinite one", "7f 61 61 ff": "an indefinite one", "9f 01 ff": "an indefinite one", "bf ff": "an indefinite one",
		"1c": "a reserved one", "ff": "simple value",
		"c0 60": "unknown tag", "d82b 4100": "unknown tag", "d82a 60": "wrong type", "d82a 40": "not a link", "d82a 4100": "not a link",
		"d82a 420001": "not a link",
		"d82a 5823 00 1220" + strings.Repeat("00", 32):       "not a link", // version 0
		"d82a 5825 01 01711220" + strings.Repeat("00", 32):   "not a link",
		"d82a 5825 00 01711221" + strings.Repeat("00", 32):   "not a link",
		"d82a 5826 00 01f1001220" + strings.Repeat("00", 32): "not a link",
		"a1 01 01":                      "wrong type at /a: expected a string, received an integer",
		"a1 41 61 01":                   "wrong type",
		"a2 61 61 01 61 61 02":          "a name occurs twice in one object at /a/a",
		"a3 61 61 01 61 62 01 61 61 02": "a name occurs twice",
		"a2 61 00 01 61 ff 02":          "a name occurs twice", // both names become U+FFFD
		"01 00":                         "data after its end",
		nested(127):                     "nested too deeply at /a/0/0",
		"82 01 a1 62 6262 81 f7":        "at /a/1/bb/0",
	} {
		_, _, bad := tr.transcode(nil, inRecord(t, value))
		require.NotNil(t, bad, value)
		require.Contains(t, bad.Error(), cause, value)
		require.Less(t, len(bad.Error()), 800)
	}
	_, _, bad := tr.transcode(nil, inRecord(t, nested(126)))
	require.Nil(t, bad, "128 levels")
	for _, no := range []string{"", "80", "01", "f6", "61 61"} {
		_, _, bad := tr.transcode(nil, unhex(t, no))
		require.NotNil(t, bad)
	}
}

// TestCIDsAreWritten shows that a CID is written as its own library writes it.
func TestCIDsAreWritten(t *testing.T) {
	t.Parallel()
	for n := range 80 {
		b := append([]byte{1, 0x71, 0, byte(n)}, make([]byte, n)...)
		for i := range n {
			b[4+i] = byte(i * 37)
		}
		require.True(t, isCID(b))
		_, c, err := cid.CidFromBytes(b)
		require.NoError(t, err)
		require.Equal(t, c.String(), string(appendCID(nil, b)))
		require.False(t, isCID(b[:len(b)-1]))
	}
	for v := uint64(0); v < 1<<62; v = v*3 + 1 {
		got, n := uvarint(append(varint(v), 1))
		require.Equal(t, []any{v, len(varint(v))}, []any{got, n})
	}
	_, n := uvarint([]byte{0x80, 0})
	require.Zero(t, n, "a number must have only one encoding")
	_, n = uvarint([]byte(strings.Repeat("\xff", 20)))
	require.Zero(t, n)
}

func varint(v uint64) (b []byte) {
	for ; v >= 0x80; v >>= 7 {
		b = append(b, byte(v)|0x80)
	}
	return append(b, byte(v))
}

func TestHeadsAreWrittenAsTheyAreRead(t *testing.T) {
	t.Parallel()
	for _, v := range []uint64{0, 23, 24, 255, 256, 65535, 65536, math.MaxUint32, math.MaxUint32 + 1, math.MaxUint64} {
		for major := range byte(7) {
			r := reader{data: appendHead(nil, major, v)}
			got, n, bad := r.head()
			require.Nil(t, bad)
			require.Equal(t, fmt.Sprint(major, v, 0), fmt.Sprint(got, n, r.rest()))
		}
	}
}
