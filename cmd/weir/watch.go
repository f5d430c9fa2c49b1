package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
)

func watchCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "watch", Short: "Choose the accounts to follow"}
	cmd.AddCommand(watchAddCommand(), watchListCommand(), watchRemoveCommand(), watchSyncCommand())
	return cmd
}

func watchAddCommand() *cobra.Command {
	var (
		alone   bool
		atLeast int
	)
	cmd := &cobra.Command{
		Use:   "add TARGET",
		Short: "Follow an account's follows, by handle, DID, npub or name@domain, or the members of a list or starter pack",
		Example: "  weir watch add alice.example\n  weir watch add --account did:plc:…\n  weir watch add npub1…\n  weir watch add " +
			"alice@example.com\n" +
			"  weir watch add https://bsky.app/profile/alice.example/lists/3k…\n" +
			"  weir watch add https://bsky.app/starter-pack/alice.example/3k…",
		Args: cobra.ExactArgs(1),
		RunE: onDatabase(func(ctx context.Context, p app.App, cmd *cobra.Command, args []string) error {
			w, err := p.ParseWatch(args[0])
			switch {
			case err != nil:
				return err
			case alone && w.Kind != schema.WatchFollows:
				return fmt.Errorf("--account is for accounts, but %s is a %s: omit it to follow its members", w.Target, w.Kind)
			case cmd.Flags().Changed("second-degree"):
				if alone || w.Kind != schema.WatchFollows || w.Network != nil || atLeast < 1 {
					return fmt.Errorf("--second-degree must be 1 or more, and requires a handle or DID of Bluesky")
				}
				w.Kind = schema.WatchSecondDegree
			case alone:
				w.Kind = schema.WatchAccount
			}
			return addWatch(ctx, p, cmd.OutOrStdout(), w, atLeast)
		}),
	}
	cmd.Flags().IntVar(&atLeast, "second-degree", 0, "follow the accounts followed by at least this many of the target's follows")
	cmd.Flags().BoolVar(&alone, "account", false, "follow the account itself instead of its follows")
	return cmd
}

// addWatch adds a watch if its target exists, or if that cannot be checked now, and
// prints which of the two holds.
func addWatch(ctx context.Context, p app.App, w io.Writer, asked app.WatchRequest, atLeast int) error {
	if asked.Network != nil && asked.Network.Check() != nil {
		return asked.Network.Check()
	}
	if asked.Account.Name != "" { // the watch stores the key, because the domain may give the name to another account
		looking, cancel := context.WithTimeout(ctx, lookUpTimeout)
		defer cancel()
		var err error
		if asked.Account, err = asked.Network.LookUp(looking, asked.Account.Name); err != nil {
			return fmt.Errorf("not watching it: %w", err)
		}
		asked.Target = asked.Account.Text
	}
	kind, target := asked.Kind, asked.Target
	watches, err := schema.Watches(ctx, p.Pool())
	if err != nil {
		return err
	}
	if slices.ContainsFunc(watches, func(other schema.Watch) bool {
		return other.Kind == kind && other.Target == target && (atLeast == 0 || other.AtLeast == atLeast)
	}) {
		fmt.Fprintf(w, "already watching %s\n", target)
		return nil
	}
	found, err := lookUp(ctx, p, asked)
	if apiErr, ok := errors.AsType[*bluesky.Error](err); errors.Is(err, errNotShown) ||
		ok && apiErr.Class == bluesky.Permanent && apiErr.Status/100 == 4 && apiErr.Name != "" && !errors.Is(err, bluesky.ErrLogin) {
		return fmt.Errorf("not watching %s: it does not exist or is hidden: %w", target, err)
	}
	if _, err := p.AddWatch(ctx, asked, atLeast); err != nil {
		return err
	}
	if err != nil {
		fmt.Fprintf(w, "watching %s (%s)\nnot checked: %s. `weir watch list` shows whether its accounts could be read\n", target, kind,
			web.Plain(app.Sentence(err)))
		return nil
	}
	fmt.Fprintf(w, "watching %s (%s): %s\nits accounts are read as soon as a worker is free\n", target, kind, web.Plain(found))
	return nil
}

// lookUpTimeout limits the check that a target exists, because a person waits for it.
const lookUpTimeout = 10 * time.Second

var errNotShown = errors.New("the AppView shows no such account")

// lookUp reads the target of a watch from the network, within the rate limit that all
// processes share, and describes it.
func lookUp(ctx context.Context, p app.App, asked app.WatchRequest) (found string, err error) {
	kind, target := asked.Kind, asked.Target
	if p.Config().OfDemo() {
		return "", app.ErrDemoNetwork
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	if asked.Network != nil {
		return asked.Network.Describe(ctx, asked.Account, kind == schema.WatchFollows)
	}
	api, err := p.Bluesky([]time.Duration{}) // no retries, because a person waits
	if err != nil {
		return "", err
	}
	switch kind {
	case "list":
		return members(ctx, api, "a list", target)
	case "starterpack":
		list, err := api.StarterPack(ctx, target)
		if err != nil {
			return "", err
		}
		return members(ctx, api, "a starter pack", list)
	}
	did := target
	if !strings.HasPrefix(did, "did:") {
		if did, err = api.ResolveHandle(ctx, target); err != nil {
			return "", err
		}
	}
	profiles, err := api.Profiles(ctx, []string{did})
	if err != nil {
		return "", err
	}
	if len(profiles) == 0 {
		return "", errNotShown
	}
	found = did + ", " + profiles[0].Handle
	if name := profiles[0].DisplayName; name != "" {
		found += ", " + name
	}
	if kind == "account" {
		return found, nil
	}
	follows, more, err := api.Follows(ctx, did, "")
	return found + ", follows " + accounts(len(follows), more), err
}

func members(ctx context.Context, api *bluesky.Client, kind, list string) (string, error) {
	page, more, err := api.List(ctx, list, "")
	return kind + " of " + accounts(len(page), more), err
}

// accounts describes the number of accounts of a listing by its first page. If the page
// has a cursor, there may be more.
func accounts(n int, cursor string) string {
	if cursor != "" {
		return fmt.Sprintf("%d accounts or more", n)
	}
	return output.Count(int64(n), "account", "accounts")
}

func watchListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the watches with the number of their accounts",
		Args:  cobra.NoArgs,
		RunE: onDatabase(func(ctx context.Context, p app.App, cmd *cobra.Command, _ []string) error {
			watches, err := schema.Watches(ctx, p.Pool())
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(watches)
			}
			return printWatches(cmd.OutOrStdout(), watches, time.Now())
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printWatches(w io.Writer, watches []schema.Watch, now time.Time) error {
	if len(watches) == 0 {
		fmt.Fprintln(w, "no watch: the whole network is followed")
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KIND\tTARGET\tACCOUNTS\tREAD\tPROBLEM")
	for _, watch := range watches {
		read := "never"
		if watch.SyncedAt != nil {
			read = now.Sub(*watch.SyncedAt).Round(time.Second).String() + " ago"
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\n", watch.Kind, web.Plain(watch.Target), watch.Members, read, web.Plain(watch.Problem))
	}
	return table.Flush()
}

func watchRemoveCommand() *cobra.Command {
	var kind string
	cmd := &cobra.Command{
		Use:   "remove TARGET",
		Short: "Remove the watches of a target: their accounts stop counting at once",
		Args:  cobra.ExactArgs(1),
		RunE: onDatabase(func(ctx context.Context, p app.App, cmd *cobra.Command, args []string) error {
			targets := []string{args[0]} // also the given text itself: SQL may have inserted it
			if w, err := p.ParseWatch(args[0]); err == nil && w.Target != "" {
				targets = append(targets, w.Target)
			}
			kinds, err := schema.RemoveWatches(ctx, p.Pool(), kind, targets...)
			if err != nil {
				return err
			}
			if len(kinds) == 0 {
				return fmt.Errorf("there is no such watch of %s: `weir watch list` shows the watches", args[0])
			}
			slices.Sort(kinds)
			fmt.Fprintf(cmd.OutOrStdout(), "no longer watching %s (%s)\n", args[0], strings.Join(kinds, ", "))
			left, err := schema.Watches(ctx, p.Pool())
			if err == nil && len(left) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "no watch is left: the whole network is followed now")
			}
			return err
		}),
	}
	cmd.Flags().StringVar(&kind, "kind", "", "remove only the watch of this `kind`, which watch list shows (default: all of the target)")
	return cmd
}

func watchSyncCommand() *cobra.Command {
	return appCommand("sync", "Read the accounts of every watch now, instead of at the next full hour",
		func(ctx context.Context, p app.App) error { return schema.SyncWatches(ctx, p.Pool()) })
}
