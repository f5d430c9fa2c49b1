package firehose

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/atproto/syntax"
)

// operation is a change of a record by a commit, as the frame claims.
type operation struct {
	action, path    string
	cid, prev       digest // the record's CID after and before
	hasCID, hasPrev bool
	raw             []byte
	bad             *consumer.Malformed // why it cannot be read
}

// collection returns the part of the path before the key.
func (o *operation) collection() (collection, key string, ok bool) { return strings.Cut(o.path, "/") }

// claim names the record in a Malformed, if it is readable.
func (o *operation) claim(bad *consumer.Malformed, rev string) {
	collection, key, _ := o.collection()
	if !syntax.IsNSID(collection) {
		return
	}
	bad.Collection = collection
	if syntax.IsRecordKey(key) {
		bad.Key = key
		if syntax.IsTID(rev) {
			bad.Revision = rev
		}
	}
}

// operations reads the operations of a commit. An unreadable operation does not affect
// the others.
func (d *decoder) operations() *consumer.Malformed {
	n, bad := d.count(majorArray)
	if bad != nil {
		return bad
	}
	if n > maxOperations {
		return &consumer.Malformed{
			Cause: "the commit has too many operations", Expected: strconv.Itoa(maxOperations) + " at most", Received: strconv.Itoa(n),
		}
	}
	for range n {
		d.ops = append(d.ops, operation{})
		o, start := &d.ops[len(d.ops)-1], d.at
		o.bad = d.object(func(name []byte) *consumer.Malformed { return o.field(&d.reader, name) })
		if o.bad != nil {
			d.at = start
			if bad := d.skip(); bad != nil {
				return bad
			}
		}
		o.raw = d.data[start:d.at]
	}
	return nil
}

func (o *operation) field(r *reader, name []byte) *consumer.Malformed {
	switch string(name) {
	case "action":
		return r.text(&o.action)
	case "path":
		return r.text(&o.path)
	case "cid":
		if r.null() {
			return nil
		}
		o.hasCID = true
		return r.link(&o.cid)
	case "prev":
		if r.null() {
			return nil
		}
		o.hasPrev = true
		return r.link(&o.prev)
	}
	return r.skip()
}

// commitEvents decodes the operations of wanted collections. It checks the commit as a
// whole only if there are any.
func (d *decoder) commitEvents(m *consumer.Message) *consumer.Malformed {
	if d.did != "" && d.rev != "" {
		m.Identity = consumer.Identity{Kind: "commit", Author: d.did, Revision: d.rev}
	}
	if d.tooBig {
		return &consumer.Malformed{
			Cause: "the commit is marked as too big for its operations to be included", Path: "/tooBig", Expected: "false", Received: "true",
		}
	}
	for i := range d.ops {
		if !d.wants(&d.ops[i]) {
			continue
		}
		if bad := d.checkCommit(); bad != nil {
			return bad
		}
		bad := d.event(m, i)
		if bad == nil {
			continue
		}
		bad = within("/ops/"+strconv.Itoa(i), bad)
		bad.Author, bad.Raw = d.did, d.excerpt(i)
		d.ops[i].claim(bad, d.rev)
		m.Malformed = append(m.Malformed, bad)
		if d.excerpts += len(bad.Raw); d.excerpts > maxFrame && len(m.Malformed) > 1 {
			return bad // a hostile commit: the frame takes less memory than its parts
		}
	}
	return nil
}

// wants reports whether an operation is of a wanted collection, if the collection is
// readable.
func (d *decoder) wants(o *operation) bool {
	collection, _, _ := o.collection()
	return d.wanted == nil || collection == "" || d.wanted(collection)
}

// checkCommit reads and checks the parts that a commit's operations share. It does so
// once.
func (d *decoder) checkCommit() *consumer.Malformed {
	if d.checked {
		return nil
	}
	if !syntax.IsDID(d.did) {
		return &consumer.Malformed{Cause: "not a DID", Path: "/repo", Expected: "a DID", Received: consumer.Shorten(d.did)}
	}
	bad := d.readSigned()
	d.checked = bad == nil
	return bad
}

// readSigned reads the blocks and the signed commit in them. The commit must have the
// account and the revision that the frame names.
func (d *decoder) readSigned() *consumer.Malformed {
	switch {
	case !syntax.IsTID(d.rev):
		return &consumer.Malformed{Cause: "not a revision", Path: "/rev", Expected: "a TID", Received: consumer.Shorten(d.rev)}
	case len(d.car) > maxBlocks:
		return &consumer.Malformed{
			Cause: "the blocks are too long", Path: "/blocks", Expected: "at most " + strconv.Itoa(maxBlocks) + " bytes",
			Received: strconv.Itoa(len(d.car)) + " bytes",
		}
	}
	if bad := d.blocks.read(d.car); bad != nil {
		return within("/blocks", bad)
	}
	switch {
	case d.kind == typeSync: // a sync frame names no commit
	case !d.named:
		return &consumer.Malformed{Cause: "the commit is missing", Path: "/commit", Expected: "a link", Received: "nothing"}
	case d.blocks.root != d.commit:
		return &consumer.Malformed{
			Cause: "the CAR is of another commit", Path: "/blocks", Expected: d.commit.String(), Received: d.blocks.root.String(),
		}
	}
	raw, bad := d.blocks.get(&d.blocks.root)
	if bad == nil {
		d.signed, bad = readCommit(raw)
	}
	switch {
	case bad != nil:
		return within("/commit", bad)
	case d.signed.did != d.did:
		return &consumer.Malformed{
			Cause: "the commit is of another account", Path: "/commit/did", Expected: d.did, Received: consumer.Shorten(d.signed.did),
		}
	case d.signed.rev != d.rev:
		return &consumer.Malformed{
			Cause: "the commit is another revision", Path: "/commit/rev", Expected: d.rev, Received: consumer.Shorten(d.signed.rev),
		}
	}
	return nil
}

// event decodes an operation into an event.
func (d *decoder) event(m *consumer.Message, part int) *consumer.Malformed {
	o := &d.ops[part]
	if o.bad != nil {
		return o.bad
	}
	ev := consumer.Event{Kind: consumer.KindCommit, Author: d.did, Part: part, Revision: d.rev}
	ev.Collection, ev.Key, _ = o.collection()
	switch o.action {
	case "create":
		ev.Operation = consumer.Create
	case "update":
		ev.Operation = consumer.Update
	case "delete":
		ev.Operation = consumer.Delete
	}
	if bad := o.check(&ev); bad != nil {
		return bad
	}
	value, found, bad := d.blocks.lookup(&d.signed.data, o.path, nil)
	switch {
	case bad != nil:
		return d.lost(within("/tree", bad))
	case ev.Operation == consumer.Delete && found:
		return d.lost(&consumer.Malformed{
			Cause: "the deleted record is in the repository's tree", Path: "/tree", Expected: "nothing", Received: value.String(),
		})
	case ev.Operation == consumer.Delete:
		*m.Add() = ev
		return nil
	case !found:
		return d.lost(&consumer.Malformed{
			Cause: "the record is not in the repository's tree", Path: "/tree", Expected: o.cid.String(), Received: "nothing",
		})
	case value != o.cid:
		return d.lost(&consumer.Malformed{
			Cause: "the repository's tree has another record", Path: "/tree", Expected: o.cid.String(), Received: value.String(),
		})
	}
	if bad := d.record(&ev, &o.cid); bad != nil {
		return within("/record", bad)
	}
	*m.Add() = ev
	return nil
}

// check checks the fields of an operation.
func (o *operation) check(ev *consumer.Event) *consumer.Malformed {
	switch {
	case ev.Operation == 0:
		return &consumer.Malformed{
			Cause: "unknown operation", Path: "/action", Expected: "create, update or delete", Received: consumer.Shorten(o.action),
		}
	case !syntax.IsNSID(ev.Collection):
		return &consumer.Malformed{Cause: "not a collection", Path: "/path", Expected: "an NSID", Received: consumer.Shorten(ev.Collection)}
	case !syntax.IsRecordKey(ev.Key):
		return &consumer.Malformed{Cause: "not a record key", Path: "/path", Expected: "a record key", Received: consumer.Shorten(ev.Key)}
	case o.hasCID && ev.Operation == consumer.Delete:
		return &consumer.Malformed{Cause: "a deletion has a record", Path: "/cid", Expected: "null", Received: o.cid.String()}
	case !o.hasCID && ev.Operation != consumer.Delete:
		return &consumer.Malformed{Cause: "the record is missing", Path: "/cid", Expected: "a link", Received: "nothing"}
	}
	return nil
}

// record sets the record of an event.
func (d *decoder) record(ev *consumer.Event, cid *digest) *consumer.Malformed {
	raw, bad := d.blocks.get(cid)
	switch {
	case bad != nil:
		return d.lost(bad)
	case len(raw) > maxRecord:
		return &consumer.Malformed{
			Cause: "the record is larger than the network allows", Expected: "at most " + strconv.Itoa(maxRecord) + " bytes",
			Received: strconv.Itoa(len(raw)) + " bytes",
		}
	}
	out, replaced, bad := d.json.transcode(d.room(len(raw)), raw)
	if bad != nil {
		return bad
	}
	size := len(out)
	out = cid.appendText(out)
	ev.Record, ev.Replaced, ev.CID = out[:size:size], replaced, alias(out[size:])
	d.taken(out)
	return nil
}

// chunk is the size of the memory that several records share. A record that outlives its
// batch keeps a whole chunk in memory.
const chunk = 64 << 10

// room returns an empty slice for the JSON of a record of size bytes, and its CID.
func (d *decoder) room(size int) []byte {
	need := size + size/2 + 128 // usual records need less
	if need > chunk/4 {
		return make([]byte, 0, need)
	}
	if len(d.arena) < need {
		d.arena = make([]byte, chunk)
	}
	return d.arena[:0:len(d.arena)]
}

// taken marks the part of the chunk that out uses as taken.
func (d *decoder) taken(out []byte) {
	if len(out) > 0 && len(d.arena) >= len(out) && &out[0] == &d.arena[0] {
		d.arena = d.arena[len(out):]
	}
}

// storable reports whether Postgres stores s unchanged.
func storable(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }
