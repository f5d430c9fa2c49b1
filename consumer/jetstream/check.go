package jetstream

import (
	"strconv"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/atproto/syntax"
)

// check checks the fields of an event and copies its record.
func (d *decoder) check(ev *consumer.Event) error {
	d.setTime()
	switch d.kind {
	case "":
		return d.checkUnknown()
	case "commit":
		ev.Kind = consumer.KindCommit
	case "identity":
		ev.Kind = consumer.KindIdentity
	case "account":
		ev.Kind = consumer.KindAccount
	case "sync":
		ev.Kind = consumer.KindSync
	}
	if err := d.checkTime(ev.Kind); err != nil || ev.Kind == consumer.KindOther {
		return err
	}
	if !d.found {
		return d.refuse("the event has no body", "/"+d.kind, "an object", "nothing")
	}
	if ev.Kind == consumer.KindCommit && ev.Collection != "" && d.wanted != nil && !d.wanted(ev.Collection) {
		return nil
	}
	if !syntax.IsDID(ev.Author) {
		return d.refuse("not a DID", "/did", "a DID", ev.Author)
	}
	switch ev.Kind {
	case consumer.KindCommit:
		return d.checkCommit(ev)
	case consumer.KindIdentity:
		return d.checkIdentity(ev)
	case consumer.KindSync:
		return d.checkSync(ev)
	}
	return d.checkAccount(ev)
}

// checkTime rejects times that would corrupt the stream's position. An event of an
// unknown kind may have none.
func (d *decoder) checkTime(kind consumer.Kind) error {
	seq, timeUS := d.m.Seq, d.m.TimeUS
	if d.events {
		return d.checkEventPlace(kind)
	}
	if seq < 0 || seq > maxSeq {
		return d.refuse("not a sequence number", "/cursor", "a number from 0, below 1e15", strconv.FormatInt(seq, 10))
	}
	if (timeUS <= 0 || timeUS > maxTimeUS) && !(kind == consumer.KindOther && timeUS == 0) {
		return d.refuse("the time is missing or out of range", "/time_us", "microseconds since 1970, up to the year 9999",
			strconv.FormatInt(timeUS, 10))
	}
	return nil
}

func (d *decoder) checkCommit(ev *consumer.Event) error {
	switch {
	case ev.Operation == 0:
		return d.refuse("unknown operation", "/commit/operation", "create, update or delete", "something else")
	case !syntax.IsNSID(ev.Collection):
		return d.refuse("not a collection", "/commit/collection", "an NSID", ev.Collection)
	case !syntax.IsRecordKey(ev.Key):
		return d.refuse("not a record key", "/commit/rkey", "a record key", ev.Key)
	case !syntax.IsTID(ev.Revision):
		return d.refuse("not a revision", "/commit/rev", "a TID", ev.Revision)
	case ev.Operation == consumer.Delete:
		ev.CID = ""
		return nil
	case d.record == nil:
		return d.refuse("the record is missing", "/commit/record", "an object", "nothing")
	case d.record.Kind() != '{':
		return d.refuse("wrong type", "/commit/record", "an object", string(d.record[:min(len(d.record), 2*consumer.MaxQuoted)]))
	case ev.CID != "" && !syntax.IsCID(ev.CID):
		return d.refuse("not a CID", "/commit/cid", "a CID", ev.CID)
	}
	return d.takeRecord(ev)
}

func (d *decoder) checkIdentity(ev *consumer.Event) error {
	if d.repeats && d.repeated != ev.Author {
		return d.agree("/identity/did", ev.Author, d.repeated)
	}
	if ev.Handle != "" && !syntax.IsHandle(ev.Handle) {
		ev.Handle = consumer.InvalidHandle
	}
	return nil
}

func (d *decoder) checkSync(ev *consumer.Event) error {
	switch {
	case d.repeats && d.repeated != ev.Author:
		return d.agree("/sync/did", ev.Author, d.repeated)
	case !syntax.IsTID(ev.Revision):
		return d.refuse("not a revision", "/sync/rev", "a TID", ev.Revision)
	}
	return nil
}

// maxStatus limits an account's status, in bytes: the known ones are single words.
const maxStatus = 64

func (d *decoder) checkAccount(ev *consumer.Event) error {
	switch {
	case d.repeats && d.repeated != ev.Author:
		return d.agree("/account/did", ev.Author, d.repeated)
	case !d.active:
		return d.refuse("the account's state is missing", "/account/active", "true or false", "nothing")
	case len(ev.Status) > maxStatus:
		return d.refuse("not a status", "/account/status", "a word", ev.Status)
	}
	return nil
}
