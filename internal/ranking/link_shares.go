package ranking

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// Reason is why a share does not count. The views judged_shares and link_shares have the same words.
type Reason string

// The reasons. If several apply, the first one is given.
const (
	Counts        Reason = ""
	Blocked       Reason = "blocked"         // the link is
	Hidden        Reason = "hidden"          // the account is not active
	NotFollowed   Reason = "not_followed"    // no watch includes the account, or the requested one does not
	Unwilling     Reason = "not_recommended" // the account does not want to be recommended, and nobody follows it
	SubjectHidden Reason = "subject_hidden"  // the author of the post that is quoted or reposted is not active
	SubjectGone   Reason = "subject_gone"    // that post was deleted, is not shown, or no longer contains the link
	Copied        Reason = "copy"            // the record is a bridge's copy of one that also shares the link
	OutsideWindow Reason = "outside_window"  // the share is dated before the window
	SamePerson    Reason = "same_person"     // the account shared the link again later
	Waiting       Reason = "waiting"         // the share has not been joined with the post that it quotes or reposts
)

// Reasons returns the reasons why shares of a link that is not blocked do not count.
func Reasons() []Reason {
	return []Reason{Hidden, NotFollowed, Unwilling, SubjectHidden, SubjectGone, Copied, OutsideWindow, SamePerson}
}

// LinkQuery selects the shares of a link.
type LinkQuery struct {
	ID     int64
	At     time.Time // the end of the window; now when zero
	Window time.Duration
	Watch  string // the target of watches: only their members count
	Degree Degree // of Watch
}

// LinkShare is a share of a link.
type LinkShare struct {
	DID             string    `json:"did"`
	Network         Network   `json:"network"`
	Handle          string    `json:"handle,omitempty"`
	Unverified      bool      `json:"unverified,omitempty"` // others may claim the handle too
	DisplayName     string    `json:"display_name,omitempty"`
	How             string    `json:"how"`
	SharedAt        time.Time `json:"shared_at"`         // of a waiting share: since when it waits
	URI             string    `json:"uri"`               // AT-URI of the record
	Subject         string    `json:"subject,omitempty"` // AT-URI of the post that is quoted or reposted
	Named           string    `json:"named,omitempty"`   // the URL of the link that the record names, if that is merged into this one
	SubjectBy       string    `json:"subject_handle,omitempty"`
	SubjectWithheld bool      `json:"subject_withheld,omitempty"` // the author of that post is not shown to strangers
	Text            string    `json:"text,omitempty"`             // of the post, or of the reposted one, while that is stored
	Withheld        bool      `json:"withheld,omitempty"`         // the account is not shown to strangers
	Counts          bool      `json:"counts"`
	Why             Reason    `json:"why,omitempty"` // why the share does not count

	record, subject schema.Key
	named           int64
	waits           bool // the share is not stored
}

// SharePage is a part of the shares of a link, the latest first. Waiting shares come last.
type SharePage struct {
	At     time.Time
	Shares []LinkShare
	Next   Cursor // empty at the end
}

// linkReader reads data about a link in one snapshot.
type linkReader struct {
	reader
	of LinkQuery
}

// readLink calls f in one snapshot, with the watches of the query. It returns a
// *MergedError if the link is merged into another, and ErrLink if there is none or it is blocked.
func readLink(ctx context.Context, db Beginner, of LinkQuery, f func(*linkReader) error) error {
	if of.At.IsZero() {
		of.At = time.Now()
	}
	of.At = of.At.Truncate(time.Microsecond)
	r := &linkReader{
		of: of, reader: reader{q: Query{Window: of.Window, Watch: of.Watch, Degree: of.Degree}, end: of.At, limits: usualLimits()},
	}
	err := r.read(ctx, db, func() error {
		into, err := schema.One(ctx, r.tx, "look up whether the link is merged", pgx.RowTo[*int64], `
			SELECT l.merged_into FROM links AS l
			WHERE l.id = $1 AND NOT EXISTS (SELECT FROM blocked_links AS b WHERE b.link_id = l.id)`, of.ID)
		if errors.Is(err, schema.ErrNoRows) {
			return ErrLink
		}
		if err != nil {
			return err
		}
		if into != nil {
			return &MergedError{of.ID, *into}
		}
		return f(r)
	})
	if err != nil {
		return fmt.Errorf("read the link: %w", err)
	}
	return nil
}

// whyOf is the first reason, independent of other shares, why a share s of judged_shares does not count; NULL:
// none. $1 are the watches whose members count, or NULL for all, $2 is the beginning of the window.
const whyOf = `coalesce(` + outsiders + `, s.why, CASE WHEN s.shared_at <= $2 THEN 'outside_window' END)`

// outsiders is the reason for a row s whose account none of the watches $1 includes.
const outsiders = `CASE WHEN $1::bigint[] IS NOT NULL AND s.why IS DISTINCT FROM 'hidden' AND NOT EXISTS (SELECT FROM watch_members AS ` +
	`w WHERE w.did = s.did AND w.watch_id = ANY ($1)) THEN 'not_followed' END`

func (r *linkReader) args(more ...any) []any {
	return append([]any{r.watches, r.of.At.Add(-r.of.Window)}, more...)
}

// LinkShares returns a page of the shares of a link. It returns ErrLink if there is none, and a *MergedError if it is
// merged into another.
func LinkShares(ctx context.Context, db Beginner, of LinkQuery, limit int, after Cursor) (p SharePage, err error) {
	position, err := after.readShare(of)
	if err != nil {
		return p, err
	}
	err = readLink(ctx, db, of, func(r *linkReader) error {
		p.At = r.of.At
		if !position.Waiting {
			if p.Shares, err = r.shares(ctx, position, limit+1); err != nil {
				return err
			}
		}
		if len(p.Shares) <= limit {
			if !position.Waiting {
				position = sharePosition{Waiting: true}
			}
			waiting, err := r.waiting(ctx, position, limit+1-len(p.Shares))
			if err != nil {
				return err
			}
			p.Shares = append(p.Shares, waiting...)
		}
		if len(p.Shares) > limit {
			p.Shares = p.Shares[:limit]
			p.Next = p.Shares[limit-1].position().cursor(of)
		}
		names := map[string][]*string{}
		for i := range p.Shares {
			if s := &p.Shares[i]; s.Why != Hidden {
				names[s.DID] = append(names[s.DID], &s.DisplayName)
			}
		}
		if err := addNostrNames(ctx, r.tx, names); err != nil {
			return err
		}
		return r.addTexts(ctx, p.Shares)
	})
	return p, err
}

// shares reads stored shares after a position.
func (r *linkReader) shares(ctx context.Context, after sharePosition, limit int) ([]LinkShare, error) {
	// An account may share the link many times. Its latest share that could count is looked up
	// once.
	sql := `
WITH page AS (
    SELECT s.did, s.collection, s.rkey, s.link_id, s.named_id, s.how, s.shared_at, s.subject_did, s.subject_collection, s.subject_rkey,
        s.why
    FROM judged_shares AS s
    WHERE s.link_id = $3 AND s.shared_at <= $4 AND (s.shared_at, s.did, s.collection, s.rkey, s.named_id) < ($4, $5, $6, $7, $8)
    ORDER BY s.shared_at DESC, s.did DESC, s.collection DESC, s.rkey DESC, s.named_id DESC
    LIMIT $9
), people AS MATERIALIZED (
    SELECT p.did, latest.shared_at, latest.collection, latest.rkey, latest.named_id
    FROM (SELECT DISTINCT s.did, s.link_id FROM page AS s) AS p
    LEFT JOIN LATERAL (
        SELECT s.shared_at, s.collection, s.rkey, s.named_id FROM ` + sharesOfPair + ` AS s WHERE s.why IS NULL
        ORDER BY s.shared_at DESC, s.collection DESC, s.rkey DESC, s.named_id DESC
        LIMIT 1
    ) AS latest ON true
)
SELECT s.did, coalesce(a.handle, ''), coalesce(a.handle_unverified AND a.handle <> '', false), coalesce(a.display_name, ''),
    s.collection, s.rkey, s.how, s.shared_at, coalesce(s.subject_did, ''), coalesce(s.subject_collection, ''),
        coalesce(s.subject_rkey, ''), ` + subjectBy("s.subject_did") + `,
       coalesce(` + whyOf + `, CASE WHEN (s.shared_at, s.collection, s.rkey, s.named_id) < (p.shared_at, p.collection, p.rkey, p.named_id)
           THEN 'same_person' ELSE '' END),
       s.named_id, CASE WHEN s.named_id <> s.link_id THEN (SELECT l.url FROM links AS l WHERE l.id = s.named_id) ELSE '' END,` +
		schema.Withheld("s.did") + `,` + schema.Withheld("s.subject_did") + `
FROM page AS s
JOIN people AS p ON p.did = s.did
LEFT JOIN LATERAL (SELECT nullif(a.handle, 'handle.invalid') AS handle, a.handle_unverified, a.display_name FROM accounts AS a
    WHERE a.did = s.did LIMIT 1) AS a ON true
ORDER BY s.shared_at DESC, s.did DESC, s.collection DESC, s.rkey DESC, s.named_id DESC`
	return schema.All(ctx, r.tx, "read the shares of a link", func(row pgx.CollectableRow) (s LinkShare, err error) {
		err = row.Scan(&s.DID, &s.Handle, &s.Unverified, &s.DisplayName, &s.record.Collection, &s.record.Rkey, &s.How, &s.SharedAt,
			&s.subject.DID, &s.subject.Collection, &s.subject.Rkey, &s.SubjectBy, &s.Why, &s.named, &s.Named, &s.Withheld, &s.SubjectWithheld)
		return s.complete(), err
	}, sql, r.args(r.of.ID, after.At, after.Record.DID, after.Record.Collection, after.Record.Rkey, after.Named, limit)...)
}

// waiting reads records that wait for posts which share the link, after a position.
func (r *linkReader) waiting(ctx context.Context, after sharePosition, limit int) ([]LinkShare, error) {
	sql := `
SELECT s.did, coalesce(a.handle, ''), coalesce(a.handle_unverified AND a.handle <> '', false), coalesce(a.display_name, ''),
    s.collection, s.rkey,
       CASE WHEN s.collection IN ('app.bsky.feed.repost', 'nostr.6', 'nostr.16') THEN 'repost' ELSE 'quote' END, s.since, s.for_did,
           s.for_collection, s.for_rkey, ` + subjectBy("s.for_did") + `,
       coalesce(` + outsiders + `, s.why, CASE WHEN EXISTS (SELECT FROM accounts AS b WHERE b.did = s.for_did AND b.status <> 'active')
           THEN 'subject_hidden' ELSE 'waiting' END),
       ` + schema.Withheld("s.did") + `,` + schema.Withheld("s.for_did") + `
FROM (
    SELECT DISTINCT coalesce(s.subject_did, s.did) AS did,
        CASE WHEN s.subject_did IS NULL THEN s.collection ELSE s.subject_collection END AS collection,
           coalesce(s.subject_rkey, s.rkey) AS rkey
    FROM shares AS s
    WHERE s.link_id = $2 AND EXISTS (SELECT FROM waiting)
) AS k
CROSS JOIN LATERAL (
    SELECT w.*, nullif(u.why, 'not_recommended') AS why FROM waiting AS w CROSS JOIN LATERAL why_uncounted(w.did) AS u
    WHERE w.for_did = k.did AND w.for_collection = k.collection AND w.for_rkey = k.rkey AND w.projection = 'links'
      AND (k.did, k.collection, k.rkey, w.did, w.collection, w.rkey) > ($3, $4, $5, $6, $7, $8)
      AND NOT EXISTS (SELECT FROM shares AS s WHERE s.did = w.did AND s.collection = w.collection AND s.rkey = w.rkey AND s.link_id = $2)
    ORDER BY w.did, w.collection, w.rkey
    LIMIT $9
) AS s
LEFT JOIN LATERAL (SELECT nullif(a.handle, 'handle.invalid') AS handle, a.handle_unverified, a.display_name FROM accounts AS a
    WHERE a.did = s.did LIMIT 1) AS a ON true
ORDER BY s.for_did, s.for_collection, s.for_rkey, s.did, s.collection, s.rkey
LIMIT $9`
	return schema.All(ctx, r.tx, "read what waits for a link", func(row pgx.CollectableRow) (s LinkShare, err error) {
		err = row.Scan(&s.DID, &s.Handle, &s.Unverified, &s.DisplayName, &s.record.Collection, &s.record.Rkey, &s.How, &s.SharedAt,
			&s.subject.DID, &s.subject.Collection, &s.subject.Rkey, &s.SubjectBy, &s.Why, &s.Withheld, &s.SubjectWithheld)
		s.waits = true
		return s.complete(), err
	}, sql, r.watches, r.of.ID, after.Subject.DID, after.Subject.Collection, after.Subject.Rkey, after.Record.DID, after.Record.Collection,
		after.Record.Rkey, limit)
}

// subjectBy returns the verified handle of the author of a post, if the author is active.
func subjectBy(did string) string {
	return `coalesce((SELECT b.handle FROM accounts AS b WHERE b.did = ` + did + ` AND b.status = 'active' AND NOT b.handle_unverified), '')`
}

// complete sets the fields that follow from the others. A hidden or withheld account keeps only its DID.
func (s LinkShare) complete() LinkShare {
	s.record.DID, s.Network = s.DID, NetworkOf(s.DID)
	s.URI = s.record.URI()
	if s.subject.DID != "" {
		s.Subject = s.subject.URI()
	}
	s.Counts = s.Why == Counts
	if s.Why == Hidden || s.Withheld {
		s.Handle, s.Unverified, s.DisplayName = "", false, ""
	}
	if s.SubjectWithheld {
		s.SubjectBy = ""
	}
	return s
}

// withoutText reports whether the account whose text the share has is hidden or withheld.
func (s *LinkShare) withoutText() bool {
	if s.How == "repost" && s.SubjectWithheld || s.How != "repost" && s.Withheld {
		return true
	}
	return s.Why == Hidden || s.Why == SubjectHidden
}

// addTexts adds the texts of posts, except those of hidden or withheld accounts.
func (r *linkReader) addTexts(ctx context.Context, shares []LinkShare) error {
	of := func(s *LinkShare) schema.Key {
		if s.How == "repost" {
			return s.subject
		}
		return s.record
	}
	var keys, notes []schema.Key
	for i := range shares {
		switch key := of(&shares[i]); {
		case shares[i].withoutText():
		case key.Collection == schema.PostCollection:
			keys = append(keys, key)
		case key.Collection == NoteCollection, key.Collection == ArticleCollection:
			notes = append(notes, key)
		}
	}
	texts, err := postTexts(ctx, r.tx, keys)
	if err != nil {
		return err
	}
	if err := addNoteTexts(ctx, r.tx, notes, texts); err != nil {
		return err
	}
	for i := range shares {
		if s := &shares[i]; !s.withoutText() {
			s.Text = texts[of(s)]
		}
	}
	return nil
}
