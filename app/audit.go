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
	a.Shared, a.Client = p.shared(api), queue
	return a.Audit(ctx)
}
