package main

import (
	"bytes"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPrintVersion prints the version of a release, which includes its commit.
func TestPrintVersion(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	info := &debug.BuildInfo{GoVersion: "go1.26.8", Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-07-04T12:00:00Z"}, {Key: "vcs.modified", Value: "true"},
	}}
	info.Main.Version = "v1.2.3"
	require.NoError(t, printVersion(&out, info, []string{"core/0005_ops", "links/0002_ranking", "river/8"}))
	require.Equal(t,
		"weir v1.2.3\ncommit abc of 2026-07-04T12:00:00Z, modified\ngo1.26.8\nschema core/0005_ops, links/0002_ranking, river/8\n", out.String())
}
