package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/loopback"
)

// bucket is an archive's store that can hold a request, so that a test can kill the process in
// exactly that step.
type bucket struct {
	t       *testing.T
	server  *httptest.Server
	port    *loopback.Port
	backend *s3mem.Backend
	s3      http.Handler

	mu   sync.Mutex // guards the fields below
	hold func(step string) bool
	held chan struct{} // closed when a request is held
	aged bool          // all objects are a day older
	done map[string]bool
}

func newBucket(t *testing.T) *bucket {
	t.Helper()
	b := &bucket{t: t, backend: s3mem.New(), done: map[string]bool{}}
	require.NoError(t, b.backend.CreateBucket("weir"))
	b.s3 = gofakes3.New(b.backend).Server()
	port, err := loopback.Reserve("127.0.0.1:0")
	require.NoError(t, err)
	b.port = port
	b.starts()
	t.Cleanup(func() { b.server.Close() })
	return b
}

// starts makes the bucket listen on its port.
func (b *bucket) starts() {
	b.t.Helper()
	listener, err := b.port.Listen()
	require.NoError(b.t, err)
	b.server = httptest.NewUnstartedServer(b)
	require.NoError(b.t, b.server.Listener.Close())
	b.server.Listener = listener
	b.server.Start()
}

// crashes closes all connections and stops listening.
func (b *bucket) crashes() {
	b.server.CloseClientConnections()
	b.server.Close()
}

// env returns the variables of a process that archives there.
func (b *bucket) env() []string {
	return []string{
		"WEIR_ARCHIVE=s3://weir/archive", "AWS_ENDPOINT_URL=" + b.server.URL, "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=key",
		"AWS_SECRET_ACCESS_KEY=secret",
	}
}

var lastModified = regexp.MustCompile(`<LastModified>[^<]*</LastModified>`)

// ServeHTTP serves a request. A test can hold it before or after that.
func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has died
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	step := r.Method + " " + b.kindOf(strings.TrimPrefix(r.URL.Path, "/weir/archive/"))
	if b.waits("before "+step, r) {
		return
	}
	response := httptest.NewRecorder()
	b.s3.ServeHTTP(response, r)
	b.note(r, response.Code)
	if b.waits("after "+step, r) {
		return
	}
	content := response.Body.Bytes()
	b.mu.Lock()
	aged := b.aged
	b.mu.Unlock()
	if aged && r.URL.Query().Has("list-type") {
		content = lastModified.ReplaceAll(content,
			[]byte("<LastModified>"+time.Now().Add(-25*time.Hour).UTC().Format(time.RFC3339)+"</LastModified>"))
		response.Header().Del("Content-Length")
	}
	for name, values := range response.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(response.Code)
	w.Write(content) // the client may have died
}

// kindOf returns the kind of an object: the first or a later version of a segment, the manifest of
// one of these, an index of authors, or a list.
func (b *bucket) kindOf(name string) string {
	number, _, _ := strings.Cut(path.Base(name), "-")
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case strings.HasSuffix(name, ".seg.zst") && b.done[number]:
		return "later segment"
	case strings.HasSuffix(name, ".seg.zst"):
		return "segment"
	case strings.HasSuffix(name, ".json") && strings.Count(path.Base(name), ".") == 2:
		return "later manifest"
	case strings.HasSuffix(name, ".json"):
		return "manifest"
	}
	return strings.TrimPrefix(path.Ext(name), ".")
}

// note records which segments have a manifest.
func (b *bucket) note(r *http.Request, code int) {
	if number, _, ok := strings.Cut(path.Base(r.URL.Path), "-"); ok && r.Method == http.MethodPut && code == http.StatusOK &&
		strings.HasSuffix(r.URL.Path, ".json") {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.done[number] = true
	}
}

// waits holds a request, if the step is the one to hold, until its client has disconnected. It
// reports whether it did.
func (b *bucket) waits(step string, r *http.Request) (died bool) {
	b.mu.Lock()
	if b.hold == nil || !b.hold(step) {
		b.mu.Unlock()
		return false
	}
	b.hold = nil
	close(b.held)
	b.mu.Unlock()
	<-r.Context().Done()
	return true
}

// holds makes the bucket hold the n-th request of a step, such as "after PUT manifest", until its
// client disconnects or the bucket crashes. reached waits for that request.
func (b *bucket) holds(step string, n int) (reached func(*process)) {
	held := make(chan struct{})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hold = func(s string) bool {
		if s == step {
			n--
		}
		return s == step && n == 0
	}
	b.held = held
	return func(p *process) {
		b.t.Helper()
		select {
		case <-held:
		case <-p.exited:
			require.Fail(b.t, "the process has ended", p.stderr.String())
		case <-time.After(patience):
			require.Fail(b.t, "not reached: "+step, tail(p.stderr.String(), 4000))
		}
	}
}

// ages makes all objects a day older.
func (b *bucket) ages() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.aged = true
}

// objects returns the objects whose names have this suffix. An object may be deleted meanwhile.
func (b *bucket) objects(suffix string) map[string][]byte {
	b.t.Helper()
	prefix := gofakes3.NewPrefix(nil, nil)
	list, err := b.backend.ListBucket("weir", &prefix, gofakes3.ListBucketPage{})
	require.NoError(b.t, err)
	found := map[string][]byte{}
	for _, o := range list.Contents {
		if !strings.HasSuffix(o.Key, suffix) {
			continue
		}
		object, err := b.backend.GetObject("weir", o.Key, nil)
		if gofakes3.HasErrorCode(err, gofakes3.ErrNoSuchKey) {
			continue
		}
		require.NoError(b.t, err)
		found[strings.TrimPrefix(o.Key, "archive/")], err = io.ReadAll(object.Contents)
		require.NoError(b.t, err)
	}
	return found
}

// once reports whether each segment has exactly one version, which its manifest names.
func (b *bucket) once() bool {
	b.t.Helper()
	manifests, segments, numbers := b.objects(".json"), b.objects(".seg.zst"), map[int64]bool{}
	for _, manifest := range manifests {
		var m struct {
			Name   string
			Number int64
		}
		require.NoError(b.t, json.Unmarshal(manifest, &m))
		if segments[m.Name] == nil || numbers[m.Number] {
			return false
		}
		numbers[m.Number] = true
		delete(segments, m.Name)
	}
	return len(segments) == 0
}
