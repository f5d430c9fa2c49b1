package consumer

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNetworkBytes checks that the size is that of the CBOR encoding or
// slightly less, never more.
func TestNetworkBytes(t *testing.T) {
	t.Parallel()
	link := `{"$link":"bafyreidfayvfuwqa7qlnopdjiqrxzs6blmoeu4rujcjtnci5beludirz2a"}`
	records := []string{
		`{}`, `{"a":[]}`, `{"text":"plain"}`, `{ "a" : [ true , false , null ] , "b" : -1 }`, `{"a":{"$x":"\\\"\/\b\f\n\r\t"}}`,
		`{"n":[0,23,24,255,256,65535,65536,-24,-25,4294967296,-9007199254740991]}`,
		`{"text":"` + strings.Repeat(`\u0001`, 5000) + `"}`, `{"text":"\u00e9\u20ac\ud83d\ude00 é€😀 \u2028"}`,
		`{"text":"` + strings.Repeat(`\u0000`, 300) + `"}`, `{"\u0001\u0002":"` + strings.Repeat("x", 70_000) + `"}`,
		`{"links":[` + strings.Repeat(link+",", 100) + link + `]}`,
		`{"b":{"$bytes":"` + strings.Repeat("AAAA", 1000) + `"},"c":{"$bytes":"AA"},"d":"$link"}`,
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var text strings.Builder
		for range random.IntN(300) {
			text.WriteRune(rune(random.IntN(0x3000)))
		}
		quoted, err := json.Marshal(text.String())
		require.NoError(t, err)
		records = append(records, fmt.Sprintf(`{"a":%s,"%d":[%d,{"b":%s}]}`, quoted, random.IntN(100), random.Int64N(1<<50), quoted))
	}
	for _, record := range records {
		var value any
		decoder := json.NewDecoder(strings.NewReader(record))
		decoder.UseNumber()
		require.NoError(t, decoder.Decode(&value), record)
		truth, got := inCBOR(value), networkBytes([]byte(record))
		require.LessOrEqual(t, got, truth, "%.200s", record)
		require.GreaterOrEqual(t, 3*got, 2*truth-60, "%.200s", record)
	}
}

// inCBOR returns the length of a value in the network's encoding.
func inCBOR(value any) int {
	header := func(n int) int { return headerBytes(uint64(n)) }
	switch v := value.(type) {
	case string:
		return header(len(v)) + len(v)
	case json.Number:
		n, err := v.Int64()
		if err != nil {
			return 9
		}
		return header(int(max(n, -1-n)))
	case []any:
		n := header(len(v))
		for _, each := range v {
			n += inCBOR(each)
		}
		return n
	case map[string]any:
		if link, ok := v["$link"].(string); ok {
			return 2 + 2 + 1 + (len(link)-1)*5/8 // a tag, and bytes: 0 and the CID
		}
		if b, ok := v["$bytes"].(string); ok {
			return header(len(b)*3/4) + len(b)*3/4
		}
		n := header(len(v))
		for name, each := range v {
			n += inCBOR(name) + inCBOR(each)
		}
		return n
	}
	return 1
}
