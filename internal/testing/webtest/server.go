package webtest

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// Listener is a listener for connections in memory, for tests with synthetic time.
type Listener struct {
	come chan net.Conn
	done chan struct{}
	once sync.Once
}

func newListener() *Listener {
	return &Listener{come: make(chan net.Conn), done: make(chan struct{})}
}

func (p *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-p.come:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *Listener) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *Listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// Dial opens a connection.
func (p *Listener) Dial() net.Conn {
	ours, theirs := net.Pipe()
	p.come <- theirs
	return ours
}

// StartInMemory runs a server on connections in memory until the test ends.
func StartInMemory(t *testing.T, server *http.Server) *Listener {
	t.Helper()
	l := newListener()
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) }) // the test closes it
	t.Cleanup(func() {
		server.Close() // the test is over
		serving.Wait()
	})
	return l
}

// Start runs a server until the test ends, and returns its address.
func Start(t *testing.T, server *http.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go server.Serve(l)                   // the test closes it
	t.Cleanup(func() { server.Close() }) // the test is over
	return l.Addr().String()
}

// Hung is a database whose server does not respond.
type Hung struct{}

func (Hung) Exec(ctx context.Context, _ string, _ ...any) (pgconn.CommandTag, error) {
	<-ctx.Done()
	return pgconn.CommandTag{}, ctx.Err()
}

func (Hung) Query(ctx context.Context, _ string, _ ...any) (pgx.Rows, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (Hung) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
