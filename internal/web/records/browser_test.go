package records

import (
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/browsertest"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestRecordPageFitsAndHasNoBarriers shows that the page of a record fits every screen in both themes and
// has no accessibility violations.
func TestRecordPageFitsAndHasNoBarriers(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	r := newRig(t)
	r.plant()
	server := httptest.NewServer(r.Handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	b := browsertest.Open(t, server.URL)
	for _, scheme := range []string{"light", "dark"} {
		b.Scheme(scheme)
		b.Show("/records/" + treeCollection + "/" + aliceDID + "/one")
		for _, width := range []int64{320, 390, 1280} {
			b.Size(width, 800)
			require.Empty(t, b.Misfits(), "%d px", width)
		}
		require.Empty(t, b.Barriers(), scheme)
	}
}
