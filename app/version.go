package app

import (
	"cmp"
	"runtime/debug"
)

// VersionOf returns the version of a build.
func VersionOf(info *debug.BuildInfo) string { return cmp.Or(info.Main.Version, "unknown") }
