package bluesky

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	maxRecord   = 2 << 20 // bytes of a record's JSON: the network's own limit is below
	maxDepth    = 200     // levels of a record
	maxExponent = 324     // of a record's numbers: Postgres would write a larger one out in full
	maxNumber   = 1024    // bytes of a number
	maxCursor   = 1024    // bytes: it goes into a URL, and the caller may store it
	maxName     = 640     // bytes of a display name, as its lexicon says
	maxURL      = 2048    // bytes of an avatar's URL
	replacement = "\ufffd"
)

// readObject reads the fields of an object. Their values are only known to be
// JSON: one that is broken in meaning must not cost the others.
func readObject(data []byte) (map[string]jsontext.Value, error) {
	var fields map[string]jsontext.Value
	if err := json.Unmarshal(data, &fields, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return nil, malformed("the answer is no JSON object: %v", err)
	}
	return fields, nil
}

// items reads an array. What is not there is empty.
func items(v jsontext.Value) ([]jsontext.Value, error) {
	if v == nil {
		return nil, nil
	}
	var out []jsontext.Value
	if err := json.Unmarshal(v, &out, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return nil, malformed("expected an array: %v", err)
	}
	return out, nil
}

// text reads a string that Postgres can store; anything else is empty.
func text(v jsontext.Value) string {
	if v.Kind() != '"' {
		return ""
	}
	out, _ := jsontext.AppendUnquote(nil, bytes.TrimSpace(v)) // invalid characters come replaced
	return strings.ReplaceAll(string(out), "\x00", replacement)
}

// instant reads a datetime; zero if it is none.
func instant(v jsontext.Value) time.Time {
	s := text(v)
	if len(s) > 64 {
		return time.Time{}
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t
	}
	if d, err := syntax.ParseDatetimeLenient(s); err == nil {
		return d.Time()
	}
	return time.Time{}
}

// nextCursor is the cursor of the page after this one, which has so many items.
// A server that repeats itself has come to the end when the page is empty. Else
// the rest of the listing is not to be had, and taking what there was for all of
// it would be wrong.
func nextCursor(v jsontext.Value, asked string, items int) (string, error) {
	next := text(v)
	switch {
	case len(next) > maxCursor || strings.ContainsFunc(next, unicode.IsControl) || strings.Contains(next, replacement):
		return "", malformed("the cursor is too long or holds what no cursor holds")
	case next == "" || next != asked:
		return next, nil
	case items > 0:
		return "", malformed("the cursor of the next page is that of this one")
	}
	return "", nil
}

// readProfile reads what is shown of an account. Without a DID it is nothing.
func readProfile(v jsontext.Value) (Profile, bool) {
	fields, err := readObject(v)
	if err != nil {
		return Profile{}, false
	}
	p := Profile{DID: text(fields["did"])}
	if !isDID(p.DID) {
		return Profile{}, false
	}
	if handle, err := syntax.ParseHandle(text(fields["handle"])); err == nil {
		p.Handle = handle.Normalize().String()
	}
	p.DisplayName = shortened(text(fields["displayName"]), maxName)
	if avatar := text(fields["avatar"]); isWebURL(avatar) {
		p.Avatar = avatar
	}
	return p, true
}

func isWebURL(s string) bool {
	return len(s) <= maxURL && (strings.HasPrefix(s, "https://") || strings.HasPrefix(s, "http://")) &&
		!strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) || r == utf8.RuneError })
}

// shortened cuts at the end of a character and puts spaces for controls.
func shortened(s string, most int) string {
	if len(s) > most {
		for most > 0 && !utf8.RuneStart(s[most]) {
			most--
		}
		s = s[:most]
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s))
}

// storable makes a record fit for a jsonb column: U+FFFD in place of NULs and of
// surrogates without their other half. An error says what cannot be mended.
func storable(record jsontext.Value) ([]byte, error) {
	switch {
	case record.Kind() != '{':
		return nil, errors.New("the record is no object")
	case len(record) > maxRecord:
		return nil, errors.New("the record is longer than " + strconv.Itoa(maxRecord) + " bytes")
	case !utf8.Valid(record):
		return nil, errors.New("the record is not UTF-8")
	}
	var out bytes.Buffer
	dec := jsontext.NewDecoder(bytes.NewBuffer(record), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	enc := jsontext.NewEncoder(&out) // refuses names that occur twice, also after what was replaced
	for {
		token, err := dec.ReadToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		switch token.Kind() {
		case '"':
			token = jsontext.String(strings.ReplaceAll(token.String(), "\x00", replacement))
		case '0':
			if absurd(token.String()) {
				return nil, errors.New("the record holds a number that no double holds")
			}
		}
		if dec.StackDepth() > maxDepth {
			return nil, errors.New("the record is nested too deeply")
		}
		if err := enc.WriteToken(token); err != nil {
			return nil, err
		}
	}
	if !bytes.Contains(record, []byte(`\u`)) {
		return record, nil // nothing was replaced: as it came
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}

// absurd answers whether Postgres would refuse a number, or write out far more
// than it was sent.
func absurd(number string) bool {
	if len(number) > maxNumber {
		return true
	}
	at := strings.IndexAny(number, "eE")
	if at < 0 {
		return false
	}
	exponent, err := strconv.Atoi(strings.TrimPrefix(number[at+1:], "+"))
	return err != nil || exponent > maxExponent || exponent < -maxExponent
}
