package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
)

//go:embed settings
var settings embed.FS

func initCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "init reader|records|archive",
		Short: "Write commented settings for a reader of links, the records of a lexicon, or an archive",
		Long: "Write commented settings into " + app.SettingsFile + ", which every command reads in the current folder. What the\n" +
			"environment sets takes precedence. systemd's units read the same file at /etc/weir/weir.env, and Compose in its\n" +
			"project's folder.",
		ValidArgs: []string{"reader", "records", "archive"},
		Args: func(cmd *cobra.Command, args []string) error {
			if cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs)(cmd, args) != nil {
				return errors.New("expected one of reader, records and archive")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := settings.ReadFile("settings/" + args[0] + ".env")
			if err != nil {
				return err
			}
			folder, err := os.Getwd()
			if err != nil {
				return err
			}
			if err := create(path, strings.ReplaceAll(string(text), "{folder}", folder)); err != nil {
				return err
			}
			if args[0] == "archive" { // its folder must exist: otherwise, a disk that is not mounted would be an empty archive
				if err := os.MkdirAll(filepath.Join(folder, "archive"), 0o700); err != nil {
					return err
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "wrote %s: edit it, then run weir dev, or set DATABASE_URL in it and run weir migrate and weir serve\n",
				path)
			return nil
		},
	}
	cmd.Flags().StringVar(&path, "file", app.SettingsFile, "the file to write")
	return cmd
}

// create writes a new file, which will hold secrets.
func create(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists: edit it, or remove it first", path)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
