// Package riverui serves River UI to operators: the queues and jobs, with their arguments, errors, tags and logs, and
// what can be done with them.
package riverui

import (
	"fmt"
	"net/http"

	"riverqueue.com/riverui"

	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/workers"
)

const path = "/riverui/"

// Feature serves River UI.
func Feature() feature.Feature {
	return feature.Feature{Name: "riverui", Open: func(core feature.Core) (feature.Parts, error) {
		return feature.Parts{
			Operations: feature.Operations{Tools: []feature.Tool{{Name: "River UI", Path: path,
				Handler: func() (http.Handler, error) { return handler(core.Services) }}}},
		}, nil
	}}
}

// handler returns River UI. It is not started: its background queries would count all jobs of every process again and
// again, also while nobody looks. Without them it counts up to 10,000 jobs of a state, and estimates more.
func handler(s feature.Services) (http.Handler, error) {
	client, err := workers.Queue(s.Pool, s.Log)
	if err != nil {
		return nil, err
	}
	ui, err := riverui.NewHandler(&riverui.HandlerOpts{Endpoints: riverui.NewEndpoints(client, nil), Logger: s.Log, Prefix: path})
	if err != nil {
		return nil, fmt.Errorf("set up River UI: %w", err)
	}
	return ui, nil
}
