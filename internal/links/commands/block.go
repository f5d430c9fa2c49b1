package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
)

func blockCommand(program feature.Program) *cobra.Command {
	cmd := &cobra.Command{Use: "block", Short: "Take links, domains and accounts out of every ranking, feed and page"}
	cmd.AddCommand(blockAddCommand(program), blockListCommand(program), blockRemoveCommand(program))
	return cmd
}

func blockAddCommand(program feature.Program) *cobra.Command {
	return &cobra.Command{
		Use:   "add TARGET",
		Short: "Block a link by its URL, a domain with its subdomains, or an account by DID, npub or @handle",
		Example: `  weir block add https://spam.example/page
  weir block add spam.example
  weir block add @alice.example
  weir block add did:plc:…`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withBlock(cmd.Context(), program, args[0], func(ctx context.Context, p feature.Process, b ranking.Block) error {
				added, err := ranking.AddBlock(ctx, p.Pool(), b)
				if err != nil {
					return err
				}
				if !added {
					fmt.Fprintf(cmd.OutOrStdout(), "already blocked: the %s %s\n", b.Kind, web.Plain(b.Target))
					return nil
				}
				fmt.Fprintf(cmd.OutOrStdout(), "blocked the %s %s\n", b.Kind, web.Plain(b.Target))
				return nil
			})
		},
	}
}

func blockRemoveCommand(program feature.Program) *cobra.Command {
	return &cobra.Command{
		Use:   "remove TARGET",
		Short: "Put a blocked link, domain or account back",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withBlock(cmd.Context(), program, args[0], func(ctx context.Context, p feature.Process, b ranking.Block) error {
				removed, err := ranking.RemoveBlock(ctx, p.Pool(), b)
				if err == nil && !removed {
					err = fmt.Errorf("the %s %s is not blocked: `weir block list` shows what is", b.Kind, b.Target)
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "no longer blocked: the %s %s\n", b.Kind, web.Plain(b.Target))
				return nil
			})
		},
	}
}

// withBlock calls do with the block that a user names.
func withBlock(
	ctx context.Context, program feature.Program, text string,
	do func(context.Context, feature.Process, ranking.Block) error,
) error {
	return program.With(ctx, func(ctx context.Context, p feature.Process) error {
		b, err := blockOf(ctx, p, text)
		if err != nil {
			return err
		}
		return do(ctx, p, b)
	})
}

// blockOf reads what a user names.
func blockOf(ctx context.Context, p feature.Process, text string) (ranking.Block, error) {
	if strings.Contains(text, "://") {
		l, err := link.Parse(text)
		if err != nil {
			return ranking.Block{}, fmt.Errorf("%s: %w", text, err)
		}
		return ranking.Block{Kind: ranking.BlockedLink, Target: l.Identity}, nil
	}
	b, err := ranking.ParseBlock(text)
	if err == nil && b.Kind == ranking.BlockedAccount {
		b.Target, err = p.DID(ctx, b.Target)
	}
	return b, err
}

func blockListCommand(program feature.Program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the blocks, with the links and shares that each takes out of the counts",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return program.With(cmd.Context(), func(ctx context.Context, p feature.Process) error {
				all, err := ranking.Blocks(ctx, p.Pool())
				if err != nil {
					return err
				}
				if asJSON {
					return json.NewEncoder(cmd.OutOrStdout()).Encode(all)
				}
				if len(all) == 0 {
					fmt.Fprintln(cmd.OutOrStdout(), "nothing is blocked")
					return nil
				}
				w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				fmt.Fprintln(w, "KIND\tTARGET\tLINKS\tSHARES\tSINCE")
				for _, b := range all {
					fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", b.Kind, web.Plain(b.Target), b.Links, b.Shares, b.AddedAt.UTC().Format(time.RFC3339))
				}
				return w.Flush()
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
