package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/schema"
)

func collectionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "collection", Short: "Choose the collections to store, while Weir runs"}
	cmd.AddCommand(collectionAddCommand(), collectionListCommand(), collectionRemoveCommand())
	return cmd
}

func collectionAddCommand() *cobra.Command {
	var keep time.Duration
	cmd := &cobra.Command{
		Use:     "add COLLECTION",
		Short:   "Store a collection, or all under a prefix, besides those of WEIR_COLLECTIONS, or with another retention",
		Example: "  weir collection add pub.layers.* --keep 0\n  weir collection add nostr.7",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			change := schema.CollectionChange{Collection: args[0], Stored: true}
			if cmd.Flags().Changed("keep") {
				change.Retention = &keep
			}
			return changeCollection(cmd, change, "storing %s; running processes follow within seconds\n")
		},
	}
	cmd.Flags().DurationVar(&keep, "keep", 0,
		"how long its records are kept, 0 for ever, which also reads its past (default: as long as WEIR_RETENTION says)")
	return cmd
}

func collectionRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "remove COLLECTION",
		Short: "No longer store a collection, even if WEIR_COLLECTIONS names it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeCollection(cmd, schema.CollectionChange{Collection: args[0]},
				"no longer storing %s; running processes follow within seconds\n")
		},
	}
}

func changeCollection(cmd *cobra.Command, change schema.CollectionChange, done string) error {
	return app.With(cmd.Context(), func(ctx context.Context, p app.App) error {
		err := p.ChangeCollection(ctx, change)
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), done, change.Collection)
		}
		return err
	})
}

func collectionListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List what is stored, and how long it is kept",
		Args:  cobra.NoArgs,
		RunE: onDatabase(func(_ context.Context, p app.App, cmd *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "COLLECTION\tKEPT\tCHOSEN BY")
			for _, e := range p.StoredCollections() {
				kept, by := "for ever", "WEIR_COLLECTIONS"
				if e.Retention != 0 {
					kept = e.Retention.String()
				}
				if e.Changed {
					by = "weir collection"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\n", e.Pattern, kept, by)
			}
			return w.Flush()
		}),
	}
}
