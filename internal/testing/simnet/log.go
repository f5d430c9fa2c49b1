package simnet

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Generation is the generation of the simulated Jetstream server.
type Generation int

const (
	// V2 is the rewrite: events have a sequence number as "cursor", and the
	// operations of a commit share their time.
	V2 Generation = iota
	// V1 is the legacy server: no sequence numbers, but unique, ascending times.
	V1
)

// Entry is an event of the network, with the facts that an oracle needs.
type Entry struct {
	Seq        int64           `json:"seq"`                 // ascending by one, before any renumbering
	TimeUS     int64           `json:"time_us"`             // shared by the operations of a commit
	UniqueUS   int64           `json:"unique"`              // unique and ascending: time_us of a V1 server
	DID        string          `json:"did"`                 //
	Kind       string          `json:"kind"`                // commit, identity, account; sync and forged, which only the relay sends
	Operation  string          `json:"op"`                  // of a commit: create, update, delete
	Collection string          `json:"coll"`                //
	Rkey       string          `json:"rkey"`                //
	Rev        string          `json:"rev"`                 //
	CID        string          `json:"cid"`                 //
	Record     json.RawMessage `json:"record"`              // nil on delete
	CreatedAt  time.Time       `json:"created"`             // the record's createdAt
	Links      []string        `json:"links"`               // of a post: the pages it shares, by their canonical URLs
	Claims     []Claim         `json:"claims"`              // the post's claims about each of Links
	Handle     string          `json:"handle"`              // of an identity
	Active     bool            `json:"active"`              // of an account
	Status     string          `json:"status"`              // of an account that is not active
	RelaySeq   int64           `json:"relayseq"`            // of an identity or account
	Rotation   int             `json:"rotation,omitempty"`  // of an identity with another key: how many the account had before
	Forgery    Forgery         `json:"forgery,omitempty"`   // of a forged commit
	Withheld   bool            `json:"withheld,omitempty"`  // no stream ever sends it
	Curtailed  Curtailed       `json:"curtailed,omitempty"` // the relay sends its commit without the operations
	// a record that the server read from a repository again: neither the relay nor the v1 wire sends it
	Resynced bool `json:"resynced,omitempty"`
}

// Claim is a post's claim about a page. Posts without a card only spell its address.
type Claim struct {
	URL         string `json:"url"` // without the parts that do not identify the page, such as tracking parameters
	Title       string `json:"title"`
	Description string `json:"description"`
	Picture     string `json:"picture"` // CID of the picture
}

// item is a frame to send: an entry, a repetition of an earlier item, or
// injected raw bytes.
type item struct {
	entry *Entry
	again *item
	raw   []byte

	relayed *message // guarded by the relay

	fault   Fault // the fault that caused this item
	passing bool  // for clients connected now, not for replays
	ends    bool  // for clients of subscribeEvents, whose connection ends with it

	plain atomic.Pointer[encoded]
	zstd  atomic.Pointer[encoded]
}

// encoded is a frame of one generation under one numbering.
type encoded struct {
	generation Generation
	shift      int64
	data       []byte
}

// Log holds all events in order. It only grows.
type Log struct {
	mu    sync.RWMutex
	items []*item
	last  *Entry
	grown chan struct{} // closed and replaced when items are added
}

func newLog() *Log { return &Log{grown: make(chan struct{})} }

func (l *Log) add(items ...*item) {
	if len(items) == 0 {
		return
	}
	l.mu.Lock()
	l.items = append(l.items, items...)
	for _, it := range items {
		if it.entry != nil {
			l.last = it.entry
		}
	}
	close(l.grown)
	l.grown = make(chan struct{})
	l.mu.Unlock()
}

// from returns the items from a position, and a channel that closes when there
// are more.
func (l *Log) from(at int) ([]*item, <-chan struct{}) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.items[min(at, len(l.items)):len(l.items):len(l.items)], l.grown
}

// size returns the number of items, which is the position of the next.
func (l *Log) size() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.items)
}

// Entries returns all events so far, without injected frames.
func (l *Log) Entries() []*Entry {
	items, _ := l.from(0)
	entries := make([]*Entry, 0, len(items))
	for _, it := range items {
		if it.entry != nil {
			entries = append(entries, it.entry)
		}
	}
	return entries
}

// Last returns the latest entry; nil before the first.
func (l *Log) Last() *Entry {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.last
}

// WriteJSONL writes the log as a server of this generation sends it, one event
// per line, including injected frames.
func (l *Log) WriteJSONL(w io.Writer, g Generation) error {
	out := bufio.NewWriterSize(w, 1<<20)
	items, _ := l.from(0)
	for _, it := range items {
		if it.entry != nil && it.entry.relayOnly() || it.ends {
			continue
		}
		if _, err := out.Write(it.frame(g, 0)); err != nil {
			return fmt.Errorf("write the log: %w", err)
		}
		if err := out.WriteByte('\n'); err != nil {
			return fmt.Errorf("write the log: %w", err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the log: %w", err)
	}
	return nil
}

// frame returns the item's JSON under a numbering.
func (it *item) frame(g Generation, shift int64) []byte {
	switch {
	case it.again != nil:
		return it.again.frame(g, shift)
	case it.entry == nil:
		return it.raw
	}
	if e := it.plain.Load(); e != nil && e.generation == g && e.shift == shift {
		return e.data
	}
	data := it.entry.encode(g, shift)
	it.plain.Store(&encoded{g, shift, data})
	return data
}

// compressed returns the item's frame, compressed with zstd.
func (n *Net) compressed(it *item, shift int64) []byte {
	if e := it.zstd.Load(); e != nil && e.shift == shift {
		return e.data
	}
	data := n.encoder.EncodeAll(it.frame(n.cfg.Generation, shift), nil)
	it.zstd.Store(&encoded{n.cfg.Generation, shift, data})
	return data
}

// sequence returns the number of the entry on every wire of the Jetstream server, and in its
// archive.
func (e *Entry) sequence(shift int64) int64 { return e.Seq + shift }

// encode returns the event in the v1 wire format.
func (e *Entry) encode(g Generation, shift int64) []byte {
	b := make([]byte, 0, 256+len(e.Record))
	b = append(b, `{"did":"`...)
	b = append(b, e.DID...)
	b = append(b, `","time_us":`...)
	if g == V1 {
		b = strconv.AppendInt(b, e.UniqueUS, 10)
	} else {
		b = strconv.AppendInt(b, e.TimeUS, 10)
		b = append(b, `,"cursor":`...)
		b = strconv.AppendInt(b, e.sequence(shift), 10)
	}
	b = append(b, `,"kind":"`...)
	b = append(b, e.Kind...)
	at := time.UnixMicro(e.TimeUS).UTC().Format("2006-01-02T15:04:05.000Z")
	switch e.Kind {
	case "commit":
		b = fmt.Appendf(b, `","commit":{"rev":"%s","operation":"%s","collection":"%s","rkey":"%s"`, e.Rev, e.Operation, e.Collection, e.Rkey)
		if e.Record != nil {
			b = append(b, `,"record":`...)
			b = append(b, e.Record...)
			b = append(b, `,"cid":"`...)
			b = append(b, e.CID...)
			b = append(b, '"')
		}
	case "identity":
		b = fmt.Appendf(b, `","identity":{"did":"%s","handle":"%s","seq":%d,"time":"%s"`, e.DID, e.Handle, e.RelaySeq, at)
	case "account":
		b = fmt.Appendf(b, `","account":{"active":%t,"did":"%s","seq":%d,"time":"%s"`, e.Active, e.DID, e.RelaySeq, at)
		if e.Status != "" {
			b = fmt.Appendf(b, `,"status":"%s"`, e.Status)
		}
	}
	return append(b, "}}"...)
}
