package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// printJSON prints a value for a program that reads it, and for a person who
// looks over its shoulder.
func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// counts is a number of things, in the singular where there is one.
func counts(n int64, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// oneOfMany are several words, of which a sentence asks for one.
func oneOfMany(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
