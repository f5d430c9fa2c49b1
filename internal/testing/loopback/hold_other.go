//go:build !linux

package loopback

import (
	"io"
	"math/rand/v2"
	"net"
)

// hold finds a free port and does not hold it: only Linux lets a server bind an
// address that another socket holds. The port is below the range of outgoing
// connections.
func hold(at *net.TCPAddr) (io.Closer, *net.TCPAddr, error) {
	const from, to, tries = 20_000, 32_000, 50
	try := func(port int) (*net.TCPAddr, error) {
		l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: at.IP, Port: port})
		if err != nil {
			return nil, err
		}
		return &net.TCPAddr{IP: at.IP, Port: port}, l.Close()
	}
	bound, err := try(at.Port)
	if at.Port == 0 {
		for range tries {
			if bound, err = try(from + rand.IntN(to-from)); err == nil {
				break
			}
		}
	}
	return nothing{}, bound, err
}

type nothing struct{}

func (nothing) Close() error { return nil }
