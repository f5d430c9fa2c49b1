package weir_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBreaksCanBeApplied checks that the lines that `make breaks` changes occur once, and that the
// tests exist that it requires to fail.
func TestBreaksCanBeApplied(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("scripts/breaks.sh", "-n").CombinedOutput()
	require.NoError(t, err, string(out))
}
