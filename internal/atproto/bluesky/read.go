package bluesky

import (
	"bytes"
	"errors"
	"io"
	"slices"
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
	maxRecord   = 2 << 20 // bytes of a record's JSON; the network's limit is lower
	maxDepth    = 200     // levels of a record
	maxExponent = 324     // exponent of a number: Postgres writes larger ones out in full
	maxNumber   = 1024    // bytes of a number
	maxCursor   = 1024    // bytes: the cursor goes into a URL, and the caller may store it
	maxName     = 640     // bytes of a display name, as in its lexicon
	maxURL      = 2048    // bytes of an avatar's URL
	replacement = "\ufffd"
)

// readObject decodes the fields of an object. Their values are valid JSON but
// otherwise unchecked, so that one bad field does not affect the others.
func readObject(data []byte) (map[string]jsontext.Value, error) {
	var fields map[string]jsontext.Value
	if err := json.Unmarshal(data, &fields, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return nil, malformed("the answer is no JSON object: %v", err)
	}
	return fields, nil
}

// items decodes an array. A missing one is empty.
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

// text decodes a string that Postgres can store; anything else becomes empty.
func text(v jsontext.Value) string {
	if v.Kind() != '"' {
		return ""
	}
	out, _ := jsontext.AppendUnquote(nil, bytes.TrimSpace(v)) // invalid characters are replaced
	return strings.ReplaceAll(string(out), "\x00", replacement)
}

// instant decodes a datetime; zero if it is invalid.
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

// nextCursor returns the cursor of the next page. items is the number of items on this page.
// If the cursor is the requested one and the page is empty, the listing has ended. With
// items, that is an error: the rest of the listing is unavailable, and the part must not be
// used as the whole.
func nextCursor(v jsontext.Value, requested string, items int) (string, error) {
	next := text(v)
	switch {
	case len(next) > maxCursor || strings.ContainsFunc(next, unicode.IsControl) || strings.Contains(next, replacement):
		return "", malformed("the cursor is too long or holds what no cursor holds")
	case next == "" || next != requested:
		return next, nil
	case items > 0:
		return "", malformed("the cursor of the next page is that of this one")
	}
	return "", nil
}

// readProfile decodes a profile. It returns false if the profile has no DID.
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
	labels, _ := items(fields["labels"])
	p.Withheld = slices.ContainsFunc(labels, func(v jsontext.Value) bool {
		label, err := readObject(v)
		return err == nil && text(label["val"]) == "!no-unauthenticated" && text(label["src"]) == p.DID
	})
	return p, true
}

func isWebURL(s string) bool {
	return len(s) <= maxURL && (strings.HasPrefix(s, "https://") || strings.HasPrefix(s, "http://")) &&
		!strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) || r == utf8.RuneError })
}

// shortened truncates at the end of a character and replaces control characters by
// spaces.
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

// storable makes a record fit for a jsonb column: it replaces NULs and lone surrogates by
// U+FFFD. It returns an error if it cannot repair the record.
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
	size := len(record) // in the form that Postgres returns
	dec := jsontext.NewDecoder(bytes.NewBuffer(record), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	enc := jsontext.NewEncoder(&out) // rejects duplicate names, even those that replacement makes
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
			zeros, ok := writtenOut(token.String())
			if !ok {
				return nil, errors.New("the record has a number out of the range of a double")
			}
			if size += zeros; size > maxRecord {
				return nil, errors.New("the record with its numbers written out is longer than " + strconv.Itoa(maxRecord) + " bytes")
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
		return record, nil // unchanged
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}

// writtenOut returns how many zeros Postgres adds to a number with an exponent. It returns
// false if Postgres would reject the number, or if it has more digits than a double.
func writtenOut(number string) (zeros int, ok bool) {
	if len(number) > maxNumber {
		return 0, false
	}
	at := strings.IndexAny(number, "eE")
	if at < 0 {
		return 0, true
	}
	exponent, err := strconv.Atoi(strings.TrimPrefix(number[at+1:], "+"))
	return max(exponent, -exponent), err == nil && exponent <= maxExponent && exponent >= -maxExponent
}
