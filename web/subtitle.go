package web

import (
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"github.com/weir-social/weir/schema"
)

// subtitle says whose links are counted, and when they were shared.
func subtitle(f schema.Following, w window) string {
	if f.Watches == 0 {
		return "The links most shared on Bluesky in " + w.Words + "."
	}
	if f.Accounts == 0 {
		return "The links most shared by followed accounts in " + w.Words + ". No account is followed yet: the lists of whom to follow have not been read."
	}
	return "The links most shared by " + followed(f) + " in " + w.Words + "."
}

// followed names the accounts that count. Where one watch brings them, it says
// which one.
func followed(f schema.Following) string {
	accounts := grouped(f.Accounts) + " accounts"
	if f.Accounts == 1 {
		accounts = "1 account"
	}
	target := plain(f.Target, maxSite)
	if _, err := syntax.ParseDID(f.Target); err == nil {
		target = abbreviate(f.Target)
	}
	switch f.Kind {
	case schema.WatchFollows:
		return accounts + " that " + target + " follows"
	case schema.WatchAccount:
		return target
	case schema.WatchList:
		return accounts + " on one list"
	case schema.WatchStarterPack:
		return accounts + " in one starter pack"
	case schema.WatchSecondDegree:
		return fmt.Sprintf("%s, each followed by %s or more accounts that %s follows,", accounts, grouped(f.AtLeast), target)
	default:
		if f.Accounts == 1 {
			return "1 followed account"
		}
		return grouped(f.Accounts) + " followed accounts"
	}
}
