package clickhouse

import (
	"context"
	"net/http/httptrace"
	"sync/atomic"
)

// dialled records whether a request got a connection. Without one, nothing was sent.
type dialled struct{ connected atomic.Bool }

func (d *dialled) context(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { d.connected.Store(true) }})
}
