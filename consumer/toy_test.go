package consumer_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weir-social/weir/consumer"
)

// toySource reads the toy wire. It shows the minimum of a source.
type toySource struct {
	endpoints []string
	ping      time.Duration
	at        int
}

func toySourceOf(_ *testing.T, endpoints []string, ping time.Duration, _ *slog.Logger) consumer.Source {
	if ping == 0 {
		ping = time.Second
	}
	return &toySource{endpoints: endpoints, ping: ping}
}

func (s *toySource) Capabilities() consumer.Capabilities {
	return consumer.Capabilities{Wire: toyWire(), Exclusive: true, Anchors: 2}
}

func (s *toySource) Connect(ctx context.Context, at func(host string) consumer.Cursor, _ func(consumer.Attempt)) (consumer.Conn, error) {
	for ; ctx.Err() == nil; s.at++ {
		host := s.endpoints[s.at%len(s.endpoints)]
		if c, err := dialToy(ctx, host, at(host), s.ping); err == nil {
			return c, nil
		}
	}
	return nil, ctx.Err()
}

type toyConn struct {
	net.Conn
	host   string
	lines  *bufio.Reader
	proven consumer.MonotonicTime
	pinged consumer.MonotonicTime
	ended  chan struct{}
	wire   consumer.Wire
}

func dialToy(ctx context.Context, host string, from consumer.Cursor, ping time.Duration) (*toyConn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	hello := "{}\n"
	switch from.Kind {
	case consumer.CursorSeq:
		hello = fmt.Sprintf("{\"cursor\":%d}\n", from.Value)
	case consumer.CursorTime:
		return nil, errors.New("a toy takes no time for a cursor")
	}
	k := &toyConn{Conn: c, host: host, lines: bufio.NewReaderSize(c, 1<<20), ended: make(chan struct{}), wire: toyWire()}
	k.proven.Set(time.Now())
	context.AfterFunc(ctx, func() { c.Close() }) // the connection is over
	if _, err := c.Write([]byte(hello)); err != nil {
		return nil, err
	}
	if ok, err := k.lines.ReadString('\n'); err != nil || ok != "ok\n" {
		c.Close() // the connection failed
		return nil, errors.New("refused")
	}
	go k.watch(ping)
	return k, nil
}

// watch sends one ping after another.
func (k *toyConn) watch(ping time.Duration) {
	tick := time.NewTicker(ping)
	defer tick.Stop()
	for {
		select {
		case <-k.ended:
			return
		case <-tick.C:
		}
		if k.pinged.At().IsZero() || !k.pinged.At().After(k.proven.At()) {
			k.pinged.Set(time.Now())
			k.Write([]byte("ping\n")) // Next returns the error
		}
	}
}

func (k *toyConn) Host() string      { return k.host }
func (k *toyConn) Proven() time.Time { return k.proven.At() }

func (k *toyConn) Next(ctx context.Context) (consumer.Frame, error) {
	for {
		line, err := k.lines.ReadBytes('\n')
		now := time.Now()
		switch {
		case err != nil:
			close(k.ended)
			if ctx.Err() != nil {
				return consumer.Frame{}, ctx.Err()
			}
			return consumer.Frame{}, err
		case string(line) == "pong\n":
			k.proven.Set(k.pinged.At())
			continue
		}
		k.proven.Set(now)
		return consumer.Frame{Data: bytes.TrimSpace(line), Arrived: now}, nil
	}
}

func (k *toyConn) Decode(f consumer.Frame, m *consumer.Message) error {
	k.wire.Decode(f.Data, f.Arrived, m)
	return nil
}

func toyWire() consumer.Wire {
	return consumer.Wire{Name: "toy", Decode: decodeToy, Excerpt: toyExcerpt}
}

func decodeToy(data []byte, arrived time.Time, m *consumer.Message) {
	m.Reset(data, arrived)
	var f toyFrame
	if err := json.Unmarshal(data, &f); err != nil {
		m.Refuse(&consumer.Malformed{Cause: "the frame is no JSON", Raw: data})
		return
	}
	m.Seq, m.TimeUS = f.Seq, f.At
	if f.DID != "" {
		m.Identity = consumer.Identity{Kind: "commit", Author: f.DID, Revision: f.Rev}
	}
	for i, raw := range f.Ops {
		var op toyOp
		err := json.Unmarshal(raw, &op)
		collection, key, ok := strings.Cut(op.Path, "/")
		if err != nil || !ok {
			m.Malformed = append(m.Malformed, &consumer.Malformed{Cause: "not an operation", Author: f.DID, Raw: toyExcerpt(data, i)})
			continue
		}
		ev := m.Add()
		ev.Kind, ev.Author, ev.Part = consumer.KindCommit, f.DID, i
		ev.Collection, ev.Key, ev.Revision, ev.Record = collection, key, f.Rev, op.Record
		ev.Operation = map[string]consumer.Operation{"create": consumer.Create, "update": consumer.Update, "delete": consumer.Delete}[op.Action]
	}
}

// toyExcerpt returns the frame with a single operation.
func toyExcerpt(frame []byte, part int) []byte {
	var f toyFrame
	if json.Unmarshal(frame, &f) != nil || part >= len(f.Ops) {
		return frame
	}
	f.Ops = f.Ops[part : part+1]
	data, err := json.Marshal(f)
	if err != nil {
		return frame
	}
	return data
}
