package links

import (
	"fmt"
	"strings"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
)

// chartView is a chart of the sharers of a link since the first share in the window: a line that never falls.
type chartView struct {
	Width, Height int
	Area, Line    string // paths
	Label         string
	Most          string
	From          *web.Timestamp
}

// newChart draws the sharers at the ends of equal parts of that time. It returns nil if there are
// none.
func newChart(l ranking.LinkSummary) *chartView {
	n := len(l.History)
	if n == 0 || l.History[n-1] == 0 {
		return nil
	}
	c := &chartView{Width: 480, Height: 72, Label: say("chart_label", l.History[n-1]), Most: web.Grouped(l.History[n-1])}
	if l.HistoryFrom != nil {
		c.From = web.NewTimestamp(*l.HistoryFrom, l.At)
	}
	var b strings.Builder
	y := func(sharers int) float64 {
		return float64(c.Height-1) - float64(sharers*(c.Height-3))/float64(l.History[n-1])
	}
	fmt.Fprintf(&b, "M0 %.1f", y(0))
	for i, sharers := range l.History {
		fmt.Fprintf(&b, "L%.1f %.1f", float64((i+1)*c.Width)/float64(n), y(sharers))
	}
	c.Line = b.String()
	c.Area = fmt.Sprintf("%sL%d %.1fZ", c.Line, c.Width, y(0))
	return c
}
