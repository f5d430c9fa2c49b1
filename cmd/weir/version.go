package main

import (
	"fmt"
	"io"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, commit, Go version and schema of this binary",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			schema, err := app.SchemaVersions()
			if err != nil {
				return err
			}
			info, ok := debug.ReadBuildInfo()
			if !ok {
				info = &debug.BuildInfo{GoVersion: "unknown"}
			}
			return printVersion(cmd.OutOrStdout(), info, schema)
		},
	}
}

// printVersion prints the build information. A build outside a checkout has no commit.
func printVersion(w io.Writer, info *debug.BuildInfo, schema []string) error {
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
	_, err := fmt.Fprintf(w, "weir %s\ncommit %s\n%s\nschema %s\n", app.VersionOf(info), commit, info.GoVersion, strings.Join(schema, ", "))
	return err
}
