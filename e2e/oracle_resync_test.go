package e2e

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/testing/simnet"
)

// comparisons are the comparisons of accounts with their repositories. After one:
//
//   - Changes that a server forgot unread are restored, up to the revision of the
//     repository. A record that was written and deleted meanwhile leaves no tombstone.
//   - Records that differed have the revision of the repository. A record that was edited
//     may have the time of its first version.
type comparisons struct {
	revs     map[string]string    // of the last comparison, by account
	optional map[recordKey]string // by tombstone: the revision of the deletion
	known    map[[2]string]bool   // pairs of account and revision that exist
}

// compared returns the comparisons that were made. Only these accounts may have been compared:
// accounts with a refused commit, deleted accounts and, if chains are followed, accounts of which
// the server forgot a commit.
func (c *chaos) compared(ctx context.Context, tx pgx.Tx) (all comparisons, problems []string, err error) {
	all = comparisons{revs: map[string]string{}, optional: map[recordKey]string{}, known: map[[2]string]bool{}}
	rows, err := tx.Query(ctx, `SELECT did, rev, cause FROM resyncs`)
	if err != nil {
		return all, nil, fmt.Errorf("read the resyncs: %w", err)
	}
	forgotten := map[string]bool{}
	for e := range c.lost {
		forgotten[e.DID] = forgotten[e.DID] || c.follows && e.Kind == "commit"
	}
	var did, rev, cause string
	_, err = pgx.ForEachRow(rows, []any{&did, &rev, &cause}, func() error {
		all.revs[did] = rev
		if a, _ := c.net.Account(did); !slices.Contains(c.doubts, did) && !forgotten[did] && a.Status != "deleted" {
			problems = append(problems, fmt.Sprintf("resyncs: %s: expected no row, found %s", did, cause))
		}
		return nil
	})
	for e := range c.lost {
		if all.restores(e) && e.Operation == "delete" {
			all.optional[recordKey{e.Collection, e.DID, e.Rkey}] = e.Rev
		}
	}
	for _, e := range c.net.Log().Entries() {
		all.known[[2]string{e.DID, e.Rev}] = true
	}
	return all, problems, err
}

// restores reports whether the effect of an entry is stored even if the entry is not read.
func (all comparisons) restores(e *simnet.Entry) bool {
	return e.Kind == "commit" && e.Rev <= all.revs[e.DID]
}

// wrote reports whether a comparison may have written a row in place of one of an
// earlier revision.
func (all comparisons) wrote(did, rev, found string) bool {
	return rev != "" && found > rev && found <= all.revs[did] && all.known[[2]string{did, found}]
}

// restore gives the records that a comparison wrote the revisions that were found.
func (tr *oracle) restore(all comparisons, found map[recordKey]recordRow, log []*simnet.Entry) {
	tr.restored = all
	first := map[recordKey]*simnet.Entry{}
	for _, e := range log {
		if key := (recordKey{e.Collection, e.DID, e.Rkey}); e.Operation == "create" && first[key] == nil {
			first[key] = e
		}
	}
	for key, at := range found {
		r, ok := tr.records[key]
		if !ok || at.cid != r.cid || !all.wrote(key.did, r.rev, at.rev) {
			continue
		}
		if r.rev = at.rev; !at.createdAt.Before(first[key].CreatedAt) && at.createdAt.Before(r.createdAt) {
			r.createdAt = at.createdAt
		}
		tr.records[key] = r
	}
	clear(tr.shares)
	tr.share(tr.records)
}
