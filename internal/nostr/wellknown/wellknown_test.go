package wellknown_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/guard"
	"github.com/weir-social/weir/internal/guard/guardtest"
	"github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/nostr/wellknown"
)

// serve is the server of a domain. The requested names determine its behaviour.
func serve(key string, ended <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch name := r.URL.Query().Get("name"); {
		case r.URL.Path != "/.well-known/nostr.json":
			http.NotFound(w, r)
		case name == "moved":
			http.Redirect(w, r, "/.well-known/nostr.json?name=alice", http.StatusFound)
		case name == "busy":
			w.WriteHeader(http.StatusServiceUnavailable)
		case name == "gone":
			w.WriteHeader(http.StatusGone)
		case name == "large":
			fmt.Fprintf(w, `{"names":{"large":%q},"x":%q}`, key, strings.Repeat("x", 1<<20))
		case name == "page":
			io.WriteString(w, "<!doctype html>") // the client may have disconnected
		case name == "endless":
			<-ended
		default:
			fmt.Fprintf(w, `{"names":{"alice":%q,"_":%q,"short":"abcd","upper":%q,"number":7},"relays":{%q:["wss://one.example/",`+
				`"http://no.example",3]}}`, key, key, strings.ToUpper(key), key)
		}
	}
}

// TestLookUp covers a domain that confirms, denies, redirects, or misbehaves.
func TestLookUp(t *testing.T) {
	t.Parallel()
	key := strings.Repeat("0a", 32)
	ended := make(chan struct{})
	web := guardtest.New(t, true, serve(key, ended))
	t.Cleanup(func() { close(ended) })
	// of a test
	client := wellknown.New(wellknown.Config{
		Guard: web.Guard, Port: web.Port, Timeout: 2 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: web.Roots}},
	})
	want, _ := nostr.ParseKey(key)
	for _, name := range []string{"alice@example.com", "_@example.com"} {
		found, err := client.LookUp(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, wellknown.Found{Key: want, Relays: []string{"wss://one.example"}}, found)
	}
	for _, name := range []string{"moved", "gone", "large", "page", "bob", "short", "upper", "number"} {
		_, err := client.LookUp(t.Context(), name+"@example.com")
		var denied *wellknown.Denied
		require.ErrorAs(t, err, &denied, name)
	}
	require.Len(t, web.Asked(), 10, "a redirect was followed")
	for _, name := range []string{"busy", "endless"} {
		_, err := client.LookUp(t.Context(), name+"@example.com")
		var denied *wellknown.Denied
		require.Error(t, err)
		require.NotErrorAs(t, err, &denied, name)
	}
}

// TestPrivateDomainIsNotAsked shows that a private domain is not contacted,
// whatever its name resolves to.
func TestPrivateDomainIsNotAsked(t *testing.T) {
	t.Parallel()
	web := guardtest.New(t, true, serve(strings.Repeat("0a", 32), nil))
	for _, address := range []string{"127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1"} {
		web.Name("example.com", func() []string { return []string{address} })
		// of a test
		client := wellknown.New(wellknown.Config{
			Guard: guard.Config{Resolver: web.Guard.Resolver}, Port: web.Port, Timeout: 10 * time.Second,
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: web.Roots}},
		})
		_, err := client.LookUp(t.Context(), "alice@example.com")
		require.ErrorContains(t, err, "private network", address)
	}
	require.Empty(t, web.Asked())
}
