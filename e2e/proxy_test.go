package e2e

import (
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/loopback"
)

// proxy stands between the processes and a server.
type proxy struct {
	t      testing.TB
	server *toxiproxy.ApiServer // only used for its log
	port   *loopback.Port       // stays reserved while the proxy is down
	*toxiproxy.Proxy
	accepted *atomic.Int64 // connections so far
}

func newProxy(t testing.TB, name, upstream string) *proxy {
	t.Helper()
	zerolog.SetGlobalLevel(zerolog.InfoLevel) // otherwise a toxic traces every packet
	accepted := &atomic.Int64{}
	log := zerolog.New(io.Discard).Hook(zerolog.HookFunc(func(_ *zerolog.Event, _ zerolog.Level, message string) {
		if message == "Accepted client" {
			accepted.Add(1)
		}
	}))
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), log)
	port, err := loopback.Reserve("127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{t: t, server: server, port: port, accepted: accepted, Proxy: toxiproxy.NewProxy(server, name, port.Address(), upstream)}
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		p.Stop()
		require.NoError(t, port.Release())
	})
	return p
}

// cut closes every connection, and checks this with a connection of its own.
func (p *proxy) cut() {
	p.t.Helper()
	witness := p.dial()
	defer witness.Close()
	p.Stop()
	require.NoError(p.t, witness.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err := witness.Read(make([]byte, 1))
	require.Error(p.t, err)
	require.NotErrorIs(p.t, err, os.ErrDeadlineExceeded, "%s: the connection outlives the proxy", p.Name)
	p.up()
}

// down refuses connections until up.
func (p *proxy) down() {
	p.t.Helper()
	p.Stop()
	_, err := net.DialTimeout("tcp", p.Listen, 5*time.Second)
	require.ErrorIs(p.t, err, syscall.ECONNREFUSED, "%s: the proxy accepts connections", p.Name)
}

// up starts the proxy again. A child process has copies of all open listeners until it executes its
// program, including the proxy's last one, so nothing else could listen on the port.
func (p *proxy) up() {
	p.t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	require.NoError(p.t, p.Start())
}

// renew closes every connection and restarts the proxy with exactly these toxics. Adding a toxic to
// a live connection, or removing one, may stall the connection or lose data, which TCP never does.
func (p *proxy) renew(toxics ...string) {
	p.t.Helper()
	p.Stop()
	p.Proxy = toxiproxy.NewProxy(p.server, p.Name, p.Listen, p.Upstream)
	for _, toxic := range toxics {
		_, err := p.Toxics.AddToxicJson(strings.NewReader(toxic))
		require.NoError(p.t, err)
	}
	p.up()
}

// returned waits until there are more connections than before.
func (p *proxy) returned(before int64) {
	p.t.Helper()
	eventually.True(p.t, func() bool { return p.accepted.Load() > before }, 20*time.Millisecond, "%s: no client reconnects", p.Name)
}

func (p *proxy) dial() net.Conn {
	p.t.Helper()
	conn, err := net.DialTimeout("tcp", p.Listen, 5*time.Second)
	require.NoError(p.t, err)
	return conn
}
