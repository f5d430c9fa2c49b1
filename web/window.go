package web

import (
	"fmt"
	"net/url"
	"strings"
	"time"
)

// window is a span that ends now. The page offers these five.
type window struct {
	Name   string // as it is asked for
	Length time.Duration
	Words  string
}

func windows() []window {
	return []window{
		{"1h", time.Hour, "the last hour"},
		{"3h", 3 * time.Hour, "the last 3 hours"},
		{"6h", 6 * time.Hour, "the last 6 hours"},
		{"12h", 12 * time.Hour, "the last 12 hours"},
		{"24h", 24 * time.Hour, "the last 24 hours"},
	}
}

const defaultWindow = "6h"

// parseWindow reads the parameter "window". The error says what to send instead.
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

// single reads a parameter that may be given once.
func single(query url.Values, name, otherwise string) (string, error) {
	switch values := query[name]; len(values) {
	case 0:
		return otherwise, nil
	case 1:
		return values[0], nil
	default:
		return "", fmt.Errorf("%s is given %d times: send it once", name, len(values))
	}
}
