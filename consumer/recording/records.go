package recording

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/weir-social/weir/consumer"
)

// Records is a source of frames that were kept as they were received.
type Records struct {
	// Name is used as the host of the stream.
	Name string
	// Frames are read once, to the end or the first error.
	Frames iter.Seq2[[]byte, error]
	// Wire decodes the frames.
	Wire consumer.Wire

	broken error // the error that ended reading early
}

// Capabilities returns the wire only.
func (s *Records) Capabilities() consumer.Capabilities { return consumer.Capabilities{Wire: s.Wire} }

// Connect starts at the first frame.
func (s *Records) Connect(context.Context, func(host string) consumer.Cursor, func(consumer.Attempt)) (consumer.Conn, error) {
	if s.broken != nil {
		return nil, s.broken
	}
	if s.Frames == nil {
		return nil, errors.New("records can be read only once")
	}
	next, stop := iter.Pull2(s.Frames)
	s.Frames = nil
	return &recordConn{source: s, next: next, stop: stop}, nil
}

type recordConn struct {
	source *Records
	next   func() ([]byte, error, bool)
	stop   func()
}

func (c *recordConn) Host() string      { return c.source.Name }
func (c *recordConn) Proven() time.Time { return time.Time{} }
func (c *recordConn) Close() error      { return nil }

// Next returns the next frame; consumer.ErrEnd after the last.
func (c *recordConn) Next(ctx context.Context) (consumer.Frame, error) {
	if err := ctx.Err(); err != nil {
		c.stop()
		return consumer.Frame{}, err
	}
	frame, err, more := c.next()
	switch {
	case !more:
		return consumer.Frame{}, consumer.ErrEnd
	case err != nil:
		c.stop()
		c.source.broken = fmt.Errorf("read %s: %w", c.source.Name, err)
		return consumer.Frame{}, c.source.broken
	}
	return consumer.Frame{Data: frame, Arrived: time.Now()}, nil
}

// Decode decodes a frame.
func (c *recordConn) Decode(f consumer.Frame, m *consumer.Message) error {
	c.source.Wire.Decode(f.Data, f.Arrived, m)
	return nil
}
