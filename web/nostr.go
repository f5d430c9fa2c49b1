package web

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/weir-social/weir/nostr"
)

// nostrBase shows events and profiles of Nostr in any browser, and leads to the reader's
// own client from there. A nostr: address would open nothing for readers who have none.
const nostrBase = "https://njump.me/"

// npub returns the npub of an account; "" if it is not one of Nostr.
func npub(did string) string {
	if key, ok := nostr.ParseDID(did); ok {
		return nostr.Npub(key)
	}
	return ""
}

// eventURL returns the web address of an event of Nostr; "" if uri is not that of one. An
// address that is not known from its record leads to its author.
func eventURL(uri string) string {
	did, record, _ := strings.Cut(strings.TrimPrefix(uri, "at://"), "/")
	collection, rkey, _ := strings.Cut(record, "/")
	number, is := strings.CutPrefix(collection, "nostr.")
	kind, err := strconv.Atoi(number)
	author, ok := nostr.ParseDID(did)
	if !ok || !is || err != nil || kind < 0 || kind > nostr.MaxKind {
		return ""
	}
	name := ""
	switch nostr.ClassOf(kind) {
	case nostr.Addressable:
		if !strings.HasPrefix(rkey, "#") { // the hash of a tag
			name = nostr.Naddr(rkey, author, kind)
		}
	case nostr.Replaceable:
	default:
		if id, ok := nostr.ParseKey(rkey); ok {
			name = nostr.Nevent(id, author, kind)
		}
	}
	if name == "" {
		name = nostr.Npub(author)
	}
	return nostrBase + url.PathEscape(name)
}
