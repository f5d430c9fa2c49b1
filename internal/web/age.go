package web

import "time"

// Timestamp is a time on the page. The script updates Age with the same rule (age in
// static/page.js).
type Timestamp struct {
	Stamp string // for the attribute datetime, with seconds
	Full  string // for the tooltip
	Clock string // the date and time of day; the script shows the reader's time zone
	Age   string
}

// MarshalText returns the time for the script.
func (t Timestamp) MarshalText() ([]byte, error) { return []byte(t.Stamp), nil }

func NewTimestamp(t, now time.Time) *Timestamp {
	t = t.UTC()
	return &Timestamp{
		Stamp: t.Format(time.RFC3339), Full: t.Format("2 January 2006, 15:04:05 UTC"), Clock: t.Format("2 Jan, 15:04 UTC"),
		Age: age(now.Sub(t)),
	}
}

// age formats the time since an event. An event in the future is "just now", because
// clocks differ.
func age(d time.Duration) string {
	switch {
	case d < 5*time.Second:
		return say("age_now")
	case d < time.Minute:
		return say("age_s", int(d/time.Second))
	case d < time.Hour:
		return say("age_min", int(d/time.Minute))
	case d < 48*time.Hour:
		return say("age_h", int(d/time.Hour))
	default:
		return say("age_days", int(d/(24*time.Hour)))
	}
}
