// Package doctor looks for what keeps Weir from working, or will: it asks
// everything Weir depends on, side by side, and says of each in one line whether
// it is well and what to do. It changes nothing, takes no lease, moves no cursor,
// and never says a password.
package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Level is how well something is.
type Level string

// The levels, the best first.
const (
	OK   Level = "ok"
	Warn Level = "warn" // it works, and will hurt
	Fail Level = "fail" // it does not work, or what is stored is in danger
)

// Finding is what a check found.
type Finding struct {
	Check string `json:"check"` // what was looked at
	Level Level  `json:"level"`
	Says  string `json:"says"`         // what holds, in one line
	Do    string `json:"do,omitempty"` // what to do about it; empty when nothing is to be done
}

// Check looks at one thing and finds one thing or several.
type Check struct {
	Name string
	Look func(context.Context) []Finding
}

// grace is what a check gets, beyond its time, to say itself why it is late.
const grace = 500 * time.Millisecond

// Run makes the checks side by side, each within a time of its own, and answers
// what they found in the order of the checks. A check that does not end in time
// has failed; it is not waited for.
func Run(ctx context.Context, within time.Duration, checks ...Check) []Finding {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	answers := make([]chan []Finding, len(checks))
	for i, c := range checks {
		answers[i] = make(chan []Finding, 1)
		go func() { answers[i] <- c.Look(ctx) }()
	}
	late := make(chan struct{})
	timer := time.AfterFunc(within+grace, func() { close(late) })
	defer timer.Stop()
	var found []Finding
	for i, c := range checks {
		select {
		case f := <-answers[i]:
			found = append(found, f...)
		case <-late:
			select {
			case f := <-answers[i]: // in time, but another one was waited for
				found = append(found, f...)
			default:
				found = append(found, fail(c.Name, "see whether it answers at all, and try weir doctor --within with a longer time", "no answer within %s", within))
			}
		}
	}
	return found
}

// Worst is the level of all findings together.
func Worst(found []Finding) Level {
	order := []Level{OK, Warn, Fail}
	worst := 0
	for _, f := range found {
		worst = max(worst, slices.Index(order, f.Level))
	}
	return order[worst]
}

func ok(check, says string, args ...any) Finding {
	return Finding{Check: check, Level: OK, Says: fmt.Sprintf(says, args...)}
}

func warn(check, do, says string, args ...any) Finding {
	return Finding{Check: check, Level: Warn, Says: fmt.Sprintf(says, args...), Do: do}
}

func fail(check, do, says string, args ...any) Finding {
	return Finding{Check: check, Level: Fail, Says: fmt.Sprintf(says, args...), Do: do}
}

// Failed is a check that could not be made.
func Failed(check, do string, err error) Finding { return fail(check, do, "%s", err) }

// Fine is a check with nothing to do.
func Fine(check, says string) Finding { return ok(check, "%s", says) }

// Doubtful is a check with something to do that keeps nobody from working.
func Doubtful(check, do, says string) Finding { return warn(check, do, "%s", says) }

// Clocks beyond these apart hurt: leases and windows are measured in seconds.
const (
	clockWarn = 2 * time.Second
	clockFail = time.Minute
)

// clock judges how far another clock is from ours: ahead is positive. It is known
// to within an uncertainty only.
func clock(check string, apart, uncertain time.Duration) Finding {
	off := max(apart.Abs()-uncertain, 0)
	word := "ahead of"
	if apart < 0 {
		word = "behind"
	}
	says := fmt.Sprintf("%s %s this machine's", apart.Abs().Round(10*time.Millisecond), word)
	switch {
	case off > clockFail:
		return fail(check, "run an NTP client on the machine whose clock is wrong: windows, ages and expiry are off by as much", "%s", says)
	case off > clockWarn:
		return warn(check, "run an NTP client on both machines", "%s", says)
	case off == 0:
		return ok(check, "no difference can be seen")
	}
	return ok(check, "%s", says)
}
