package e2e

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// share gives each record its shares, through the subjects among these records.
func (tr oracle) share(subjects map[recordKey]recordRow) {
	for key, r := range tr.records {
		subject, how := subjectOf(key, r.record)
		for _, url := range subjects[subject].links {
			tr.shares[shareKey{key, url}] = shareRow{how: how, at: r.createdAt, through: subject.did}
		}
		for i, url := range r.links { // also if the subject has the same link
			tr.shares[shareKey{key, url}] = shareRow{how: "post", at: r.createdAt, claim: r.claims[i]}
		}
	}
}

// subjectOf returns the post that a record reposts or quotes, and the word for it.
func subjectOf(key recordKey, record []byte) (subject recordKey, how string) {
	type ref struct{ URI string }
	var r struct {
		Subject ref
		Embed   struct {
			Type   string `json:"$type"`
			Record struct {
				ref
				Record ref
			}
		}
	}
	if err := json.Unmarshal(record, &r); err != nil {
		panic(fmt.Sprintf("the network created a record that is not JSON: %v", err))
	}
	uri, how := r.Subject.URI, "repost"
	if key.collection == "app.bsky.feed.post" {
		uri, how = "", "quote"
		switch r.Embed.Type {
		case "app.bsky.embed.record":
			uri = r.Embed.Record.URI
		case "app.bsky.embed.recordWithMedia":
			uri = r.Embed.Record.Record.URI
		}
	}
	parts := strings.Split(strings.TrimPrefix(uri, "at://"), "/")
	if len(parts) != 3 || parts[1] != "app.bsky.feed.post" {
		return recordKey{}, how
	}
	return recordKey{parts[1], parts[0], parts[2]}, how
}

// counts reports whether a share counts in the ranking of its time: its account is visible, and so
// is the author of the post that it reposts or quotes.
func (tr oracle) counts(key shareKey, s shareRow) bool {
	hidden := func(did string) bool {
		account, known := tr.accounts[accountKey(did)]
		return known && account.status != "active"
	}
	return !hidden(key.did) && !(s.through != "" && hidden(s.through))
}

// unprocessed returns how many jobs and changed subjects are left. When it returns 0, the shares
// are those of the stored records. Weir checks changed subjects once a minute. To save that wait,
// each call enqueues a check once no job is waiting or running.
func unprocessed(pool *pgxpool.Pool) (left int, err error) {
	const sql = `
WITH checked AS (
    SELECT enqueue_job('check_subjects', 'network', '{}', '{periodic}')
    WHERE EXISTS (SELECT FROM changed_subjects)
      AND NOT EXISTS (SELECT FROM river_job WHERE kind = 'process_posts' AND state IN ('available', 'running'))
      AND NOT EXISTS (SELECT FROM river_job WHERE kind = 'check_subjects' AND (state = 'available' OR state = 'running'
          AND attempted_at > now() - interval '3 seconds'))
)
SELECT (SELECT count(*) FROM river_job WHERE kind = 'process_posts' AND finalized_at IS NULL) + (SELECT count(*)
    FROM changed_subjects) + 0 * (SELECT count(*) FROM checked)`
	return tryCount(pool, sql)
}

// processed reports whether nothing is left to process.
func processed(pool *pgxpool.Pool) bool {
	left, err := unprocessed(pool)
	return err == nil && left == 0
}

// living is true for the shares s that need no subject, or have one. Other shares may remain until
// the next check of the subjects, but do not count.
const living = ` (s.subject_did IS NULL OR EXISTS (
    SELECT FROM subjects AS u WHERE u.did = s.subject_did AND u.rkey = s.subject_rkey AND s.named_id = ANY (u.links))) `
