// Package trace collects everything that the database knows about one record, one
// account or one link: what is stored, which jobs processed it, and why it counts or does not. It
// changes nothing.
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

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
)

// Target is a record, an account or a link.
type Target struct {
	Actor      string // handle or DID of an account, or of that of a record; empty for a link
	Collection string // empty for an account
	Rkey       string
	URL        string // normalised URL of a link; empty for a record
	Identity   string // of the link: the same for every spelling of an article
}

// Parse reads an AT-URI, a DID, a handle with "@", the bsky.app URL of a post or an account, or the
// URL of a link.
func Parse(s string) (Target, error) {
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
	l, err := link.Parse(s)
	if err != nil {
		return Target{}, fmt.Errorf("%q is neither a record, an account nor a link (%w): expected at://did/collection/rkey, a DID, https://bsky.app/profile/…/post/… or the URL of a page", s, err)
	}
	return Target{URL: l.URL, Identity: l.Identity}, nil
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

// Verdict states whether a share counts in a window, and why.
type Verdict struct {
	Window  string `json:"window"`
	Counts  bool   `json:"counts"`
	Because string `json:"because"`
}

// Share is a share with its verdict in each window.
type Share struct {
	ranking.TracedShare
	Windows []Verdict `json:"windows"`
}

// newShare returns a share with its verdicts.
func newShare(s ranking.TracedShare, now time.Time) Share {
	share := Share{TracedShare: s}
	for _, w := range ranking.Windows() {
		v := Verdict{Window: w.Name}
		switch age := now.Sub(s.SharedAt); {
		case s.Why == ranking.Hidden:
			v.Because = "its account is " + s.Status
		case s.Why == ranking.Blocked:
			v.Because = "its link is blocked: weir block list"
		case s.Why == ranking.NotFollowed:
			v.Because = "no watch includes its account"
		case s.Why == ranking.Unwilling:
			v.Because = "its account does not want to be recommended, and nobody follows it"
		case s.Why == ranking.SubjectHidden, s.Why == ranking.SubjectGone:
			v.Because = "the post that it reposts or quotes was deleted, is hidden, or no longer contains the link"
		case s.Why == ranking.Copied:
			v.Because = "it is a bridge's copy of a record that shares the link too"
		case age >= w.Length:
			v.Because = fmt.Sprintf("it was shared %s ago", age.Round(time.Second))
		default:
			v.Counts, v.Because = true, "its account counts once, no matter how often it shares the link"
		}
		share.Windows = append(share.Windows, v)
	}
	return share
}

// repostCollection is the collection of reposts.
const repostCollection = "app.bsky.feed.repost"

// Record holds everything known about a record.
type Record struct {
	URI         string                `json:"uri"`
	WaitsFor    string                `json:"waits_for,omitempty"` // AT-URI of the post that it reposts or quotes, while nothing is shared through it
	Stored      *StoredRecord         `json:"stored"`
	Tombstone   *Tombstone            `json:"tombstone"`
	Account     Account               `json:"account"`
	Streams     []schema.StreamStatus `json:"streams"`
	Shares      []Share               `json:"shares"`
	Jobs        []Job                 `json:"jobs"` // completed ones are removed after an hour
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
func OfRecord(ctx context.Context, db schema.DB, key schema.Key, now time.Time, rule Rule) (r Record, err error) {
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
	shares, err := ranking.SharesOfRecord(ctx, db, key)
	if err != nil {
		return r, err
	}
	for _, s := range shares {
		r.Shares = append(r.Shares, newShare(s, now))
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
	r.Message = r.explain(key, written, now, rule)
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

// explain says in one sentence why the record counts or does not.
func (r *Record) explain(key schema.Key, written, now time.Time, rule Rule) string {
	switch {
	case len(r.Shares) > 0:
		return r.explainShares()
	case r.Stored != nil && key.Collection != schema.PostCollection && key.Collection != repostCollection:
		return "It is stored. Only posts and reposts share links."
	case r.Stored != nil:
		return r.explainNoShares()
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

// explainShares explains a record whose shares are stored.
func (r *Record) explainShares() string {
	in := map[string]bool{}
	why := ""
	for _, s := range r.Shares {
		for _, w := range s.Windows {
			if w.Counts {
				in[w.Window] = true
			} else {
				why = w.Because
			}
		}
	}
	var names []string
	for _, w := range ranking.Windows() {
		if in[w.Name] {
			names = append(names, w.Name)
		}
	}
	if len(names) == 0 {
		return "It does not count in any window: " + why + "."
	}
	return "It counts in " + strings.Join(names, ", ") + "."
}

// explainNoShares explains a record that is stored without shares.
func (r *Record) explainNoShares() string {
	for _, j := range r.Jobs {
		if j.Records > 0 && j.FinalizedAt == nil {
			return fmt.Sprintf("It does not count yet: job %d is %s, at attempt %d of %d.", j.ID, j.State, j.Attempt, j.MaxAttempts)
		}
	}
	if len(r.DeadLetters) > 0 {
		return "It does not count: it could not be processed. See dead_letters."
	}
	if r.WaitsFor != "" {
		return "It does not count yet: it waits until " + r.WaitsFor + " is known and shares a link."
	}
	found, err := link.InPost(r.Account.DID, r.Stored.Record)
	if err == nil && len(found.Links) == 0 {
		return "It does not count: it shares no link."
	}
	return "It shares a link, but has no share: its share has expired, or its job was lost. Run weir audit --repair, or replay it."
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

// Rank is a link's rank in a window.
type Rank struct {
	Window  string `json:"window"`
	Rank    int    `json:"rank"` // from 1; 0: not in the first thousand
	Sharers int    `json:"sharers"`
}

// Link holds everything known about a link.
type Link struct {
	URL     string        `json:"url"`    // the spelling that is shown; if nothing is stored, the requested one
	Stored  *ranking.Link `json:"stored"` // nil: nobody has shared it, or it has expired
	Shares  []Share       `json:"shares"` // the latest, at most a thousand
	Ranks   []Rank        `json:"ranks"`
	Message string        `json:"message"`
}

// maxRows limits the shares and the ranks that OfLink reads.
const maxRows = 1000

// OfLink collects everything known about a link, given by any spelling.
func OfLink(ctx context.Context, db ranking.DB, target Target, now time.Time) (l Link, err error) {
	l.URL = target.URL
	if l.Stored, err = optional(ranking.FindLink(ctx, db, target.Identity)); err != nil {
		return l, err
	}
	if l.Stored == nil {
		l.Message = "It is not ranked: no followed account shared it, or it expired."
		return l, nil
	}
	l.URL = l.Stored.URL
	shares, err := ranking.SharesOfLink(ctx, db, l.Stored.ID, maxRows)
	if err != nil {
		return l, err
	}
	uncounted := 0
	for _, s := range shares {
		share := newShare(s, now)
		l.Shares = append(l.Shares, share)
		if !slices.ContainsFunc(share.Windows, func(v Verdict) bool { return v.Counts }) {
			uncounted++
		}
	}
	ranked := 0
	for _, w := range ranking.Windows() {
		page, err := ranking.Trending(ctx, db, ranking.Query{At: now, Window: w.Length, Limit: maxRows})
		if err != nil {
			return l, err
		}
		rank := Rank{Window: w.Name}
		if at := slices.IndexFunc(page.Links, func(t ranking.TrendingLink) bool { return t.ID == l.Stored.ID }); at >= 0 {
			rank.Rank, rank.Sharers = at+1, page.Links[at].Sharers
			ranked++
		}
		l.Ranks = append(l.Ranks, rank)
	}
	l.Message = fmt.Sprintf("It is ranked in %d of %d windows; %d of its %d latest shares count in none.", ranked, len(l.Ranks), uncounted, len(shares))
	return l, nil
}
