package simnet

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Archive configures the archive of the Jetstream server.
type Archive struct {
	BlockEvents   int    // events of a block; 4096 when zero
	SegmentBlocks int    // blocks after which a segment is sealed; 16 when zero
	Page          int    // segments of a page of a listing or a plan; 1000 when zero
	Key           string // the bearer key that it demands; empty: none
	NoRanges      bool   // it ignores Range
}

// archive is the sealed part of the log.
type archive struct {
	mu       sync.Mutex
	at       int      // position in the log of the next item that is not archived
	open     []*Entry // archived and not sealed
	sealed   [][][]*Entry
	removed  map[*Entry]bool // by compaction
	floor    int             // index of the oldest segment that is left
	shift    int64
	segments []*archivedSegment
	encoder  *zstd.Encoder
	spoilt   []spoilt
	fired    map[ArchiveFault]int
}

// sync takes over what the log has more, and seals full segments. After a renumbering, or a
// compaction, all segments are made again. The caller holds the lock.
func (a *archive) sync(n *Net) {
	if a.encoder == nil {
		// the options are valid
		a.encoder, _ = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(true), zstd.WithEncoderConcurrency(1))
		a.removed = map[*Entry]bool{}
	}
	items, _ := n.log.from(a.at)
	for _, it := range items {
		if e := it.entry; e != nil && !e.Withheld && e.Kind != forgedKind {
			a.open = append(a.open, e)
		}
	}
	a.at += len(items)
	size := cmp.Or(n.cfg.Archive.BlockEvents, 4096) * cmp.Or(n.cfg.Archive.SegmentBlocks, 16)
	for len(a.open) >= size {
		a.seal(n, size)
	}
	if shift := n.shift.Load(); shift != a.shift {
		a.shift, a.segments = shift, nil
	}
	for i := len(a.segments); i < len(a.sealed); i++ {
		s := &archivedSegment{index: i}
		for _, all := range a.sealed[i] {
			left := slices.DeleteFunc(slices.Clone(all), func(e *Entry) bool { return a.removed[e] })
			s.blocks = append(s.blocks, blockOf(all, left, a.shift, a.encoder))
		}
		s.seal()
		a.segments = append(a.segments, s)
	}
}

func (a *archive) seal(n *Net, events int) {
	if events > 0 {
		a.sealed = append(a.sealed, slices.Collect(slices.Chunk(slices.Clone(a.open[:events]), cmp.Or(n.cfg.Archive.BlockEvents, 4096))))
		a.open = slices.Clone(a.open[events:])
	}
}

// SealArchive seals what the archive has so far, as the server does from time to time.
func (n *Net) SealArchive() {
	n.archive.mu.Lock()
	defer n.archive.mu.Unlock()
	n.archive.sync(n)
	n.archive.seal(n, len(n.archive.open))
	n.archive.sync(n)
}

// CompactArchive removes what later events superseded or deleted from the sealed segments. Their
// checksums change.
func (n *Net) CompactArchive() {
	a := &n.archive
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sync(n)
	later := map[string]bool{}
	for _, segment := range slices.Backward(a.sealed) {
		for _, block := range slices.Backward(segment) {
			for _, e := range slices.Backward(block) {
				key := e.DID + "/" + e.Collection + "/" + e.Rkey
				writes := e.Kind == "commit" && e.Operation != "delete"
				if writes && (later[e.DID] || later[key]) {
					a.removed[e] = true
				}
				switch {
				case e.Kind == syncKind, e.Kind == "account" && e.Status == "deleted":
					later[e.DID] = true
				case e.Kind == "commit" && (e.Operation != "create" || e.Resynced):
					later[key] = true
				}
			}
		}
	}
	a.segments = nil
	a.sync(n)
}

// DropSegments makes the archive begin later: its oldest segments are gone.
func (n *Net) DropSegments(count int) {
	n.archive.mu.Lock()
	defer n.archive.mu.Unlock()
	n.archive.floor += count
}

// ResyncRepo makes the Jetstream server read a repository again: its new wire and its archive have
// a #sync and each record; the v1 wire has neither.
func (n *Net) ResyncRepo(did string) error {
	return n.act(did, func(m *model, _ *person) error {
		ix := n.indexNow()
		defer ix.mu.Unlock()
		now := m.clock()
		e := m.beginEvent(now)
		e.Kind, e.DID, e.Rev = syncKind, did, m.tid(m.now)
		rev := e.Rev
		p := ix.byDID[did]
		for _, collection := range slices.Sorted(maps.Keys(p.repo)) {
			for _, r := range p.repo[collection] {
				e := m.beginEvent(now)
				e.Kind, e.DID, e.Operation, e.Collection, e.Rkey, e.Rev, e.Resynced = "commit", did, "create", collection, r.rkey, rev, true
				e.Record = r.value()
				e.CID, e.CreatedAt = cidOfBlock(recordBlock(e.Record)).String(), time.UnixMicro(r.at)
			}
		}
		return nil
	})
}

// archivePrefix begins the names of its methods.
const archivePrefix = "network.bsky.jetstream."

func (n *Net) routeArchive(mux *http.ServeMux) {
	if n.cfg.Archive == nil || n.cfg.Generation == V1 {
		return
	}
	for name, handle := range map[string]func(http.ResponseWriter, *http.Request, []*archivedSegment) error{
		"GET listSegments": n.listSegments, "POST planSnapshot": n.planSnapshot, "GET getSegment": n.getSegment, "GET getBlock": n.getBlock,
	} {
		verb, method, _ := strings.Cut(name, " ")
		endpoint := archivePrefix + method
		mux.HandleFunc(verb+" /xrpc/"+endpoint, func(w http.ResponseWriter, r *http.Request) {
			leave := n.calls.arrive(endpoint, r)
			defer leave(0) // if no other status was recorded
			if key := n.cfg.Archive.Key; key != "" && r.Header.Get("Authorization") != "Bearer "+key {
				refuse(w, &xrpcError{http.StatusUnauthorized, "AuthMissing", "Authentication Required"}, leave)
				return
			}
			fault := n.callFaults.take(endpoint, needsNoResponse)
			if fault.Kind == Slow {
				select {
				case <-time.After(fault.Wait):
				case <-r.Context().Done():
					return
				}
			}
			if e := n.refusal(fault, w.Header()); e != nil {
				refuse(w, e, leave)
				return
			}
			n.archive.mu.Lock()
			n.archive.sync(n)
			segments := n.archive.segments[min(n.archive.floor, len(n.archive.segments)):]
			n.archive.mu.Unlock()
			if err := handle(w, r, segments); err != nil {
				refuse(w, err, leave)
				return
			}
			leave(http.StatusOK)
		})
	}
}

func (s *archivedSegment) name() string {
	return fmt.Sprintf("seg_%010s.jss", strconv.FormatInt(int64(s.index), 36))
}

func (s *archivedSegment) sum() string { return fmt.Sprintf("%016x", s.checksum) }

func notFound(name string) *xrpcError {
	return &xrpcError{http.StatusNotFound, name, "not found"}
}

func (n *Net) listSegments(w http.ResponseWriter, r *http.Request, segments []*archivedSegment) error {
	limit, err := strconv.Atoi(cmp.Or(r.URL.Query().Get("limit"), "100"))
	if err != nil || limit < 1 || limit > 1000 {
		return invalid("limit must be 1 to 1000")
	}
	limit = min(limit, cmp.Or(n.cfg.Archive.Page, 1000))
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	out := map[string]any{}
	rows := []map[string]any{}
	for _, s := range segments {
		if s.index < from {
			continue
		}
		if len(rows) == limit {
			out["cursor"] = strconv.Itoa(s.index)
			break
		}
		rows = append(rows, map[string]any{"name": s.name(), "index": s.index, "sizeBytes": len(s.file), "checksum": s.sum(),
			"eventCount": s.events, "minSeq": s.minSeq, "maxSeq": s.maxSeq, "minWitnessedAt": s.minAt, "maxWitnessedAt": s.maxAt})
	}
	out["segments"] = rows
	return json.NewEncoder(w).Encode(out)
}

// snapshotQuery is what a plan is for.
type snapshotQuery struct {
	DIDs, Collections   []string
	AfterSeq, BeforeSeq int64
}

func (n *Net) planSnapshot(w http.ResponseWriter, r *http.Request, segments []*archivedSegment) error {
	var q snapshotQuery
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		return invalid("invalid JSON")
	}
	o := &options{Collections: q.Collections, DIDs: q.DIDs}
	if err := o.check(); err != nil {
		return invalid("%s", err.Error())
	}
	if q.BeforeSeq > 0 && q.BeforeSeq <= q.AfterSeq {
		return invalid("beforeSeq must be greater than afterSeq")
	}
	tip := int64(0)
	if len(segments) > 0 {
		tip = segments[len(segments)-1].maxSeq
	}
	if q.BeforeSeq > 0 {
		tip = min(tip, q.BeforeSeq)
	}
	planned, rows := tip, []map[string]any{}
	for _, s := range segments {
		matched, ranges := s.match(o, q.AfterSeq, tip)
		if matched == 0 {
			continue
		}
		if len(rows) == cmp.Or(n.cfg.Archive.Page, 1000) {
			break
		}
		row := map[string]any{"name": s.name(), "index": s.index, "checksum": s.sum(), "minSeq": s.minSeq, "maxSeq": s.maxSeq, "mode": "segment"}
		if 4*matched < 3*len(s.blocks) {
			row["mode"], row["blocks"] = "blocks", ranges
		}
		rows = append(rows, row)
		if len(rows) == cmp.Or(n.cfg.Archive.Page, 1000) {
			planned = min(tip, s.maxSeq)
		}
	}
	return json.NewEncoder(w).Encode(map[string]any{
		"plannedThroughSeq": planned, "sealedTipSeq": tip, "segments": rows, "stats": map[string]int{"entries": len(rows)},
	})
}

// match returns how many blocks may have events between two numbers that a filter selects, and the
// ranges of these blocks.
func (s *archivedSegment) match(o *options, after, before int64) (matched int, ranges []map[string]int) {
	for i := range s.blocks {
		b := &s.blocks[i]
		if b.maxSeq <= after || b.minSeq > before || !slices.ContainsFunc(b.entries, o.wants) {
			continue
		}
		matched++
		if last := len(ranges) - 1; last >= 0 && ranges[last]["last"] == i-1 {
			ranges[last]["last"] = i
			continue
		}
		ranges = append(ranges, map[string]int{"first": i, "last": i})
	}
	return matched, ranges
}

func segmentNamed(segments []*archivedSegment, name string) *archivedSegment {
	for _, s := range segments {
		if s.name() == name {
			return s
		}
	}
	return nil
}

func (n *Net) getSegment(w http.ResponseWriter, r *http.Request, segments []*archivedSegment) error {
	s := segmentNamed(segments, r.URL.Query().Get("name"))
	if s == nil {
		return notFound("SegmentNotFound")
	}
	if n.cfg.Archive.NoRanges {
		r.Header.Del("Range")
	}
	return n.serveArchived(w, r, archivePrefix+"getSegment", s.sum(), s.file)
}

func (n *Net) getBlock(w http.ResponseWriter, r *http.Request, segments []*archivedSegment) error {
	s := segmentNamed(segments, r.URL.Query().Get("segment"))
	if s == nil {
		return notFound("SegmentNotFound")
	}
	i, err := strconv.Atoi(r.URL.Query().Get("blockIndex"))
	if err != nil || i < 0 || i >= len(s.blocks) {
		return notFound("BlockNotFound")
	}
	return n.serveArchived(w, r, archivePrefix+"getBlock", fmt.Sprintf("%s:%d", s.sum(), i), s.blocks[i].frame)
}

func (n *Net) serveArchived(w http.ResponseWriter, r *http.Request, endpoint, tag string, data []byte) error {
	fault := n.archive.spoil(endpoint)
	switch fault {
	case "":
	case BlockAbsent:
		return notFound("BlockNotFound")
	case OtherRange:
		r.Header.Set("Range", "bytes=16-")
	default:
		data = fault.apply(data, n.archive.encoder)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("ETag", strconv.Quote(tag))
	if severed := n.callFaults.take(endpoint, func(k CallFaultKind) bool { return k == Severed }); severed.Kind == Severed {
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		w.Write(data[:len(data)/2])           // the client left
		http.NewResponseController(w).Flush() // as above
		panic(http.ErrAbortHandler)           // makes the server cut the connection
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	return nil
}
