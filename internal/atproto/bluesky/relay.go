package bluesky

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

const listReposByCollection = "com.atproto.sync.listReposByCollection"

// MostByCollection is the largest page of AccountsWith.
const MostByCollection = 2000

// Relays returns the configured relays, in order of preference.
func (c *Client) Relays() []string { return slices.Clone(c.relays) }

// AccountsWith returns a page of the accounts that have records in a collection, as a
// configured relay lists them, and the cursor of the next page; empty: there is none.
// limit is 1 to MostByCollection. Invalid DIDs are omitted and counted; duplicates are
// returned once.
func (c *Client) AccountsWith(ctx context.Context, relay, collection, cursor string, limit int) (dids []string, next string, err error) {
	if _, err := syntax.ParseNSID(collection); err != nil {
		return nil, "", badInput(listReposByCollection, "%q is not a collection", collection)
	}
	if !slices.Contains(c.relays, relay) {
		return nil, "", badInput(listReposByCollection, "%q is not a configured relay", relay)
	}
	params := url.Values{"collection": {collection}, "limit": {strconv.Itoa(min(max(limit, 1), MostByCollection))}}
	if cursor != "" {
		params.Set("cursor", cursor)
	}
	r := request{call: listReposByCollection, method: http.MethodGet, origin: relay, path: xrpcPath(listReposByCollection, params)}
	r.read = func(body []byte) error {
		fields, err := readObject(body)
		if err != nil {
			return err
		}
		if fields["repos"].Kind() != '[' {
			return malformed("expected an array repos")
		}
		found, err := items(fields["repos"])
		if err != nil {
			return err
		}
		if len(found) > MostByCollection {
			return malformed("%d accounts on a page: at most %d were asked for", len(found), MostByCollection)
		}
		if next, err = nextCursor(fields["cursor"], cursor, len(found)); err != nil {
			return err
		}
		dids = dids[:0]
		for _, v := range found {
			account, err := readObject(v)
			if did := text(account["did"]); err == nil && isDID(did) {
				dids = append(dids, did)
				continue
			}
			c.countOmitted(listReposByCollection, errors.New("an account has no valid DID"))
		}
		slices.Sort(dids)
		dids = slices.Compact(dids)
		return nil
	}
	if err := c.do(ctx, r); err != nil {
		return nil, "", err
	}
	return dids, next, nil
}
