package workers

import (
	"context"
	"sort"
	"strings"

	"github.com/weir-social/weir/internal/atproto/bluesky"
)

// listing lists the records of an account's repository, from its server or from a copy.
type listing interface {
	Collections(ctx context.Context, did string) ([]string, error)
	Records(ctx context.Context, did, collection, cursor string, limit int) (page []bluesky.FeedPost, next string, err error)
	LowestRecords(ctx context.Context, did, collection string, limit int) ([]bluesky.FeedPost, error)
}

// exported lists a copy of a repository in the same way as its server: the highest keys
// first.
type exported struct{ Repository }

// Collections returns the collections that have records.
func (e exported) Collections(context.Context, string) ([]string, error) {
	return e.Repository.Collections(), nil
}

// Records returns a page. The page begins below the key in cursor.
func (e exported) Records(_ context.Context, did, collection, cursor string, limit int) (page []bluesky.FeedPost, next string, err error) {
	end := e.Len(collection)
	if cursor != "" {
		end = sort.Search(end, func(i int) bool { return e.Key(collection, i) >= cursor })
	}
	begin := max(0, end-limit)
	for i := end - 1; i >= begin; i-- {
		page = append(page, e.record(did, collection, i))
	}
	if begin > 0 {
		next = e.Key(collection, begin)
	}
	return page, next, nil
}

// LowestRecords returns the records with the lowest keys.
func (e exported) LowestRecords(_ context.Context, did, collection string, limit int) (page []bluesky.FeedPost, err error) {
	for i := range min(limit, e.Len(collection)) {
		page = append(page, e.record(did, collection, i))
	}
	return page, nil
}

// find returns the index of a record, and whether it exists.
func (e exported) find(collection, key string) (int, bool) {
	return sort.Find(e.Len(collection), func(i int) int { return strings.Compare(key, e.Key(collection, i)) })
}

func (e exported) record(did, collection string, i int) bluesky.FeedPost {
	cid, record := e.Record(collection, i)
	return bluesky.FeedPost{DID: did, Rkey: e.Key(collection, i), CID: cid, Record: record}
}
