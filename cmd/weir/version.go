package main

import (
	"fmt"
	"io"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/schema"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, commit, Go version and schema of this binary",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			latest, err := schema.Latest()
			if err != nil {
				return err
			}
			info, ok := debug.ReadBuildInfo()
			if !ok {
				info = &debug.BuildInfo{GoVersion: "unknown"}
			}
			return printVersion(cmd.OutOrStdout(), info, latest)
		},
	}
}

// printVersion prints the build information. A build outside a checkout has no commit.
func printVersion(w io.Writer, info *debug.BuildInfo, latest schema.Version) error {
	commit := "unknown"
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if revision := settings["vcs.revision"]; revision != "" {
		commit = revision
		if at := settings["vcs.time"]; at != "" {
			commit += " of " + at
		}
		if settings["vcs.modified"] == "true" {
			commit += ", modified"
		}
	}
	_, err := fmt.Fprintf(w, "weir %s\ncommit %s\n%s\nschema %d (%s), River's %d\n", app.VersionOf(info), commit, info.GoVersion, latest.Weir, latest.Name, latest.River)
	return err
}
