package link

import (
	"net/url"
	"strings"

	"github.com/weir-social/weir/internal/nostr"
)

// original returns the record that the first usable proxy tag (NIP-48) names. It is a
// record of the AT Protocol.
func (e *event) original() Subject {
	for _, tag := range e.Tags {
		if tag[0] == "proxy" && len(tag) > 1 {
			if s := originalRecord(tag[1]); s != (Subject{}) {
				return s
			}
		}
	}
	return Subject{}
}

// originalRecord returns the post or repost that an identifier in a proxy tag names. The
// identifier is an AT-URI, an address of Bridgy Fed that contains one (the bridge from the
// Fediverse writes these for posts that Bridgy Fed brought there), or an address of
// Bluesky's web page.
func originalRecord(id string) Subject {
	if strings.HasPrefix(id, "at://") {
		return parseRecord(id)
	}
	u, err := url.Parse(id)
	if err != nil || len(id) > MaxBytes || u.Scheme != "https" && u.Scheme != "http" {
		return Subject{}
	}
	switch host := u.Hostname(); {
	case host == "bsky.app":
		parts := strings.Split(u.Path, "/") // "", profile, the DID, post, the rkey
		if len(parts) == 5 && parts[1] == "profile" && parts[3] == "post" {
			return parseSubject("at://" + parts[2] + "/" + CollectionPost + "/" + parts[4])
		}
	case strings.HasSuffix(host, ".brid.gy"):
		if at := strings.Index(u.Path, "at:/"); at >= 0 { // some servers turn the two slashes into one
			return parseRecord("at://" + strings.TrimLeft(u.Path[at+len("at:/"):], "/"))
		}
	}
	return Subject{}
}

// originalEvent returns the note that the address of an original names: nostr:nevent1…, or
// a page whose address ends in that form. It returns the zero Subject if the address lacks
// the author.
func originalEvent(address string) Subject {
	at := strings.LastIndex(address, "nevent1")
	if at < 1 || len(address) > MaxBytes || address[at-1] != ':' && address[at-1] != '/' {
		return Subject{}
	}
	name, err := nostr.ParseName(address[at:])
	if err != nil || name.Author == nil {
		return Subject{}
	}
	e := nostr.Event{ID: name.Key, PubKey: *name.Author, Kind: nostr.KindNote}
	return sharing(e.Record())
}
