package simnet

import (
	"math"
	"strconv"
)

// The page sizes of listReposByCollection.
const (
	standardRepos = 500
	mostRepos     = 2000
)

// reposByCollection returns the accounts that have records in a collection, as a relay
// lists them: in the order of their creation, including inactive ones.

func (v *visit) reposByCollection() (any, error) {
	name, err := v.required("collection")
	if err != nil {
		return nil, err
	}
	if !collectionName.MatchString(name) {
		return nil, invalid("Error: collection must be a valid nsid")
	}
	limit := standardRepos
	if raw := v.query.Get("limit"); raw != "" {
		if limit, err = strconv.Atoi(raw); err != nil || limit < 1 || limit > mostRepos {
			return nil, invalid("Error: limit must be an integer from 1 to %d", mostRepos)
		}
	}
	after := -1
	if raw := v.query.Get("cursor"); raw != "" {
		if after, err = strconv.Atoi(raw); err != nil {
			return nil, invalid("invalid cursor")
		}
	}
	type view struct {
		DID string `json:"did"`
	}
	out := &struct {
		paging
		Repos []view `json:"repos"`
	}{Repos: []view{}, paging: paging{end: strconv.Itoa(math.MaxInt32)}}
	hides := v.net.relay.hides
	for _, p := range v.index.order {
		if p.number <= after || len(v.index.collection(p, name)) == 0 || hides(p.did) {
			continue
		}
		if len(out.Repos) == limit {
			out.Cursor = strconv.Itoa(after)
			break
		}
		out.Repos = append(out.Repos, view{p.did})
		after = p.number
	}
	return out, nil
}
