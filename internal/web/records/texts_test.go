package records

import (
	"testing"

	"github.com/weir-social/weir/internal/testing/webtest"
)

func TestEveryTextExistsAndIsUsed(t *testing.T) {
	t.Parallel()
	webtest.RequireTexts(t, texts, say, "error_record_", "record_verdict_", "record_state_", "record_api_")
	webtest.RequireNoText(t)
}
