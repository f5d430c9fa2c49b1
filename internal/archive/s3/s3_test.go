package s3_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/archivetest"
	"github.com/weir-social/weir/internal/archive/s3"
)

// faults is a transport that makes requests fail.
type faults struct {
	mu    sync.Mutex
	left  int
	fault func(next http.RoundTripper, r *http.Request) (*http.Response, error)
}

func (f *faults) inject(times int, fault func(http.RoundTripper, *http.Request) (*http.Response, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left, f.fault = times, fault
}

func (f *faults) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	fault := f.fault
	if f.left == 0 {
		fault = nil
	} else {
		f.left--
	}
	f.mu.Unlock()
	if fault == nil {
		return http.DefaultTransport.RoundTrip(r)
	}
	return fault(http.DefaultTransport, r)
}

// newStore returns a store on a bucket of its own, and the faults that the test can inject.
func newStore(t *testing.T) (*s3.Store, *faults) {
	t.Helper()
	backend := s3mem.New()
	require.NoError(t, backend.CreateBucket("weir"))
	server := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(server.Close)
	f := &faults{}
	s, err := s3.New(s3.Config{
		Endpoint: server.URL, Region: "us-east-1", Bucket: "weir", Prefix: "/archive/", Transport: f,
		Credentials: credentials.NewStaticV4("key", "secret", ""),
	})
	require.NoError(t, err)
	return s, f
}

func TestPromises(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	archivetest.Promises(t, s)
	require.Equal(t, "s3://weir/archive", s.String())
}

// TestLostResponse checks a put whose response is lost: the object exists, and repeating the put
// reports that.
func TestLostResponse(t *testing.T) {
	t.Parallel()
	s, f := newStore(t)
	f.inject(1, func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err == nil {
			response.Body.Close() // the response is lost
		}
		return nil, errors.Join(errors.New("connection reset"), err)
	})
	err := archivetest.Put(t.Context(), s, "a", []byte("x"))
	require.Error(t, err)
	require.ErrorIs(t, archivetest.Put(t.Context(), s, "a", []byte("x")), archive.ErrExists)
	got, err := archive.Fetch(t.Context(), s, "a", 10)
	require.NoError(t, err)
	require.Equal(t, "x", string(got))
}

// TestFailingBucket checks that an error of the server is neither a success nor a missing
// object, and that the store works again afterwards.
func TestFailingBucket(t *testing.T) {
	t.Parallel()
	s, f := newStore(t)
	f.inject(-1, func(_ http.RoundTripper, r *http.Request) (*http.Response, error) {
		if r.Body != nil {
			r.Body.Close() // the body is not used
		}
		return &http.Response{StatusCode: http.StatusForbidden, Status: "403 Forbidden", Header: http.Header{},
			Body: io.NopCloser(bytes.NewReader([]byte(
				`<Error><Code>AccessDenied</Code><Message>no</Message></Error>`))), Request: r}, nil
	})
	require.ErrorContains(t, archivetest.Put(t.Context(), s, "a", []byte("x")), "s3://weir/archive")
	_, err := archive.Manifests(t.Context(), s)
	require.EqualError(t, err, "list s3://weir/archive: no")
	_, err = s.Stat(t.Context(), "a")
	require.Error(t, err)
	require.NotErrorIs(t, err, archive.ErrNotFound)
	f.inject(0, nil)
	require.NoError(t, archivetest.Put(t.Context(), s, "a", []byte("x")))
}

// TestDamagedObject checks that a segment whose bytes change on the way back is refused.
func TestDamagedObject(t *testing.T) {
	t.Parallel()
	s, f := newStore(t)
	var file bytes.Buffer
	w, err := archive.NewWriter(&file)
	require.NoError(t, err)
	require.NoError(t, w.Add([]byte("a record")))
	sum, err := w.Close()
	require.NoError(t, err)
	m := archive.NewManifest(1, "s", "w", sum, time.Unix(1, 0), time.Unix(1, 0))
	require.NoError(t, archivetest.Put(t.Context(), s, m.Name, file.Bytes()))
	require.NoError(t, archive.Verify(t.Context(), s, m))
	f.inject(1, func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(response.Body)
		response.Body.Close() // the body was read
		b[len(b)/2] ^= 1
		response.Body = io.NopCloser(bytes.NewReader(b))
		return response, err
	})
	require.ErrorIs(t, archive.Verify(t.Context(), s, m), archive.ErrCorrupt)
	require.NoError(t, archive.Verify(t.Context(), s, m))
}
