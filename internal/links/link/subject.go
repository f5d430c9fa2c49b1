package link

import (
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Subject names the record that another record quotes, reposts or copies. The zero value
// names none.
type Subject struct{ Collection, DID, Rkey string }

// maxDID limits the DID of a subject. The network allows 2,048 bytes, a Postgres index
// fewer. No DID method in use makes longer ones.
const maxDID = 256

// strongRef is a com.atproto.repo.strongRef. Its CID is ignored: the subject is the
// record that the address names now.
type strongRef struct {
	URI str `json:"uri"`
}

// quoted is the record field of an app.bsky.embed.record, or of an
// app.bsky.embed.recordWithMedia, which contains the former.
type quoted struct {
	URI    str               `json:"uri"`
	Record object[strongRef] `json:"record"`
}

// InRepost reads the subject of one app.bsky.feed.repost record. It is zero if the
// record names no post. It returns an error for a record that is not a JSON object.
func InRepost(repost []byte) (Subject, error) {
	if jsontext.Value(repost).Kind() != '{' {
		return Subject{}, errors.New("repost is not a JSON object")
	}
	var r struct {
		Subject object[strongRef] `json:"subject"`
	}
	if err := json.Unmarshal(repost, &r, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)); err != nil {
		return Subject{}, fmt.Errorf("read repost: %w", err)
	}
	return parseSubject(string(r.Subject.fields.URI)), nil
}

// parseSubject parses the AT-URI of a post.
func parseSubject(uri string) Subject {
	if s := parseRecord(uri); s.Collection == CollectionPost {
		return s
	}
	return Subject{}
}

// parseRecord parses the AT-URI of a post or a repost. An address with a handle instead of a DID
// names none, because it is unknown who had the handle then.
func parseRecord(uri string) Subject {
	at, err := syntax.ParseATURI(uri)
	if err != nil || !at.Authority().IsDID() || at.RecordKey() == "" || len(at.Authority()) > maxDID {
		return Subject{}
	}
	s := Subject{at.Collection().String(), at.Authority().String(), at.RecordKey().String()}
	if s.Collection != CollectionPost && s.Collection != CollectionRepost {
		return Subject{}
	}
	return s
}
