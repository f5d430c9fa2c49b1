package recovery

import (
	"testing"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/firehose"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/testing/schematest"
)

func TestMain(m *testing.M) { schematest.Main(m) }

// sourceAt returns the archive at a store, with the wires of repositories.
func sourceAt(store archive.Store) Source {
	return Source{Store: store, Stores: func(string) bool { return true },
		Wires: func(wanted func(string) bool) (map[string]consumer.Wire, error) {
			return map[string]consumer.Wire{jetstream.WireName: jetstream.Wire(wanted), firehose.WireName: firehose.Wire(wanted, nil)}, nil
		}}
}
