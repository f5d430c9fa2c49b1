// Package loopback reserves TCP ports, so that a server can stop and start again on the same port.
// In between, connections are refused and no other program gets the port.
package loopback

import (
	"fmt"
	"io"
	"net"
	"syscall"
)

// Port is a reserved address.
type Port struct {
	at   *net.TCPAddr
	hold io.Closer
}

// Reserve reserves an IPv4 address, such as 127.0.0.1:0, until Release. Port 0 means any free port.
func Reserve(address string) (*Port, error) {
	at, err := net.ResolveTCPAddr("tcp4", address)
	if err != nil {
		return nil, fmt.Errorf("reserve %s: %w", address, err)
	}
	if at.IP == nil {
		at.IP = net.IPv4zero
	}
	p := &Port{}
	if p.hold, p.at, err = hold(at); err != nil {
		return nil, fmt.Errorf("reserve %s: %w", address, err)
	}
	return p, nil
}

// Address returns host and port.
func (p *Port) Address() string { return p.at.String() }

// Number returns the port alone.
func (p *Port) Number() int { return p.at.Port }

// Listen listens on the port. When the listener is closed, Listen may be called again.
func (p *Port) Listen() (net.Listener, error) {
	// A process that is being started has copies of all listeners until it runs its program,
	// including the last one of this port.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return net.Listen("tcp4", p.Address())
}

// Release ends the reservation. A listener on the port stays open.
func (p *Port) Release() error { return p.hold.Close() }
