package workers

import (
	"fmt"

	"github.com/riverqueue/river"

	"github.com/weir-social/weir/schema"
)

// projectionNamed returns the projection with a name.
func projectionNamed(all schema.Projections, name string) (*schema.Projection, error) {
	if p := all.Named(name); p != nil {
		return p, nil
	}
	return nil, NonRetryable(fmt.Errorf("there is no projection %q", name))
}

// optsOf returns the insert options of a projection's jobs by their kind, or nil for
// any other kind.
func optsOf(all schema.Projections, kind string) *river.InsertOpts {
	for i := range all {
		if all[i].Kind == kind {
			return &river.InsertOpts{Queue: all[i].Queue}
		}
	}
	return nil
}
