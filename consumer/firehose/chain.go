package firehose

import (
	"strings"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/syntax"
)

// addLink adds an event for a commit that has no wanted operation, because its place in
// the chain of commits counts.
func (d *decoder) addLink(m *consumer.Message) {
	if len(m.Events) > 0 || !syntax.IsDID(d.did) || !syntax.IsTID(d.rev) {
		return
	}
	ev := m.Add()
	ev.Kind, ev.Author, ev.Revision = consumer.KindLink, d.did, d.rev
}

// chained returns the link of the last decoded commit in its account's chain of commits.
// Its operations, applied backwards, must give the tree that prevData names. Otherwise
// the commit does not list everything that it changed.
func (d *decoder) chained() *consumer.Link {
	l := &consumer.Link{Author: strings.Clone(d.did), Revision: strings.Clone(d.rev), Data: append([]byte(nil), d.signed.data[:]...)}
	before, bad := d.signed.data, (*consumer.Malformed)(nil)
	if len(d.ops) > 0 { // servers include no nodes if there are no operations
		before, bad = d.blocks.invert(d.signed.data, d.ops)
	}
	switch {
	case bad != nil:
		l.Broken = "its operations cannot be applied backwards: " + bad.Error()
	case d.inductive && before != d.prevData:
		l.Broken = "its operations do not lead to it from the commit before"
	case d.inductive:
		l.Prev = append([]byte(nil), d.prevData[:]...)
	case d.since != "":
		l.Broken = "it does not name the tree of the commit before"
	}
	return l
}
