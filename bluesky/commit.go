package bluesky

import (
	"context"
	"net/http"
	"net/url"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

const getLatestCommit = "com.atproto.sync.getLatestCommit"

// LatestRev answers the revision that an account's repository is at, by its own
// PDS: what that server answers afterwards is of this revision or a later one.
func (c *Client) LatestRev(ctx context.Context, did string) (rev string, err error) {
	r := request{call: getLatestCommit, method: http.MethodGet, path: xrpcPath(getLatestCommit, url.Values{"did": {did}})}
	r.read = func(body []byte) error {
		fields, err := readObject(body)
		if err != nil {
			return err
		}
		tid, err := syntax.ParseTID(text(fields["rev"]))
		if err != nil {
			return malformed("the revision of %s is no TID", did)
		}
		rev = tid.String()
		return nil
	}
	err = c.askPDS(ctx, did, r)
	return rev, err
}
