package ranking

import "github.com/weir-social/weir/schema"

// Uses returns the tables and functions that the running roles need for the ranking.
func Uses() schema.Uses {
	return schema.Uses{
		Written: []string{
			"blocked_links", "blocks", "card_fetches", "card_hosts", "cards", "changed_subjects", "claim_votes", "claims", "copies", "count_checks", "count_state",
			"feed_entries", "feeds", "leaving_links", "link_counts", "link_merges", "links", "nostr_counts", "paused_shorteners",
			"pending_counts", "sharers", "shares", "shares_default", "short_links", "shorteners", "subjects", "top_links", "top_links_state",
			"unshared_links", "walls",
		},
		Read:   []string{"link_shares", "living_shares", "projected_subjects"},
		Called: []string{"blocks_link", "known_network", "trending"},
	}
}
