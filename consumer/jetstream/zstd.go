package jetstream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/klauspost/compress/zstd"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/socket"
)

// decoder returns the decoder of the frames of /subscribe, or nil if they are requested
// uncompressed.
func (c *Client) decoder() *zstd.Decoder {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.zip
}

// maxDictionary is the maximum length of a dictionary, in bytes.
const maxDictionary = 1 << 20

// newDecoder returns the decoder of frames that are compressed with a dictionary.
func (c *Client) newDecoder(dictionary []byte) (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderDicts(dictionary), zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxMemory(uint64(c.cfg.ReadLimit)), zstd.WithDecoderLowmem(true)) // it is positive
}

// dictionary returns the decoder of the frames of subscribeEvents, whose dictionary it fetches
// from the host if it does not have it yet. nil: frames are requested uncompressed.
func (c *Client) dictionary(ctx context.Context, h *host) *zstd.Decoder {
	c.mu.Lock()
	plain := h.plain || !c.cfg.Compress
	c.mu.Unlock()
	switch {
	case plain:
		return nil
	case h.zip != nil:
		return h.zip
	}
	data, err := c.dialer.Fetch(ctx, dictionaryPath, maxDictionary)
	if err == nil && (len(data) < 8 || binary.LittleEndian.Uint32(data) != 0xEC30A437) {
		err = errors.New("it is not a dictionary")
	}
	if err == nil {
		h.zip, err = c.newDecoder(data)
	}
	if err != nil {
		c.log.Info("plain_frames", "error", fmt.Errorf("read the zstd dictionary: %w", err))
		return nil
	}
	h.dictionary = strconv.FormatUint(uint64(binary.LittleEndian.Uint32(data[4:])), 10)
	return h.zip
}

// unzip decompresses a frame into memory that nothing else uses.
func (k *conn) unzip(data []byte) ([]byte, error) {
	if k.zip == nil {
		return nil, &consumer.Malformed{Cause: "the frame is compressed, but plain frames were requested", Raw: data}
	}
	if cap(k.unzipped)-len(k.unzipped) < max(4<<10, 4*len(data)) {
		k.unzipped = make([]byte, 0, max(slabBytes, 8*len(data)))
	}
	start := len(k.unzipped)
	out, err := k.zip.DecodeAll(data, k.unzipped[start:start:cap(k.unzipped)])
	switch {
	case errors.Is(err, zstd.ErrUnknownDictionary):
		c := k.client
		c.mu.Lock()
		if k.events {
			k.host.plain = true
		} else {
			c.zip = nil
		}
		c.mu.Unlock()
		c.log.Warn("plain_frames", "error", "the server compresses with another dictionary", "host", k.Host())
		return nil, errors.New("the server compresses with another dictionary: reconnecting for plain frames")
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeExceeded):
		return nil, &consumer.Malformed{Cause: "the frame is too long", Expected: fmt.Sprintf("at most %d bytes", k.client.cfg.ReadLimit),
			Received: "more", Raw: data[:min(len(data), socket.MaxKept)]}
	case err != nil:
		return nil, &consumer.Malformed{Cause: consumer.Shorten("the frame cannot be decompressed: " + err.Error()), Raw: data}
	}
	if slab := k.unzipped[start:cap(k.unzipped)]; len(out) > 0 && &out[0] == &slab[0] { // otherwise a larger slab was allocated
		k.unzipped = k.unzipped[:start+len(out)]
	}
	return out[:len(out):len(out)], nil
}
