package bluesky

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	getAuthorFeed = "app.bsky.feed.getAuthorFeed"
	getPosts      = "app.bsky.feed.getPosts"
	listRecords   = "com.atproto.repo.listRecords"
	getRecord     = "com.atproto.repo.getRecord"

	collectionPost = "app.bsky.feed.post"
	mostPosts      = 100 // per page

	// MostByURI is the largest number of posts in one call of Posts.
	MostByURI = 25
)

// FeedPost is a record on a page of an account's feed or repository.
type FeedPost struct {
	DID, Rkey, CID string          // DID is the author's; for a repost, another account's
	Record         json.RawMessage // an object that jsonb accepts: NULs and lone surrogates are U+FFFD; nil in Records: unreadable
	IndexedAt      time.Time       // by the AppView's clock; zero in Records
	Repost, Pinned bool
	RepostedAt     time.Time // of a Repost: its position in the feed
}

// AuthorFeed returns a page of an account's posts, replies and reposts, newest first,
// and the cursor of the next page; empty: there is none. limit is 1 to 100. Unreadable
// items are omitted and counted.
func (c *Client) AuthorFeed(ctx context.Context, did, cursor string, limit int) (page []FeedPost, next string, err error) {
	if !isDID(did) {
		return nil, "", badInput(getAuthorFeed, "%q is not a DID", did)
	}
	params := pageParams(url.Values{"actor": {did}, "filter": {"posts_with_replies"}}, cursor, limit)
	err = c.query(ctx, getAuthorFeed, params, func(body []byte) (err error) {
		page, next, err = c.readPage(getAuthorFeed, body, cursor, "feed", func(item jsontext.Value) (FeedPost, error) {
			return readFeedItem(item, did)
		})
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return page, next, nil
}

// Posts returns at most MostByURI posts, named by their AT-URIs, in the AppView's order.
// Deleted posts, posts of hidden accounts and unreadable posts are omitted.
func (c *Client) Posts(ctx context.Context, uris []string) (posts []FeedPost, err error) {
	if len(uris) == 0 {
		return nil, nil
	}
	if len(uris) > MostByURI {
		return nil, badInput(getPosts, "%d posts at once: ask for %d at most", len(uris), MostByURI)
	}
	err = c.query(ctx, getPosts, url.Values{"uris": uris}, func(body []byte) (err error) {
		posts, _, err = c.readPage(getPosts, body, "", "posts", func(item jsontext.Value) (FeedPost, error) {
			p, err := readPost(item)
			if err == nil && !slices.Contains(uris, "at://"+p.DID+"/"+collectionPost+"/"+p.Rkey) {
				err = errors.New("a post that was not asked for")
			}
			return p, err
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return posts, nil
}

// Records returns a page of a collection from the account's own PDS, highest rkey first,
// and the cursor of the next page; empty: there is none. limit is 1 to 100. Unreadable
// items are omitted and counted. An item that names its record but is otherwise
// unreadable has a nil Record, because the repository contains it.
func (c *Client) Records(ctx context.Context, did, collection, cursor string, limit int) (page []FeedPost, next string, err error) {
	return c.records(ctx, did, collection, cursor, pageParams(url.Values{}, cursor, limit))
}

// LowestRecords returns the records of a collection that have the lowest rkeys, lowest
// first, in the form of Records.
func (c *Client) LowestRecords(ctx context.Context, did, collection string, limit int) ([]FeedPost, error) {
	page, _, err := c.records(ctx, did, collection, "", pageParams(url.Values{"reverse": {"true"}}, "", limit))
	return page, err
}

// Record returns a record from the account's own PDS. If the account has no such record,
// the error is permanent.
func (c *Client) Record(ctx context.Context, did, collection, rkey string) (record FeedPost, err error) {
	if _, err := syntax.ParseNSID(collection); err != nil {
		return FeedPost{}, badInput(getRecord, "%q is not a collection", collection)
	}
	r := request{
		call: getRecord, method: http.MethodGet, path: xrpcPath(getRecord, url.Values{"repo": {did}, "collection": {collection}, "rkey": {rkey}}),
	}
	r.read = func(body []byte) (err error) {
		if record, err = readRecord(body, did, collection); err == nil && record.Rkey != rkey {
			err = malformed("expected the record %s", rkey)
		}
		return err
	}
	err = c.queryPDS(ctx, did, r)
	return record, err
}

func (c *Client) records(ctx context.Context, did, collection, cursor string, params url.Values) (page []FeedPost, next string, err error) {
	if _, err := syntax.ParseNSID(collection); err != nil {
		return nil, "", badInput(listRecords, "%q is not a collection", collection)
	}
	params.Set("repo", did)
	params.Set("collection", collection)
	r := request{call: listRecords, method: http.MethodGet, path: xrpcPath(listRecords, params)}
	r.read = func(body []byte) (err error) {
		page, next, err = c.readPage(listRecords, body, cursor, "records", func(item jsontext.Value) (FeedPost, error) {
			p, err := readRecord(item, did, collection)
			if err != nil && p.Rkey != "" {
				c.countOmitted(listRecords, err)
				return p, nil
			}
			return p, err
		})
		return err
	}
	if err = c.queryPDS(ctx, did, r); err != nil {
		return nil, "", err
	}
	return page, next, nil
}

// queryPDS calls the account's own PDS. If that fails, it calls the PDS to which
// the account has moved. The error wraps ErrGone if the account is deleted.
func (c *Client) queryPDS(ctx context.Context, did string, r request) error {
	at, cached, err := c.identity(ctx, did)
	if err != nil {
		return c.orGone(did, err)
	}
	r.origin = at.PDS
	if err = c.do(ctx, r); err == nil || Classify(err) == RateLimited {
		return err
	}
	c.forgetDocument(did) // the account may have moved: read its document again
	if !cached || Classify(err) != Permanent {
		return c.orGone(did, err)
	}
	moved, _, lookup := c.identity(ctx, did)
	if lookup != nil {
		return c.orGone(did, lookup)
	}
	if moved.PDS == at.PDS {
		return c.orGone(did, err)
	}
	r.origin = moved.PDS
	return c.orGone(did, c.do(ctx, r))
}

// orGone wraps ErrGone if a call failed because the account is deleted: the directory has
// deleted its DID, or the server that its document names now has no such repository.
func (c *Client) orGone(did string, err error) error {
	e, ok := errors.AsType[*Error](err)
	if ok && e.Class == Permanent && (e.Name == nameNoRepo || e.Call == didDocument && e.Status == http.StatusGone &&
		strings.HasPrefix(did, "did:plc:")) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}

func pageParams(params url.Values, cursor string, limit int) url.Values {
	params.Set("limit", strconv.Itoa(min(max(limit, 1), mostPosts)))
	if cursor != "" {
		params.Set("cursor", cursor)
	}
	return params
}

// readPage decodes the array called name, item by item. An unreadable item is
// omitted, so that it does not hide the others.
func (c *Client) readPage(
	call string, body []byte, cursor, name string, read func(jsontext.Value) (FeedPost, error),
) (page []FeedPost, next string, err error) {
	fields, err := readObject(body)
	if err != nil {
		return nil, "", err
	}
	if fields[name].Kind() != '[' {
		return nil, "", malformed("expected an array %s", name)
	}
	found, err := items(fields[name])
	if err != nil {
		return nil, "", err
	}
	if next, err = nextCursor(fields["cursor"], cursor, len(found)); err != nil {
		return nil, "", err
	}
	for _, item := range found {
		p, err := read(item)
		if err != nil {
			c.countOmitted(call, err)
			continue
		}
		page = append(page, p)
	}
	return page, next, nil
}

func (c *Client) countOmitted(call string, err error) {
	c.metrics.unreadable.WithLabelValues(call).Inc()
	c.log.Debug("item_omitted", "call", call, "error", oneLine(err.Error()))
}

// readFeedItem decodes a post and the reason why it is in the feed of did.
func readFeedItem(item jsontext.Value, did string) (FeedPost, error) {
	fields, err := readObject(item)
	if err != nil {
		return FeedPost{}, err
	}
	p, err := readPost(fields["post"])
	if err != nil {
		return FeedPost{}, err
	}
	if fields["reason"].Kind() == '{' {
		reason, err := readObject(fields["reason"])
		if err != nil {
			return FeedPost{}, err
		}
		switch text(reason["$type"]) {
		case "app.bsky.feed.defs#reasonRepost":
			if p.Repost, p.RepostedAt = true, instant(reason["indexedAt"]); p.RepostedAt.IsZero() {
				return FeedPost{}, errors.New("the repost has no indexedAt")
			}
		case "app.bsky.feed.defs#reasonPin":
			p.Pinned = true
		}
	}
	if !p.Repost && p.DID != did {
		return FeedPost{}, errors.New("a post of another account that is not a repost")
	}
	return p, nil
}

// readPost decodes a post in the form of a view.
func readPost(view jsontext.Value) (FeedPost, error) {
	post, err := readObject(view)
	if err != nil {
		return FeedPost{}, err
	}
	p, err := readAddress(post)
	if err != nil {
		return FeedPost{}, err
	}
	if p.collection != collectionPost {
		return FeedPost{}, errors.New("not a post: " + p.collection)
	}
	if p.Record, err = storable(post["record"]); err != nil {
		return FeedPost{}, err
	}
	if p.IndexedAt = instant(post["indexedAt"]); p.IndexedAt.IsZero() {
		return FeedPost{}, errors.New("the post has no indexedAt")
	}
	return p.FeedPost, nil
}

// readRecord decodes a record of a PDS. It must belong to the requested account and
// collection.
func readRecord(item jsontext.Value, did, collection string) (FeedPost, error) {
	fields, err := readObject(item)
	if err != nil {
		return FeedPost{}, err
	}
	p, err := readAddress(fields)
	if err != nil {
		return FeedPost{}, err
	}
	if p.DID != did || p.collection != collection {
		return FeedPost{}, errors.New("a record of another account or collection")
	}
	p.Record, err = storable(fields["value"])
	return p.FeedPost, err // the record is named, too
}

type addressed struct {
	FeedPost
	collection string
}

// readAddress decodes the fields uri and cid.
func readAddress(fields map[string]jsontext.Value) (addressed, error) {
	uri, err := syntax.ParseATURI(text(fields["uri"]))
	if err != nil {
		return addressed{}, err
	}
	cid, err := syntax.ParseCID(text(fields["cid"]))
	if err != nil {
		return addressed{}, err
	}
	if !uri.Authority().IsDID() || uri.RecordKey() == "" {
		return addressed{}, errors.New("the address has no DID or no rkey")
	}
	return addressed{
		FeedPost:   FeedPost{DID: uri.Authority().String(), Rkey: uri.RecordKey().String(), CID: cid.String()},
		collection: uri.Collection().String(),
	}, nil
}
