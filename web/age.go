package web

import (
	"fmt"
	"time"
)

// moment is a time on the page. The script keeps Age up to date by the same
// rule (age in static/page.js).
type moment struct {
	Stamp string // for the attribute datetime, with seconds
	Full  string // for the tooltip
	Age   string
}

func newMoment(t, now time.Time) *moment {
	t = t.UTC()
	return &moment{Stamp: t.Format(time.RFC3339), Full: t.Format("2 January 2006, 15:04:05 UTC"), Age: age(now.Sub(t))}
}

// clock is a time of day; the script writes it in the reader's own time zone.
type clock struct {
	Stamp string
	Text  string
}

func newClock(t time.Time) clock {
	t = t.UTC()
	return clock{Stamp: t.Format(time.RFC3339), Text: t.Format("2 Jan, 15:04 UTC")}
}

// age says how long ago something was. Clocks differ: what lies ahead is now.
func age(d time.Duration) string {
	switch {
	case d < 5*time.Second:
		return "just now"
	case d < time.Minute:
		return fmt.Sprintf("%d s ago", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", d/time.Hour)
	default:
		return fmt.Sprintf("%d days ago", d/(24*time.Hour))
	}
}
