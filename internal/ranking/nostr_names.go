package ranking

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// maxProfile is the longest profile that is read, in characters. Profiles are untrusted.
const maxProfile = 64 << 10

// nostrNames returns the names that Nostr accounts give themselves in their stored
// profiles (kind 0). It omits accounts without a name, and accounts of other networks.
func nostrNames(ctx context.Context, db schema.DB, dids []string) (map[string]string, error) {
	dids = slices.Compact(slices.Sorted(slices.Values(Nostr.leaveOutDIDs(dids))))
	names := make(map[string]string, len(dids))
	if len(dids) == 0 {
		return names, nil
	}
	const sql = `
SELECT r.did, r.content
FROM unnest($1::text[]) AS k (did)
CROSS JOIN LATERAL (
    SELECT r.did, r.record ->> 'content' AS content FROM records AS r WHERE r.collection = 'nostr.0' AND r.did = k.did AND r.rkey = 'self' LIMIT 1
) AS r
WHERE length(r.content) <= $2`
	rows, err := db.Query(ctx, sql, dids, maxProfile)
	if err != nil {
		return nil, err
	}
	var did, content string
	_, err = pgx.ForEachRow(rows, []any{&did, &content}, func() error {
		var profile struct {
			DisplayName any `json:"display_name"`
			Name        any `json:"name"`
		}
		if json.Unmarshal([]byte(content), &profile) == nil {
			display, _ := profile.DisplayName.(string)
			name, _ := profile.Name.(string)
			names[did] = cmp.Or(strings.TrimSpace(display), strings.TrimSpace(name))
		}
		return nil
	})
	return names, err
}

// nameFaces sets the names of Nostr faces that have none.
func (r *reader) nameFaces(ctx context.Context, links []TrendingLink) error {
	var dids []string
	for i := range links {
		for _, f := range links[i].Faces {
			if f.DisplayName == "" {
				dids = append(dids, f.DID)
			}
		}
	}
	names, err := nostrNames(ctx, r.tx, dids)
	for i := range links {
		for j := range links[i].Faces {
			f := &links[i].Faces[j]
			f.DisplayName = cmp.Or(f.DisplayName, names[f.DID])
		}
	}
	return err
}

// nameSharers sets the names of Nostr sharers that have none, except hidden accounts.
func (r *linkReader) nameSharers(ctx context.Context, shares []LinkShare) error {
	var dids []string
	for i := range shares {
		if shares[i].DisplayName == "" && shares[i].Why != Hidden {
			dids = append(dids, shares[i].DID)
		}
	}
	names, err := nostrNames(ctx, r.tx, dids)
	for i := range shares {
		if s := &shares[i]; s.Why != Hidden {
			s.DisplayName = cmp.Or(s.DisplayName, names[s.DID])
		}
	}
	return err
}
