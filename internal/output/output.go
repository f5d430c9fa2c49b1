// Package output writes what commands print.
package output

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// JSON prints a value as indented JSON.
func JSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// Count formats a number with the singular or plural of a noun.
func Count(n int64, singular, plural string) string {
	if n == 1 {
		return "1 " + singular
	}
	return fmt.Sprintf("%d %s", n, plural)
}

// Or joins words as "a, b or c".
func Or(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// Stopping prints a message as soon as a signal arrives. It says what the
// process waits for before it stops.
func Stopping(ctx context.Context, w io.Writer) (done func() bool) {
	return context.AfterFunc(ctx, func() {
		fmt.Fprintln(w,
			"\nstopping: committing what was read and waiting for running jobs, for 20 seconds at most; press Ctrl-C again to stop at once")
	})
}
