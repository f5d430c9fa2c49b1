package consumer

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

// scripted is a connection that delivers a number of frames, and then ends.
type scripted struct {
	Conn
	frames int
	closed bool
}

func (s *scripted) Next(context.Context) (Frame, error) {
	if s.frames == 0 {
		return Frame{}, ErrEnd
	}
	s.frames--
	return Frame{Data: []byte("frame"), Arrived: time.Now()}, nil
}

func (s *scripted) Close() error {
	s.closed = true
	return nil
}

// TestFullBufferEndsTheConnection checks that the reading ends with the first frame that finds no
// space, so that the next connection delivers it again.
func TestFullBufferEndsTheConnection(t *testing.T) {
	t.Parallel()
	size := frameSize(Frame{Data: []byte("frame")})
	s := &session{Consumer: &Consumer{cfg: Config{Batching: Batching{FullWait: time.Millisecond}}, metrics: newMetrics(nil)},
		conn: &scripted{frames: 3}, buf: newBuffer(2 * size)}
	require.ErrorIs(t, s.read(t.Context()), errOverflow)
	require.Equal(t, 2*size, s.buf.size(), "the frames before it stay")
}

// TestTooManyJobsCloseTheConnection checks that a stream pauses above the limit, and continues at
// half of it.
func TestTooManyJobsCloseTheConnection(t *testing.T) {
	t.Parallel()
	jobs, conn := 0, &scripted{}
	c := &Consumer{cfg: Config{MaxDepth: 10, Leasing: Leasing{LeaseTTL: time.Minute},
		Depth: func(context.Context, int) (int, error) { return jobs, nil }},
		log: slog.New(slog.DiscardHandler), metrics: newMetrics(nil)}
	c.session.Store(&session{conn: conn})
	for _, step := range []struct {
		jobs   int
		paused bool
	}{{10, false}, {11, true}, {6, true}, {5, false}, {10, false}, {11, true}} {
		jobs, conn.closed = step.jobs, false
		c.checkBackpressure(t.Context())
		require.Equal(t, step.paused, c.depth.Load() > 0, "%d jobs", step.jobs)
		require.Equal(t, step.paused, conn.closed, "%d jobs", step.jobs)
	}
	state, _ := c.state()
	require.Equal(t, schema.StateDraining, state)
}
