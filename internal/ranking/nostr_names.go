package ranking

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/weir-social/weir/schema"
)

// maxProfile is the longest profile that is read, in characters. Profiles are untrusted.
const maxProfile = 64 << 10

// addNostrNames sets the names that are empty, given by their accounts, to those that Nostr accounts
// give themselves in their stored profiles (kind 0).
func addNostrNames(ctx context.Context, db schema.DB, names map[string][]*string) error {
	dids := Nostr.leaveOutDIDs(slices.Sorted(maps.Keys(names)))
	if len(dids) == 0 {
		return nil
	}
	const sql = `
SELECT r.did, r.content
FROM unnest($1::text[]) AS k (did)
CROSS JOIN LATERAL (
    SELECT r.did, r.record ->> 'content' AS content FROM records AS r
    WHERE r.collection = 'nostr.0' AND r.did = k.did AND r.rkey = 'self' LIMIT 1
) AS r
WHERE length(r.content) <= $2`
	var did, content string
	return schema.Each(ctx, db, "name the sharers", []any{&did, &content}, func() error {
		var profile struct {
			DisplayName any `json:"display_name"`
			Name        any `json:"name"`
		}
		if json.Unmarshal([]byte(content), &profile) == nil {
			display, _ := profile.DisplayName.(string)
			name, _ := profile.Name.(string)
			for _, to := range names[did] {
				*to = cmp.Or(*to, strings.TrimSpace(display), strings.TrimSpace(name))
			}
		}
		return nil
	}, sql, dids, maxProfile)
}
