package bluesky

import (
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	resolveHandle  = "com.atproto.identity.resolveHandle"
	getFollows     = "app.bsky.graph.getFollows"
	getList        = "app.bsky.graph.getList"
	getStarterPack = "app.bsky.graph.getStarterPack"
	getProfiles    = "app.bsky.actor.getProfiles"

	collectionList        = "app.bsky.graph.list"
	collectionStarterPack = "app.bsky.graph.starterpack"

	// MostProfiles is the largest number of accounts in one call of Profiles.
	MostProfiles = 25
)

// Profile is the public profile of an account. Only the DID is always set. Every
// field is storable; none is safe in HTML.
type Profile struct {
	DID, Handle, DisplayName, Avatar string
	Withheld                         bool // the account asks not to be shown to people who are not logged in
}

// ResolveHandle returns the DID of a handle.
func (c *Client) ResolveHandle(ctx context.Context, handle string) (did string, err error) {
	parsed, err := syntax.ParseHandle(strings.TrimPrefix(handle, "@"))
	if err != nil {
		return "", badInput(resolveHandle, "%q is not a handle: expected a domain name such as alice.bsky.social", handle)
	}
	err = c.query(ctx, resolveHandle, url.Values{"handle": {parsed.Normalize().String()}}, func(body []byte) error {
		fields, err := readObject(body)
		if err != nil {
			return err
		}
		if did = text(fields["did"]); !isDID(did) {
			return malformed("expected a DID, received %q", did)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return did, nil
}

// OwnsHandle reports whether a handle is an account's: its current DID document names the
// handle, and the handle resolves to the account. An error that is not permanent means that
// this is unknown.
func (c *Client) OwnsHandle(ctx context.Context, did, handle string) (bool, error) {
	c.forgetDocument(did)
	id, _, err := c.identity(ctx, did)
	if err != nil || id.Handle != handle {
		return false, err
	}
	owner, err := c.ResolveHandle(ctx, handle)
	return err == nil && owner == did, err
}

// Follows returns a page of at most 100 accounts that actor, a handle or DID,
// follows, and the cursor of the next page; empty: there is none.
func (c *Client) Follows(ctx context.Context, actor, cursor string) (page []Profile, next string, err error) {
	id, err := syntax.ParseAtIdentifier(strings.TrimPrefix(actor, "@"))
	if err != nil {
		return nil, "", badInput(getFollows, "%q is neither a handle nor a DID", actor)
	}
	return c.profilePage(ctx, getFollows, url.Values{"actor": {id.Normalize().String()}}, cursor, "follows", "")
}

// List returns a page of at most 100 accounts on a list, named by its AT-URI, and
// the cursor of the next page; empty: there is none.
func (c *Client) List(ctx context.Context, uri, cursor string) (page []Profile, next string, err error) {
	uri, err = c.byDID(ctx, getList, uri, collectionList)
	if err != nil {
		return nil, "", err
	}
	return c.profilePage(ctx, getList, url.Values{"list": {uri}}, cursor, "items", "subject")
}

// StarterPack returns the AT-URI of the list of a starter pack.
func (c *Client) StarterPack(ctx context.Context, uri string) (list string, err error) {
	uri, err = c.byDID(ctx, getStarterPack, uri, collectionStarterPack)
	if err != nil {
		return "", err
	}
	err = c.query(ctx, getStarterPack, url.Values{"starterPack": {uri}}, func(body []byte) error {
		list, err = readStarterPack(body)
		return err
	})
	if err != nil {
		return "", err
	}
	return list, nil
}

// readStarterPack returns the list from the record: the view omits lists without
// members.
func readStarterPack(body []byte) (string, error) {
	var err error
	value := jsontext.Value(body)
	for _, name := range []string{"starterPack", "record", "list"} {
		var fields map[string]jsontext.Value
		if fields, err = readObject(value); err != nil {
			return "", err
		}
		value = fields[name]
	}
	list, err := syntax.ParseATURI(text(value))
	if err != nil || list.Collection() != collectionList || list.RecordKey() == "" {
		return "", malformed("the starter pack names no list")
	}
	return list.String(), nil
}

// Profiles returns the profiles of at most MostProfiles accounts, in the server's
// order. Unknown accounts are omitted.
func (c *Client) Profiles(ctx context.Context, dids []string) ([]Profile, error) {
	if len(dids) == 0 {
		return nil, nil
	}
	if len(dids) > MostProfiles {
		return nil, badInput(getProfiles, "%d accounts at once: ask for %d at most", len(dids), MostProfiles)
	}
	for _, did := range dids {
		if !isDID(did) {
			return nil, badInput(getProfiles, "%q is not a DID", did)
		}
	}
	page, _, err := c.profilePage(ctx, getProfiles, url.Values{"actors": dids}, "", "profiles", "")
	return slices.DeleteFunc(page, func(p Profile) bool { return !slices.Contains(dids, p.DID) }), err
}

// profilePage requests a page and decodes the accounts in the array called name.
// within is the field of an item that holds the account.
func (c *Client) profilePage(
	ctx context.Context, call string, params url.Values, cursor, name, within string,
) (page []Profile, next string, err error) {
	if call != getProfiles {
		params.Set("limit", "100")
	}
	if cursor != "" {
		params.Set("cursor", cursor)
	}
	err = c.query(ctx, call, params, func(body []byte) error {
		page = nil
		fields, err := readObject(body)
		if err != nil {
			return err
		}
		if fields[name].Kind() != '[' {
			return malformed("expected an array %s", name) // without this check, all accounts would seem unfollowed
		}
		found, err := items(fields[name])
		if err != nil {
			return err
		}
		if next, err = nextCursor(fields["cursor"], cursor, len(found)); err != nil {
			return err
		}
		for _, item := range found {
			if within != "" {
				inner, _ := readObject(item)
				item = inner[within]
			}
			p, ok := readProfile(item)
			if !ok {
				c.metrics.unreadable.WithLabelValues(call).Inc()
				continue
			}
			page = append(page, p)
		}
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	return page, next, nil
}

// byDID replaces a handle in a record's AT-URI by the DID, because servers require
// one.
func (c *Client) byDID(ctx context.Context, call, uri, collection string) (string, error) {
	parsed, err := syntax.ParseATURI(uri)
	if err != nil || parsed.Collection().String() != collection || parsed.RecordKey() == "" {
		return "", badInput(call, "%q is not the AT-URI of a record: expected at://did/%s/rkey", uri, collection)
	}
	if parsed.Authority().IsDID() {
		return uri, nil
	}
	did, err := c.ResolveHandle(ctx, parsed.Authority().String())
	if err != nil {
		return "", err
	}
	return "at://" + did + "/" + collection + "/" + parsed.RecordKey().String(), nil
}

func isDID(s string) bool {
	_, err := syntax.ParseDID(s)
	return err == nil
}
