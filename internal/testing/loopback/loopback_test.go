package loopback_test

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/loopback"
)

// TestStoppedServerKeepsItsPort shows that connections are refused while the server is down, that
// the kernel does not assign the port to another socket, and that the server gets it back.
func TestStoppedServerKeepsItsPort(t *testing.T) {
	t.Parallel()
	p, err := loopback.Reserve("127.0.0.1:0")
	require.NoError(t, err)
	for range 3 {
		_, err = net.Dial("tcp", p.Address())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.ErrorIs(t, take(p), syscall.EADDRINUSE)
		l, err := p.Listen()
		require.NoError(t, err)
		c, err := net.Dial("tcp", p.Address())
		require.NoError(t, err)
		accepted, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, accepted.Close()) // closed first, so that this end of the connection stays in TIME_WAIT
		require.NoError(t, c.Close())
		require.NoError(t, l.Close())
	}
	require.NoError(t, p.Release())
}

func TestReservedAddressIsChecked(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"nonsense", "127.0.0.1:99999", "[::1]:0", "192.0.2.1:0"} {
		_, err := loopback.Reserve(address)
		require.ErrorContains(t, err, "reserve "+address)
	}
}

// take binds a socket to the port, for an outgoing connection.
func take(p *loopback.Port) error {
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: p.Number()}
	c, err := net.DialTCP("tcp", from, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1})
	if err == nil {
		c.Close() // nothing was sent
	}
	return err
}
