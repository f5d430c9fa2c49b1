// Package commands is what the feature links adds to the command weir.
package commands

import (
	"github.com/spf13/cobra"

	"github.com/weir-social/weir/feature"
)

// All returns the commands.
func All(program feature.Program) []*cobra.Command {
	return []*cobra.Command{trendingCommand(program), linkCommand(program), blockCommand(program), recountCommand(program)}
}
