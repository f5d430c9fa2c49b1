package simnet

import (
	"fmt"
	"time"

	"github.com/klauspost/compress/zstd"
)

// dictionaryID identifies the network's dictionary.
const dictionaryID = 1996121201

// dictionarySize is how many bytes of earlier events the dictionary holds.
const dictionarySize = 32 << 10

// makeDictionary builds a zstd dictionary from events of a separate network, so
// that it does not depend on the served history. The same seed gives the same
// bytes, because clients pin their hash.
func makeDictionary(seed uint64) ([]byte, error) {
	m := newModel(seed+1, 200, MixNetwork, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	frame := func() []byte { return m.next(m.now.Add(time.Second)).encode(V2, 0) }
	samples := make([][]byte, 0, 500)
	for range cap(samples) {
		samples = append(samples, frame())
	}
	var history []byte
	for len(history) < dictionarySize {
		history = append(history, frame()...)
	}
	built, err := zstd.BuildDict(zstd.BuildDictOptions{ID: dictionaryID, Contents: samples, History: history[:dictionarySize],
		Offsets: [3]int{1, 4, 8}, Level: zstd.SpeedFastest})
	if err != nil {
		return nil, fmt.Errorf("build a zstd dictionary: %w", err)
	}
	return built, nil
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
