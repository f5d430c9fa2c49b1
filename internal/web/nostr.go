package web

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/weir-social/weir/internal/nostr"
)

// nostrBase shows Nostr events and profiles in any browser, and links to the reader's own
// client. A nostr: address would open nothing for readers without a client.
const nostrBase = "https://njump.me/"

// npub returns the npub of an account, or "" if it is not a Nostr account.
func npub(did string) string {
	if key, ok := nostr.ParseDID(did); ok {
		return nostr.Npub(key)
	}
	return ""
}

// EventURL returns the web address of a Nostr event, or "" if uri is not one. If the
// event's address cannot be derived from its key, it returns the author's.
func EventURL(uri string) string {
	did, record, _ := strings.Cut(strings.TrimPrefix(uri, "at://"), "/")
	collection, rkey, _ := strings.Cut(record, "/")
	number, is := strings.CutPrefix(collection, nostr.Prefix)
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
