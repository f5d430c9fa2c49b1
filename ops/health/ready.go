package health

import (
	"fmt"

	"github.com/weir-social/weir/schema"
)

// NotReady says why a process that reads a stream is not ready; empty where it
// is. A stream nobody has read yet is no reason: somebody has to be the first.
func (r Report) NotReady(limits Limits) (because []string) {
	limits = limits.withDefaults()
	for _, s := range r.Streams {
		switch {
		case s.State == schema.StateNoConsumer:
			because = append(because, fmt.Sprintf("nobody reads stream %s", s.Name))
		case s.Lag != nil && seconds(*s.Lag) > limits.LagCritical:
			because = append(because, fmt.Sprintf("stream %s is %s behind, more than %s", s.Name, seconds(*s.Lag), limits.LagCritical))
		}
	}
	return because
}
