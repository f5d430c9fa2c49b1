package archive

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
)

// listed is a segment in a listing.
type listed struct {
	Name           string `json:"name"`
	EventCount     int64  `json:"eventCount"`
	MinSeq         int64  `json:"minSeq"`
	MaxSeq         int64  `json:"maxSeq"`
	MinWitnessedAt int64  `json:"minWitnessedAt"`
	MaxWitnessedAt int64  `json:"maxWitnessedAt"`
	MinIndexedAt   int64  `json:"minIndexedAt"` // the names of the same fields in the first servers
	MaxIndexedAt   int64  `json:"maxIndexedAt"`
}

// planned is a segment of a plan.
type planned struct {
	Name     string      `json:"name"`
	Checksum string      `json:"checksum"`
	MinSeq   int64       `json:"minSeq"`
	MaxSeq   int64       `json:"maxSeq"`
	Mode     string      `json:"mode"`
	Blocks   []blockSpan `json:"blocks"`
}

// blockSpan is some blocks in a row.
type blockSpan struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
}

// maxTime is the last time of the year 9999, in microseconds.
const maxTime = 253402300799999999

// UnmarshalJSON checks each segment of a listing before the next one is decoded.
func (l *listed) UnmarshalJSON(b []byte) error {
	type plain listed
	if err := json.Unmarshal(b, (*plain)(l)); err != nil {
		return err
	}
	if l.MaxWitnessedAt == 0 {
		l.MinWitnessedAt, l.MaxWitnessedAt = l.MinIndexedAt, l.MaxIndexedAt
	}
	switch {
	case !isName(l.Name):
		return errName
	case l.MinSeq < 0, l.MaxSeq < l.MinSeq, l.EventCount < 0, l.EventCount > maxBlocks*maxEvents,
		l.MinWitnessedAt <= 0, l.MaxWitnessedAt < l.MinWitnessedAt, l.MaxWitnessedAt > maxTime:
		return &DamagedError{Segment: l.Name, Block: -1, Cause: "its bounds in the listing are impossible"}
	}
	return nil
}

// UnmarshalJSON checks each segment of a plan before the next one is decoded.
func (p *planned) UnmarshalJSON(b []byte) error {
	type plain planned
	if err := json.Unmarshal(b, (*plain)(p)); err != nil {
		return err
	}
	if !isName(p.Name) {
		return errName
	}
	bad := len(p.Checksum) != 16 || p.Mode != "segment" && p.Mode != "blocks" || p.Mode == "blocks" && len(p.Blocks) == 0
	last := int64(-1)
	for _, span := range p.Blocks {
		bad = bad || span.First <= last || span.Last < span.First || span.Last >= maxBlocks
		last = span.Last
	}
	if _, err := strconv.ParseUint(p.Checksum, 16, 64); bad || err != nil {
		return &DamagedError{Segment: p.Name, Block: -1, Cause: "its entry in the plan is impossible"}
	}
	return nil
}

var errName = errors.New("a segment has an impossible name")

// isName reports whether s can be the name of a file, which errors and the log show.
func isName(s string) bool {
	const characters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
	return s != "" && len(s) <= 100 && s[0] != '.' && strings.Trim(s, characters) == ""
}

// snapshot is a page of a plan.
type snapshot struct {
	PlannedThroughSeq *int64    `json:"plannedThroughSeq"`
	SealedTipSeq      *int64    `json:"sealedTipSeq"`
	Segments          []planned `json:"segments"`
}

// Limits of what a server can make Weir hold.
const (
	maxJSON     = 32 << 20 // bytes of a page
	maxPages    = 10_000
	maxSegments = 1 << 18 // thirty years of a segment an hour
	maxSpans    = 1 << 23 // of blocks of all of them
	blockEvents = 4096    // of a block, unless the operator chose another number: only for estimates
)

// Plan plans how to read an interval from the first server that has an archive. A server whose archive
// could not be read is asked last.
func (c *Client) Plan(ctx context.Context, q Query) (*Plan, error) {
	servers := slices.Clone(c.servers)
	if last := c.failed.Load(); last != nil {
		at := slices.IndexFunc(servers, func(s server) bool { return s.host == *last })
		servers = append(slices.Delete(servers, at, at+1), c.servers[at])
	}
	var failed error
	for _, s := range servers {
		p, err := c.planFrom(ctx, s, q)
		if err == nil || ctx.Err() != nil {
			return p, err
		}
		var refused *statusError
		if errors.As(err, &refused) && (refused.status == http.StatusNotFound || refused.status == http.StatusNotImplemented ||
			refused.status == http.StatusMethodNotAllowed) {
			continue // it has no archive
		}
		failed = errors.Join(failed, fmt.Errorf("%s: %w", s.host, err))
	}
	if failed == nil {
		failed = ErrNone
	}
	return nil, failed
}

func (c *Client) planFrom(ctx context.Context, s server, q Query) (*Plan, error) {
	all, err := c.list(ctx, s)
	if err != nil {
		return nil, err
	}
	p := &Plan{Query: q, Host: s.host, server: s}
	if len(all) == 0 {
		return p, nil
	}
	p.Begins, p.Sealed = time.UnixMicro(all[0].MinWitnessedAt), time.UnixMicro(all[len(all)-1].MaxWitnessedAt)
	var after, before int64
	calls := map[string]int{} // of segments that are read whole
	for _, l := range all {
		first, last := max(l.MinWitnessedAt, q.From.UnixMicro()), min(l.MaxWitnessedAt, q.To.UnixMicro())
		if first > last {
			continue
		}
		if before == 0 {
			after = max(l.MinSeq-1, 0)
		}
		before = l.MaxSeq
		share := float64(last-first+1) / float64(l.MaxWitnessedAt-l.MinWitnessedAt+1)
		calls[l.Name] = 1 + int(share*float64(l.EventCount)/blockEvents)
	}
	if before == 0 {
		return p, nil
	}
	if p.segments, err = c.snapshot(ctx, s, q, after, before); err != nil {
		return nil, err
	}
	for _, one := range p.segments {
		blocks := calls[one.Name]
		if one.Mode == "blocks" {
			blocks = 0
			for _, span := range one.Blocks {
				blocks += int(span.Last - span.First + 1)
			}
			blocks = min(blocks, calls[one.Name])
		}
		p.Calls += 2 + blocks
	}
	return p, nil
}

// list returns all segments, oldest first.
func (c *Client) list(ctx context.Context, s server) (all []listed, err error) {
	cursor, pages := "", 0
	for {
		query := url.Values{"limit": {"1000"}}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		var page struct {
			Cursor   string   `json:"cursor"`
			Segments []listed `json:"segments"`
		}
		if err := c.json(ctx, s, request{method: "listSegments", query: query}, &page); err != nil {
			return nil, err
		}
		for _, l := range page.Segments {
			if n := len(all); n > 0 && l.MinSeq <= all[n-1].MaxSeq {
				return nil, &DamagedError{Segment: l.Name, Block: -1, Cause: "the listing is not in order"}
			}
			all = append(all, l)
		}
		if page.Cursor == "" || len(page.Segments) == 0 {
			return all, nil
		}
		if pages++; pages == maxPages || len(all) > maxSegments {
			return nil, errors.New("listSegments has no end")
		}
		cursor = page.Cursor
	}
}

// snapshot returns the segments that may have events between two numbers, after exclusive.
func (c *Client) snapshot(ctx context.Context, s server, q Query, after, before int64) (all []planned, err error) {
	in := map[string]any{"beforeSeq": before}
	if len(q.Collections) <= maxPlanCollections {
		in["collections"] = append([]string{}, q.Collections...)
	}
	if n := len(q.DIDs); n > 0 && n <= maxPlanDIDs {
		in["dids"] = q.DIDs
	}
	for pages, spans := 0, 0; after < before; {
		in["afterSeq"] = after
		body, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		var page snapshot
		err = c.json(ctx, s, request{method: "planSnapshot", body: body}, &page)
		var refused *statusError
		if errors.As(err, &refused) && refused.status == http.StatusBadRequest && in["dids"] != nil {
			delete(in, "dids") // a server may accept fewer; without them a plan names more blocks
			continue
		}
		if err != nil {
			return nil, err
		}
		if page.PlannedThroughSeq == nil || page.SealedTipSeq == nil || *page.PlannedThroughSeq > *page.SealedTipSeq ||
			*page.PlannedThroughSeq <= after && *page.PlannedThroughSeq < *page.SealedTipSeq {
			return nil, errors.New("planSnapshot makes no progress")
		}
		for _, one := range page.Segments {
			if n := len(all); n > 0 && one.MinSeq < all[n-1].MinSeq {
				return nil, &DamagedError{Segment: one.Name, Block: -1, Cause: "the plan is not in order"}
			}
			all, spans = append(all, one), spans+len(one.Blocks)
		}
		if pages++; pages == maxPages || len(all) > maxSegments || spans > maxSpans {
			return nil, errors.New("planSnapshot has no end")
		}
		if *page.PlannedThroughSeq >= *page.SealedTipSeq {
			return all, nil
		}
		after = *page.PlannedThroughSeq
	}
	return all, nil
}

// includes reports whether the plan names a block.
func (p *planned) includes(block int) bool {
	if p.Mode == "segment" {
		return true
	}
	for _, span := range p.Blocks {
		if int64(block) >= span.First && int64(block) <= span.Last {
			return true
		}
	}
	return false
}

// json requests a JSON object.
func (c *Client) json(ctx context.Context, s server, r request, out any) error {
	r.most = maxJSON
	return c.repeat(ctx, func(ctx context.Context) error {
		got, err := c.request(ctx, s, r)
		if err != nil {
			return err
		}
		if len(got.body) > maxJSON {
			return fmt.Errorf("%s: the response is longer than %d bytes", r.method, maxJSON)
		}
		if err := json.Unmarshal(got.body, out); err != nil {
			return fmt.Errorf("%s: %w", r.method, err)
		}
		return nil
	})
}
