package firehose

import (
	"strings"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/atproto/syntax"
)

// addChained adds the event of a commit that has no wanted operation: its place in the chain
// of commits counts.
func (d *decoder) addChained(m *consumer.Message) {
	if len(m.Events) > 0 || !syntax.IsDID(d.did) || !syntax.IsTID(d.rev) {
		return
	}
	ev := m.Add()
	ev.Kind, ev.Author, ev.Revision = consumer.KindChained, d.did, d.rev
}

// chained returns the place of the commit that was decoded last in the chain of its
// account's commits. Its operations, applied backwards, must give the tree that prevData
// names: otherwise it does not say everything that it changed.
func (d *decoder) chained() *consumer.ChainedCommit {
	c := &consumer.ChainedCommit{Author: strings.Clone(d.did), Revision: strings.Clone(d.rev), Data: append([]byte(nil), d.signed.data[:]...)}
	before, bad := d.signed.data, (*consumer.Malformed)(nil)
	if len(d.ops) > 0 { // servers include no nodes if there are no operations
		before, bad = d.blocks.invert(d.signed.data, d.ops)
	}
	switch {
	case bad != nil:
		c.Broken = "its operations cannot be applied backwards: " + bad.Error()
	case d.inductive && before != d.prevData:
		c.Broken = "its operations do not lead to it from the commit before"
	case d.inductive:
		c.Prev = append([]byte(nil), d.prevData[:]...)
	case d.since != "":
		c.Broken = "it does not name the tree of the commit before"
	}
	return c
}
