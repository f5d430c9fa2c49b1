package consumer_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

// The toy wire is JSON lines over TCP. A client sends its cursor, and later
// "ping". The server replies "ok", sends frames, and replies "pong" once
// everything is sent. A cursor is an exclusive sequence number; 0 means the
// oldest frame. The server silently clamps a cursor that is too old, and treats
// one in the future as the live tip. It omits frames of accounts that were
// taken down.

// toyFrame is a commit of one account with any number of operations, or a
// keep-alive without account and operations.
type toyFrame struct {
	Seq int64             `json:"seq"`
	At  int64             `json:"at"`
	DID string            `json:"did,omitempty"`
	Rev string            `json:"rev,omitempty"`
	Ops []json.RawMessage `json:"ops,omitempty"`
}

type toyOp struct {
	Action string          `json:"action"`
	Path   string          `json:"path"` // collection/rkey
	Record json.RawMessage `json:"record,omitempty"`
}

// toyNet is a server of the toy wire and its history.
type toyNet struct {
	t        *testing.T
	listener net.Listener

	mu      sync.Mutex
	random  *rand.Rand
	posts   map[string][]string // existing posts by account
	frames  []toyFrame
	log     []happened
	more    chan struct{} // closed when a frame is added
	floor   int           // the oldest frame that is served
	shift   int64         // subtracted from the sequence numbers
	refuses bool
	holds   bool            // reply to pings and send no frame
	pongs   int             // the number of replies since holds was set
	omitted map[string]bool // accounts that were taken down
	conns   map[net.Conn]bool
}

func newToyNet(t *testing.T, h history) network {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n := &toyNet{t: t, listener: l, random: rand.New(rand.NewPCG(1, 2)), posts: map[string][]string{}, more: make(chan struct{}), shift: 101,
		omitted: map[string]bool{}, conns: map[net.Conn]bool{}}
	if h.end.IsZero() {
		h.end = time.Now()
	}
	for i := range h.events {
		n.happen(h.end.Add(-time.Duration(h.events-i) * 10 * time.Second))
	}
	t.Cleanup(func() {
		l.Close() // the test is over
		n.cut()
	})
	go n.accept()
	return n
}

func (n *toyNet) Endpoint() string { return n.listener.Addr().String() }
func (n *toyNet) Host() string     { return n.listener.Addr().String() }

func (n *toyNet) Play(frames int) {
	for range frames {
		n.happen(time.Now())
	}
}

func (n *toyNet) Happened() []happened {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]happened(nil), n.log...)
}

func (n *toyNet) Cursor() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return int64(len(n.frames)-1) + n.shift
}

func (n *toyNet) Forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.floor = len(n.frames)
}

func (n *toyNet) Renumber() {
	n.mu.Lock()
	n.shift -= 4
	n.mu.Unlock()
	n.cut()
}

func (n *toyNet) Refuse() {
	n.mu.Lock()
	n.refuses = true
	n.mu.Unlock()
	n.cut()
}

// Omit takes an account down.
func (n *toyNet) Omit(did string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.omitted[did] = true
}

// Hold makes the server reply to pings without sending frames, or send frames
// again.
func (n *toyNet) Hold(holds bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.holds, n.pongs = holds, 0
	close(n.more)
	n.more = make(chan struct{})
}

// Pongs returns how many pings were answered since Hold.
func (n *toyNet) Pongs() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pongs
}

func (n *toyNet) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		c.Close() // the test is over
	}
}

// happen adds one frame. Every seventh is a keep-alive. The others have up to
// six operations, mostly on posts.
func (n *toyNet) happen(at time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := toyFrame{At: at.UnixMicro()}
	if last := len(n.frames); last > 0 {
		f.At = max(f.At, n.frames[last-1].At+1)
	}
	if n.random.IntN(7) == 0 {
		n.add(f)
		return
	}
	f.DID = fmt.Sprintf("did:plc:%024d", n.random.IntN(40))
	f.Rev = syntax.NewTID(f.At, 0).String()
	for i := range n.random.IntN(7) {
		posts := n.posts[f.DID]
		op := toyOp{Action: "create", Path: schema.PostCollection + "/" + syntax.NewTID(f.At, uint(i)).String(), // small
			Record: json.RawMessage(fmt.Sprintf(`{"text":"%d of %d"}`, i, len(n.frames)))}
		switch what := n.random.IntN(10); {
		case what == 0:
			op.Path = strings.Replace(op.Path, "feed.post", "feed.like", 1)
		case what == 1 && len(posts) > 0:
			op = toyOp{Action: "delete", Path: schema.PostCollection + "/" + posts[0]}
			n.posts[f.DID] = posts[1:]
		case what == 2 && len(posts) > 0:
			op.Action, op.Path = "update", schema.PostCollection+"/"+posts[len(posts)-1]
		default:
			_, rkey, _ := strings.Cut(op.Path, "/")
			n.posts[f.DID] = append(posts, rkey)
		}
		data, err := json.Marshal(op)
		require.NoError(n.t, err)
		f.Ops = append(f.Ops, data)
		collection, rkey, _ := strings.Cut(op.Path, "/")
		n.log = append(n.log, happened{did: f.DID, rkey: rkey, post: collection == schema.PostCollection, there: op.Action != "delete", at: f.At})
	}
	n.add(f)
}

// Inject sends a test's frame after setting its number and its time.
func (n *toyNet) Inject(f toyFrame) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f.At = time.Now().UnixMicro()
	n.add(f)
}

func (n *toyNet) add(f toyFrame) {
	n.frames = append(n.frames, f)
	n.log = append(n.log, happened{at: f.At})
	close(n.more)
	n.more = make(chan struct{})
}

func (n *toyNet) accept() {
	for {
		c, err := n.listener.Accept()
		if err != nil {
			return
		}
		n.mu.Lock()
		refuses := n.refuses
		n.conns[c] = true
		n.mu.Unlock()
		if refuses {
			c.Close() // the connection is refused
			continue
		}
		go n.serve(c)
	}
}

// serve sends frames from the cursor on until the client has gone.
func (n *toyNet) serve(c net.Conn) {
	defer func() {
		c.Close() // the connection is over
		n.mu.Lock()
		delete(n.conns, c)
		n.mu.Unlock()
	}()
	in, out := bufio.NewScanner(c), bufio.NewWriter(c)
	if !in.Scan() {
		return
	}
	var hello struct{ Cursor *int64 }
	if json.Unmarshal(in.Bytes(), &hello) != nil {
		return
	}
	at := n.start(hello.Cursor)
	if _, err := out.WriteString("ok\n"); err != nil || out.Flush() != nil {
		return
	}
	pings := make(chan struct{})
	go func() {
		defer close(pings)
		for in.Scan() {
			pings <- struct{}{}
		}
	}()
	for {
		var more chan struct{}
		at, more = n.send(out, at)
		if out.Flush() != nil {
			c.Close() // the connection is over
		}
		select {
		case <-more:
		case _, ok := <-pings:
			if !ok {
				return
			}
			at, _ = n.send(out, at)
			n.mu.Lock()
			n.pongs++
			n.mu.Unlock()
			out.WriteString("pong\n") // an error appears at the next flush
		}
	}
}

// start returns the index of the first frame to send.
func (n *toyNet) start(cursor *int64) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if cursor == nil || *cursor >= int64(len(n.frames))+n.shift {
		return len(n.frames)
	}
	return max(n.floor, int(*cursor-n.shift+1))
}

// send writes the frames from an index on. It returns the next index, and a channel
// that closes when there is another frame.
func (n *toyNet) send(out *bufio.Writer, at int) (next int, more chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for ; at < len(n.frames) && !n.holds; at++ {
		f := n.frames[at]
		if n.omitted[f.DID] {
			continue
		}
		f.Seq = int64(at) + n.shift
		data, err := json.Marshal(f)
		require.NoError(n.t, err)
		out.Write(append(data, '\n')) // an error appears at the next flush
	}
	return at, n.more
}
