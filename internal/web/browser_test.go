package web

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/browsertest"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/webtest"
)

// TestPagesOfTheServerFitAndHaveNoBarriers shows that the start page and the pages for operators fit every screen in
// both themes, and have no accessibility violations.
func TestPagesOfTheServerFitAndHaveNoBarriers(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	r := newRig(t)
	r.Stream("jetstream", "live", "")
	r.deadLetter("decode", "open", strings.Repeat("a long cause ", 20), "https://a.example/"+strings.Repeat("long", 40))
	ops := (&rig{&webtest.Rig{T: t, Pool: r.Pool, Now: r.Now, Log: r.Log}}).asOps("")
	for handler, targets := range map[*rig][]string{r: {"/"}, ops: {"/deadletters", "/deadletters/1"}} {
		server := httptest.NewServer(handler.Handler)
		t.Cleanup(func() {
			server.CloseClientConnections()
			server.Close()
		})
		b := browsertest.Open(t, server.URL)
		for _, scheme := range []string{"light", "dark"} {
			b.Scheme(scheme)
			for _, target := range targets {
				b.Show(target)
				for _, width := range []int64{320, 1280} {
					b.Size(width, 800)
					require.Empty(t, b.Misfits(), "%s at %d px", target, width)
				}
				require.Empty(t, b.Barriers(), "%s, %s", target, scheme)
			}
		}
	}
}
