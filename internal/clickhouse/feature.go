package clickhouse

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/recovery"
	"github.com/weir-social/weir/internal/archive/work"
	"github.com/weir-social/weir/internal/ops/doctor"
	"github.com/weir-social/weir/internal/ops/health"
)

//go:embed migrations/*.sql
var tables embed.FS

// Variables configure the feature.
type Variables struct {
	// A ClickHouse server that gets a copy of the archive's events, for queries over years, as
	// http://user:password@host:8123/database. No other Weir may use the database. Set it for
	// workers, and for the commands that query it. Empty: there is no copy.
	ClickHouse string `env:"WEIR_CLICKHOUSE" secret:"true"`
}

// Feature copies the archive into ClickHouse. It is listed after the archive.
func Feature() feature.Feature {
	v := &Variables{}
	return feature.Feature{Name: "clickhouse", Tables: tables, Config: v, Queues: []string{queueIndex}, Open: v.open, Commands: v.commands}
}

func (v *Variables) open(core feature.Core) (feature.Parts, error) {
	parts := feature.Parts{Workers: (&IndexSegment{}).add}
	parts.Health = []health.Feature{healthOf(v.ClickHouse != "")}
	if v.ClickHouse == "" {
		return parts, nil
	}
	store, err := work.ConfiguredStore()
	if err == nil && store == nil {
		err = errors.New("WEIR_CLICKHOUSE copies the archive, and WEIR_ARCHIVE is empty: set it too")
	}
	if err != nil {
		return parts, err
	}
	x, err := v.index()
	if err != nil {
		return parts, err
	}
	from := recovery.Source{Store: store, Wires: core.Wires, Stores: core.Registry.Stores}
	parts.Workers = (&IndexSegment{store: store, index: x, rows: func(m archive.Manifest, s *archive.Segment) ([]Row, error) {
		return Rows(m, s, func() (consumer.Wire, error) { return from.Wire(m) })
	}}).add
	parts.Checks = []doctor.Check{doctor.TryCheck("clickhouse", "check WEIR_CLICKHOUSE: the address, the user, the password and the database",
		x.String()+" responded", x.Check)}
	return parts, nil
}

// index returns the configured server.
func (v *Variables) index() (*Index, error) {
	if v.ClickHouse == "" {
		return nil, errors.New("WEIR_CLICKHOUSE is empty: set it to the server, such as http://host:8123/database")
	}
	x, err := New(v.ClickHouse, nil)
	if err != nil {
		return nil, fmt.Errorf("WEIR_CLICKHOUSE: %w", err)
	}
	return x, nil
}

// again makes the workers copy all segments into ClickHouse again. They add the rows
// that it lacks or, if fresh is set, all rows to an empty table. It returns the number of
// segments.
func (v *Variables) again(ctx context.Context, p feature.Process, fresh bool) (int64, error) {
	x, err := v.index()
	if err != nil {
		return 0, err
	}
	// The order matters: a running attempt can no longer mark its segment as indexed, and
	// no other attempt begins before the running one's rows are in the table, where they
	// count.
	n, err := indexAgain(ctx, p.Pool())
	if err == nil && fresh {
		err = x.Empty(ctx)
	}
	return n, err
}
