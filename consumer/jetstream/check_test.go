package jetstream

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
)

type syntaxCase struct {
	text                      string
	did, tid, rkey, nsid, cid bool
}

// syntaxCases are identities at the edges of their syntax.
func syntaxCases() []syntaxCase {
	x := func(n int) string { return strings.Repeat("x", n) }
	return []syntaxCase{
		{text: ""},
		{text: "did:plc:wq4aajammjtxdomz3e23667t", did: true, rkey: true},
		{text: "did:web:example.com", did: true, rkey: true},
		{text: "did:web:localhost%3A8080", did: true},
		{text: "did:web:" + x(2040), did: true},
		{text: "did:web:" + x(2041)},
		{text: "did:plc:", rkey: true},
		{text: "did:PLC:abc", rkey: true},
		{text: "did:plc:abc:", rkey: true},
		{text: "did:plc:a b"},
		{text: "did:plc:é"},
		{text: "did:plc:abc\n"},
		{text: "DID:plc:abc", rkey: true},
		{text: "3mptbypluud2a", tid: true, rkey: true, cid: true},
		{text: "2222222222222", tid: true, rkey: true, cid: true},
		{text: "jzzzzzzzzzzzz", tid: true, rkey: true, cid: true},
		{text: "kzzzzzzzzzzzz", rkey: true, cid: true},
		{text: "3mptbypluud2", rkey: true, cid: true},
		{text: "3mptbypluud2aa", rkey: true, cid: true},
		{text: "3mptbypluud21", rkey: true, cid: true},
		{text: "3MPTBYPLUUD2A", rkey: true, cid: true},
		{text: "3mptbyp-uud2a", rkey: true},
		{text: "self", rkey: true},
		{text: "a", rkey: true},
		{text: ".", rkey: false},
		{text: "..", rkey: false},
		{text: "...", rkey: true},
		{text: "a_~.:-Z9", rkey: true},
		{text: "a/b"},
		{text: "a%20"},
		{text: x(512), rkey: true},
		{text: x(513)},
		{text: "app.bsky.feed.post", rkey: true, nsid: true},
		{text: "com.a-b.c1d", rkey: true, nsid: true},
		{text: "a.b.c", rkey: true, nsid: true},
		{text: "a.1.c", rkey: true, nsid: true},
		{text: "a.b", rkey: true},
		{text: "a..c", rkey: true},
		{text: ".a.b.c", rkey: true},
		{text: "a.b.c.", rkey: true},
		{text: "a.b.1c", rkey: true},
		{text: "a.b.c-d", rkey: true},
		{text: "a.b.*"},
		{text: "1a.b.c", rkey: true},
		{text: "a." + x(63) + ".b", rkey: true, nsid: true},
		{text: "a." + x(64) + ".b", rkey: true},
		{text: "a.b." + x(63), rkey: true, nsid: true},
		{text: "a.b." + x(64), rkey: true},
		{text: strings.Repeat("a.", 158) + "a", rkey: true, nsid: true},
		{text: strings.Repeat("a.", 159) + "a", rkey: true},
		{text: "bafyreiguce4jh7kcbmof3pmcvasifqtw24b6isakj5ve5ga2b4z4alpc4i", rkey: true, cid: true},
		{text: "+aBc=009", cid: true},
		{text: x(7), rkey: true},
		{text: x(8), rkey: true, cid: true},
		{text: x(256), rkey: true, cid: true},
		{text: x(257), rkey: true},
		{text: "QmbWqxBEKC3P8tqsKc98xmWNzrzDtRLMiMPL8wBuTGsMnR", rkey: true},
		{text: "QmaWqxBEKC3P8tqsKc98xmWNzrzDtRLMiMPL8wBuTGsMnR", rkey: true, cid: true},
	}
}

func TestIdentitySyntax(t *testing.T) {
	t.Parallel()
	one := func(t *testing.T, valid bool, part, by, cause, path string, read func(string) string) {
		t.Helper()
		frame := strings.Replace(frameCreate, part, fmt.Sprintf("%q", by), 1)
		if valid {
			require.Equal(t, by, read(frame))
			return
		}
		bad := refused(t, frame, cause, path)
		require.NotEmpty(t, bad.Expected)
		require.True(t, strings.HasPrefix(bad.Received, by[:min(len(by), consumer.MaxQuoted)]), bad.Received)
	}
	for i, c := range syntaxCases() {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			one(t, c.did, `"did:plc:wq4aajammjtxdomz3e23667t"`, c.text, "not a DID", "/did", func(f string) string { return accepted(t, f).Author })
			one(t, c.tid, `"3mptbypluud2a"`, c.text, "not a revision", "/commit/rev", func(f string) string { return accepted(t, f).Revision })
			one(t, c.rkey, `"3mptbyplj5d2a"`, c.text, "not a record key", "/commit/rkey", func(f string) string { return accepted(t, f).Key })
			one(t, c.nsid, `"app.bsky.feed.like"`, c.text, "not a collection", "/commit/collection",
				func(f string) string { return accepted(t, f).Collection })
			one(t, c.cid || c.text == "", `"bafyreiguce4jh7kcbmof3pmcvasifqtw24b6isakj5ve5ga2b4z4alpc4i"`, c.text, "not a CID", "/commit/cid",
				func(f string) string { return accepted(t, f).CID })
		})
	}
}

func TestFieldTypes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ frame, part, path string }{
		{frameCreate, `"did:plc:wq4aajammjtxdomz3e23667t"`, "/did"},
		{frameCreate, `1783175888085434`, "/time_us"},
		{frameCreate, `5860`, "/cursor"},
		{frameCreate, `"commit",`, "/kind"},
		{frameCreate, `"3mptbypluud2a"`, "/commit/rev"},
		{frameCreate, `"create"`, "/commit/operation"},
		{frameCreate, `"app.bsky.feed.like"`, "/commit/collection"},
		{frameCreate, `"3mptbyplj5d2a"`, "/commit/rkey"},
		{frameCreate, `{"text":"hi"}`, "/commit/record"},
		{frameCreate, `"bafyreiguce4jh7kcbmof3pmcvasifqtw24b6isakj5ve5ga2b4z4alpc4i"`, "/commit/cid"},
		{frameHandle, `"user-603-h1.test"`, "/identity/handle"},
		{frameHandle, `"2023-11-14T22:13:20.003Z"`, "/identity/time"},
		{frameStatus, `false`, "/account/active"},
		{frameStatus, `"deactivated"`, "/account/status"},
		{frameStatus, `"2026-07-04T14:38:07.877Z"`, "/account/time"},
	} {
		for _, by := range []string{"null", "true", "7", `"x"`, `{}`, `[]`, `{"a":[1]}`} {
			if by[0] == c.part[0] || (by == "7" && c.part[0] <= '9' && c.part[0] >= '0') || (by == "true" && c.part == "false") {
				continue
			}
			keep := ""
			if strings.HasSuffix(c.part, ",") {
				keep = ","
			}
			bad := refused(t, with(t, c.frame, c.part, by+keep), "wrong type", c.path)
			require.NotEmpty(t, bad.Expected)
			require.NotEmpty(t, bad.Received)
		}
	}
	long := refused(t, with(t, frameCreate, `5860`, `"`+strings.Repeat("é", 50_000)+`"`), "wrong type", "/cursor")
	require.Less(t, len(long.Received), 100, "text from a stranger must be shortened")
}

func TestEscapesAreRead(t *testing.T) {
	t.Parallel()
	ev := accepted(t, with(t, frameStatus, `"deactivated"`, `"\u0061\"\\\/\b\f\n\r\t\u00e9\uD83D\uDE00é"`))
	require.Equal(t, "a\"\\/\b\f\n\r\té😀é", ev.Status)
	ev = accepted(t, strings.NewReplacer(`"kind"`, `"\u006bind"`, `"commit"`, `"\u0063ommit"`, `"create"`, `"\u0063reate"`, `"rev"`,
		`"\u0072ev"`, `app.bsky`, `a\u0070p\u002ebsky`).Replace(frameCreate))
	require.Equal(t, "app.bsky.feed.like", ev.Collection)
	require.Equal(t, "3mptbypluud2a", ev.Revision)

	for _, no := range []string{`\u0000`, `\ud800`, `\udc00`, `\ud800\ud800`, `\udc00\ud800`, `\ud800x`} {
		const cause = "a character that cannot be stored"
		refused(t, with(t, frameCreate, `"did:plc:w`, `"`+no+`did:plc:w`), cause, "/did")
		refused(t, with(t, frameCreate, `"kind":"commit"`, `"kind":"commit`+no+`"`), cause, "/kind")
		refused(t, with(t, frameCreate, `"create"`, `"create`+no+`"`), cause, "/commit/operation")
		refused(t, with(t, frameCreate, `d.like"`, `d.like`+no+`"`), cause, "/commit/collection")
		refused(t, with(t, frameHandle, `"user`, `"`+no+`user`), cause, "/identity/handle")
		refused(t, with(t, frameStatus, `"deactivated"`, `"`+no+`"`), cause, "/account/status")
	}
}

func TestTimesAndSequenceNumbersAreBounded(t *testing.T) {
	t.Parallel()
	const timeUS, cursor = `1783175888085434`, `5860`
	for _, n := range []string{"1", "1783175888085434", "253402300799000000"} {
		require.Equal(t, n, fmt.Sprint(accepted(t, with(t, frameCreate, timeUS, n)).TimeUS))
	}
	for _, n := range []string{"0", "-0", "-1", "253402300799000001", "9223372036854775807", "-9223372036854775808"} {
		refused(t, with(t, frameCreate, timeUS, n), "the time is missing or out of range", "/time_us")
	}
	refused(t, with(t, frameCreate, `"time_us":`+timeUS+`,`, ""), "the time is missing or out of range", "/time_us")
	for _, n := range []string{"0", "-0", "1", "999999999999999"} {
		require.Equal(t, strings.TrimPrefix(n, "-"), fmt.Sprint(accepted(t, with(t, frameCreate, cursor, n)).Seq))
	}
	// Servers read a larger one as a time.
	for _, n := range []string{"-1", "1000000000000000", "1783175888085434", "9223372036854775807"} {
		refused(t, with(t, frameCreate, cursor, n), "not a sequence number", "/cursor")
	}
	for _, n := range []string{"1.0", "1.5", "1e3", "1E15", "0.1", "-1e-9", "9223372036854775808", "1e400000", strings.Repeat("9", 100_000)} {
		refused(t, with(t, frameCreate, timeUS, n), "not an integer of 64 bits", "/time_us")
		refused(t, with(t, frameCreate, cursor, n), "not an integer of 64 bits", "/cursor")
	}
}

func TestIncompleteCommitIsRejected(t *testing.T) {
	t.Parallel()
	refused(t, with(t, frameCreate, `"create"`, `"Create"`), "unknown operation", "/commit/operation")
	refused(t, with(t, frameCreate, `"operation":"create",`, ``), "unknown operation", "/commit/operation")
	refused(t, with(t, frameCreate, `"rev":"3mptbypluud2a",`, ``), "not a revision", "/commit/rev")
	refused(t, with(t, frameCreate, `"rkey":"3mptbyplj5d2a",`, ``), "not a record key", "/commit/rkey")
	refused(t, with(t, frameCreate, `"collection":"app.bsky.feed.like",`, ``), "not a collection", "/commit/collection")
	refused(t, with(t, frameCreate, `"did":"did:plc:wq4aajammjtxdomz3e23667t",`, ``), "not a DID", "/did")
	for _, operation := range []string{"create", "update"} {
		frame := with(t, frameCreate, `"create"`, `"`+operation+`"`)
		refused(t, with(t, frame, `"record":{"text":"hi"},`, ``), "the record is missing", "/commit/record")
		refused(t, with(t, frame, `{"text":"hi"}`, `null`), "wrong type", "/commit/record")
	}
	refused(t, frameDelete[:strings.Index(frameDelete, `{"rev"`)]+`{}}`, "unknown operation", "/commit/operation")

	whole := accepted(t, with(t, frameCreate, `"create"`, `"delete"`))
	require.Nil(t, whole.Record, "a deletion has no record, whatever the server sends")
	require.Empty(t, whole.CID)
	whole = accepted(t, with(t, with(t, frameCreate, `"create"`, `"delete"`), `{"text":"hi"}`, `[null]`))
	require.Nil(t, whole.Record)
}

func TestEventNamesOneDID(t *testing.T) {
	t.Parallel()
	for kind, frame := range map[string]string{"identity": frameHandle, "account": frameStatus} {
		did := accepted(t, frame).Author
		outer, body := `"did":"`+did+`",`, frame[strings.Index(frame, `"`+kind+`":{`):len(frame)-1]
		for _, inner := range []string{"did:plc:exicsidqd7737xpugiq5r4c6", did[:len(did)-1], strings.ToUpper(did), "x", ""} {
			body := with(t, body, did, inner)
			path := "/" + kind + "/did"
			time := `"time_us":1,`
			refused(t, `{`+outer+time+`"kind":"`+kind+`",`+body+`}`, "the event names two DIDs", path)
			refused(t, `{`+time+`"kind":"`+kind+`",`+body+`,`+outer[:len(outer)-1]+`}`, "the event names two DIDs", path)
			refused(t, `{`+body+`,`+outer+time+`"kind":"`+kind+`"}`, "the event names two DIDs", path)
			refused(t, `{`+body+`,`+time+`"kind":"`+kind+`",`+outer[:len(outer)-1]+`}`, "the event names two DIDs", path)
		}
		refused(t, strings.Replace(frame, outer, "", 1), "not a DID", "/did")
		require.Equal(t, did, accepted(t, `{`+outer+`"time_us":1,"kind":"`+kind+`",`+strings.Replace(body, outer, "", 1)+`}`).Author,
			"the body need not repeat it")
	}
}

func TestAccountNeedsActive(t *testing.T) {
	t.Parallel()
	refused(t, with(t, frameStatus, `"active":false,`, ``), "the account's state is missing", "/account/active")
	for _, n := range []int{0, 1, 64} {
		require.Len(t, accepted(t, with(t, frameStatus, `deactivated`, strings.Repeat("s", n))).Status, n)
	}
	refused(t, with(t, frameStatus, `deactivated`, strings.Repeat("s", 65)), "not a status", "/account/status")
	refused(t, with(t, frameStatus, `deactivated`, strings.Repeat("s", 1<<20)), "not a status", "/account/status")
}

func TestHandleSyntax(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"handle.invalid", "A-b.Example.COM", "xn--bcher-kva.example", strings.Repeat("a.", 125) + "aaa"} {
		require.Equal(t, good, accepted(t, with(t, frameHandle, "user-603-h1.test", good)).Handle)
	}
	for _, no := range []string{
		"nodots", "-a.test", "a.test.", "a_b.test", "bücher.example", "a.1", " ", strings.Repeat("a.", 126) + "aa", strings.Repeat("a", 1<<20),
	} {
		require.Equal(t, consumer.InvalidHandle, accepted(t, with(t, frameHandle, "user-603-h1.test", no)).Handle,
			"the account has no valid handle any more")
	}
}

func TestAccountTimeFormats(t *testing.T) {
	t.Parallel()
	const part = "2026-07-04T14:38:07.877Z"
	for said, want := range map[string]time.Time{
		"2026-07-04T14:38:07Z":           time.Date(2026, 7, 4, 14, 38, 7, 0, time.UTC),
		"2026-07-04T14:38:07.123456789Z": time.Date(2026, 7, 4, 14, 38, 7, 123456789, time.UTC),
		"2026-07-04T14:38:07.5+02:00":    time.Date(2026, 7, 4, 12, 38, 7, 5e8, time.UTC),
		"2026-07-04T14:38:07.5-0000":     time.Date(2026, 7, 4, 14, 38, 7, 5e8, time.UTC),
		"2026-07-04T14:38:07.5":          time.Date(2026, 7, 4, 14, 38, 7, 5e8, time.UTC),
		"1969-12-31T23:59:59Z":           time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC),
	} {
		require.Equal(t, want, accepted(t, with(t, frameStatus, part, said)).At, said)
	}
	require.Zero(t, accepted(t, with(t, frameStatus, `,"time":"`+part+`"`, ``)).At)
	for _, no := range []string{
		"", "yesterday", "2026-07-04", "2026-13-04T14:38:07Z", "2026-07-04T14:38:07Z" + strings.Repeat(" ", 100), "20260-07-04T14:38:07Z",
		strings.Repeat("2", 1<<20),
	} {
		refused(t, with(t, frameStatus, part, no), "not a time", "/account/time")
	}
}
