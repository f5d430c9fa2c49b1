package clickhouse

import (
	"context"
	"net/http/httptrace"
	"sync/atomic"
)

// dialled knows whether a request had a connection. Without one, nothing of it was sent.
type dialled struct{ connected atomic.Bool }

func (d *dialled) context(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { d.connected.Store(true) }})
}
