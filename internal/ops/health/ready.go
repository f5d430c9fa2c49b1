package health

import (
	"fmt"

	"github.com/weir-social/weir/schema"
)

// NotReady returns the reasons why a process that reads a stream is not ready, or
// nil if it is ready. A stream that has never been read is not a reason, because
// its first consumer must be able to start.
func (r Report) NotReady(limits Limits) (reasons []string) {
	limits = limits.withDefaults()
	for _, s := range r.Streams {
		switch {
		case s.State == schema.StateNoConsumer:
			reasons = append(reasons, fmt.Sprintf("no consumer reads stream %s", s.Name))
		case s.Lag != nil && Seconds(*s.Lag) > limits.LagCritical:
			reasons = append(reasons, fmt.Sprintf("stream %s is %s behind, more than %s", s.Name, Seconds(*s.Lag), limits.LagCritical))
		}
	}
	return reasons
}
