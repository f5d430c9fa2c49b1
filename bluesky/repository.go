package bluesky

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

const describeRepo = "com.atproto.repo.describeRepo"

// Collections returns the collections with records in an account's repository, from
// its own PDS, in order. Invalid names are omitted and counted.
func (c *Client) Collections(ctx context.Context, did string) (names []string, err error) {
	r := request{call: describeRepo, method: http.MethodGet, path: xrpcPath(describeRepo, url.Values{"repo": {did}})}
	r.read = func(body []byte) error {
		fields, err := readObject(body)
		if err != nil {
			return err
		}
		if fields["collections"].Kind() != '[' {
			return malformed("expected an array collections")
		}
		found, err := items(fields["collections"])
		if err != nil {
			return err
		}
		names = names[:0]
		for _, v := range found {
			name, err := syntax.ParseNSID(text(v))
			if err != nil {
				c.countOmitted(describeRepo, errors.New("a collection is not an NSID"))
				continue
			}
			names = append(names, name.String())
		}
		slices.Sort(names)
		names = slices.Compact(names)
		return nil
	}
	if err := c.queryPDS(ctx, did, r); err != nil {
		return nil, err
	}
	return names, nil
}
