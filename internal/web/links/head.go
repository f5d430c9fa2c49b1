package links

import (
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
)

// subtitle describes whose links are counted, and in which window.
func subtitle(data *pageData, v View) string {
	f, w := data.follows, v.window
	switch {
	case f.Watches == 0:
		return say("head_network", w.Words, countedNetwork(v.Query.Network, data.networks))
	case f.Accounts == 0:
		return say("head_unread", w.Words)
	}
	return say("head_watch", w.Words, followedAccounts(f))
}

// countedNetwork names the network whose accounts count, or both.
func countedNetwork(asked ranking.Network, networks []ranking.Network) string {
	switch {
	case asked != ranking.BothNetworks:
		return say("network_" + string(asked))
	case len(networks) > 1:
		return say("network_all")
	case len(networks) == 1:
		return say("network_" + string(networks[0]))
	}
	return say("network_bluesky")
}

// followedAccounts describes the accounts that count. If there is one watch, it
// describes the watch.
func followedAccounts(f schema.Following) string {
	accounts, target := say("accounts", f.Accounts), web.TargetName(f.Target)
	switch f.Kind {
	case schema.WatchFollows:
		return say("accounts_follows", accounts, target)
	case schema.WatchAccount:
		return target
	case schema.WatchList:
		return say("accounts_list", accounts)
	case schema.WatchStarterPack:
		return say("accounts_starterpack", accounts)
	case schema.WatchSecondDegree:
		return say("accounts_second", accounts, f.AtLeast, target)
	}
	if f.Target != "" {
		return say("accounts_target", accounts, target)
	}
	return say("accounts_followed", f.Accounts)
}
