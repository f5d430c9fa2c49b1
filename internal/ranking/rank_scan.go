package ranking

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// rankScan reads the counts of everyone, or of Nostr, in the order of the ranking. It corrects the
// links with pending changes, or with sharers who left the window since the last count. It takes
// the others as they are.
type rankScan struct {
	*reader
	corrected map[int64]*corrected
	touched   []entry // the corrected links
	only      []int64 // the other links that can be in the ranking; nil: any can
}

// needed returns the windows that the ranking depends on.
func (r *reader) needed() []int {
	i := r.window
	if r.q.Sort != Speed {
		return []int{i}
	}
	all := []int{0, 1, 2, 3, longestSpeed}
	if !slices.Contains(all, i) {
		all = append(all, i)
	}
	return all
}

// correct computes what differs from the counts. exact is false if too much differs.
func (w *rankScan) correct(ctx context.Context) (exact bool, err error) {
	network := w.q.Network.scanned()
	var crossings []crossing
	q := &pgx.Batch{}
	queueCrossings(q, network, w.state.AsOf, w.end, w.needed(), w.crossings, &crossings)
	exact, err = w.readUnread(ctx, q)
	switch {
	case err != nil || !exact:
		return false, err
	case len(crossings) >= w.crossings && w.end.Sub(w.state.AsOf).Abs() <= CursorAge:
		return false, errCrossed
	case len(crossings) >= w.crossings:
		return false, nil
	}
	if w.only, err = w.candidates(ctx); err != nil {
		return false, err
	}
	w.corrected, err = tallies(ctx, w.tx, network, w.state, w.end, network.leaveOutChanges(w.unread), crossings, nil)
	if err != nil {
		return false, err
	}
	for link, t := range w.corrected {
		if e := w.entry(link, t.now); w.qualifies(e) {
			w.touched = append(w.touched, e)
		}
	}
	return true, nil
}

func (w *rankScan) entry(link int64, t tally) entry {
	return entry{ID: link, Sharers: t.in[w.window], Speed: t.in.speed(), Last: t.last}
}

// qualifies reports whether a link is in the ranking, judging by its counts.
func (w *rankScan) qualifies(e entry) bool {
	return e.Sharers >= w.q.least() && (w.q.Sort != Speed || e.Speed > 0)
}

// candidates returns all links that may be in the ranking if they are few and a scan
// would pass many others; otherwise nil.
func (w *rankScan) candidates(ctx context.Context) (links []int64, err error) {
	if links = w.listed(); links != nil && len(links) < 5*w.few { // a scan over these passes more links than one over a site
		return links, nil
	}
	if w.q.Site != "" {
		const sql = `SELECT l.id FROM links AS l WHERE l.site = $1 LIMIT $2`
		if links, err = schema.All(ctx, w.tx, "list the links of the site", pgx.RowTo[int64], sql, w.q.Site, w.few); err != nil ||
			len(links) < w.few {
			return nonNil(links), err
		}
	}
	if w.q.Sort == Newest {
		sql := `SELECT s.link_id FROM sharers AS s WHERE s.at > $1 AND` + w.q.Network.scanned().has("s.did") + `ORDER BY s.at LIMIT $2`
		if links, err = schema.All(ctx, w.tx, "list the links of the window", pgx.RowTo[int64], sql, w.from(), w.few); err != nil ||
			len(links) < w.few {
			slices.Sort(links)
			return nonNil(slices.Compact(links)), err
		}
	}
	return nil, nil
}

func nonNil(links []int64) []int64 {
	if links == nil {
		return []int64{}
	}
	return links
}

// first returns the first limit links after a position that match the ways and the network, and
// pass the filters.
func (w *rankScan) first(ctx context.Context, after *entry, limit int) ([]entry, error) {
	some, filtered := w.q.OnlyWays() != nil || w.q.Network == Bluesky, w.q.Site != "" || w.text != nil || w.by != nil
	if !some && !filtered {
		return w.next(ctx, after, limit)
	}
	var found []entry
	position := after
	if some { // a link before the position may have fewer sharers that count
		position = nil
	}
	passed, kept := 0, 0
	for size := 2 * limit; ; size = w.chunk(size, passed, kept, limit-len(found)) {
		chunk, err := w.next(ctx, position, size)
		if err != nil {
			return nil, err
		}
		passed += len(chunk)
		more := len(chunk) == size
		if more {
			last := chunk[size-1]
			position = &last
		}
		if chunk, err = w.keep(ctx, chunk); err == nil && some {
			chunk, err = w.some(ctx, chunk)
		}
		if err != nil {
			return nil, err
		}
		kept += len(chunk)
		for _, e := range chunk {
			if w.qualifies(e) && (after == nil || after.compare(e, w.q.Sort) < 0) {
				found = append(found, e)
			}
		}
		slices.SortFunc(found, func(a, b entry) int { return a.compare(b, w.q.Sort) })
		// A link has at most as many sharers by some ways, or of one network, as it has in all. So
		// if the last link of the page beats a link, it also beats every link after that one.
		if !more || len(found) >= limit && found[limit-1].compare(*position, w.q.Sort) <= 0 {
			return found[:min(limit, len(found))], nil
		}
	}
}

// chunk returns how many links to read next, after kept of the passed links were kept, if more are
// needed. It is half as many again as should complete the page, because further down fewer match.
// Each step passes at least half as many as all steps before, which keeps the number of steps low.
func (w *rankScan) chunk(last, passed, kept, more int) int {
	switch {
	case w.text == nil && w.by == nil: // most links are kept
		return 2 * last
	case kept == 0, more <= 0: // a link further down may beat the last one of the page
		return 4 * last
	}
	return min(max(passed/2, 3*more*passed/kept/2), 16*last)
}

// next returns the next limit links after a position, whatever their ways.
func (w *rankScan) next(ctx context.Context, after *entry, limit int) ([]entry, error) {
	found, err := w.untouched(ctx, after, limit+len(w.corrected))
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(e entry) bool {
		_, touched := w.corrected[e.ID]
		return touched
	})
	return w.merge(found, w.touched, after, limit), nil
}

// untouched returns the next limit links after a position, as counted.
func (w *rankScan) untouched(ctx context.Context, after *entry, limit int) ([]entry, error) {
	switch {
	case w.only != nil && len(w.only) == 0:
		return nil, nil
	case w.q.Sort == Newest:
		return w.newest(ctx, after, limit)
	}
	found, err := w.ordered(ctx, after, limit)
	if err != nil || len(found) == limit && w.q.Sort == Sharers {
		return found, err
	}
	var last *entry
	if len(found) == limit {
		last = &found[limit-1]
	}
	singles, err := w.singles(ctx, after, last, limit)
	return append(found, singles...), err
}

// ordered reads the links with at least two sharers in the window of the order. The indexes have
// only levels of counts, so it reads all links of the levels that contain the first limit, and
// sorts them. If only some links can match, it reads all of these.
func (w *rankScan) ordered(ctx context.Context, after *entry, limit int) ([]entry, error) {
	window := Windows()[w.window].Name
	count, by, level := "c.in_"+window, "c.in_"+window, "c.level_"+window
	if w.q.Sort == Speed {
		by, level = "c.speed", "c.level_speed"
	}
	from := `
    FROM ` + w.q.Network.counts() + ` AS c
    WHERE ` + level + ` >= 1 AND ` + count + ` >= $1 AND c.level_` + window + ` >= ` + levelOf("$1") + `
      AND ($2 = '' OR (SELECT l.site FROM links AS l WHERE l.id = c.link_id) = $2)
      AND (` + by + `, c.last_at, c.link_id) < ($3, $4, $5) AND `
	// The levels are read one by one, the highest first, so that no plan reads the lower ones,
	// whatever the statistics are.
	with, those := `
WITH lowest AS (
    SELECT min(f.level) AS level FROM (
        SELECT v.level FROM generate_series(`+levelOf("$3")+`, 1, -1) AS v (level)
        CROSS JOIN LATERAL (SELECT`+from+level+` = v.level LIMIT $6) AS c
        LIMIT $6
    ) AS f
)`, level+` BETWEEN (SELECT l.level FROM lowest AS l) AND `+levelOf("$3")
	if w.only != nil {
		with, those = "", `c.link_id = ANY ($7)`
	}
	sql := with + `
SELECT c.link_id, ` + count + `, c.speed, c.last_at, NULL::text[]` + from + those + `
ORDER BY ` + by + ` DESC, c.last_at DESC, c.link_id DESC
LIMIT $6`
	value, last, id := math.MaxInt32, time.Unix(0, 0), int64(0)
	if after != nil {
		value, last, id = after.value(w.q.Sort), after.Last, after.ID
	}
	return schema.All(ctx, w.tx, "scan the counts", pgx.RowToStructByPos[entry], sql,
		w.andOnly(w.q.least(), w.q.Site, value, last, id, limit)...)
}

// andOnly adds the listed links to the arguments of a query, unless all links can be in the
// ranking.
func (w *rankScan) andOnly(args ...any) []any {
	if w.only == nil {
		return args
	}
	return append(args, w.only)
}

// levelOf returns the level of a number, as in the generated columns of link_counts.
func levelOf(n string) string {
	return `width_bucket(` + n + `::int, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}')`
}

// singles reads the links with one sharer in the window of the order, the latest first, which is
// their order. last is the last link found by the other scan; nil: that scan reached the end.
// Singles after last are not needed.
func (w *rankScan) singles(ctx context.Context, after, last *entry, limit int) ([]entry, error) {
	window := w.window
	single := window
	if w.q.Sort == Speed {
		single = longestSpeed
	}
	if w.q.Sort == Sharers && w.q.least() > 1 {
		return nil, nil
	}
	length := Windows()[single].Length
	if w.q.Sort == Speed && w.q.Window < length {
		length = w.q.Window
	}
	value := func(at time.Time) int {
		if w.q.Sort == Speed {
			return counted(at, w.end).speed()
		}
		return 1
	}
	from := w.end.Add(-length)
	if last != nil { // only those before it
		if value(w.end.Add(time.Microsecond)) < last.value(w.q.Sort) {
			return nil, nil
		}
		from = later(from, w.ageBelow(value, last.value(w.q.Sort)))
	}
	until, id := w.end.Add(100*365*24*time.Hour), int64(math.MaxInt64)
	if after != nil {
		switch v := after.value(w.q.Sort); {
		case value(after.Last) == v: // it is a single, or ranks like one
			until, id = after.Last, after.ID
		default: // it has more sharers than singles with its date
			until = w.ageBelow(value, v)
			if value(w.end.Add(time.Microsecond)) < v {
				until = w.end.Add(100 * 365 * 24 * time.Hour)
			}
		}
	}
	in, of := "c.in_"+Windows()[single].Name, "c.in_"+Windows()[window].Name
	counts := func(link string) string {
		return `
LEFT JOIN LATERAL (SELECT ` + in + ` AS single, ` + of + ` AS n FROM ` + w.q.Network.counts() + ` AS c
    WHERE c.link_id = ` + link + ` LIMIT 1) AS c ON true`
	}
	those := `sharers AS s ` + counts("s.link_id")
	if w.only != nil { // skip popular links: none of their many rows is a single share
		those = `unnest($7::bigint[]) AS k (id) ` + counts("k.id") + `
CROSS JOIN LATERAL (SELECT s.link_id, s.did, s.at FROM sharers AS s
    WHERE coalesce(c.single, 1) = 1 AND s.link_id = k.id AND s.at > $1 OFFSET 0) AS s`
	}
	sql := `
SELECT s.link_id, coalesce(c.n, 1), 0, s.at, NULL::text[]
FROM ` + those + `
WHERE s.at > $1 AND s.at <= $2 AND (s.at, s.link_id) < ($2, $3) AND coalesce(c.single, 1) = 1 AND coalesce(c.n, 1) >= $4
    AND` + w.q.Network.scanned().has("s.did") + `
  AND ($5 = '' OR (SELECT l.site FROM links AS l WHERE l.id = s.link_id) = $5)
ORDER BY s.at DESC, s.link_id DESC
LIMIT $6`
	found, err := schema.All(ctx, w.tx, "scan the single shares", pgx.RowToStructByPos[entry], sql,
		w.andOnly(from, until, id, w.q.least(), w.q.Site, limit)...)
	for i := range found {
		found[i].Speed = counted(found[i].Last, w.end).speed()
	}
	return found, err
}

// ageBelow returns the latest date of a share with a value below v.
func (w *rankScan) ageBelow(value func(time.Time) int, v int) time.Time {
	for _, window := range Windows() {
		if at := w.end.Add(-window.Length); value(at) < v {
			return at
		}
	}
	return time.Time{}
}

// newest reads the links in the order in which they were stored.
func (w *rankScan) newest(ctx context.Context, after *entry, limit int) ([]entry, error) {
	network, links := w.q.Network.scanned(), `links`
	switch {
	case w.only != nil:
		links = `(
    SELECT k.id, (SELECT l.site FROM links AS l WHERE l.id = k.id) AS site
    FROM (SELECT k.id FROM unnest($6::bigint[]) AS k (id) ORDER BY k.id DESC) AS k)`
	case network == Nostr: // few of all links; Nostr's index is in their order
		links = `(
    SELECT d.id, (SELECT l.site FROM links AS l WHERE l.id = d.id) AS site
    FROM (SELECT DISTINCT s.link_id AS id FROM sharers AS s
        WHERE s.link_id < $2 AND` + network.has("s.did") + `ORDER BY s.link_id DESC) AS d)`
	}
	sql := `
SELECT l.id, coalesce(c.n, 1), 0, coalesce(c.last_at, s.at), NULL::text[]
FROM ` + links + ` AS l
LEFT JOIN LATERAL (SELECT c.in_` + Windows()[w.window].Name + ` AS n, c.last_at FROM ` + network.counts() + ` AS c
    WHERE c.link_id = l.id LIMIT 1) AS c ON true
LEFT JOIN LATERAL (SELECT s.at FROM sharers AS s
    WHERE c.n IS NULL AND s.link_id = l.id AND s.at > $1 AND` + network.has("s.did") + `LIMIT 1) AS s ON true
WHERE l.id < $2 AND coalesce(c.n, CASE WHEN s.at IS NULL THEN 0 ELSE 1 END) >= $3 AND ($4 = '' OR l.site = $4)
ORDER BY l.id DESC
LIMIT $5`
	id := int64(math.MaxInt64)
	if after != nil {
		id = after.ID
	}
	return schema.All(ctx, w.tx, "scan the newest links", pgx.RowToStructByPos[entry], sql,
		w.andOnly(w.state.AsOf.Add(-w.q.Window), id, w.q.least(), w.q.Site, limit)...)
}

// some counts the sharers of the links by the ways and the network of the query.
func (w *rankScan) some(ctx context.Context, of []entry) (all []entry, err error) {
	if w.q.OnlyWays() != nil {
		return w.recount(ctx, w.q.Network, of)
	}
	subtracted, again, err := w.withoutNostr(ctx, of)
	if err != nil {
		return nil, err
	}
	recounted, err := w.recount(ctx, w.q.Network, again)
	return append(subtracted, recounted...), err
}

// recount counts the sharers of the links by the ways of the query and of a network.
func (w *rankScan) recount(ctx context.Context, network Network, of []entry) (all []entry, err error) {
	if len(of) == 0 {
		return nil, nil
	}
	at := w.q.latest("s")
	sql := `
SELECT s.link_id, count(*) FILTER (WHERE ` + at + ` > $2), ` + speedOf(at, "$3") + `, max(` + at + `), NULL::text[]
FROM sharers AS s
WHERE s.link_id = ANY ($1) AND s.at > $4 AND ` + at + ` > $4
  AND (s.link_id, s.did) NOT IN (SELECT * FROM unnest($5::bigint[], $6::text[])) AND` + network.has("s.did") + `
GROUP BY s.link_id`
	found := make(map[int64]*entry, len(of))
	for _, e := range of {
		found[e.ID] = &entry{ID: e.ID}
	}
	var pending sharingColumns
	for k := range w.unread {
		if found[k.link] != nil {
			pending.add(k)
		}
	}
	rows, err := schema.All(ctx, w.tx, "count some sharers", pgx.RowToStructByPos[entry], sql, idsOf(of), w.from(), w.end,
		w.earliest(), pending.links, pending.dids)
	if err != nil {
		return nil, err
	}
	for _, e := range rows {
		*found[e.ID] = e
	}
	for k, c := range w.unread {
		if e := found[k.link]; e != nil && network.includes(k.did) {
			if at := w.q.latestOf(c.truth); at.After(w.earliest()) {
				w.add(e, at)
			}
		}
	}
	for _, e := range found {
		all = append(all, *e)
	}
	return all, nil
}

// add adds a sharer to a link.
func (r *reader) add(e *entry, at time.Time) {
	e.Last = later(e.Last, at)
	if r.q.Sort != Speed {
		e.Sharers++ // all rows read are inside the window
		return
	}
	n := counted(at, r.end)
	e.Sharers += n[r.window]
	e.Speed += n.speed()
}

// latest returns the date of the latest share in a row of sharers by the ways of the query.
func (q Query) latest(row string) string {
	chosen := q.OnlyWays()
	if chosen == nil {
		return row + ".at"
	}
	columns := make([]string, len(chosen))
	for i, way := range chosen {
		columns[i] = row + "." + way + "_at"
	}
	return "greatest(" + strings.Join(columns, ", ") + ")"
}

// latestOf returns the same from times.
func (q Query) latestOf(t times) time.Time {
	chosen := q.OnlyWays()
	if chosen == nil {
		return t.at()
	}
	if !slices.Contains(chosen, "post") {
		t.post = time.Time{}
	}
	if !slices.Contains(chosen, "quote") {
		t.quote = time.Time{}
	}
	if !slices.Contains(chosen, "repost") {
		t.repost = time.Time{}
	}
	return t.at()
}
