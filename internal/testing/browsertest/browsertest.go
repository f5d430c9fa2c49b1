// Package browsertest shows pages in Chromium, for tests.
package browsertest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
)

// chromium returns the path of the browser that scripts/chromium.sh installs.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	require.Fail(t, "there is no Chromium: run make chromium")
	return ""
}

// browser starts one browser for all tests of this process. The browser ends with the
// last test that uses it.
var browser struct {
	sync.Mutex
	users int
	ctx   context.Context
	stop  func()
}

// Tab is a window of the browser that shows a page.
type Tab struct {
	*testing.T
	Context context.Context
	Base    string // the address of the server
}

// useBrowser returns the context of the browser.
func useBrowser(t *testing.T) context.Context {
	t.Helper()
	browser.Lock()
	defer browser.Unlock()
	if browser.users++; browser.users == 1 {
		dir, err := os.MkdirTemp("", "weir-browser-")
		require.NoError(t, err)
		alloc, cancel := chromedp.NewExecAllocator(context.Background(), chromedp.ExecPath(chromium(t)), chromedp.Headless, chromedp.NoSandbox,
			chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.UserDataDir(dir), chromedp.Flag("disable-dev-shm-usage", true),
			chromedp.Flag("disable-background-networking", true), chromedp.Flag("hide-scrollbars", false),
			chromedp.Flag("font-render-hinting", "none"), chromedp.WSURLReadTimeout(time.Minute))
		ctx, _ := chromedp.NewContext(alloc)
		require.NoError(t, chromedp.Do(ctx))
		browser.ctx, browser.stop = ctx, func() {
			chromedp.Cancel(ctx) // the test is over
			cancel()
			os.RemoveAll(dir) // a temporary folder
		}
	}
	t.Cleanup(func() {
		browser.Lock()
		defer browser.Unlock()
		if browser.users--; browser.users == 0 {
			browser.stop()
		}
	})
	return browser.ctx
}

// Open returns a new tab for the pages of a server. It ends with the test.
func Open(t *testing.T, base string) *Tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(useBrowser(t))
	within, stop := context.WithTimeout(ctx, 30*time.Minute)
	t.Cleanup(func() {
		stop()
		cancel()
	})
	b := &Tab{T: t, Context: ctx, Base: base}
	b.Size(1280, 900) // opens the tab, which exists as long as the context of that call
	b.Context = within
	return b
}

// Do runs actions.
func (b *Tab) Do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	require.NoError(b, chromedp.Do(b.Context, actions...))
}

// Show opens an address of the server.
func (b *Tab) Show(address string) {
	b.Helper()
	b.Do(chromedp.Navigate(b.Base + address))
}

// Size sets the size of the window.
func (b *Tab) Size(width, height int64) {
	b.Helper()
	b.Do(chromedp.EmulateViewport(width, height))
}

// Scheme sets the theme that the reader prefers: light or dark.
func (b *Tab) Scheme(scheme string) {
	b.Helper()
	_, err := chromedp.Call(b.Context, emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	require.NoError(b, err)
}

// Evaluate returns the value of an expression.
func Evaluate[T any](b *Tab, expression string) T {
	b.Helper()
	value, err := chromedp.Run(b.Context, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(b, err, expression)
	return value
}

// Until waits until an expression is true.
func (b *Tab) Until(expression string) {
	b.Helper()
	eventually.True(b.T, func() bool { return Evaluate[bool](b, expression) }, 20*time.Millisecond, expression)
}

// Picture returns the visible part of the page, as a PNG.
func (b *Tab) Picture() []byte {
	b.Helper()
	picture, err := chromedp.Run(b.Context, chromedp.CaptureScreenshot())
	require.NoError(b, err)
	return picture
}

// Click clicks the first element that a selector matches, and waits for the page that
// it leads to.
func (b *Tab) Click(selector string) {
	b.Helper()
	_, err := chromedp.RunResponse(b.Context, chromedp.Click(chromedp.CSS(selector)))
	require.NoError(b, err, selector)
}

// Press presses a key that leads to no other page.
func (b *Tab) Press(key string) {
	b.Helper()
	b.Do(chromedp.KeyEvent(key))
}

// At returns the address of the current page.
func (b *Tab) At() string {
	b.Helper()
	return Evaluate[string](b, "location.pathname + location.search")
}

// Read returns the text of the first element that a selector matches.
func (b *Tab) Read(selector string) string {
	b.Helper()
	return Evaluate[string](b, fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector))
}

// Found returns how many elements a selector matches.
func (b *Tab) Found(selector string) int {
	b.Helper()
	return Evaluate[int](b, fmt.Sprintf("document.querySelectorAll(%q).length", selector))
}

// layout lists what is wrong with a page at its width: text that is clipped, elements that stick
// out, and targets below 24 px.
const layout = `(() => {
  const wrong = [];
  if (document.documentElement.scrollWidth > innerWidth) wrong.push("the page scrolls sideways: " + document.documentElement.scrollWidth);
  const name = (e) => e.tagName + "." + e.className + " " + (e.innerText || e.name || "").slice(0, 30);
  for (const e of document.querySelectorAll("body *")) {
    const box = e.getBoundingClientRect();
    if (!e.checkVisibility() || e.closest(".unseen") || box.width === 0) continue;
    if (box.left < -0.5 || box.right > innerWidth + 0.5) wrong.push("outside: " + name(e));
    const style = getComputedStyle(e);
    const wide = e.scrollWidth > e.clientWidth + 1 && !e.matches(".thumb, img, svg, input, select");
    if (style.overflowX !== "visible" && style.webkitLineClamp === "none" && wide) wrong.push("clipped: " + name(e));
    if (e.matches("#state, #state *") && e.scrollHeight > e.clientHeight + 1 && e.clientHeight) wrong.push("too high: " + name(e));
    const small = box.width < 23.9 || box.height < 23.9;
    if (small && e.matches("a:not([tabindex]), button, input, select, summary"))
      wrong.push("target of " + box.width + " x " + box.height + ": " + name(e));
  }
  return wrong;
})()`

// axe lists violations of WCAG 2.2, levels A and AA.
const axe = `axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]})
  .then((r) => r.violations.flatMap((v) => v.nodes.map((n) => v.id + ": " + n.target.join(" ") + " " + n.failureSummary)))`

// Misfits returns what is wrong with a page at its width.
func (b *Tab) Misfits() []string { return Evaluate[[]string](b, layout) }

// Barriers returns what is wrong with a page for people with disabilities.
func (b *Tab) Barriers() []string {
	b.Helper()
	Evaluate[chromedp.Void](b, axeSource(b.T))
	return Evaluate[[]string](b, axe)
}

// axeSource is the script that scripts/chromium.sh downloads.
func axeSource(t *testing.T) string {
	t.Helper()
	var found []string
	for up := "../.."; len(found) == 0 && len(up) < len("../../../.."); up += "/.." {
		var err error
		found, err = filepath.Glob(up + "/.weir/axe-core/axe-*.min.js")
		require.NoError(t, err)
	}
	require.NotEmpty(t, found, "axe-core is missing: run make chromium")
	content, err := os.ReadFile(found[len(found)-1])
	require.NoError(t, err)
	return string(content)
}
