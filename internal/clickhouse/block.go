package clickhouse

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/weir-social/weir/internal/archive"
)

// Row is an event as stored in the table.
type Row struct {
	ID         archive.ID
	Source     string // the stream
	Author     string
	Collection string // empty for an event of an account
	Key        string
	Operation  string // create, update, delete, identity, account or sync
	CreatedAt  time.Time
	Body       string   // JSON; empty after a deletion
	Links      []string // identities, which are the same for all spellings of one article
	Position   uint32   // in the segment
}

// block returns rows as one block of the format Native. The block begins with the number
// of rows, so a server that receives only a part of it stores nothing. Each column
// consists of its name, its type and its values.
func block(segment uint64, rows []Row) []byte {
	size := 0
	for i := range rows {
		r := &rows[i]
		size += 96 + len(r.Source) + len(r.Author) + len(r.Collection) + len(r.Key) + len(r.Operation) + len(r.Body)
		for _, l := range r.Links {
			size += len(l) + 2
		}
	}
	b := blockWriter{buf: make([]byte, 0, size+512), rows: rows}
	b.uvarint(columns)
	b.uvarint(len(rows))
	b.column("id", "FixedString(16)", func(r *Row) { b.buf = append(b.buf, r.ID[:]...) })
	b.column("source", "String", func(r *Row) { b.text(r.Source) })
	b.column("author", "String", func(r *Row) { b.text(r.Author) })
	b.column("collection", "String", func(r *Row) { b.text(r.Collection) })
	b.column("rkey", "String", func(r *Row) { b.text(r.Key) })
	b.column("operation", "String", func(r *Row) { b.text(r.Operation) })
	b.column("created_at", "DateTime", func(r *Row) { b.uint32(seconds(r.CreatedAt)) })
	b.column("body", "String", func(r *Row) { b.text(r.Body) })
	links := uint64(0)
	b.column("links", "Array(String)", func(r *Row) {
		links += uint64(len(r.Links))
		b.uint64(links)
	})
	for i := range rows {
		for _, l := range rows[i].Links {
			b.text(l)
		}
	}
	b.column("segment", "UInt64", func(*Row) { b.uint64(segment) })
	b.column("position", "UInt32", func(r *Row) { b.uint32(r.Position) })
	return b.buf
}

// columns is the number of columns of a block.
const columns = 11

type blockWriter struct {
	buf  []byte
	rows []Row
}

func (b *blockWriter) column(name, kind string, value func(*Row)) {
	b.text(name)
	b.text(kind)
	for i := range b.rows {
		value(&b.rows[i])
	}
}

func (b *blockWriter) uvarint(n int)   { b.buf = binary.AppendUvarint(b.buf, uint64(n)) } // a length
func (b *blockWriter) uint32(n uint32) { b.buf = binary.LittleEndian.AppendUint32(b.buf, n) }
func (b *blockWriter) uint64(n uint64) { b.buf = binary.LittleEndian.AppendUint64(b.buf, n) }

func (b *blockWriter) text(s string) {
	b.uvarint(len(s))
	b.buf = append(b.buf, s...)
}

// seconds returns a time as a DateTime, which has a range from 1970 to 2106. Servers
// handle other times differently.
func seconds(t time.Time) uint32 {
	return uint32(min(max(t.Unix(), 0), math.MaxUint32)) // bounded
}
