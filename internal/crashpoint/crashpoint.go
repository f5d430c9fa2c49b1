// Package crashpoint names points in the code at which a test stops or kills the process. In
// production, reaching a point does nothing.
//
// The context carries what a point does, so that tests of one process do not meet. A point between
// two writes has a name of its own; each name is used by a test.
package crashpoint

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

type key struct{}

// With returns a context whose points call reached, with the context and the name of the point.
func With(ctx context.Context, reached func(ctx context.Context, name string)) context.Context {
	return context.WithValue(ctx, key{}, reached)
}

// At is a point. What the context carries may cancel the context, block, or end the process.
func At(ctx context.Context, name string) {
	if reached, ok := ctx.Value(key{}).(func(context.Context, string)); ok {
		reached(ctx, name)
	}
}

// On returns a context whose named point calls does when it is reached for the nth time.
func On(ctx context.Context, nth int, name string, does func(context.Context)) context.Context {
	var times atomic.Int64
	return With(ctx, func(ctx context.Context, at string) {
		if at == name && times.Add(1) == int64(nth) {
			does(ctx)
		}
	})
}

// Kill returns a context that ends where the nth of the named points is reached, as if the process
// had died there: what follows the point fails, and its transaction is rolled back. Where the code
// detaches its context from this one, the point waits for the end of that context.
func Kill(ctx context.Context, nth int, name string) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	return On(ctx, nth, name, func(ctx context.Context) {
		cancel()
		<-ctx.Done()
	})
}

// linked is set by the linker for the binary of the tests: a variable of the environment cannot
// end a deployed process.
var linked string

// Linked is the linker's flag for the binary of the tests.
const Linked = "-X github.com/weir-social/weir/internal/crashpoint.linked=yes"

// Variable holds an action (kill or stop), a number and a name: the process sends SIGKILL or
// SIGSTOP to itself when it reaches the named point for the nth time.
const Variable = "CRASHPOINT"

// FromEnvironment returns a context that obeys Variable, if the binary is one of the tests.
func FromEnvironment(ctx context.Context) (context.Context, error) {
	text := os.Getenv(Variable)
	if linked == "" || text == "" {
		return ctx, nil
	}
	fields := strings.SplitN(text, " ", 3)
	signals := map[string]syscall.Signal{"kill": syscall.SIGKILL, "stop": syscall.SIGSTOP}
	if len(fields) == 3 && signals[fields[0]] != 0 {
		if nth, err := strconv.Atoi(fields[1]); err == nil && nth > 0 {
			return On(ctx, nth, fields[2], func(context.Context) { send(signals[fields[0]]) }), nil
		}
	}
	return ctx, fmt.Errorf("%s: %q is not an action, a number and a point", Variable, text)
}

// send sends a signal to this process, and passes the point only when the process is continued.
func send(s syscall.Signal) {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	syscall.Kill(os.Getpid(), s) // the test notices
	<-continued
}
