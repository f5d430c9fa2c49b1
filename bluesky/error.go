package bluesky

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Class says what a failed call means for its caller.
type Class int

// The classes of errors.
const (
	Permanent   Class = iota // trying again does not help: the account or the thing asked for is unavailable
	RateLimited              // the server wants to be left alone for RetryAfter: no fault of the call
	Transient                // the network, the server or its answer was broken: try again later
)

// String is the class as metrics and logs write it.
func (c Class) String() string {
	switch c {
	case Permanent:
		return "permanent"
	case RateLimited:
		return "rate_limited"
	}
	return "transient"
}

// Names of errors that are this package's own; others are the servers'.
const (
	nameMalformed = "Malformed"       // the answer could not be read
	nameRefused   = "Refused"         // the request must not or cannot be made
	nameNotSent   = "NotSent"         // a breaker is open, a rate limit is used up, or the limit of calls cannot be taken
	nameNoPDS     = "NoPDS"           // the DID document names no PDS
	nameBadInput  = "InvalidArgument" // the caller's argument
)

// ErrLogin is in every error that says something of the login and not of what
// was asked for: whoever meets it must not take an account for unavailable.
var ErrLogin = errors.New("the login is refused: check the handle and the app password")

// Error is why a call failed.
type Error struct {
	Class      Class
	Status     int           // HTTP status; 0: no answer, or none that could be read
	Name       string        // the server's name for it, such as AccountTakedown, or this package's; may be empty
	Message    string        // one line for a person, at most 300 characters
	RetryAfter time.Duration // 0: not said
	Call       string        // the method, such as app.bsky.feed.getAuthorFeed
	cause      error
	held       bool // no request was made: trying again at once would not make one either
}

// Error is the whole of it in one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Call)
	b.WriteString(": ")
	if e.Status != 0 {
		fmt.Fprintf(&b, "%d ", e.Status)
	}
	if e.Name != "" {
		b.WriteString(e.Name)
		b.WriteString(": ")
	}
	b.WriteString(e.Message)
	if e.Class != Permanent && e.RetryAfter > 0 {
		fmt.Fprintf(&b, " (try again in %s)", e.RetryAfter.Round(time.Second))
	}
	return strings.TrimRight(b.String(), ": ")
}

// Unwrap is what it was made from: a context's error, a network's, ErrLogin.
func (e *Error) Unwrap() error { return e.cause }

// Classify answers the class of an error. One that is not from this package is
// Transient: it says nothing about what was asked for.
func Classify(err error) Class {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	return Transient
}

// RetryAfter is how long to leave the server alone; 0: it did not say.
func RetryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

// badInput refuses an argument without asking anybody.
func badInput(call, format string, args ...any) *Error {
	return &Error{Class: Permanent, Name: nameBadInput, Message: oneLine(fmt.Sprintf(format, args...)), Call: call}
}

func malformed(format string, args ...any) *Error {
	return &Error{Class: Transient, Name: nameMalformed, Message: oneLine(fmt.Sprintf(format, args...))}
}

// oneLine makes a stranger's text fit for a log and for Postgres.
func oneLine(s string) string {
	const most = 300
	var b strings.Builder
	n := 0
	for _, r := range s { // invalid bytes come as U+FFFD
		if n++; n > most {
			break
		}
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			r = ' '
		}
		b.WriteRune(r)
	}
	return strings.TrimSpace(b.String())
}

// errorName is a server's name for an error, if it looks like one.
func errorName(s string) string {
	if len(s) > 64 {
		return ""
	}
	for i := range len(s) {
		if c := s[i]; (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '_' {
			return ""
		}
	}
	return s
}
