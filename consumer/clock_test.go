package consumer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestClockBounds(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, at := &clock{}, time.Now()
				require.True(t, c.earliest(at).Equal(at), "no time of the database is known yet")
				require.True(t, c.latest(at).Equal(at), "no time of the database is known yet")
				c.set(at.Add(wrong))
				time.Sleep(time.Minute)
				at = time.Now()
				want := []time.Time{at, at.Add(wrong)}
				if wrong < 0 {
					want = []time.Time{at.Add(wrong), at}
				}
				require.True(t, c.earliest(at).Equal(want[0]), c.earliest(at))
				require.True(t, c.latest(at).Equal(want[1]), c.latest(at))
				require.True(t, c.earliest(time.Time{}).IsZero())
			})
		})
	}
}

func TestMonotonicTimeFollowsWallClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m MonotonicTime
		require.True(t, m.At().IsZero())
		began := time.Now()
		m.Set(began)
		require.True(t, m.At().Equal(began))
		time.Sleep(time.Minute)
		require.True(t, m.At().Equal(began))
		require.Equal(t, time.Minute, time.Since(m.At()))
		m.Set(time.Now())
		require.Zero(t, time.Since(m.At()))
	})
}
