package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/web"
)

func configCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "config",
		Short: "Print the effective configuration without secrets, and check it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := app.ReadConfig()
			if err != nil {
				return err
			}
			return errors.Join(printConfig(cmd.OutOrStdout(), cfg.Effective()), cfg.Check())
		},
	}
}

func printConfig(w io.Writer, all []app.Variable) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "VARIABLE\tFROM\tVALUE")
	for _, v := range all {
		fmt.Fprintf(table, "%s\t%s\t%s\n", v.Name, v.From, web.Plain(v.Value))
	}
	return table.Flush()
}
