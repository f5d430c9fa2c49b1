package bluesky

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Class tells the caller whether a retry of a failed call can help.
type Class int

// The classes of errors.
const (
	Permanent   Class = iota // a retry does not help: the account or record is unavailable
	RateLimited              // the server rejects calls until RetryAfter has passed
	Transient                // the network, the server or its response failed: retry later
)

// String returns the class in the form used by metrics and logs.
func (c Class) String() string {
	switch c {
	case Permanent:
		return "permanent"
	case RateLimited:
		return "rate_limited"
	}
	return "transient"
}

// Names of errors: this package's own, except nameNoRepo. Other names come from servers.
const (
	nameMalformed = "Malformed"       // the response is invalid
	nameRefused   = "Refused"         // the request cannot or must not be made
	nameNotSent   = "NotSent"         // a breaker is open, a rate limit is used up, or the shared limit is unavailable
	nameNoPDS     = "NoPDS"           // the DID document names no PDS
	nameNoRepo    = "RepoNotFound"    // the name of servers: they have no such repository
	nameBadInput  = "InvalidArgument" // the caller's argument
)

// ErrLogin is wrapped by every error of the login itself. Such an error does not
// concern the requested account.
var ErrLogin = errors.New("the login was rejected: check the handle and the app password")

// Error is the error of a call.
type Error struct {
	Class      Class
	Status     int           // HTTP status; 0: no readable response
	Name       string        // the server's name for it, such as AccountTakedown, or this package's; may be empty
	Message    string        // one line, at most 300 characters
	RetryAfter time.Duration // 0: unknown
	Call       string        // the method, such as app.bsky.feed.getAuthorFeed
	cause      error
	held       bool // no request was made, and an immediate retry would not make one either
}

// Error returns the error in one line.
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

// Unwrap returns the underlying error, such as a context's or a network's error, or
// ErrLogin.
func (e *Error) Unwrap() error { return e.cause }

// Classify returns the class of an error. An error of another package is Transient,
// because it does not concern the account.
func Classify(err error) Class {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	return Transient
}

// RetryAfter returns how long to wait before the server accepts calls; 0: unknown.
func RetryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

// Unsent reports whether a call ended with its context before a request was sent. Such
// an error does not concern the server.
func Unsent(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Name == nameNotSent && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled))
}

// badInput returns the error of an invalid argument, without a call.
func badInput(call, format string, args ...any) *Error {
	return &Error{Class: Permanent, Name: nameBadInput, Message: oneLine(fmt.Sprintf(format, args...)), Call: call}
}

func malformed(format string, args ...any) *Error {
	return &Error{Class: Transient, Name: nameMalformed, Message: oneLine(fmt.Sprintf(format, args...))}
}

// oneLine makes untrusted text fit for a log and for Postgres.
func oneLine(s string) string {
	const most = 300
	var b strings.Builder
	n := 0
	for _, r := range s { // invalid bytes become U+FFFD
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

// errorName returns a server's error name if it is plausible.
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
