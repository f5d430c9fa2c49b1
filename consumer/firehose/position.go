package firehose

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/weir-social/weir/consumer/socket"
)

// A relay has no cursor by time. The client finds the sequence number of an event at a
// given time with short connections, which search between the oldest and the newest
// event.

const (
	mostProbes   = 24               // maximum; halving alone takes 20 in a window of a billion events
	probeFrames  = 5                // the median of their times counts: an event's sender may have set its date
	pastWithin   = 20 * time.Second // timeout for the first frames of the past: a server may have to search for them
	liveWithin   = 5 * time.Second  // timeout for the next live frames
	findWithin   = time.Minute      // timeout for all probes
	nearPosition = time.Minute      // an event at most this long before the time is near enough
	nearNumbers  = 10 * probeFrames // two numbers with fewer than this between them are near enough
)

// dialer makes one connection to the host of an attempt.
type dialer func(parameters url.Values) (*socket.Conn, error)

// place is where a connection begins.
type place struct {
	seq int64
	at  time.Time
}

// find returns a cursor from which the server sends all events since a time that it still
// has. If it cannot find that place, it returns the cursor of an earlier event. A relay's
// dates are informal, so the consumer has to verify the start. An error is a connection
// error.
func (c *Client) find(ctx context.Context, dial dialer, since time.Time) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, findWithin)
	defer cancel()
	oldest, err := c.probe(ctx, dial, url.Values{"cursor": {"0"}})
	if err != nil || oldest == nil || !oldest.at.Before(since) {
		return 0, err
	}
	newest, err := c.probe(ctx, dial, nil)
	if err != nil || newest == nil { // a quiet server has few events to read
		return 0, err
	}
	if !newest.at.After(since) {
		return newest.seq - 1, nil
	}
	from, to, probes := *oldest, *newest, 2
	late, again := false, false // the last probe was too late; the last two probes were on the same side
	for ; probes < mostProbes && to.seq-from.seq > nearNumbers && since.Sub(from.at) > nearPosition; probes++ {
		middle := from.seq + between(from, to, since.Add(-nearPosition/2), again)
		found, err := c.probe(ctx, dial, url.Values{"cursor": {strconv.FormatInt(middle, 10)}})
		if err != nil {
			return 0, err
		}
		if found == nil {
			break
		}
		was := late
		if late = found.at.After(since); late {
			to = place{middle, found.at}
		} else {
			from = *found
		}
		again = probes > 2 && late == was
	}
	c.log.Info("position_found", "since", since, "cursor", from.seq-1, "at", from.at, "connections", probes)
	return from.seq - 1, nil
}

// between returns how far after from the next probe is: where the time would be if events
// came at an even rate, or halfway. Halving ends however unevenly events came.
func between(from, to place, since time.Time, halfway bool) int64 {
	numbers := to.seq - from.seq
	at := numbers / 2
	if all := to.at.Sub(from.at); !halfway && all > 0 {
		at = int64(float64(numbers) * float64(since.Sub(from.at)) / float64(all))
	}
	return min(max(1, at), numbers-1)
}

// probe returns where a connection begins, or nil if no event arrives in time.
func (c *Client) probe(ctx context.Context, dial dialer, parameters url.Values) (*place, error) {
	conn, err := dial(parameters)
	if err != nil {
		return nil, err
	}
	defer conn.Close() // nothing was sent
	conn.Probes()
	within := pastWithin
	if parameters == nil {
		within = liveWithin
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var d decoder
	var first int64
	var times []time.Time
	for len(times) < probeFrames {
		f, err := conn.Next(ctx)
		if err != nil {
			break
		}
		if seq, at := d.position(f.Data); seq > 0 {
			if len(times) == 0 {
				first = seq
			}
			times = append(times, at)
		}
	}
	if len(times) == 0 {
		return nil, nil // as documented
	}
	slices.SortFunc(times, time.Time.Compare)
	return &place{first, times[len(times)/2]}, nil
}
