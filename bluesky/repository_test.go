package bluesky_test

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/bluesky"
)

// TestRepositoryComesFromItsServer, as it is, and not if it is too long.
func TestRepositoryComesFromItsServer(t *testing.T) {
	t.Parallel()
	var base string
	car, length := bytes.Repeat([]byte{0, 0xff}, 20<<20), "" // longer than other answers may be
	base, j := serve(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		switch {
		case r.URL.Path == "/"+alice:
			reply(w, http.StatusOK, fmt.Sprintf(`{"id":%q,"service":[{"id":"#atproto_pds","type":"AtprotoPersonalDataServer","serviceEndpoint":%q}]}`, alice, base))
		case r.Header.Get("Accept") != "application/vnd.ipld.car":
			reply(w, http.StatusNotAcceptable, `{}`)
		default:
			if length != "" {
				w.Header().Set("Content-Length", length)
			}
			w.Write(car) //nolint:errcheck // the client may leave
		}
	})
	c := newClient(t, base, func(cfg *bluesky.Config) { cfg.Timeout = time.Minute })
	got, err := c.Repository(t.Context(), alice)
	require.NoError(t, err)
	require.True(t, bytes.Equal(car, got))
	require.Equal(t, []string{"/" + alice, "com.atproto.sync.getRepo"}, j.calls())
	require.Equal(t, alice, j.all()[1].query.Get("did"))

	length = fmt.Sprint(1 << 30)
	_, err = c.Repository(t.Context(), alice)
	require.ErrorIs(t, err, bluesky.ErrTooLong)
	require.Equal(t, bluesky.Permanent, failure(t, err).Class)
}
