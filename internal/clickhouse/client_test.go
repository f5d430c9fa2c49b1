package clickhouse

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// serve starts a server for the test and returns an index that queries it with a password.
func serve(t *testing.T, handle http.HandlerFunc) *Index {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	x, err := New(strings.Replace(server.URL, "http://", "http://weir:secret@", 1), nil)
	require.NoError(t, err)
	return x
}

// TestAddressIsNotQuoted shows that no error contains the password, wherever the parser finds it.
func TestAddressIsNotQuoted(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"", "secret", "clickhouse://u:secret@h:9000", "http://u:secret@h:8123/a/b", "http://h:8123/?password=secret",
		"http://u:se/cret@h:8123/db",
		"http://u:12/secret@h:8123/db", "http://u:12#secret@h:8123/db", "http://u:12?secret@h:8123/db", "http://u:%zzsecret@h",
		"http://u:secret@:8123", "http://h:8123/db#secret",
	} {
		_, err := New(address, nil)
		require.Error(t, err, address)
		require.NotContains(t, err.Error(), "cret", address)
	}
	x, err := New("https://u:s%2Fecret@h:8123/db/", nil)
	require.NoError(t, err)
	require.Equal(t, "https://h:8123", x.String())
	require.Equal(t, "database=db", x.base.RawQuery)
}

// TestSomethingElseAnswers shows that a proxy's page with status 200 does not count as a server
// without settings, not even later.
func TestSomethingElseAnswers(t *testing.T) {
	t.Parallel()
	var page atomic.Value
	var statements atomic.Int32
	x := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if bytes.Contains(body, []byte("system.settings")) {
			fmt.Fprint(w, page.Load())
			return
		}
		statements.Add(1)
		fmt.Fprintln(w, "MergeTree")
	})
	for _, wrong := range []string{"", "<html>please log in</html>", "async_insert\n"} {
		page.Store(wrong)
		require.ErrorIs(t, x.Create(t.Context()), ErrAway)
	}
	require.Zero(t, statements.Load())
	page.Store("max_block_size\n")
	require.NoError(t, x.Create(t.Context()))
	require.False(t, (*x.settings.Load())["async_insert"])
	page.Store("max_block_size\nasync_insert\n")
	require.NoError(t, x.Create(t.Context()))
	require.True(t, (*x.settings.Load())["async_insert"], "the settings must be read again after the server was upgraded")
}

// TestOtherEngineIsRefused covers replicated tables: the count of a replica may be behind.
func TestOtherEngineIsRefused(t *testing.T) {
	t.Parallel()
	x := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case bytes.Contains(body, []byte("system.settings")):
			fmt.Fprintln(w, everywhere)
		case bytes.Contains(body, []byte("system.tables")):
			fmt.Fprintln(w, "ReplicatedMergeTree")
		}
	})
	err := x.Create(t.Context())
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "ReplicatedMergeTree")
}

// TestErrorsArePrintable shows that a server's text can be written to logs and to a job's row,
// which cannot contain a NUL. A repeated password is removed.
func TestErrorsArePrintable(t *testing.T) {
	t.Parallel()
	x := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		fmt.Fprintf(w, "\x00\x1b[2J\xff you sent %v", r.Header)
	})
	_, err := x.query(t.Context(), `SELECT 1`)
	require.ErrorIs(t, err, ErrAway)
	require.NotContains(t, err.Error(), "\x00")
	require.NotContains(t, err.Error(), "\x1b")
	require.Less(t, len(err.Error()), 600)
	require.ErrorContains(t, err, "[password]")
	require.NotContains(t, err.Error(), "secret")
}

// TestAnswersAreBounded shows that redirects, which would pass on the password, are not followed,
// and that an endless response is cut off.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer other.Close()
	x := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusFound)
	})
	_, err := x.query(t.Context(), `SELECT 1`)
	require.ErrorIs(t, err, ErrAway)
	require.Zero(t, asked.Load())
	x = serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for chunk := make([]byte, 1<<20); ; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	_, _, err = x.send(t.Context(), nil, []byte(`SELECT 1`)) // not query, which gives up after a minute: 64 MB may take longer
	require.ErrorContains(t, err, "more than")
}
