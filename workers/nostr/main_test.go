package nostr

import (
	"testing"

	"github.com/weir-social/weir/internal/testing/schematest"
)

func TestMain(m *testing.M) { schematest.Main(m) }
