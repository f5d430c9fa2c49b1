package schema

import (
	"bytes"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/go-json-experiment/json/jsontext"
)

// CreatedAt returns the time in a record's createdAt, clamped between 1970 and at,
// the time when the record arrived. If createdAt is missing or invalid, it returns
// the time of the rkey if that is a TID not after at, and otherwise at.
func CreatedAt(record []byte, rkey string, at time.Time) time.Time {
	claim, ok := claimedTime(record)
	if !ok {
		claim, ok = TIDTime(rkey)
		if !ok || claim.After(at) {
			return at
		}
	}
	return ClampCreatedAt(claim, at)
}

// ClampCreatedAt returns the date that an author gave a record, clamped between 1970
// and at, the time when the record arrived.
func ClampCreatedAt(claim, at time.Time) time.Time {
	switch {
	case claim.After(at):
		return at
	case claim.Before(time.Unix(0, 0)):
		return time.Unix(0, 0)
	}
	return claim
}

// claimedTime reads the field createdAt of a record's JSON.
func claimedTime(record []byte) (time.Time, bool) {
	if !bytes.Contains(record, []byte(`"createdAt"`)) {
		return time.Time{}, false
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(record), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if t, err := d.ReadToken(); err != nil || t.Kind() != '{' {
		return time.Time{}, false
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return time.Time{}, false
		}
		if name.String() != "createdAt" {
			if err := d.SkipValue(); err != nil {
				return time.Time{}, false
			}
			continue
		}
		value, err := d.ReadToken()
		if err != nil || value.Kind() != '"' {
			return time.Time{}, false
		}
		return parseTime(value.String())
	}
	return time.Time{}, false
}

// parseTime parses a datetime of the network, including the looser formats of old
// clients.
func parseTime(s string) (time.Time, bool) {
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, true
	}
	if len(s) > 64 {
		return time.Time{}, false
	}
	t, err := syntax.ParseDatetimeLenient(s)
	if err != nil {
		return time.Time{}, false
	}
	return t.Time(), true
}

// TIDTime returns the time of a TID.
func TIDTime(rkey string) (time.Time, bool) {
	if len(rkey) != 13 {
		return time.Time{}, false
	}
	tid, err := syntax.ParseTID(rkey)
	if err != nil {
		return time.Time{}, false
	}
	return tid.Time(), true
}
