package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/browsertest"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestPageFillsLive shows that an open page says what it waits for and then offers the links that
// arrive. Its counts rise while nothing on it moves.
func TestPageFillsLive(t *testing.T) {
	t.Parallel()
	n, err := simnet.New(simnet.Config{Seed: 21, Accounts: 300, Follows: 60})
	require.NoError(t, err)
	startNetwork(t, n)
	env := append(follower(n, schematest.NewURL(t)), "WEIR_IMAGE_BASE="+n.ImageBase())
	require.Contains(t, succeed(t, env, "watch", "add", n.Hub().Handle), "watching")
	serve := start(t, env, "serve")
	b := browsertest.Open(t, serve.page(t))
	b.Show("?window=7d")
	require.Equal(t, 1, b.Found(".empty"))
	b.Until(`document.querySelector(".empty").innerText.includes("The follow lists have been read: 60 accounts.")`)
	require.Contains(t, b.Read(".empty"), "weir ")

	b.Until(`/^(Live|Quiet)/.test(document.getElementById("word").innerText)`)
	// until generates events until an expression is true.
	until := func(expression string, event func()) {
		t.Helper()
		eventually.True(t, func() bool {
			event()
			return browsertest.Evaluate[bool](b, expression)
		}, 200*time.Millisecond, expression)
	}
	play := func() { n.Play(50) }
	until(`document.querySelectorAll(".link").length > 0`, play)
	require.Contains(t, b.Read("#subtitle"), "by the 60 accounts that hub.example follows.")
	const places = `JSON.stringify([...document.querySelectorAll(".link")].map((li) => [li.dataset.id, li.getBoundingClientRect().top]))`
	before := browsertest.Evaluate[string](b,
		`window.counts = new Map([...document.querySelectorAll("[data-count]")].map((c) => [c, c.innerText])); `+places)
	shown, followed := browsertest.Evaluate[string](b, `document.querySelector(".link h2 a").href`), active(n, n.Follows(n.Hub().DID))
	until(`[...counts].some(([c, before]) => Number(c.innerText) > Number(before))`, func() { // every account shares the first link
		if len(followed) > 0 {
			_, err := n.PostNow(followed[0], "read this", shown)
			require.NoError(t, err)
			followed = followed[1:]
		}
	})
	until(`document.querySelector("#waiting button") !== null`, play)
	require.Equal(t, before, browsertest.Evaluate[string](b, places))
	b.Press("n")
	b.Until(`[...counts.keys()].every((c) => !c.isConnected)`)
	require.Positive(t, b.Found(".link"))

	serve.signal(syscall.SIGTERM)
	b.Until(`document.getElementById("word").innerText.startsWith("Not connected to Weir since")`)
	require.Zero(t, serve.wait(t, patience))
}
