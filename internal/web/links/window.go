package links

import (
	"github.com/weir-social/weir/internal/ranking"
)

// window is a window of the ranking with its description.
type window struct {
	ranking.Window
	Words string // such as "the last 6 hours"
}

func windows() []window {
	var all []window
	for _, w := range ranking.Windows() {
		hours := int(w.Length.Hours())
		words := say("window_hours", hours)
		switch {
		case hours == 1:
			words = say("window_1")
		case hours > 24:
			words = say("window_days", hours/24)
		}
		all = append(all, window{w, words})
	}
	return all
}
