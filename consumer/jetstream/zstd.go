package jetstream

import (
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/socket"
)

// decoder returns the decoder of compressed frames, or nil if frames are requested uncompressed.
func (c *Client) decoder() *zstd.Decoder {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.zip
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
		c.zip = nil
		c.mu.Unlock()
		c.log.Warn("plain_frames", "error", "the server compresses with another dictionary", "host", k.Host())
		return nil, errors.New("the server compresses with another dictionary: reconnecting for plain frames")
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeExceeded):
		return nil, &consumer.Malformed{Cause: "the frame is too long", Expected: fmt.Sprintf("at most %d bytes", k.client.cfg.ReadLimit), Received: "more",
			Raw: data[:min(len(data), socket.MaxKept)]}
	case err != nil:
		return nil, &consumer.Malformed{Cause: consumer.Shorten("the frame cannot be decompressed: " + err.Error()), Raw: data}
	}
	if slab := k.unzipped[start:cap(k.unzipped)]; len(out) > 0 && &out[0] == &slab[0] { // otherwise a larger slab was allocated
		k.unzipped = k.unzipped[:start+len(out)]
	}
	return out[:len(out):len(out)], nil
}
