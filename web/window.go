package web

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/weir-social/weir/ranking"
)

// window is a window of the ranking with its description.
type window struct {
	ranking.Window
	Words string // such as "the last 6 hours"
}

func windows() []window {
	var all []window
	for _, w := range ranking.Windows() {
		words := "the last hour"
		if w.Length > time.Hour {
			words = fmt.Sprintf("the last %.0f hours", w.Length.Hours())
		}
		if days := w.Length.Hours() / 24; days > 1 {
			words = fmt.Sprintf("the last %.0f days", days)
		}
		all = append(all, window{w, words})
	}
	return all
}

const defaultWindow = "6h"

// parseWindow reads the parameter "window". The error lists the valid values.
func parseWindow(query url.Values) (window, error) {
	name, err := single(query, "window", defaultWindow)
	if err != nil {
		return window{}, err
	}
	var names []string
	for _, w := range windows() {
		if w.Name == name {
			return w, nil
		}
		names = append(names, w.Name)
	}
	return window{}, fmt.Errorf("window is %q: send one of %s", shorten(name, 40), strings.Join(names, ", "))
}

// single reads a parameter that may appear once.
func single(query url.Values, name, otherwise string) (string, error) {
	switch values := query[name]; len(values) {
	case 0:
		return otherwise, nil
	case 1:
		return values[0], nil
	default:
		return "", fmt.Errorf("%s appears %d times: send it once", name, len(values))
	}
}
