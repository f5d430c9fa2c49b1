package firehose

import (
	"encoding/binary"
	"slices"
)

// excerpt returns a frame with one operation of a commit and only those blocks that
// prove it. It is not a whole commit: what the other operations did to the tree is
// missing.
func excerpt(data []byte, part int) []byte {
	var d decoder
	if d.read(data) != nil || d.kind != typeCommit || part >= len(d.ops) || d.readSigned() != nil {
		return data
	}
	return d.excerpt(part)
}

// excerpt returns the excerpt of one operation of the last decoded frame. Blocks
// are copied as they came, even if they are wrong.
func (d *decoder) excerpt(part int) []byte {
	if len(d.ops) == 1 {
		return d.data
	}
	o := &d.ops[part]
	names := []digest{d.commit}
	if o.path != "" {
		d.blocks.lookup(&d.signed.data, o.path, &names) // the names that lookup reached are enough
	}
	if o.hasCID {
		names = append(names, o.cid)
	}
	var car []byte
	header := appendText(appendHead(nil, majorMap, 2), "roots")
	header = appendLink(appendHead(header, majorArray, 1), &d.commit)
	header = appendHead(appendText(header, "version"), majorUnsigned, 1)
	car = append(binary.AppendUvarint(car, uint64(len(header))), header...)
	for i := range names {
		if b := d.blocks.find(&names[i]); b != nil && !slices.Contains(names[:i], names[i]) {
			car = binary.AppendUvarint(car, uint64(len(cidPrefix)+len(b.digest)+len(b.data)))
			car = append(append(append(car, cidPrefix...), b.digest[:]...), b.data...)
		}
	}
	out := make([]byte, 0, len(car)+len(o.raw)+512)
	out = appendText(appendText(appendHead(out, majorMap, 2), "t"), typeCommit)
	out = appendHead(appendText(out, "op"), majorUnsigned, opMessage)
	out = appendHead(out, majorMap, 7)
	out = append(appendHead(appendText(out, "ops"), majorArray, 1), o.raw...)
	out = appendText(appendText(out, "rev"), d.rev)
	out = appendHead(appendText(out, "seq"), majorUnsigned, uint64(d.seq))
	out = appendText(appendText(out, "repo"), d.did)
	out = appendText(appendText(out, "time"), d.date)
	out = append(appendHead(appendText(out, "blocks"), majorBytes, uint64(len(car))), car...)
	return appendLink(appendText(out, "commit"), &d.commit)
}

// appendHead appends the type of an item and its argument.
func appendHead(dst []byte, major byte, n uint64) []byte {
	major <<= 5
	switch {
	case n < 24:
		return append(dst, major|byte(n))
	case n < 1<<8:
		return append(dst, major|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, major|25), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(dst, major|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, major|27), n)
}

func appendText(dst []byte, s string) []byte {
	return append(appendHead(dst, majorText, uint64(len(s))), s...)
}

func appendLink(dst []byte, d *digest) []byte {
	return append(append(dst, linkPrefix...), d[:]...)
}
