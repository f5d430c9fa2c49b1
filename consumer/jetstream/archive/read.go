package archive

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/semaphore"
)

// atOnce is how many blocks are requested at once. Each may be in memory three times: compressed,
// decompressed and as frames. Together they have at most maxRaw bytes decompressed.
const atOnce = 3

// Read reads a plan, oldest events first, and calls yield with each portion. It ends with yield's
// error, with ErrChanged if the plan is outdated, or with the error of a request that failed
// again and again.
func (c *Client) Read(ctx context.Context, p *Plan, yield func(Portion) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	ready := make(chan chan block, atOnce-1) // in the order of the blocks
	room := semaphore.NewWeighted(maxRaw)
	failed := make(chan error, 1)
	running.Go(func() {
		defer close(ready)
		failed <- c.each(ctx, p, func(segment *planned, number int, info blockInfo) bool {
			if room.Acquire(ctx, int64(info.raw)) != nil {
				return false
			}
			one := make(chan block, 1)
			select {
			case ready <- one:
			case <-ctx.Done():
				return false
			}
			running.Go(func() { one <- c.block(ctx, p, segment, number, info) })
			return true
		})
	})
	for one := range ready {
		got := <-one
		if got.err != nil {
			return c.unread(ctx, p, got.err)
		}
		if err := yield(got.Portion); err != nil {
			return err
		}
		room.Release(int64(got.raw))
	}
	if err := <-failed; err != nil {
		return c.unread(ctx, p, err)
	}
	return ctx.Err()
}

// unread remembers the server for the next plan, unless the error is not its fault.
func (c *Client) unread(ctx context.Context, p *Plan, err error) error {
	if ctx.Err() == nil && !errors.Is(err, ErrChanged) {
		c.failed.Store(&p.Host)
	}
	return err
}

// block is a portion, or why there is none.
type block struct {
	Portion
	raw int // bytes
	err error
}

// each calls f with the blocks of the interval, in order, until it returns false.
func (c *Client) each(ctx context.Context, p *Plan, f func(*planned, int, blockInfo) bool) error {
	from, to := p.From.UnixMicro(), p.To.UnixMicro()
	for i := range p.segments {
		segment := &p.segments[i]
		blocks, err := c.index(ctx, p.server, segment)
		if err != nil {
			return fmt.Errorf("segment %s: %w", segment.Name, err)
		}
		for number, info := range blocks {
			if info.events == 0 || info.maxAt < from || info.minAt > to || !segment.includes(number) {
				continue
			}
			if !f(segment, number, info) {
				return ctx.Err()
			}
		}
	}
	return nil
}

// block requests a block, until it is as the index describes it.
func (c *Client) block(ctx context.Context, p *Plan, segment *planned, number int, info blockInfo) (b block) {
	tag := strconv.Quote(segment.Checksum + ":" + strconv.Itoa(number))
	r := request{
		method: "getBlock", query: url.Values{"segment": {segment.Name}, "blockIndex": {strconv.Itoa(number)}}, most: int64(info.size), tag: tag,
	}
	zip, err := newDecoder()
	if err != nil {
		return block{err: err}
	}
	defer zip.Close()
	b.Through, b.raw = time.UnixMicro(info.maxAt), info.raw
	b.err = c.repeat(ctx, func(ctx context.Context) error {
		got, err := c.request(ctx, p.server, r)
		if err != nil {
			return fmt.Errorf("block %d of segment %s: %w", number, segment.Name, err)
		}
		b.Frames, err = p.frames(zip, got.body, segment.Name, number, info)
		return err
	})
	return b
}

// frames decodes a block.
func (p *Plan) frames(zip *zstd.Decoder, body []byte, segment string, number int, info blockInfo) (frames [][]byte, err error) {
	var f framer
	cause := decodeBlock(zip, body, info, func(r *row) bool {
		if p.wants(r) {
			if frame := f.frame(r); frame != nil {
				frames = append(frames, frame)
			}
		}
		return true
	})
	if cause != "" {
		return nil, &DamagedError{segment, number, cause}
	}
	return frames, nil
}
