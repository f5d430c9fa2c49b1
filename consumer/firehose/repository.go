package firehose

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	atproto "github.com/bluesky-social/indigo/atproto/syntax"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/atproto/syntax"
)

// Repository is a copy of an account's repository. The account has signed its commit. The
// tree has been read; each record is checked when it is read. It is not safe for
// concurrent use.
type Repository struct {
	rev     string
	data    digest
	blocks  blocks
	records map[string][]leaf // by collection, sorted by key
	json    transcoder
}

// leaf is a record of a repository.
type leaf struct {
	key string
	cid digest
}

const (
	// maxLayers limits the layers of a tree: a hash has no more zeros.
	maxLayers = 128

	// maxRepositoryKeys limits the total size of a repository's keys, in bytes: a tree of
	// 128 MiB may have keys of 2 GiB, because keys share prefixes.
	maxRepositoryKeys = 128 << 20

	// revAhead is how far the clock of an account's server may be ahead.
	revAhead = time.Hour
)

// ReadRepository reads a CAR that an account's server exports. Its commit must be the
// account's, and signed with the key. Records of collections that are not wanted are left
// out. The repository shares memory with the CAR.
func ReadRepository(car []byte, did string, key atcrypto.PublicKey, wanted func(collection string) bool) (*Repository, error) {
	r := &Repository{records: map[string][]leaf{}}
	c, err := r.blocks.signed(car, did, key)
	if err != nil {
		return nil, err
	}
	r.rev, r.data = strings.Clone(c.rev), c.data
	w := treeReader{Repository: r, wanted: wanted, left: len(r.blocks.list)}
	if err := w.node(&c.data, maxLayers); err != nil {
		return nil, fmt.Errorf("read the tree of %s: %w", did, err)
	}
	return r, nil
}

// signed reads a CAR and returns its commit, if the commit is the account's and signed
// with the key.
func (b *blocks) signed(car []byte, did string, key atcrypto.PublicKey) (c commit, err error) {
	if bad := b.read(car); bad != nil {
		return c, fmt.Errorf("read the repository of %s: %w", did, bad)
	}
	raw, bad := b.get(&b.root)
	if bad != nil {
		return c, fmt.Errorf("read the commit of %s: %w", did, bad)
	}
	if c, bad = readCommit(raw); bad != nil {
		return c, fmt.Errorf("read the commit of %s: %w", did, bad)
	}
	switch tid, err := atproto.ParseTID(c.rev); {
	case c.did != did:
		return c, fmt.Errorf("the repository of %s is that of %s", did, consumer.Shorten(c.did))
	case err != nil:
		return c, fmt.Errorf("the revision of %s is no TID: %s", did, consumer.Shorten(c.rev))
	case tid.Time().After(time.Now().Add(revAhead)): // otherwise no later revision would be newer
		return c, fmt.Errorf("the revision of %s is of the future: %s", did, tid.Time().UTC().Format(time.RFC3339))
	}
	if err := key.HashAndVerify(c.unsigned(), c.sig); err != nil {
		return c, fmt.Errorf("the repository of %s is not signed with the account's key: %w", did, err)
	}
	return c, nil
}

// ReadRecord reads a proof that a repository contains a record: a CAR with a commit that
// the account has signed with the key, the nodes of the tree on the path to the record,
// and the record. It returns the record as JSON.
func ReadRecord(car []byte, did string, key atcrypto.PublicKey, collection, rkey string) (json []byte, err error) {
	var b blocks
	c, err := b.signed(car, did, key)
	if err != nil {
		return nil, err
	}
	name := "at://" + did + "/" + collection + "/" + rkey
	id, found, bad := b.lookup(&c.data, collection+"/"+rkey, nil)
	switch {
	case bad != nil:
		return nil, fmt.Errorf("read the way to %s: %w", name, bad)
	case !found:
		return nil, fmt.Errorf("the repository has no record %s", name)
	}
	raw, bad := b.get(&id)
	switch {
	case bad != nil:
		return nil, fmt.Errorf("read %s: %w", name, bad)
	case len(raw) > maxRecord:
		return nil, fmt.Errorf("%s has %d bytes, more than the network allows", name, len(raw))
	}
	var t transcoder
	if json, _, bad = t.transcode(nil, raw); bad != nil {
		return nil, fmt.Errorf("read %s: %w", name, bad)
	}
	return json, nil
}

// treeReader reads a whole tree.
type treeReader struct {
	*Repository
	wanted func(collection string) bool
	left   int    // nodes that may still be read: if the keys are sorted, each is read once
	last   string // the last key
	keys   int    // total bytes of the wanted keys
}

// node reads a node and everything below it.
func (w *treeReader) node(at *digest, layers int) error {
	if w.left--; w.left < 0 || layers < 0 {
		return errors.New("its nodes contain each other")
	}
	data, bad := w.blocks.get(at)
	if bad != nil {
		return bad
	}
	left, err := leftOf(data)
	if err != nil {
		return err
	}
	if left != nil {
		if err := w.node(left, layers-1); err != nil {
			return err
		}
	}
	n, bad := readNode(data)
	if bad != nil {
		return bad
	}
	var e entry
	before := ""
	for n.left > 0 {
		if bad := n.next(&e); bad != nil {
			return bad
		}
		key := before[:e.shared] + string(e.rest)
		if err := w.leaf(key, &e.value); err != nil {
			return err
		}
		before = key
		if e.hasRight {
			if err := w.node(&e.right, layers-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// leftOf returns the link before the entries of a node. It is the last field of the
// block.
func leftOf(data []byte) (*digest, error) {
	n, bad := readNode(data)
	if bad != nil {
		return nil, bad
	}
	var e entry
	for n.left > 0 {
		if bad := n.next(&e); bad != nil {
			return nil, bad
		}
	}
	var left digest
	switch hasLeft, bad := n.end(&left); {
	case bad != nil:
		return nil, bad
	case hasLeft:
		return &left, nil
	}
	return nil, nil
}

// leaf adds a record of a wanted collection.
func (w *treeReader) leaf(key string, cid *digest) error {
	if key <= w.last {
		return fmt.Errorf("its keys are not sorted: %s", consumer.Shorten(key))
	}
	w.last = key
	collection, rkey, ok := strings.Cut(key, "/")
	if !ok || !syntax.IsNSID(collection) || !syntax.IsRecordKey(rkey) || !w.wanted(collection) {
		return nil // a stream would not store it either
	}
	if w.keys += len(key); w.keys > maxRepositoryKeys {
		return fmt.Errorf("its keys are longer than %d bytes", maxRepositoryKeys)
	}
	w.records[collection] = append(w.records[collection], leaf{rkey, *cid})
	return nil
}

// Rev returns the revision.
func (r *Repository) Rev() string { return r.rev }

// Data returns the hash of the root of the tree.
func (r *Repository) Data() []byte { return r.data[:] }

// Collections returns the wanted collections that have records, in order.
func (r *Repository) Collections() []string {
	names := make([]string, 0, len(r.records))
	for name := range r.records {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Len returns the number of records of a collection.
func (r *Repository) Len(collection string) int { return len(r.records[collection]) }

// Key returns the key of a record of a collection, by its index in the order of keys.
func (r *Repository) Key(collection string, i int) string { return r.records[collection][i].key }

// Record returns a record of a collection, by its index. The JSON is nil if the record
// cannot be read, or is not in the copy.
func (r *Repository) Record(collection string, i int) (cid string, json []byte) {
	l := &r.records[collection][i]
	cid = l.cid.String()
	raw, bad := r.blocks.get(&l.cid)
	if bad != nil || len(raw) > maxRecord {
		return cid, nil
	}
	json, _, bad = r.json.transcode(nil, raw)
	if bad != nil {
		return cid, nil
	}
	return cid, json
}
