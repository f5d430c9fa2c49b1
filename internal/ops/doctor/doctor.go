// Package doctor checks everything that Weir depends on, in parallel, and reports
// each finding in one line, with a hint about what to do. It takes no lease, moves no
// cursor, never prints a password, and changes nothing: what it writes to the archive's store it deletes again.
package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Level is the severity of a finding.
type Level string

// The levels, best first.
const (
	OK   Level = "ok"
	Warn Level = "warn" // it works, but will cause problems
	Fail Level = "fail" // it does not work, or stored data is in danger
)

// Finding is the result of a check.
type Finding struct {
	Check   string `json:"check"`
	Level   Level  `json:"level"`
	Message string `json:"message"`      // the result, in one line
	Do      string `json:"do,omitempty"` // what to do; empty if there is nothing to do
}

// Check checks one thing and returns its findings.
type Check struct {
	Name string
	Run  func(context.Context) []Finding
}

// grace is the extra time of a check to report its own timeout.
const grace = 500 * time.Millisecond

// Run runs the checks in parallel, each with its own time limit, and returns their
// findings in the order of the checks. A check that exceeds the limit fails; Run
// does not wait for it.
func Run(ctx context.Context, within time.Duration, checks ...Check) []Finding {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	results := make([]chan []Finding, len(checks))
	for i, c := range checks {
		results[i] = make(chan []Finding, 1)
		go func() { results[i] <- c.Run(ctx) }()
	}
	late := make(chan struct{})
	timer := time.AfterFunc(within+grace, func() { close(late) })
	defer timer.Stop()
	var found []Finding
	for i, c := range checks {
		select {
		case f := <-results[i]:
			found = append(found, f...)
		case <-late:
			select {
			case f := <-results[i]: // it ended in time, while Run waited for another check
				found = append(found, f...)
			default:
				found = append(found,
					fail(c.Name, "check that it responds, and try weir doctor --within with a longer time", "no response within %s", within))
			}
		}
	}
	return found
}

// Worst returns the most severe level among the findings.
func Worst(found []Finding) Level {
	order := []Level{OK, Warn, Fail}
	worst := 0
	for _, f := range found {
		worst = max(worst, slices.Index(order, f.Level))
	}
	return order[worst]
}

func ok(check, format string, args ...any) Finding {
	return Finding{Check: check, Level: OK, Message: fmt.Sprintf(format, args...)}
}

func warn(check, hint, format string, args ...any) Finding {
	return Finding{Check: check, Level: Warn, Message: fmt.Sprintf(format, args...), Do: hint}
}

func fail(check, hint, format string, args ...any) Finding {
	return Finding{Check: check, Level: Fail, Message: fmt.Sprintf(format, args...), Do: hint}
}

// Passed returns a finding with the level OK.
func Passed(check, message string) Finding { return ok(check, "%s", message) }

// Warned returns a finding with the level Warn and a hint about what to do.
func Warned(check, hint, message string) Finding { return warn(check, hint, "%s", message) }

// Failed returns a finding with the level Fail, a hint about what to do, and the
// error.
func Failed(check, hint string, err error) Finding { return fail(check, hint, "%s", err) }

// Larger clock differences cause problems: leases and windows depend on seconds.
const (
	clockWarn = 2 * time.Second
	clockFail = time.Minute
)

// clock returns a finding about another clock. offset is positive if that clock is
// ahead of this machine's; uncertainty is the error of the measurement.
func clock(check string, offset, uncertainty time.Duration) Finding {
	certain := max(offset.Abs()-uncertainty, 0)
	word := "ahead of"
	if offset < 0 {
		word = "behind"
	}
	message := fmt.Sprintf("%s %s this machine's clock", offset.Abs().Round(10*time.Millisecond), word)
	switch {
	case certain > clockFail:
		return fail(check, "run an NTP client on the machine whose clock is wrong: windows, ages and expiry are wrong by this difference", "%s",
			message)
	case certain > clockWarn:
		return warn(check, "run an NTP client on both machines", "%s", message)
	case certain == 0:
		return ok(check, "no measurable difference")
	}
	return ok(check, "%s", message)
}
