package ranking

import "time"

// LongestWindow is the longest window of the ranking.
const LongestWindow = 7 * 24 * time.Hour

// Window is a time span of the ranking. At a time T it contains the shares dated
// after T - Length. It has no upper end: a share dated slightly ahead counts at
// once.
type Window struct {
	Name   string // the name in requests
	Length time.Duration
}

// Windows returns the windows of the ranking, shortest first.
func Windows() []Window {
	return []Window{
		{"1h", time.Hour}, {"3h", 3 * time.Hour}, {"6h", 6 * time.Hour}, {"12h", 12 * time.Hour}, {"24h", 24 * time.Hour},
		{"7d", LongestWindow},
	}
}

// windows is the number of windows.
const windows = 6

// weights are the weights of a sharer in the speed of a link, by window: the mean of
// the hourly rates of the five windows up to 24 h, times 120.
func weights() [windows]int { return [windows]int{24, 8, 4, 2, 1, 0} }

// speedPerHour is the speed of one sharer per hour.
const speedPerHour = 120

// longestSpeed is the index of the longest window that the speed depends on.
const longestSpeed = 4

// perWindow holds a number for each window.
type perWindow [windows]int

// counted returns 1 for each window at end that holds a share dated at; none holds
// the zero time.
func counted(at, end time.Time) (n perWindow) {
	if at.IsZero() {
		return n
	}
	for i, length := range [windows]time.Duration{time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, LongestWindow} {
		if at.After(end.Add(-length)) {
			n[i] = 1
		}
	}
	return n
}

func (n *perWindow) add(m perWindow, sign int) {
	for i := range n {
		n[i] += sign * m[i]
	}
}

// speed returns the sharers per hour with decay, times speedPerHour.
func (n perWindow) speed() (speed int) {
	for i, w := range weights() {
		speed += w * n[i]
	}
	return speed
}
