package web

import (
	"fmt"
	"time"
)

// timestamp is a time on the page. The script updates Age with the same rule (age in
// static/page.js).
type timestamp struct {
	Stamp string // for the attribute datetime, with seconds
	Full  string // for the tooltip
	Age   string
}

func newTimestamp(t, now time.Time) *timestamp {
	t = t.UTC()
	return &timestamp{Stamp: t.Format(time.RFC3339), Full: t.Format("2 January 2006, 15:04:05 UTC"), Age: age(now.Sub(t))}
}

// clockTime is a date and time of day; the script converts it to the reader's time
// zone.
type clockTime struct {
	Stamp string
	Text  string
}

func newClockTime(t time.Time) clockTime {
	t = t.UTC()
	return clockTime{Stamp: t.Format(time.RFC3339), Text: t.Format("2 Jan, 15:04 UTC")}
}

// age formats the time since an event. An event in the future is "just now", because
// clocks differ.
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
