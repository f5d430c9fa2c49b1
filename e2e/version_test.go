package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestVersionIsPrinted shows that a build from a checkout prints its commit.
func TestVersionIsPrinted(t *testing.T) {
	t.Parallel()
	require.Regexp(t, `^weir \S+\ncommit .+\ngo1\.\d+\S*\nschema river/\d{4}_\w+, core/\d{4}_\w+, .+\n$`, succeed(t, nil, "version"))
}
