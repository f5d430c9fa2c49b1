package bluesky

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

const getLatestCommit = "com.atproto.sync.getLatestCommit"

// revAhead is how far the clock of a PDS may be ahead of ours.
const revAhead = time.Hour

// LatestRev returns the current revision of an account's repository, from its own
// PDS. Later responses of that server have this revision or a newer one.
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
		if tid.Time().After(time.Now().Add(revAhead)) { // otherwise no later revision would be newer
			return malformed("the revision of %s is of the future: %s", did, tid.Time().UTC().Format(time.RFC3339))
		}
		rev = tid.String()
		return nil
	}
	err = c.queryPDS(ctx, did, r)
	return rev, err
}
