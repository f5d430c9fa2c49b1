package jetstream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/socket"
)

// maxDictionary limits the size of a dictionary, in bytes; the v1 dictionary has
// 112,640.
const maxDictionary = 4 << 20

// retryDictionaryAfter is how long to wait before a failed dictionary is requested
// again.
const retryDictionaryAfter = 10 * time.Minute

// dictionaryState is the state of the dictionary, used by the goroutine that
// connects.
type dictionaryState struct {
	decoder *zstd.Decoder
	asked   time.Time // when a request last failed
	said    bool      // plain frames have been logged
	refused bool      // the server uses another dictionary
}

// Dictionary fetches the zstd dictionary at url. It returns an error if the SHA-256
// of the dictionary is not sum, which is in hexadecimal.
func Dictionary(ctx context.Context, client *http.Client, url, sum string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("fetch the zstd dictionary: %w", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("fetch the zstd dictionary: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetch the zstd dictionary from %s: the server responded with status %d", url, response.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxDictionary))
	if err != nil {
		return nil, fmt.Errorf("fetch the zstd dictionary: %w", err)
	}
	if got := sha256.Sum256(data); hex.EncodeToString(got[:]) != sum {
		return nil, fmt.Errorf("the zstd dictionary at %s has changed: expected SHA-256 %s, received %x", url, sum, got)
	}
	return data, nil
}

// decoder returns the decoder of compressed frames, or nil if frames are requested
// uncompressed.
func (c *Client) decoder(ctx context.Context) *zstd.Decoder {
	z := &c.zip
	switch {
	case !c.cfg.Compress || c.cfg.Dictionary == nil || c.dictionaryRefused():
		return nil
	case z.decoder != nil:
		return z.decoder
	case !z.asked.IsZero() && time.Since(z.asked) < retryDictionaryAfter:
		return nil
	}
	dictionary, err := c.cfg.Dictionary(ctx)
	if err == nil {
		z.decoder, err = zstd.NewReader(nil, zstd.WithDecoderDicts(dictionary), zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxMemory(uint64(c.cfg.ReadLimit)), zstd.WithDecoderLowmem(true))
	}
	if err != nil {
		z.asked = time.Now()
		if !z.said && ctx.Err() == nil {
			c.log.Warn("plain_frames", "error", err, "effect", "the stream takes about twice the bandwidth")
			z.said = true
		}
		return nil
	}
	return z.decoder
}

func (c *Client) dictionaryRefused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.zip.refused
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
		c.zip.refused = true
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
