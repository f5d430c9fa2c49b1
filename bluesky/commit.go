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
	at, _, err := c.identity(ctx, did)
	if err != nil {
		return "", err
	}
	r := request{call: getLatestCommit, method: http.MethodGet, origin: at.PDS, path: xrpcPath(getLatestCommit, url.Values{"did": {did}})}
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
	return rev, c.do(ctx, r)
}
