package schema_test

import "testing"

// long skips a test that takes seconds under -short.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: skipped by -short")
	}
}
