package feeds

import (
	"testing"

	"github.com/weir-social/weir/internal/testing/webtest"
)

func TestEveryTextExistsAndIsUsed(t *testing.T) {
	t.Parallel()
	webtest.RequireTexts(t, texts, say, "api_")
}
