package firehose

import (
	"strconv"

	"github.com/weir-social/weir/consumer"
)

// repoVersion is the only version of repositories in use.
const repoVersion = 3

// commit is the signed root of a repository.
type commit struct {
	did, rev string
	data     digest // the root of the tree
	sig      []byte

	raw           []byte // the block
	sigAt, sigEnd int    // the name and value of the signature in raw
}

// readCommit reads a commit's block. It does not check the signature.
func readCommit(raw []byte) (c commit, bad *consumer.Malformed) {
	r := reader{data: raw}
	version, data := int64(0), false
	bad = r.object(func(name []byte) *consumer.Malformed {
		switch string(name) {
		case "did":
			return r.text(&c.did)
		case "rev":
			return r.text(&c.rev)
		case "version":
			return r.integer(&version)
		case "data":
			data = true
			return r.link(&c.data)
		case "prev":
			var prev digest
			if r.null() {
				return nil
			}
			return r.link(&prev)
		case "sig":
			const canonical = "\x63sig"
			c.sigAt = r.at - len(canonical)
			if string(raw[c.sigAt:r.at]) != canonical {
				return &consumer.Malformed{Cause: "not canonical DAG-CBOR", Expected: "the shortest length of a name", Received: "a longer one"}
			}
			var bad *consumer.Malformed
			c.sig, bad = r.content(majorBytes)
			c.sigEnd = r.at
			return bad
		}
		return r.skip()
	})
	c.raw = raw
	switch {
	case bad != nil:
		return c, bad
	case r.rest() > 0:
		return c, &consumer.Malformed{Cause: "the commit has data after its end", Received: strconv.Itoa(r.rest()) + " bytes"}
	case version != repoVersion:
		return c, &consumer.Malformed{
			Cause: "unknown version of a repository", Path: "/version", Expected: strconv.Itoa(repoVersion),
			Received: strconv.FormatInt(version, 10),
		}
	case !data:
		return c, &consumer.Malformed{Cause: "the commit names no tree", Path: "/data", Expected: "a link", Received: "nothing"}
	case len(c.sig) == 0:
		return c, &consumer.Malformed{Cause: "the commit is not signed", Path: "/sig", Expected: "bytes", Received: "nothing"}
	case raw[0] == majorMap<<5 || raw[0] > majorMap<<5+23:
		return c, &consumer.Malformed{Cause: "the commit has too many fields", Expected: "23 at most", Received: "more"}
	}
	return c, nil
}

// unsigned returns the bytes that are signed: the commit without its signature.
func (c *commit) unsigned() []byte {
	without := make([]byte, 0, len(c.raw))
	without = append(append(without, c.raw[:c.sigAt]...), c.raw[c.sigEnd:]...)
	without[0]-- // the number of fields
	return without
}
