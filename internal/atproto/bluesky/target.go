package bluesky

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// TargetKind is the kind of a Target.
type TargetKind string

// The kinds of targets.
const (
	TargetAccount     TargetKind = "account"
	TargetList        TargetKind = "list"
	TargetStarterPack TargetKind = "starterpack"
)

// Target is an account, a list or a starter pack.
type Target struct {
	Kind  TargetKind
	Actor string // handle, in lower case, or DID: of the account, or of the author of the list or pack
	URI   string // AT-URI of the list or starter pack, which contains Actor; empty: an account
}

// maxTarget limits the input, in bytes.
const maxTarget = 4096

// ParseTarget parses a handle, a DID, the AT-URI of a list or starter pack, or a
// bsky.app URL of a profile, list or starter pack. A handle may have a leading @.
// It makes no call: the target may not exist.
func ParseTarget(s string) (Target, error) {
	s = strings.TrimSpace(strings.Map(visible, s))
	switch {
	case s == "":
		return Target{}, errors.New("nothing is named: expected a handle, a DID, an AT-URI or a bsky.app URL")
	case len(s) > maxTarget:
		return Target{}, fmt.Errorf("%d bytes name no account: expected a handle, a DID, an AT-URI or a bsky.app URL", len(s))
	}
	if rest, ok := cutPrefixFold(s, "at://"); ok {
		return targetOfURI(s, rest)
	}
	for _, scheme := range []string{"https://", "http://"} {
		if rest, ok := cutPrefixFold(s, scheme); ok {
			return targetOfURL(s, rest)
		}
	}
	for _, site := range []string{"bsky.app/", "www.bsky.app/"} {
		if _, ok := cutPrefixFold(s, site); ok {
			return targetOfURL(s, s)
		}
	}
	actor, err := parseActor(s)
	if err != nil {
		return Target{}, fmt.Errorf("%q is neither a handle nor a DID: expected for example alice.bsky.social, did:plc:…, "+
			"at://… or https://bsky.app/profile/…", oneLine(s))
	}
	return Target{Kind: TargetAccount, Actor: actor}, nil
}

// visible removes direction marks and zero-width characters, which are copied along
// with a handle from a page.
func visible(r rune) rune {
	switch {
	case r >= '\u200b' && r <= '\u200f', r >= '\u202a' && r <= '\u202e', r >= '\u2060' && r <= '\u2069', r == '\ufeff':
		return -1
	}
	return r
}

func cutPrefixFold(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return "", false
	}
	return s[len(prefix):], true
}

func parseActor(s string) (string, error) {
	id, err := syntax.ParseAtIdentifier(strings.TrimPrefix(s, "@"))
	if err != nil {
		return "", err
	}
	if id.IsDID() && strings.HasPrefix(s, "@") {
		return "", errors.New("a DID has no @")
	}
	return id.Normalize().String(), nil
}

// targetOfURI parses the text after at://.
func targetOfURI(s, rest string) (Target, error) {
	parts := strings.Split(strings.TrimSuffix(rest, "/"), "/")
	if len(parts) == 1 {
		actor, err := parseActor(parts[0])
		if err != nil {
			return Target{}, fmt.Errorf("%q names no account: expected at:// and a handle or DID", oneLine(s))
		}
		return Target{Kind: TargetAccount, Actor: actor}, nil
	}
	if len(parts) == 3 {
		switch parts[1] {
		case collectionList:
			return recordTarget(s, TargetList, parts[0], collectionList, parts[2])
		case collectionStarterPack:
			return recordTarget(s, TargetStarterPack, parts[0], collectionStarterPack, parts[2])
		}
	}
	return Target{}, fmt.Errorf("%q is neither a list nor a starter pack: expected at://…/%s/… or at://…/%s/…", oneLine(s), collectionList,
		collectionStarterPack)
}

// targetOfURL parses the text after the scheme of a URL.
func targetOfURL(s, rest string) (Target, error) {
	const expected = "expected https://bsky.app/profile/…, …/profile/…/lists/… or …/starter-pack/…/…"
	if at := strings.IndexAny(rest, "?#"); at >= 0 {
		rest = rest[:at]
	}
	parts := strings.Split(strings.TrimRight(rest, "/"), "/")
	if site := strings.ToLower(parts[0]); site != "bsky.app" && site != "www.bsky.app" {
		return Target{}, fmt.Errorf("%q is not on bsky.app: %s", oneLine(s), expected)
	}
	parts = parts[1:]
	for i, part := range parts {
		unescaped, err := url.PathUnescape(part)
		if err != nil {
			return Target{}, fmt.Errorf("%q is not a URL: %s", oneLine(s), expected)
		}
		parts[i] = unescaped
	}
	switch {
	case len(parts) == 2 && parts[0] == "profile":
		actor, err := parseActor(parts[1])
		if err != nil {
			return Target{}, fmt.Errorf("%q names no account: %q is neither a handle nor a DID", oneLine(s), oneLine(parts[1]))
		}
		return Target{Kind: TargetAccount, Actor: actor}, nil
	case len(parts) == 4 && parts[0] == "profile" && parts[2] == "lists":
		return recordTarget(s, TargetList, parts[1], collectionList, parts[3])
	case len(parts) == 3 && (parts[0] == "starter-pack" || parts[0] == "start"):
		return recordTarget(s, TargetStarterPack, parts[1], collectionStarterPack, parts[2])
	}
	return Target{}, fmt.Errorf("%q is not a profile, list or starter pack: %s", oneLine(s), expected)
}

func recordTarget(s string, kind TargetKind, by, collection, rkey string) (Target, error) {
	actor, err := parseActor(by)
	if err != nil {
		return Target{}, fmt.Errorf("%q: %q is neither a handle nor a DID", oneLine(s), oneLine(by))
	}
	if _, err := syntax.ParseRecordKey(rkey); err != nil {
		return Target{}, fmt.Errorf("%q: %q is not a record key", oneLine(s), oneLine(rkey))
	}
	return Target{Kind: kind, Actor: actor, URI: "at://" + actor + "/" + collection + "/" + rkey}, nil
}
