package bluesky_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
)

// TestRepositoryComesFromItsServer shows that a repository is returned unchanged, unless it is too
// long.
func TestRepositoryComesFromItsServer(t *testing.T) {
	t.Parallel()
	var base string
	car, length := bytes.Repeat([]byte{0, 0xff}, 20<<20), "" // longer than other responses may be
	base, j := serve(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		switch {
		case r.URL.Path == "/"+alice:
			reply(w, http.StatusOK,
				fmt.Sprintf(`{"id":%q,"service":[{"id":"#atproto_pds","type":"AtprotoPersonalDataServer","serviceEndpoint":%q}]}`, alice, base))
		case r.Header.Get("Accept") != "application/vnd.ipld.car":
			reply(w, http.StatusNotAcceptable, `{}`)
		default:
			if length != "" {
				w.Header().Set("Content-Length", length)
			}
			w.Write(car) // the client may disconnect
		}
	})
	c := newClient(t, base, func(cfg *bluesky.Config) { cfg.Timeout = time.Minute })
	var got []byte
	take := func(mirror string, car []byte) error {
		require.Empty(t, mirror)
		got = car
		return nil
	}
	require.NoError(t, c.Repository(t.Context(), alice, take))
	require.True(t, bytes.Equal(car, got))
	require.Equal(t, []string{"/" + alice, "com.atproto.sync.getRepo"}, j.calls())
	require.Equal(t, alice, j.all()[1].query.Get("did"))

	car = []byte("a proof")
	got, err := c.RecordProof(t.Context(), alice, "com.example.note", "a b")
	require.NoError(t, err)
	require.Equal(t, "a proof", string(got))
	require.Equal(t, "com.atproto.sync.getRecord", j.calls()[len(j.calls())-1])
	require.Equal(t, []string{alice, "com.example.note", "a b"}, []string{
		j.all()[len(j.all())-1].query.Get("did"), j.all()[len(j.all())-1].query.Get("collection"), j.all()[len(j.all())-1].query.Get("rkey"),
	})
	car = bytes.Repeat([]byte{0, 0xff}, 20<<20)
	_, err = c.RecordProof(t.Context(), alice, "com.example.note", "a")
	require.Equal(t, bluesky.Transient, failure(t, err).Class, "a proof that is too long must be an error")

	length = fmt.Sprint(1 << 30)
	err = c.Repository(t.Context(), alice, take)
	require.ErrorIs(t, err, bluesky.ErrTooLong)
	require.Equal(t, bluesky.Permanent, failure(t, err).Class)
}

// TestAccountsOfACollection shows that they are listed from a relay, page by page. Invalid DIDs are
// omitted, and an invalid page is an error.
func TestAccountsOfACollection(t *testing.T) {
	t.Parallel()
	body := ""
	base, j := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, http.StatusOK, body) })
	c := newClient(t, base, func(cfg *bluesky.Config) { cfg.Relays = []string{base + "/"} })
	require.Equal(t, []string{base}, c.Relays())
	ask := func(cursor string) ([]string, string, error) {
		return c.AccountsWith(t.Context(), base, "pub.layers.persona", cursor, 500)
	}
	body = fmt.Sprintf(`{"repos": [{"did": %q}, {"did": "no DID"}, {}, 7, {"did": %q}, {"did": %q}], "cursor": "c"}`, bob, alice, bob)
	dids, next, err := ask("")
	require.NoError(t, err)
	require.Equal(t, []string{alice, bob}, dids)
	require.Equal(t, "c", next)
	require.Equal(t, "pub.layers.persona", j.all()[0].query.Get("collection"))
	require.Equal(t, "500", j.all()[0].query.Get("limit"))
	_, _, err = ask("c")
	require.ErrorContains(t, err, "the cursor of the next page is that of this one")
	require.Equal(t, "c", j.all()[1].query.Get("cursor"))
	body = `{"repos": []}`
	dids, next, err = ask("c")
	require.NoError(t, err)
	require.Empty(t, dids)
	require.Empty(t, next)
	for _, body = range []string{`{}`, `{"repos": {}}`, `[`, `{"repos": [` + strings.Repeat(`{},`, bluesky.MostByCollection) + `{}]}`} {
		_, _, err = ask("")
		require.Equal(t, bluesky.Transient, failure(t, err).Class, body[:min(len(body), 20)])
	}
	_, _, err = c.AccountsWith(t.Context(), "https://relay.example", "pub.layers.persona", "", 1)
	require.Equal(t, bluesky.Permanent, failure(t, err).Class, "a relay that is not configured must not be asked")
	_, _, err = c.AccountsWith(t.Context(), base, "pub.layers.*", "", 1)
	require.Equal(t, bluesky.Permanent, failure(t, err).Class)
}
