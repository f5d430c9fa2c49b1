package workers

import (
	"testing"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/workertest"
)

func TestMain(m *testing.M) { schematest.Main(m) }

// The short names of what tests use most.
var (
	execute   = workertest.Execute
	strs      = workertest.Strings
	count     = workertest.Count
	becomes   = workertest.Becomes
	schedules = workertest.Schedules
)
