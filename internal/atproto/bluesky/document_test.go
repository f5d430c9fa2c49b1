package bluesky_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
)

func didDocument(did, pds string) string {
	return `{"@context":["x"],"id":"` + did + `","alsoKnownAs":["https://x","at://not a handle","at://Alice.Example","at://second.example"],
		"service":[7,{"id":"#labeler","type":"AtprotoLabeler","serviceEndpoint":{"a":1}},
		{"id":"#atproto_pds","type":"AtprotoPersonalDataServer","serviceEndpoint":"` + pds + `"}]}`
}

func records(w http.ResponseWriter, dids ...string) {
	var items []string
	for _, did := range dids {
		items = append(items, `{"uri":"at://`+did+`/app.bsky.feed.post/3abc","cid":"`+cid+`","value":{"text":"x\u0000"}}`)
	}
	reply(w, 200, `{"cursor":"c","records":[`+strings.Join(items, ",")+`]}`)
}

func TestRecordsComeFromPDS(t *testing.T) {
	t.Parallel()
	pds, j := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { records(w, alice, bob) })
	directory, looked := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, 200, didDocument(alice, pds+"/")) })
	metrics := prometheus.NewRegistry()
	c := newClient(t, directory, func(cfg *bluesky.Config) { cfg.Registerer = metrics })
	for range 3 {
		page, next, err := c.Records(t.Context(), alice, "app.bsky.feed.post", "b", 50)
		require.NoError(t, err)
		require.Equal(t, "c", next)
		require.Equal(t, []bluesky.FeedPost{{DID: alice, Rkey: "3abc", CID: cid, Record: []byte(`{"text":"x` + "\ufffd" + `"}`)}}, page)
	}
	require.EqualValues(t, 3, unreadable(t, metrics), "items of other accounts in a PDS response must be ignored")
	require.Equal(t, []string{"/" + alice}, looked.calls(), "documents must be cached")
	require.Equal(t, "com.atproto.repo.listRecords", j.all()[0].call)
	require.Equal(t, url.Values{"repo": {alice}, "collection": {"app.bsky.feed.post"}, "limit": {"50"}, "cursor": {"b"}}, j.all()[0].query)

	id, err := c.Identity(t.Context(), alice)
	require.NoError(t, err)
	require.Equal(t, bluesky.Identity{DID: alice, Handle: "alice.example", PDS: pds}, id)
}

// TestFutureRevisionIsRejected prevents a record from being stored under such a
// revision: it would never change again.
func TestFutureRevisionIsRejected(t *testing.T) {
	t.Parallel()
	var ahead time.Duration
	pds, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		reply(w, 200, `{"cid":"`+cid+`","rev":"`+syntax.NewTID(time.Now().Add(ahead).UnixMicro(), 0).String()+`"}`)
	})
	directory, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, 200, didDocument(alice, pds)) })
	c := newClient(t, directory, noRetries)
	for _, ahead = range []time.Duration{-time.Hour, 10 * time.Minute} {
		rev, err := c.LatestRev(t.Context(), alice)
		require.NoError(t, err)
		require.NotEmpty(t, rev)
	}
	for _, ahead = range []time.Duration{2 * time.Hour, 100 * 365 * 24 * time.Hour} {
		rev, err := c.LatestRev(t.Context(), alice)
		require.Equal(t, bluesky.Transient, failure(t, err).Class)
		require.Empty(t, rev)
	}
}

func TestDocumentIsCachedForAnHour(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, j := serveInside(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
			reply(w, 200, didDocument(alice, "https://pds.example"))
		})
		c := newClient(t, "http://appview.example", func(cfg *bluesky.Config) { cfg.HTTPClient = client })
		for want, wait := range []time.Duration{0, 59 * time.Minute, 2 * time.Minute} {
			time.Sleep(wait)
			_, err := c.Identity(t.Context(), alice)
			require.NoError(t, err)
			require.Len(t, j.all(), max(1, want))
		}
	})
}

func TestMovedAccountIsFound(t *testing.T) {
	t.Parallel()
	old, oldCalls := serve(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		if n == 1 {
			records(w, alice)
			return
		}
		reply(w, 400, `{"error":"RepoDeactivated"}`)
	})
	moved, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { records(w, alice) })
	var at atomic.Value
	at.Store(old)
	directory, looked := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		reply(w, 200, didDocument(alice, at.Load().(string)))
	})
	c := newClient(t, directory, nil)
	list := func() error {
		page, _, err := c.Records(t.Context(), alice, "app.bsky.feed.post", "", 50)
		require.Equal(t, err == nil, len(page) == 1)
		return err
	}
	require.NoError(t, list())
	require.Equal(t, "RepoDeactivated", failure(t, list()).Name, "the account has no other server, so the error must be returned")
	require.Len(t, looked.all(), 2)
	at.Store(moved)
	require.NoError(t, list())
	require.NoError(t, list())
	require.Len(t, oldCalls.all(), 3)
}

// TestDeletedAccountIsToldFromAMissingOne shows that an account is deleted if the directory says so,
// or if the server that its current document names has no such repository.
func TestDeletedAccountIsToldFromAMissingOne(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plc, pds int
		answer   string
		gone     bool
	}{
		"deleted by the server":    {200, 400, `{"error":"RepoNotFound"}`, true},
		"deleted in the directory": {410, 400, `{"error":"RepoDeactivated"}`, true},
		"deactivated":              {200, 400, `{"error":"RepoDeactivated"}`, false},
		"a server out of order":    {200, 500, `{"error":"RepoNotFound"}`, false},
		"unknown to the directory": {404, 400, `{"error":"RepoNotFound"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pds, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, c.pds, c.answer) })
			directory, looked := serve(t, func(w http.ResponseWriter, _ *http.Request, n int) {
				if n == 1 || c.plc == 200 {
					reply(w, 200, didDocument(alice, pds))
					return
				}
				reply(w, c.plc, `{"message":"no"}`)
			})
			client := newClient(t, directory, noRetries)
			_, err := client.Identity(t.Context(), alice)
			require.NoError(t, err)
			_, err = client.LatestRev(t.Context(), alice)
			require.Error(t, err)
			require.Equal(t, c.gone, errors.Is(err, bluesky.ErrGone), "%v", err)
			if c.pds != 500 {
				require.Len(t, looked.all(), 2, "the directory must be asked anew")
			}
		})
	}
}

func TestDIDWebDocumentIsFound(t *testing.T) {
	t.Parallel()
	var did string
	base, j := serve(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		if r.URL.Path == "/.well-known/did.json" {
			reply(w, 200, didDocument(did, "http://"+r.Host))
			return
		}
		records(w, did)
	})
	did = "did:web:" + strings.Replace(strings.TrimPrefix(base, "http://"), ":", "%3A", 1)
	c := newClient(t, "http://127.0.0.1:1", nil)
	page, _, err := c.Records(t.Context(), did, "app.bsky.feed.post", "", 50)
	require.NoError(t, err)
	require.Len(t, page, 1)
	require.Equal(t, []string{"/.well-known/did.json", "com.atproto.repo.listRecords"}, j.calls())
}

func TestDocumentWithoutPDSIsPermanent(t *testing.T) {
	t.Parallel()
	good := didDocument(alice, "https://pds.example")
	for name, c := range map[string]struct {
		body  string
		class bluesky.Class
	}{
		"none":          {`{"id":"` + alice + `"}`, bluesky.Permanent},
		"of other type": {strings.Replace(good, "AtprotoPersonalDataServer", "Other", 1), bluesky.Permanent},
		"http":          {strings.Replace(good, "https://pds.example", "http://pds.example", 1), bluesky.Permanent},
		"ftp":           {strings.Replace(good, "https://pds", "ftp://pds", 1), bluesky.Permanent},
		"with a path":   {strings.Replace(good, "https://pds.example", "https://pds.example/admin?x=", 1), bluesky.Permanent},
		"with a user":   {strings.Replace(good, "https://pds.example", "https://me@pds.example", 1), bluesky.Permanent},
		"another's":     {didDocument(bob, "https://pds.example"), bluesky.Transient},
		"html":          {"<html>", bluesky.Transient},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			directory, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, 200, c.body) })
			_, _, err := newClient(t, directory, noRetries).Records(t.Context(), alice, "app.bsky.feed.post", "", 50)
			e := failure(t, err)
			require.Equal(t, c.class, e.Class)
			require.Equal(t, c.class == bluesky.Transient, e.Name == "Malformed", e.Name)
		})
	}
}

func TestUnknownDIDIsPermanent(t *testing.T) {
	t.Parallel()
	for _, status := range []int{404, 410} {
		directory, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
			reply(w, status, `{"message":"DID not registered"}`)
		})
		_, err := newClient(t, directory, nil).Identity(t.Context(), alice)
		e := failure(t, err)
		require.Equal(t, bluesky.Permanent, e.Class)
		require.Equal(t, status, e.Status)
		require.Equal(t, "DID not registered", e.Message)
	}
	c := newClient(t, "http://127.0.0.1:1", nil)
	for _, did := range []string{
		"did:key:zabc", "did:web:a.example:path", "did:web:a.example:8443", "did:web:a.example%2Fpath", "did:web:me%40a.example", "did:plc:",
	} {
		_, err := c.Identity(t.Context(), did)
		require.Equal(t, "InvalidArgument", failure(t, err).Name, did)
	}
}

// TestDIDDocumentCannotReachPrivateNetwork runs a private server that would be
// reached if its address was not checked.
func TestDIDDocumentCannotReachPrivateNetwork(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	private := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { reached.Add(1); records(w, alice) }))
	t.Cleanup(private.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(private.URL, "https://"), ":")
	list := func(appView, pds string) error {
		directory, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, 200, didDocument(alice, pds)) })
		c := newClient(t, appView, func(cfg *bluesky.Config) {
			cfg.Directory, cfg.HTTPClient = directory, private.Client()
			cfg.Retries = nil
		})
		_, _, err := c.Records(t.Context(), alice, "app.bsky.feed.post", "", 50)
		return err
	}
	for _, pds := range []string{private.URL, "https://[::ffff:127.0.0.1]:" + port, "https://localhost:" + port, "https://10.0.0.1",
		"https://192.168.1.1", "https://169.254.169.254", "https://100.64.0.1", "https://0.0.0.0:" + port, "https://[::1]:" + port,
		"https://[fd00::1]", "https://[64:ff9b::a00:1]", "https://[2002:7f00:1::1]", "https://[fe80::1]"} {
		e := failure(t, list("https://appview.example", pds))
		require.Equal(t, bluesky.Permanent, e.Class, pds)
		require.Equal(t, "Refused", e.Name, pds)
	}
	for _, pds := range []string{"https://10.0.0.1", "https://169.254.169.254", "https://[fd00::1]", "http://10.0.0.1"} {
		require.Equal(t, bluesky.Permanent, failure(t, list("http://127.0.0.1:1", pds)).Class, "a network on loopback must not leave it: %s", pds)
	}
	require.Zero(t, reached.Load())
	require.NoError(t, list("http://127.0.0.1:1", private.URL))
	require.EqualValues(t, 1, reached.Load())
}

func TestDIDWebCannotReachPrivateNetwork(t *testing.T) {
	t.Parallel()
	base, j := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, 200, "{}") })
	port := base[strings.LastIndex(base, ":")+1:]
	c := newClient(t, "https://appview.example", func(cfg *bluesky.Config) { cfg.Directory = "https://directory.example" })
	for _, did := range []string{"did:web:localhost", "did:web:127.0.0.1", "did:web:localhost%3A" + port, "did:web:10.0.0.1"} {
		_, err := c.Identity(t.Context(), did)
		require.Equal(t, bluesky.Permanent, failure(t, err).Class, did)
	}
	_, err := c.Identity(t.Context(), "did:web:a.example%3A8443")
	require.Equal(t, "InvalidArgument", failure(t, err).Name)
	require.Empty(t, j.all())
}

// TestConfiguredHostMayBePrivate checks that configured hosts are trusted, also
// if a DID document names them.
func TestConfiguredHostMayBePrivate(t *testing.T) {
	t.Parallel()
	var base string
	base, _ = serve(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		if strings.HasPrefix(r.URL.Path, "/did:") {
			reply(w, 200, didDocument(alice, "http://"+r.Host))
			return
		}
		records(w, alice)
	})
	c := newClient(t, "https://appview.example", func(cfg *bluesky.Config) { cfg.Directory = base })
	page, _, err := c.Records(t.Context(), alice, "app.bsky.feed.post", "", 50)
	require.NoError(t, err)
	require.Len(t, page, 1)
}
