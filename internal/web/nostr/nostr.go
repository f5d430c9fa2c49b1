// Package nostr shows accounts and events of Nostr on the pages of other features. Nothing of the page knows it, so it
// can be left out.
package nostr

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/web"
)

// nostrBase shows Nostr events and profiles in any browser, and links to the reader's own
// client. A nostr: address would open nothing for readers without a client.
const nostrBase = "https://njump.me/"

// Part shows accounts and events of Nostr.
func Part() web.Part {
	return web.Part{Network: web.Network{Name: "Nostr", Profile: "Profile on njump.me", Account: account, Record: eventURL}}
}

// account returns the npub of an account and the address of its profile.
func account(did string) (name, profile string) {
	key, ok := nostr.ParseDID(did)
	if !ok {
		return "", ""
	}
	name = nostr.Npub(key)
	return name, nostrBase + url.PathEscape(name)
}

// eventURL returns the web address of a Nostr event, or "" if uri is not one. If the
// event's address cannot be derived from its key, it returns the author's.
func eventURL(uri string) string {
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
