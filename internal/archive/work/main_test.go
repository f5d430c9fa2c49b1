package work

import (
	"testing"
	"time"

	"github.com/weir-social/weir/internal/testing/schematest"
)

func TestMain(m *testing.M) { schematest.Main(m) }

const day = 24 * time.Hour
