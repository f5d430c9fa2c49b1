package app

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStoppedWhileItConnects shows that a process that is stopped before it has connected to a
// database has not failed.
func TestStoppedWhileItConnects(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	_, err := Config{}.OpenPool(ctx, "postgres://weir@127.0.0.1:1/weir", 1)
	require.ErrorIs(t, err, context.Canceled)
}
