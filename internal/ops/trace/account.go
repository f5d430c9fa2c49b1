package trace

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// AccountTrace holds everything known about an account.
type AccountTrace struct {
	Account
	Known          bool         `json:"known"`                  // it has a row in accounts
	NotRecommended bool         `json:"not_recommended"`        // it asks so: it counts only while a watch includes it
	Since          *time.Time   `json:"status_since"`           // by the network's clock; null: no status was ever reported
	ReadSince      *time.Time   `json:"read_since"`             // everything that it wrote since then is stored
	FeedRead       *time.Time   `json:"feed_read_at"`           // when its feed was last read
	Purged         bool         `json:"purged"`                 // after its deletion, nothing of it is left
	Stored         []Collection `json:"stored"`                 // its records
	Shares         any          `json:"shares"`                 // what features made of its records
	Lines          []Line       `json:"-"`                      // the same for people
	DeadLetters    int64        `json:"dead_letters"`           // open ones
	Resync         string       `json:"resync_cause,omitempty"` // why it is to be compared with its repository
	Message        string       `json:"message"`                // why it counts or does not
	Said           []Said       `json:"-"`                      // by features
}

// Said is what a feature says of an account.
type Said struct {
	Field         string // of the JSON
	Label, Format string // of the printed line
	Text          string
}

// MarshalJSON adds what features say to the fields.
func (a AccountTrace) MarshalJSON() ([]byte, error) {
	type fields AccountTrace
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // the outer encoder decides
	err := encoder.Encode(fields(a))
	for _, said := range a.Said {
		if err == nil {
			out.Truncate(out.Len() - len("}\n"))
			fmt.Fprintf(&out, ",%q:", said.Field)
			err = encoder.Encode(said.Text)
			out.WriteString("}\n")
		}
	}
	return out.Bytes(), err
}

// Collection is what is stored of an account in a collection.
type Collection struct {
	Name    string    `json:"collection"`
	Records int64     `json:"records"`
	Oldest  time.Time `json:"oldest"` // created then
	Newest  time.Time `json:"newest"`
}

// OfAccount collects everything known about an account.
func OfAccount(ctx context.Context, db schema.DB, did string, features []Feature) (a AccountTrace, err error) {
	const row = `
SELECT a.did IS NOT NULL, coalesce(a.not_recommended, false), a.status_at, a.read_since, a.feed_read_at,
       coalesce(a.status = 'deleted' AND a.purged_for = a.status_at, false),
       (SELECT count(*) FROM dead_letters AS d WHERE d.did = $1 AND d.state IN ('open', 'retrying')),
       coalesce((SELECT r.cause FROM resyncs AS r WHERE r.did = $1 AND r.desynchronized_at IS NOT NULL), '')
FROM (VALUES ($1::text)) AS v (did)
LEFT JOIN accounts AS a ON a.did = v.did`
	a, err = schema.One(ctx, db, "read account "+did, func(r pgx.CollectableRow) (a AccountTrace, err error) {
		return a, r.Scan(&a.Known, &a.NotRecommended, &a.Since, &a.ReadSince, &a.FeedRead, &a.Purged, &a.DeadLetters, &a.Resync)
	}, row, did)
	if err != nil {
		return a, err
	}
	if a.Account, err = findAccount(ctx, db, did); err != nil {
		return a, err
	}
	// One look into the index for each collection, whatever it stores.
	const stored = `
WITH RECURSIVE names AS (
    SELECT min(collection) AS name FROM records_other
    UNION ALL
    SELECT (SELECT min(o.collection) FROM records_other AS o WHERE o.collection > n.name) FROM names AS n WHERE n.name IS NOT NULL
)
SELECT n.name AS name, r.records AS records, r.oldest AS oldest, r.newest AS newest
FROM (SELECT name FROM names WHERE name IS NOT NULL UNION ALL SELECT $2) AS n
CROSS JOIN LATERAL (
    SELECT count(*) AS records, min(created_at) AS oldest, max(created_at) AS newest FROM records AS s
    WHERE s.collection = n.name AND s.did = $1
) AS r
WHERE r.records > 0
ORDER BY n.name`
	if a.Stored, err = schema.All(ctx, db, "count the records of "+did, pgx.RowToStructByName[Collection], stored, did,
		schema.PostCollection); err != nil {
		return a, err
	}
	for _, f := range features {
		if f.Account == nil {
			continue
		}
		if err := f.Account(ctx, db, &a); err != nil {
			return a, err
		}
	}
	a.Message = a.explain()
	return a, nil
}

// explain says why the account counts or does not, since when, and who said so.
func (a *AccountTrace) explain() string {
	since := "at an unknown time"
	if a.Since != nil {
		since = "at " + a.Since.UTC().Format(time.RFC3339)
	}
	switch {
	case a.Status == "hidden":
		listing := "a listing"
		if len(a.Watches) > 0 {
			listing = "the listing of " + strings.Join(a.Watches, ", ")
		}
		return "It does not count: " + since + ", " + listing + " no longer showed it, and its server has not said why."
	case a.Status == "deleted" && a.Purged:
		return "It does not count: it was deleted " + since + ", as its server or the directory says, and purged."
	case a.Status == "deleted":
		return "It does not count: it was deleted " + since + ", as its server or the directory says, and is about to be purged."
	case a.Status == "blocked":
		return "It does not count: it is blocked. `weir block list` shows the blocks."
	case a.Status != "active":
		return "It does not count: it is " + a.Status + ", as its server said " + since + "."
	case !a.Followed:
		return "It does not count: no watch includes it."
	case a.NotRecommended && len(a.Watches) == 0:
		return "It does not count: it asks not to be recommended, and no watch includes it."
	case a.Problem != "":
		return "It counts, and its feed could not be read: " + a.Problem
	}
	return "It counts: it is active, and followed."
}
