package app

import (
	"context"

	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Audit runs an audit with the connections and settings of the process.
func (p App) Audit(ctx context.Context, a workers.Auditor) (schema.Audit, []schema.Fault, error) {
	if p.cfg.OfDemo() {
		return schema.Audit{}, nil, ErrDemoNetwork
	}
	api, err := p.Bluesky(nil)
	if err != nil {
		return schema.Audit{}, nil, err
	}
	if err := p.register(ctx); err != nil {
		return schema.Audit{}, nil, err
	}
	queue, err := workers.Queue(p.pool, p.log)
	if err != nil {
		return schema.Audit{}, nil, err
	}
	a.Pool, a.API, a.Client, a.Projections, a.Log, a.Collections = p.pool, api, queue, p.projections, p.log, p.stored
	a.Hooks = p.parts.Hooks
	return a.Audit(ctx)
}
