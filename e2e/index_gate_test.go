//go:build clickhouse

package e2e

import (
	"bufio"
	"bytes"
	little "encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// insertFault is what happens to one insert between a worker and ClickHouse.
type insertFault struct {
	// forward returns how many bytes of the body the server gets before the insert is held.
	forward func(body []byte) int
	held    chan int      // receives the number of the segment once the insert is held
	resume  chan struct{} // closed when the insert may go on
	rest    bool          // then forward the rest; otherwise close the connection to the server
	answer  func([]byte) []byte
	alone   bool // the server gets nothing, and the worker gets the response of answer
}

// insertGate is a proxy between the workers and ClickHouse. It reads each request to its end before
// it forwards a byte, as a buffering proxy does. So an insert may arrive long after its process has
// died.
type insertGate struct {
	t        *testing.T
	upstream string
	address  string
	fault    chan *insertFault // of the next insert
	open     sync.WaitGroup    // open connections

	mu      sync.Mutex
	inserts map[int]int // by segment
}

func newInsertGate(t *testing.T, upstream string) *insertGate {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	g := &insertGate{
		t: t, upstream: strings.TrimPrefix(upstream, "http://"), address: "http://" + l.Addr().String(), fault: make(chan *insertFault, 1),
		inserts: map[int]int{},
	}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			g.open.Go(func() {
				defer conn.Close() // the exchange is over
				g.serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		accepting.Wait()
	})
	return g
}

// serve forwards one request and its response.
func (g *insertGate) serve(conn net.Conn) {
	var raw bytes.Buffer
	request, err := http.ReadRequest(bufio.NewReader(io.TeeReader(conn, &raw)))
	if err != nil {
		return
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the worker died while it was sending
	}
	head := raw.Bytes()[:raw.Len()-len(body)]
	fault := &insertFault{rest: true}
	if strings.HasPrefix(strings.TrimSpace(request.URL.Query().Get("query")), "INSERT") {
		g.mu.Lock()
		g.inserts[segmentOf(body)]++
		g.mu.Unlock()
		select {
		case fault = <-g.fault:
		default:
		}
	}
	if fault.alone {
		fault.held <- segmentOf(body)
		conn.Write(fault.answer(nil)) // the worker may be dead
		return
	}
	up, err := net.Dial("tcp4", g.upstream)
	if err != nil {
		return
	}
	defer up.Close() // the exchange is over
	sent := 0
	if fault.forward != nil {
		if sent = fault.forward(body); sent > 0 {
			up.Write(head)        // the server may be dead
			up.Write(body[:sent]) // the server may be dead
			head = nil
		}
		fault.held <- segmentOf(body)
		<-fault.resume
		if !fault.rest {
			return
		}
	}
	up.Write(head)        // the server may be dead
	up.Write(body[sent:]) // the server may be dead
	if fault.answer == nil {
		io.Copy(conn, up) // either may be dead
		return
	}
	// The server closes the connection after the response.
	answer, _ := io.ReadAll(up)
	if fault.forward == nil {
		fault.held <- segmentOf(body)
		<-fault.resume
	}
	conn.Write(fault.answer(answer)) // the worker may be dead
}

// insertsOf returns how many inserts of a segment there were.
func (g *insertGate) insertsOf(segment int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inserts[segment]
}

// quiet waits until no insert is in flight.
func (g *insertGate) quiet() { g.open.Wait() }

// segmentOf reads the number of the segment from a block.
func segmentOf(body []byte) int {
	const column = "\x07segment\x06UInt64"
	at := bytes.LastIndex(body, []byte(column)) + len(column)
	return int(uint32(little.LittleEndian.Uint64(body[at:])))
}
