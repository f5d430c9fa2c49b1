package web

import (
	"fmt"
	"strings"

	"github.com/weir-social/weir/schema"
)

// subtitle describes whose links are counted, and in which window.
func subtitle(f schema.Following, w window) string {
	shared := "The links most shared in " + w.Words
	switch {
	case f.Watches == 0:
		return "The links most shared on Bluesky in " + w.Words + "."
	case f.Accounts == 0:
		return shared + " by followed accounts. The list of accounts has not been read yet."
	}
	return shared + " by " + followedAccounts(f) + "."
}

// followedAccounts describes the accounts that count. If there is one watch, it
// describes the watch.
func followedAccounts(f schema.Following) string {
	accounts := "the " + grouped(f.Accounts) + " accounts"
	if f.Accounts == 1 {
		accounts = "the one account"
	}
	target := targetName(f.Target)
	switch f.Kind {
	case schema.WatchFollows:
		return accounts + " that " + target + " follows"
	case schema.WatchAccount:
		return target
	case schema.WatchList:
		return accounts + " on a list"
	case schema.WatchStarterPack:
		return accounts + " in a starter pack"
	case schema.WatchSecondDegree:
		return fmt.Sprintf("%s followed by at least %d of the accounts that %s follows", accounts, f.AtLeast, target)
	}
	switch {
	case f.Target != "":
		return accounts + " in the watches of " + target
	default:
		return strings.Replace(accounts, "account", "followed account", 1)
	}
}
