package directory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// Relay is a relay that followed Nostr accounts name.
type Relay struct {
	URL      string // empty: no relay is due
	ReadTo   *time.Time
	Failures int
	Accounts []string // followed accounts that name it
}

// failingRelay is the number of failures in a row after which another relay may replace a relay.
const failingRelay = 8

// ChooseRelays chooses the relays that the largest numbers of followed accounts name, limited to
// most and without the configured ones. Relays that have failed for long come last; a week after
// they were due, they get another chance. A relay's row is kept as long as an account names the
// relay.
func ChooseRelays(ctx context.Context, db schema.DB, configured []string, most int) error {
	const sql = `
WITH named AS (
    SELECT r AS url, count(*) AS accounts
    FROM nostr_authors AS a
    CROSS JOIN unnest(a.relays) AS r
    WHERE r <> ALL ($1::text[]) AND EXISTS (SELECT FROM watch_members AS w WHERE w.did = a.did)
    GROUP BY r
), chosen AS (
    SELECT n.url FROM named AS n LEFT JOIN nostr_relays AS k ON k.url = n.url
    ORDER BY coalesce(k.failures >= $3 AND k.next_at > now() - interval '7 days', false), n.accounts DESC, n.url LIMIT $2
), gone AS (
    DELETE FROM nostr_relays AS k WHERE NOT EXISTS (SELECT FROM named AS n WHERE n.url = k.url)
), left_out AS (
    UPDATE nostr_relays AS k SET chosen = false
    WHERE k.chosen AND EXISTS (SELECT FROM named AS n WHERE n.url = k.url) AND NOT EXISTS (SELECT FROM chosen AS c WHERE c.url = k.url)
)
INSERT INTO nostr_relays AS k (url, next_at) SELECT c.url, now() FROM chosen AS c ORDER BY c.url
ON CONFLICT (url) DO UPDATE SET chosen = true WHERE NOT k.chosen`
	return schema.Exec(ctx, db, "choose the relays of accounts", sql, append([]string{}, configured...), most, failingRelay)
}

// DueRelay returns the relay that has been due for longest, with the followed accounts that name it.
func DueRelay(ctx context.Context, db schema.DB) (Relay, error) {
	const sql = `
SELECT k.url, k.read_to, k.failures,
       ARRAY(SELECT a.did FROM nostr_authors AS a
           WHERE k.url = ANY (a.relays) AND EXISTS (SELECT FROM watch_members AS w WHERE w.did = a.did) ORDER BY a.did)
FROM nostr_relays AS k
WHERE k.chosen AND k.next_at <= now()
ORDER BY k.next_at, k.url
LIMIT 1`
	relay, err := schema.One(ctx, db, "find the relay that is due", pgx.RowToStructByPos[Relay], sql)
	if errors.Is(err, schema.ErrNoRows) {
		return Relay{}, nil
	}
	return relay, err
}

// ServingRelaysOf returns the chosen relays that some of these accounts name and whose last read
// succeeded.
func ServingRelaysOf(ctx context.Context, db schema.DB, dids []string) ([]string, error) {
	const sql = `
SELECT k.url FROM nostr_relays AS k
WHERE k.chosen AND k.failures = 0 AND k.read_to IS NOT NULL
    AND EXISTS (SELECT FROM nostr_authors AS a WHERE a.did = ANY ($1) AND k.url = ANY (a.relays))
ORDER BY k.url`
	return schema.All(ctx, db, "find the relays that serve accounts", pgx.RowTo[string], sql, dids)
}

// RecordRelay stores the time up to which a relay was read, nil if it was not, and why the read
// failed or was incomplete.
func RecordRelay(ctx context.Context, db schema.DB, url string, readTo *time.Time, next time.Time, problem string) error {
	const sql = `
UPDATE nostr_relays SET read_to = coalesce($2, read_to), next_at = $3, problem = $4,
    failures = CASE WHEN $4 = '' THEN 0 ELSE failures + 1 END
WHERE url = $1`
	return schema.Exec(ctx, db, fmt.Sprintf("store how far %s was read", url), sql, url, readTo, next, schema.Text(problem))
}
