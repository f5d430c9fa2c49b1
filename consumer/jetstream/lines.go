package jetstream

import (
	"time"

	"github.com/weir-social/weir/consumer"
)

// Lines answers a function that decodes one event after another as DecodeEvent
// does, for one goroutine. Records of collections that are not wanted are left
// out; nil wants all.
func Lines(wanted func(collection string) bool) func(line []byte, arrived time.Time) (consumer.Event, error) {
	d := &decoder{wanted: wanted}
	return d.event
}
