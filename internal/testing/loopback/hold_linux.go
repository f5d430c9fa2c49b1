package loopback

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// hold binds a socket that never listens. Because the socket allows it, servers can
// bind the same address, but only those that name the port: the kernel gives the port
// neither to a program that requests any port nor to an outgoing connection.
func hold(at *net.TCPAddr) (io.Closer, *net.TCPAddr, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	socket := os.NewFile(uintptr(fd), "reserved "+at.String())
	to := &syscall.SockaddrInet4{Port: at.Port, Addr: [4]byte(at.IP.To4())}
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err == nil {
		err = syscall.Bind(fd, to)
	}
	if err != nil {
		return nil, nil, errors.Join(err, socket.Close())
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return nil, nil, errors.Join(err, socket.Close())
	}
	bound, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		return nil, nil, errors.Join(fmt.Errorf("the address is a %T", name), socket.Close())
	}
	return socket, &net.TCPAddr{IP: at.IP, Port: bound.Port}, nil
}
