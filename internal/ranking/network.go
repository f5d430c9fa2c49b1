package ranking

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/schema"
)

// Network names a network. A query with a network counts only the accounts of that
// network.
type Network string

// The networks. An account belongs to one of them.
const (
	BothNetworks Network = ""
	Bluesky      Network = "bluesky" // with all other accounts of the AT Protocol
	Nostr        Network = "nostr"
)

// NetworkOf returns the network of an account.
func NetworkOf(did string) Network {
	if strings.HasPrefix(did, nostr.DIDPrefix) {
		return Nostr
	}
	return Bluesky
}

// includes reports whether an account counts.
func (n Network) includes(did string) bool { return n == BothNetworks || n == NetworkOf(did) }

// has is a condition: the account did counts. The partial indexes for Nostr use the same
// words.
func (n Network) has(did string) string {
	switch n {
	case Nostr:
		return ` ` + did + ` LIKE '` + nostr.DIDPrefix + `%' `
	case Bluesky:
		return ` ` + did + ` NOT LIKE '` + nostr.DIDPrefix + `%' `
	}
	return ` true `
}

// scanned returns the network whose counts a ranking reads in order. Nostr's counts are kept
// separately, beside those of both networks. A link has at most as many sharers on
// Bluesky as on both.
func (n Network) scanned() Network {
	if n == Nostr {
		return Nostr
	}
	return BothNetworks
}

// counts returns the table of counts that a ranking reads in order.
func (n Network) counts() string {
	if n == Nostr {
		return "nostr_counts"
	}
	return "link_counts"
}

// Networks returns the networks for which accounts are counted separately.
func Networks(ctx context.Context, db schema.DB) ([]Network, error) {
	const sql = `
SELECT n.name FROM (VALUES
    ('bluesky', (SELECT true FROM sharers AS s WHERE s.did < 'did:nostr:' LIMIT 1)),
    ('bluesky', (SELECT true FROM sharers AS s WHERE s.did >= 'did:nostr;' LIMIT 1)),
    ('nostr',   (SELECT true FROM sharers AS s WHERE s.did >= 'did:nostr:' AND s.did < 'did:nostr;' LIMIT 1))) AS n (name, counted)
WHERE n.counted
GROUP BY n.name
ORDER BY n.name`
	return schema.All(ctx, db, "find the networks", pgx.RowTo[Network], sql)
}

// leaveOutDIDs removes the accounts that do not count.
func (n Network) leaveOutDIDs(dids []string) (left []string) {
	for _, did := range dids {
		if n.includes(did) {
			left = append(left, did)
		}
	}
	return left
}

// leaveOutChanges removes the changes of accounts that do not count.
func (n Network) leaveOutChanges(c changes) changes {
	if n == BothNetworks {
		return c
	}
	left := make(changes)
	for k, change := range c {
		if n.includes(k.did) {
			left[k] = change
		}
	}
	return left
}

// withoutNostr subtracts the Nostr sharers, who are few, from counts of both networks.
// The links in again must be counted again: their last share may be from Nostr.
func (w *rankScan) withoutNostr(ctx context.Context, of []entry) (subtracted, again []entry, err error) {
	recounted, err := w.recount(ctx, Nostr, of)
	if err != nil {
		return nil, nil, err
	}
	onNostr := make(map[int64]entry, len(recounted))
	for _, e := range recounted {
		onNostr[e.ID] = e
	}
	for _, e := range of {
		nostr := onNostr[e.ID]
		if !nostr.Last.Before(e.Last) {
			again = append(again, e)
			continue
		}
		e.Sharers -= nostr.Sharers
		e.Speed -= nostr.Speed
		subtracted = append(subtracted, e)
	}
	return subtracted, again, nil
}
