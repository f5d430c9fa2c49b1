package link

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/weir-social/weir/internal/nostr"
)

// InEventRepost reads the subject of a Nostr repost (kinds 6 and 16, NIP-18): the note or
// article that its first e or a tag names. The author of a note comes from the text of the
// repost, if that contains the event, complete and signed; otherwise from the first p tag.
// With a wrong author, the subject does not exist. The subject is zero if the tags name
// none. original is the repost of another network from which a bridge made the record. It
// returns an error for a record that is not a JSON object.
func InEventRepost(collection string, repost []byte) (subject, original Subject, err error) {
	e, err := readEvent(repost)
	if err != nil {
		return Subject{}, Subject{}, fmt.Errorf("read repost: %w", err)
	}
	return e.reposted(collection), e.original(), nil
}

// reposted returns the subject of a repost.
func (e *event) reposted(collection string) Subject {
	id, named := nostr.ParseKey(e.Tags.first("e"))
	if named {
		if s, ok := innerSubject(string(e.Content), id); ok {
			return s
		}
	}
	if collection == CollectionEventRepost {
		if s := addressed(e.Tags.first("a")); s != (Subject{}) {
			return s
		}
		named = named && e.Tags.first("k") == "1" // the address names the article
	}
	if !named {
		return Subject{}
	}
	return note(id, e.Tags.first("p"))
}

// innerSubject returns the event inside the text of a repost, if the event has the id and
// its author signed it.
func innerSubject(text string, id [32]byte) (Subject, bool) {
	if !strings.HasPrefix(text, "{") {
		return Subject{}, false
	}
	inner, err := nostr.Decode([]byte(text))
	if err != nil || inner.ID != id || inner.CheckID() != nil || inner.CheckSignature() != nil {
		return Subject{}, false
	}
	return sharing(inner.Record()), true
}

// quoted returns the article or note that the first readable q tag names, by its address or
// id. If the tag does not name the note's author, a reference in the text or the first p
// tag does.
func (e *event) quoted() Subject {
	for _, tag := range e.Tags {
		if tag[0] != "q" || len(tag) < 2 {
			continue
		}
		if s := addressed(tag[1]); s != (Subject{}) {
			return s
		}
		id, ok := nostr.ParseKey(tag[1])
		if !ok {
			continue
		}
		author := ""
		if len(tag) > 3 {
			author = tag[3]
		}
		if _, ok := nostr.ParseKey(author); !ok {
			author = e.authorOf(id)
		}
		if s := note(id, author); s != (Subject{}) {
			return s
		}
	}
	return Subject{}
}

const maxReferences = 20 // references per text that are read

// authorOf returns the author of a note to which the event refers.
func (e *event) authorOf(id [32]byte) string {
	rest := cut(string(e.Content), maxText)
	for range maxReferences {
		at := strings.Index(rest, "nostr:nevent1")
		if at < 0 {
			break
		}
		rest = rest[at+len("nostr:"):]
		end := 0
		for end < len(rest) && letterOrDigit(rest[end]) {
			end++
		}
		if name, err := nostr.ParseName(rest[:end]); err == nil && name.Key == id && name.Author != nil {
			return hex.EncodeToString(name.Author[:])
		}
	}
	return e.Tags.first("p")
}

// note returns the note with an id and an author in hexadecimal digits.
func note(id [32]byte, author string) Subject {
	key, ok := nostr.ParseKey(author)
	if !ok {
		return Subject{}
	}
	return Subject{CollectionNote, nostr.DID(key), hex.EncodeToString(id[:])}
}

// addressed returns the article that an address names.
func addressed(address string) Subject {
	_, r, ok := nostr.ParseAddress(address)
	if !ok {
		return Subject{}
	}
	return sharing(r)
}

// sharing returns a record if it is in a Nostr collection whose records contain links.
func sharing(r nostr.Record) Subject {
	if r.Collection != CollectionNote && r.Collection != CollectionArticle {
		return Subject{}
	}
	return Subject{r.Collection, r.DID, r.Key}
}
