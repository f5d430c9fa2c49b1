// Package trace tells everything that is known of one record or one link: where
// it is stored, which job had it in hand, and in a sentence why it counts or does
// not. It reads and judges, and changes nothing.
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

	"github.com/weir-social/weir/link"
	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
)

// Target is what a person named: a record or a link.
type Target struct {
	Actor      string // handle or DID; empty: a link
	Collection string
	Rkey       string
	URL        string // normalised; empty: a record
}

// Parse reads an AT-URI, the bsky.app address of a post, or the URL of a link.
func Parse(s string) (Target, error) {
	s = strings.TrimSpace(s)
	if strings.HasPrefix(s, "at://") {
		parts := strings.Split(strings.TrimPrefix(s, "at://"), "/")
		if len(parts) != 3 {
			return Target{}, fmt.Errorf("%q names no record: expected at://did/collection/rkey", s)
		}
		return record(s, parts[0], parts[1], parts[2])
	}
	if u, err := url.Parse(s); err == nil && (u.Host == "bsky.app" || u.Host == "www.bsky.app") {
		if parts := strings.Split(strings.Trim(u.Path, "/"), "/"); len(parts) == 4 && parts[0] == "profile" && parts[2] == "post" {
			return record(s, parts[1], schema.PostCollection, parts[3])
		}
	}
	normalised, err := link.Normalise(s)
	if err != nil {
		return Target{}, fmt.Errorf("%q is neither a record nor a link (%w): expected at://did/collection/rkey, https://bsky.app/profile/…/post/… or the URL of a page", s, err)
	}
	return Target{URL: normalised}, nil
}

func record(s, actor, collection, rkey string) (Target, error) {
	id, err := syntax.ParseAtIdentifier(strings.TrimPrefix(actor, "@"))
	if err != nil {
		return Target{}, fmt.Errorf("%q: %q is neither a handle nor a DID", s, actor)
	}
	if _, err := syntax.ParseNSID(collection); err != nil {
		return Target{}, fmt.Errorf("%q: %q is no collection", s, collection)
	}
	if _, err := syntax.ParseRecordKey(rkey); err != nil {
		return Target{}, fmt.Errorf("%q: %q is no record key", s, rkey)
	}
	return Target{Actor: id.Normalize().String(), Collection: collection, Rkey: rkey}, nil
}

// Verdict says of one window whether something counts, and why.
type Verdict struct {
	Window  string `json:"window"`
	Counts  bool   `json:"counts"`
	Because string `json:"because"`
}

// Judged is a share and what each window makes of it.
type Judged struct {
	ranking.TracedShare
	Windows []Verdict `json:"windows"`
}

// judge says of each window whether a share counts in it.
func judge(s ranking.TracedShare, now time.Time) Judged {
	j := Judged{TracedShare: s}
	for _, w := range ranking.Windows() {
		v := Verdict{Window: w.Name}
		switch age := now.Sub(s.SharedAt); {
		case s.Status != "active":
			v.Because = "its account is " + s.Status
		case !s.Followed:
			v.Because = "no watch brings its account"
		case age < 0:
			v.Because = "it is of a moment that has not come"
		case age >= w.Length:
			v.Because = fmt.Sprintf("it was shared %s ago", age.Round(time.Second))
		default:
			v.Counts, v.Because = true, "its account counts once, however often it shares the link"
		}
		j.Windows = append(j.Windows, v)
	}
	return j
}

// Record is what is known of a record.
type Record struct {
	URI       string                `json:"uri"`
	Stored    *schema.StoredRecord  `json:"stored"`
	Tombstone *schema.Tombstone     `json:"tombstone"`
	Account   schema.Standing       `json:"account"`
	Streams   []schema.StreamStatus `json:"streams"`
	Shares    []Judged              `json:"shares"`
	Jobs      []schema.TracedJob    `json:"jobs"` // completed ones are removed after an hour
	Letters   []schema.TracedLetter `json:"dead_letters"`
	Gaps      []schema.TracedGap    `json:"gaps"`
	Faults    []schema.TracedFault  `json:"audit_faults"`
	Says      string                `json:"says"` // why it counts or does not
}

// Rule is what the configuration says of a record's collection.
type Rule struct {
	Stored    bool
	Retention time.Duration // 0: for ever
}

// OfRecord reads what is known of a record.
func OfRecord(ctx context.Context, db schema.DB, key schema.Key, now time.Time, rule Rule) (r Record, err error) {
	r.URI = "at://" + key.DID + "/" + key.Collection + "/" + key.Rkey
	if r.Stored, err = maybe(schema.FindRecord(ctx, db, key)); err != nil {
		return r, err
	}
	if r.Tombstone, err = maybe(schema.FindTombstone(ctx, db, key)); err != nil {
		return r, err
	}
	if r.Account, err = schema.FindStanding(ctx, db, key.DID); err != nil {
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
		r.Shares = append(r.Shares, judge(s, now))
	}
	if r.Jobs, err = schema.JobsOf(ctx, db, key); err != nil {
		return r, err
	}
	if r.Letters, err = schema.LettersOf(ctx, db, key); err != nil {
		return r, err
	}
	if r.Faults, err = schema.FaultsOf(ctx, db, key); err != nil {
		return r, err
	}
	written := r.written(key.Rkey)
	if !written.IsZero() {
		if r.Gaps, err = schema.GapsAt(ctx, db, written); err != nil {
			return r, err
		}
	}
	r.Says = r.because(key, written, now, rule)
	return r, nil
}

// maybe makes nil of what is not stored.
func maybe[T any](v T, err error) (*T, error) {
	if errors.Is(err, schema.ErrNoRows) {
		return nil, nil
	}
	return &v, err
}

// written is when the record was, by its rkey; zero where that does not say.
func (r *Record) written(rkey string) time.Time {
	if tid, err := syntax.ParseTID(rkey); err == nil {
		return tid.Time()
	}
	if r.Stored != nil {
		return r.Stored.CreatedAt
	}
	return time.Time{}
}

// because is why the record counts or does not, in one sentence.
func (r *Record) because(key schema.Key, written, now time.Time, rule Rule) string {
	switch {
	case len(r.Shares) > 0:
		return r.shared()
	case r.Stored != nil && key.Collection != schema.PostCollection:
		return "It is stored. Only posts share links."
	case r.Stored != nil:
		return r.unshared()
	case r.Tombstone != nil:
		return "It does not count: it was deleted, and a tombstone says so."
	case !rule.Stored:
		return "It is not stored: WEIR_COLLECTIONS does not name its collection."
	case !r.Account.Followed:
		return "It is not stored: no watch brings its account."
	case r.Account.Status != "active":
		return "It is not stored, and would not count: its account is " + r.Account.Status + "."
	case rule.Retention > 0 && !written.IsZero() && now.Sub(written) > rule.Retention:
		return "It is not stored: it is older than its collection's retention, and expired if it ever was."
	case slices.ContainsFunc(r.Gaps, func(g schema.TracedGap) bool { return g.HowClosed == "" }):
		return "It is not stored: it falls into a gap of the stream that is open."
	case r.ahead(written):
		return "It is not stored yet: the stream has not been read as far."
	case len(r.Letters) > 0:
		return "It is not stored: it was set aside in dead_letters."
	}
	return "It is not stored, and nothing says why: weir audit asks its account's own repository."
}

// shared speaks for a record whose shares are stored.
func (r *Record) shared() string {
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

// unshared speaks for a record that is stored and shares nothing.
func (r *Record) unshared() string {
	for _, j := range r.Jobs {
		if j.Records > 0 && j.FinalizedAt == nil {
			return fmt.Sprintf("It does not count yet: job %d is %s, at attempt %d of %d.", j.ID, j.State, j.Attempt, j.Most)
		}
	}
	if len(r.Letters) > 0 {
		return "It does not count: it could not be processed, see dead_letters."
	}
	found, err := link.InPost(r.Account.DID, r.Stored.Record)
	if err == nil && len(found.Links) == 0 {
		return "It counts for nothing: it shares no link."
	}
	return "It shares a link and has no share: its link expired, or its job was lost; weir audit --repair, or replay it."
}

// ahead answers whether no stream has come as far as a moment.
func (r *Record) ahead(at time.Time) bool {
	if at.IsZero() {
		return false
	}
	return !slices.ContainsFunc(r.Streams, func(s schema.StreamStatus) bool {
		return s.LastEvent != nil && s.LastEvent.After(at) || s.CaughtUp != nil && s.CaughtUp.After(at)
	})
}

// Rank is a link's place in one window's ranking.
type Rank struct {
	Window  string `json:"window"`
	Rank    int    `json:"rank"` // from 1; 0: not among the first thousand
	Sharers int    `json:"sharers"`
}

// Link is what is known of a link.
type Link struct {
	URL    string        `json:"url"`    // normalised: what shares are counted under
	Stored *ranking.Link `json:"stored"` // nil: nobody shared it, or it expired
	Shares []Judged      `json:"shares"` // the latest, at most a thousand
	Ranks  []Rank        `json:"ranks"`
	Says   string        `json:"says"`
}

// most bounds what is looked at of a link and a ranking.
const most = 1000

// OfLink reads what is known of a link, by its normalised URL.
func OfLink(ctx context.Context, db schema.DB, normalised string, now time.Time) (l Link, err error) {
	l.URL = normalised
	if l.Stored, err = maybe(ranking.FindLink(ctx, db, normalised)); err != nil {
		return l, err
	}
	if l.Stored == nil {
		l.Says = "It is not ranked: nobody who is followed shared it under this spelling, or it expired."
		return l, nil
	}
	shares, err := ranking.SharesOfLink(ctx, db, l.Stored.ID, most)
	if err != nil {
		return l, err
	}
	silent := 0
	for _, s := range shares {
		j := judge(s, now)
		l.Shares = append(l.Shares, j)
		if !slices.ContainsFunc(j.Windows, func(v Verdict) bool { return v.Counts }) {
			silent++
		}
	}
	ranked := 0
	for _, w := range ranking.Windows() {
		links, err := ranking.TrendingLinks(ctx, db, now, w.Length, most)
		if err != nil {
			return l, err
		}
		rank := Rank{Window: w.Name}
		if at := slices.IndexFunc(links, func(t ranking.TrendingLink) bool { return t.URL == normalised }); at >= 0 {
			rank.Rank, rank.Sharers = at+1, links[at].Sharers
			ranked++
		}
		l.Ranks = append(l.Ranks, rank)
	}
	l.Says = fmt.Sprintf("It is ranked in %d of %d windows; %d of its %d latest shares count in none.", ranked, len(l.Ranks), silent, len(shares))
	return l, nil
}
