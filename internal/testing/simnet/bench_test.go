package simnet_test

import (
	"context"
	"testing"

	"github.com/coder/websocket"

	"github.com/weir-social/weir/internal/testing/simnet"
)

// BenchmarkHistory serves history to one client that does not decode it.
func BenchmarkHistory(b *testing.B) {
	const events = 20_000
	n := network(b, simnet.Config{Seed: 1, Mix: simnet.MixNetwork, History: events})
	for name, pairs := range map[string][]string{"plain": {"cursor", "0"}, "zstd": {"cursor", "0", "compress", "true"}} {
		b.Run(name, func(b *testing.B) {
			replay := func() (size int) {
				c := dial(b, n, pairs...)
				for range events {
					_, data, err := c.conn.Read(context.Background())
					if err != nil {
						b.Fatal(err)
					}
					size += len(data)
				}
				c.conn.Close(websocket.StatusNormalClosure, "") // the measurement is over
				return size
			}
			replay() // makes the frames before the measurement
			size := 0
			for b.Loop() {
				size += replay()
			}
			b.SetBytes(int64(size / b.N))
			b.ReportMetric(float64(events*b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkPlay makes events.
func BenchmarkPlay(b *testing.B) {
	for name, mix := range map[string]simnet.Mix{"posts": simnet.MixPosts, "network": simnet.MixNetwork} {
		b.Run(name, func(b *testing.B) {
			n, err := simnet.New(simnet.Config{Seed: 1, Mix: mix})
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				n.Play(1)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
