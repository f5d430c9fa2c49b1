// Package trace collects everything that the database knows about one record or one account: what is stored, which jobs
// processed it, and why. Features add what they made of it. It changes nothing.
package trace

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/schema"
)

// Target is a record, an account or a target of a feature.
type Target struct {
	Actor      string // handle or DID of an account, or of that of a record
	Collection string // empty for an account
	Rkey       string
	Other      Other // set if it is neither a record nor an account
}

// A Feature adds what it made of records.
type Feature struct {
	// Record adds to a record. It may say why the record counts or does not.
	Record func(ctx context.Context, db schema.DB, key schema.Key, now time.Time, r *Record) error
	// Account adds to an account.
	Account func(ctx context.Context, db schema.DB, a *AccountTrace) error
	// Other reads a target of its own, such as the URL of a link.
	Other func(target string) (Other, error)
}

// Other collects what is known about a target of a feature: for JSON, and in lines.
type Other func(ctx context.Context, db *pgxpool.Pool, now time.Time) (found any, lines []Line, err error)

// Line is something known, for people. What is empty for a sentence.
type Line struct{ What, Text string }

// Parse reads an AT-URI, a DID, a handle with "@", the bsky.app URL of a post or an account, or a target of a feature.
func Parse(s string, features []Feature) (Target, error) {
	s = strings.TrimSpace(s)
	if strings.HasPrefix(s, "did:") || strings.HasPrefix(s, "@") {
		return parseActor(s, s)
	}
	if strings.HasPrefix(s, "at://") {
		parts := strings.Split(strings.TrimPrefix(s, "at://"), "/")
		if len(parts) != 3 {
			return Target{}, fmt.Errorf("%q is not a record: expected at://did/collection/rkey", s)
		}
		return parseRecord(s, parts[0], parts[1], parts[2])
	}
	if u, err := url.Parse(s); err == nil && (u.Host == "bsky.app" || u.Host == "www.bsky.app") {
		switch parts := strings.Split(strings.Trim(u.Path, "/"), "/"); {
		case len(parts) == 4 && parts[0] == "profile" && parts[2] == "post":
			return parseRecord(s, parts[1], schema.PostCollection, parts[3])
		case len(parts) == 2 && parts[0] == "profile":
			return parseActor(s, parts[1])
		}
	}
	for _, f := range features {
		if f.Other != nil {
			other, err := f.Other(s)
			return Target{Other: other}, err
		}
	}
	return Target{}, fmt.Errorf(
		"%q is neither a record nor an account: expected at://did/collection/rkey, a DID or https://bsky.app/profile/…/post/…", s)
}

func parseActor(s, actor string) (Target, error) {
	id, err := syntax.ParseAtIdentifier(strings.TrimPrefix(actor, "@"))
	if err != nil {
		return Target{}, fmt.Errorf("%q: %q is neither a handle nor a DID", s, actor)
	}
	return Target{Actor: id.Normalize().String()}, nil
}

func parseRecord(s, actor, name, rkey string) (Target, error) {
	t, err := parseActor(s, actor)
	if err != nil {
		return Target{}, err
	}
	if !collection.IsName(name) {
		return Target{}, fmt.Errorf("%q: %q is not a collection", s, name)
	}
	if _, err := syntax.ParseRecordKey(rkey); err != nil {
		return Target{}, fmt.Errorf("%q: %q is not a record key", s, rkey)
	}
	t.Collection, t.Rkey = name, rkey
	return t, nil
}

// Record holds everything known about a record.
type Record struct {
	URI string `json:"uri"`
	// AT-URI of the post that it reposts or quotes, while nothing is shared through it
	WaitsFor    string                `json:"waits_for,omitempty"`
	Stored      *StoredRecord         `json:"stored"`
	Tombstone   *Tombstone            `json:"tombstone"`
	Account     Account               `json:"account"`
	Streams     []schema.StreamStatus `json:"streams"`
	Shares      any                   `json:"shares"` // what features made of it
	Lines       []Line                `json:"-"`      // the same for people
	Jobs        []Job                 `json:"jobs"`   // completed ones are removed after an hour
	DeadLetters []DeadLetter          `json:"dead_letters"`
	Gaps        []Gap                 `json:"gaps"`
	Faults      []Fault               `json:"audit_faults"`
	Message     string                `json:"message"` // why it counts or does not
}

// Rule is the configuration of a record's collection.
type Rule struct {
	Stored    bool
	Retention time.Duration // 0: for ever
}

// OfRecord collects everything known about a record.
func OfRecord(ctx context.Context, db schema.DB, key schema.Key, now time.Time, rule Rule, features []Feature) (r Record, err error) {
	r.URI = key.URI()
	if r.Stored, err = optional(findRecord(ctx, db, key)); err != nil {
		return r, err
	}
	if r.Tombstone, err = optional(findTombstone(ctx, db, key)); err != nil {
		return r, err
	}
	if r.Account, err = findAccount(ctx, db, key.DID); err != nil {
		return r, err
	}
	if r.Streams, err = schema.StreamStatuses(ctx, db); err != nil {
		return r, err
	}
	waits, err := schema.WaitsOf(ctx, db, key)
	if err != nil {
		return r, err
	}
	for _, w := range waits {
		r.WaitsFor = w.URI()
	}
	if r.Jobs, err = jobsOf(ctx, db, key); err != nil {
		return r, err
	}
	if r.DeadLetters, err = deadLettersOf(ctx, db, key); err != nil {
		return r, err
	}
	if r.Faults, err = faultsOf(ctx, db, key); err != nil {
		return r, err
	}
	written := r.writtenAt(key.Rkey)
	if !written.IsZero() {
		if r.Gaps, err = gapsAt(ctx, db, written); err != nil {
			return r, err
		}
	}
	r.Message = r.explain(written, now, rule)
	for _, f := range features {
		if f.Record == nil {
			continue
		}
		if err := f.Record(ctx, db, key, now, &r); err != nil {
			return r, err
		}
	}
	return r, nil
}

// optional returns nil for a row that does not exist.
func optional[T any](v T, err error) (*T, error) {
	if errors.Is(err, schema.ErrNoRows) {
		return nil, nil
	}
	return &v, err
}

// writtenAt returns the time in the rkey, or else created_at; zero if neither is known.
func (r *Record) writtenAt(rkey string) time.Time {
	if tid, err := syntax.ParseTID(rkey); err == nil {
		return tid.Time()
	}
	if r.Stored != nil {
		return r.Stored.CreatedAt
	}
	return time.Time{}
}

// explain says in one sentence why the record is stored or not.
func (r *Record) explain(written, now time.Time, rule Rule) string {
	switch {
	case r.Stored != nil:
		return "It is stored."
	case r.Tombstone != nil:
		return "It does not count: it was deleted, and its tombstone is stored."
	case !rule.Stored:
		return "It is not stored: WEIR_COLLECTIONS does not name its collection."
	case !r.Account.Followed:
		return "It is not stored: no watch includes its account."
	case r.Account.Status != "active":
		return "It is not stored, and would not count: its account is " + r.Account.Status + "."
	case rule.Retention > 0 && !written.IsZero() && now.Sub(written) > rule.Retention:
		return "It is not stored: it is older than the retention of its collection. If it was stored, it has expired."
	case slices.ContainsFunc(r.Gaps, func(g Gap) bool { return g.HowClosed == "" }):
		return "It is not stored: it is in an open gap of the stream."
	case r.aheadOfStreams(written):
		return "It is not stored yet: the stream has not reached it."
	case len(r.DeadLetters) > 0:
		return "It is not stored: it is in dead_letters."
	}
	return "It is not stored, and the reason is unknown: weir audit compares with its account's repository."
}

// aheadOfStreams reports whether no stream has reached a time.
func (r *Record) aheadOfStreams(at time.Time) bool {
	if at.IsZero() {
		return false
	}
	return !slices.ContainsFunc(r.Streams, func(s schema.StreamStatus) bool {
		return s.LastEvent != nil && s.LastEvent.After(at) || s.CaughtUp != nil && s.CaughtUp.After(at)
	})
}
