// Package recording is a source that reads a file with one event of a wire per
// line, as a server sent it. It starts at the first line and ends at the last. It
// cannot be resumed, and has no access to the database.
package recording

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/weir-social/weir/consumer"
)

// maxLine limits a line, in bytes. A longer line is truncated.
const maxLine = 16 << 20

// keptBytes is how many bytes of a line that is too long are kept.
const keptBytes = 64 << 10

// Source is a recorded stream.
type Source struct {
	// Name is used as the host of the stream.
	Name string
	// Lines is read once, to its end.
	Lines io.Reader
	// Wire decodes the lines.
	Wire consumer.Wire

	broken error // the error that ended reading early
}

// Capabilities returns the wire only: a file has no other capabilities.
func (s *Source) Capabilities() consumer.Capabilities { return consumer.Capabilities{Wire: s.Wire} }

// Connect starts at the first line.
func (s *Source) Connect(context.Context, func(host string) consumer.Cursor, func(consumer.Attempt)) (consumer.Conn, error) {
	if s.broken != nil {
		return nil, s.broken
	}
	if s.Lines == nil {
		return nil, errors.New("a recording can be read only once")
	}
	c := &conn{source: s, lines: bufio.NewReaderSize(s.Lines, 1<<20)}
	s.Lines = nil
	return c, nil
}

type conn struct {
	source *Source
	lines  *bufio.Reader
	number int
	slab   []byte
}

func (c *conn) Host() string      { return c.source.Name }
func (c *conn) Proven() time.Time { return time.Time{} }
func (c *conn) Close() error      { return nil }

// Next returns the next line that is not blank; consumer.ErrEnd after the last.
func (c *conn) Next(ctx context.Context) (consumer.Frame, error) {
	for {
		if err := ctx.Err(); err != nil {
			return consumer.Frame{}, err
		}
		line, truncated, err := c.line()
		c.number++
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			c.source.broken = fmt.Errorf("read line %d of %s: %w", c.number, c.source.Name, err)
			return consumer.Frame{}, c.source.broken
		case len(bytes.TrimSpace(line)) > 0:
			return consumer.Frame{Data: line, Truncated: truncated, Arrived: time.Now()}, nil
		case err != nil:
			return consumer.Frame{}, consumer.ErrEnd
		}
	}
}

// line reads up to the next newline into memory of its own.
func (c *conn) line() (line []byte, truncated bool, err error) {
	var long []byte
	for {
		part, err := c.lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if len(long)+len(part) <= maxLine {
				long = append(long, part...)
			} else {
				truncated = true
			}
			continue
		case long != nil || truncated:
			long = append(long, part...)
			if len(long) > maxLine || truncated {
				return long[:min(len(long), keptBytes)], true, err
			}
			return bytes.TrimSpace(long), false, err
		}
		return c.keep(bytes.TrimSpace(part)), false, err
	}
}

// keep copies a line into a slab that many lines share, to save allocations.
func (c *conn) keep(line []byte) []byte {
	if len(c.slab)+len(line) > cap(c.slab) {
		c.slab = make([]byte, 0, max(256<<10, len(line)))
	}
	at := len(c.slab)
	c.slab = append(c.slab, line...)
	return c.slab[at:len(c.slab):len(c.slab)]
}

// Decode decodes a line.
func (c *conn) Decode(f consumer.Frame, m *consumer.Message) error {
	if f.Truncated {
		m.Reset(f.Data, f.Arrived)
		m.Refuse(&consumer.Malformed{
			Cause: "the line is too long", Expected: fmt.Sprintf("at most %d bytes", maxLine), Received: "more", Raw: f.Data,
		})
		return nil
	}
	c.source.Wire.Decode(f.Data, f.Arrived, m)
	return nil
}
