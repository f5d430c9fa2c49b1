package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ops/trace"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
)

// Trace is what weir trace tells of links and shares.
func Trace() trace.Feature {
	return trace.Feature{Record: traceRecord, Account: traceAccount, Other: traceOther}
}

// traceOther reads the URL of a link.
func traceOther(target string) (trace.Other, error) {
	of, err := link.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("%q is neither a record, an account nor a link (%w): expected at://did/collection/rkey, a DID, "+
			"https://bsky.app/profile/…/post/… or the URL of a page", target, err)
	}
	return func(ctx context.Context, db *pgxpool.Pool, now time.Time) (any, []trace.Line, error) {
		l, err := traceLink(ctx, db, of, now)
		return l, l.lines(), err
	}, nil
}

// traceAccount adds the number of the account's shares.
func traceAccount(ctx context.Context, db schema.DB, a *trace.AccountTrace) error {
	n, err := ranking.CountSharesOf(ctx, db, a.DID)
	a.Shares, a.Lines = n, append(a.Lines, trace.Line{What: "shares", Text: fmt.Sprint(n)})
	return err
}

// traceRecord adds the shares of a record, and says why it counts or does not.
func traceRecord(ctx context.Context, db schema.DB, key schema.Key, now time.Time, r *trace.Record) error {
	found, err := ranking.SharesOfRecord(ctx, db, key)
	if err != nil {
		return err
	}
	var shares []Share
	for _, f := range found {
		s := newShare(f, now)
		shares = append(shares, s)
		r.Lines = append(r.Lines, trace.Line{
			What: "share", Text: fmt.Sprintf("%s %s%s of %s: %s", s.How, s.URL, named(s), at(s.SharedAt), explain(s.Windows)),
		})
	}
	r.Shares = shares
	switch {
	case len(shares) > 0:
		r.Message = explainShares(shares)
	case r.Stored != nil && !slices.Contains(link.Collections(), key.Collection):
		r.Message = "It is stored. Records of its collection share no links."
	case r.Stored != nil:
		r.Message = explainNoShares(r, key.Collection)
	}
	return nil
}

// Explanation states whether a share counts in a window, and why.
type Explanation struct {
	Window  string `json:"window"`
	Counts  bool   `json:"counts"`
	Because string `json:"because"`
}

// Share is a share with the explanation of each window.
type Share struct {
	ranking.TracedShare
	Windows []Explanation `json:"windows"`
}

// newShare returns a share with its explanations.
func newShare(s ranking.TracedShare, now time.Time) Share {
	share := Share{TracedShare: s}
	for _, w := range ranking.Windows() {
		e := Explanation{Window: w.Name}
		switch age := now.Sub(s.SharedAt); {
		case s.Why == ranking.Hidden:
			e.Because = "its account is " + s.Status
		case s.Why == ranking.Blocked:
			e.Because = "its link is blocked: weir block list"
		case s.Why == ranking.NotFollowed:
			e.Because = "no watch includes its account"
		case s.Why == ranking.Unwilling:
			e.Because = "its account does not want to be recommended, and nobody follows it"
		case s.Why == ranking.SubjectHidden, s.Why == ranking.SubjectGone:
			e.Because = "the post that it reposts or quotes was deleted, is hidden, or no longer contains the link"
		case s.Why == ranking.Copied:
			e.Because = "it is a bridge's copy of a record that shares the link too"
		case age >= w.Length:
			e.Because = fmt.Sprintf("it was shared %s ago", age.Round(time.Second))
		default:
			e.Counts, e.Because = true, "its account counts once, no matter how often it shares the link"
		}
		share.Windows = append(share.Windows, e)
	}
	return share
}

// explainShares explains a record whose shares are stored.
func explainShares(shares []Share) string {
	in := map[string]bool{}
	why := ""
	for _, s := range shares {
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
func explainNoShares(r *trace.Record, collection string) string {
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
	found, err := link.InRecord(collection, r.Account.DID, r.Stored.Record)
	if err == nil && len(found.Links) == 0 {
		return "It does not count: it shares no link."
	}
	return "It shares a link, but has no share: its share has expired, or its job was lost. Run weir audit --repair, or replay it."
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

// maxRows limits the shares and the ranks that traceLink reads.
const maxRows = 1000

// traceLink collects everything known about a link, given by any spelling.
func traceLink(ctx context.Context, db ranking.DB, of link.Link, now time.Time) (l Link, err error) {
	l.URL = of.URL
	stored, err := ranking.FindLink(ctx, db, of.Identity)
	if errors.Is(err, schema.ErrNoRows) {
		l.Message = "It is not ranked: no followed account shared it, or it expired."
		return l, nil
	}
	if err != nil {
		return l, err
	}
	l.Stored, l.URL = &stored, stored.URL
	shares, err := ranking.SharesOfLink(ctx, db, l.Stored.ID, maxRows)
	if err != nil {
		return l, err
	}
	uncounted := 0
	for _, s := range shares {
		share := newShare(s, now)
		l.Shares = append(l.Shares, share)
		if !slices.ContainsFunc(share.Windows, func(e Explanation) bool { return e.Counts }) {
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
	l.Message = fmt.Sprintf("It is ranked in %d of %d windows; %d of its %d latest shares count in none.", ranked,
		len(l.Ranks), uncounted, len(shares))
	return l, nil
}

// named names the merged link that the record of a share names.
func named(s Share) string {
	if s.Named == "" {
		return ""
	}
	return ", named as " + s.Named
}

// explain lists the windows in which a share counts, or the reason why it does not.
func explain(all []Explanation) string {
	var in []string
	for _, v := range all {
		if v.Counts {
			in = append(in, v.Window)
		}
	}
	if len(in) == 0 && len(all) > 0 {
		return "does not count: " + all[len(all)-1].Because
	}
	return "counts in " + strings.Join(in, ", ")
}

// lines describes a link for people.
func (l *Link) lines() (all []trace.Line) {
	say := func(what, format string, args ...any) {
		all = append(all, trace.Line{What: what, Text: fmt.Sprintf(format, args...)})
	}
	say("link", "%s", l.URL)
	say("", "%s", l.Message)
	if l.Stored == nil {
		return all
	}
	say("first seen", "%s", at(l.Stored.FirstSeen))
	say("card", "%s, from %s", cmp.Or(l.Stored.Title, "no title"), cmp.Or(l.Stored.CardFrom, "no post"))
	for _, r := range l.Ranks {
		if r.Rank > 0 {
			say("rank", "%s: %d, by %d accounts", r.Window, r.Rank, r.Sharers)
		} else {
			say("rank", "%s: none", r.Window)
		}
	}
	for _, s := range l.Shares {
		say("share", "at://%s/%s/%s %s, %s%s of %s: %s", s.DID, s.Collection, s.Rkey, s.Handle, s.How, named(s), at(s.SharedAt),
			explain(s.Windows))
	}
	return all
}

// at formats a time.
func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }
