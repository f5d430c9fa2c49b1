package ranking

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// story is everything that decides the ranking, in one snapshot.
type story struct {
	shares     []toldShare
	identities map[int64]string
	claims     map[int64]said
	links      map[int64]said // the stored headlines
	walled     map[int64]bool // the stored groups of titles of walls
	keptFrom   time.Time
	asOf       time.Time // the time of the counts; zero if nothing was counted
	subjects   map[[2]string][]int64
	hidden     map[string]bool
	members    map[string]map[string]bool // by target and degree
	watched    bool
	sites      map[int64]string
	merged     map[int64]int64
	pages      map[int64][]toldPage // pages that count, of the link and of links merged into it
}

// toldShare is a share in the story.
type toldShare struct {
	DID, How string
	Named    int64
	At       time.Time
	Author   string
	Rkey     string
	Key      string
	Claim    int64
	Words    []string
	Stored   bool  // whether its record is stored
	Link     int64 // the link for which it counts
	Copied   bool  // whether its record is a copy of one that shares the link
}

func readLedger(t *testing.T, tx pgx.Tx) (l story) {
	t.Helper()
	ctx := t.Context()
	rows, err := tx.Query(ctx, `SELECT did, how, named_id, shared_at, coalesce(subject_did, ''), coalesce(subject_rkey, ''),
		collection || '/' || rkey, coalesce(claim_id, 0), tsvector_to_array(words),
       EXISTS (SELECT FROM records AS p WHERE p.collection = s.collection AND p.did = s.did AND p.rkey = s.rkey), link_id, false
       FROM shares AS s`)
	require.NoError(t, err)
	l.shares, err = pgx.CollectRows(rows, pgx.RowToStructByPos[toldShare])
	require.NoError(t, err)
	l.readMerges(t, tx)
	l.readCopies(t, tx)
	l.readClaims(t, tx)
	l.readPages(t, tx)
	l.subjects = map[[2]string][]int64{}
	var author, post string
	var links []int64
	rows, _ = tx.Query(ctx, `SELECT did, rkey, links FROM subjects`)
	_, err = pgx.ForEachRow(rows, []any{&author, &post, &links}, func() error {
		l.subjects[[2]string{author, post}] = slices.Clone(links)
		return nil
	})
	require.NoError(t, err)
	l.hidden, l.members, l.sites = map[string]bool{}, map[string]map[string]bool{}, map[int64]string{}
	l.identities = map[int64]string{}
	var did, target, kind, site, identity string
	var id int64
	rows, _ = tx.Query(ctx, `SELECT did FROM accounts WHERE status <> 'active'`)
	_, err = pgx.ForEachRow(rows, []any{&did}, func() error { l.hidden[did] = true; return nil })
	require.NoError(t, err)
	rows, _ = tx.Query(ctx, `SELECT w.target, w.kind, coalesce(m.did, '') FROM watches AS w LEFT JOIN watch_members AS m ON m.watch_id = w.id`)
	_, err = pgx.ForEachRow(rows, []any{&target, &kind, &did}, func() error {
		l.watched = true
		for _, k := range []string{"", target, target + " " + map[string]string{"follows": "first", "second-degree": "second"}[kind]} {
			if l.members[k] == nil {
				l.members[k] = map[string]bool{}
			}
			l.members[k][did] = true
		}
		return nil
	})
	require.NoError(t, err)
	rows, _ = tx.Query(ctx, `SELECT id, site, identity FROM links`)
	_, err = pgx.ForEachRow(rows, []any{&id, &site, &identity}, func() error { l.sites[id], l.identities[id] = site, identity; return nil })
	require.NoError(t, err)
	return l
}

// readMerges follows the merges.
func (l *story) readMerges(t *testing.T, tx pgx.Tx) {
	t.Helper()
	l.merged = map[int64]int64{}
	var link, into int64
	rows, _ := tx.Query(t.Context(), `SELECT link_id, into_id FROM link_merges WHERE split_at IS NULL`)
	_, err := pgx.ForEachRow(rows, []any{&link, &into}, func() error { l.merged[link] = into; return nil })
	require.NoError(t, err)
	for i := range l.shares {
		s := &l.shares[i]
		require.Equal(t, l.root(s.Named), s.Link, "a share that names link %d", s.Named)
	}
}

// readCopies marks the shares of copies of records that share the same link.
func (l *story) readCopies(t *testing.T, tx pgx.Tx) {
	t.Helper()
	linked := map[string][]int64{}
	for _, s := range l.shares {
		linked[s.DID+" "+s.Key] = append(linked[s.DID+" "+s.Key], s.Link)
	}
	originals := map[string]string{}
	var key, of string
	rows, _ := tx.Query(t.Context(), `SELECT did || ' ' || collection || '/' || rkey,
		of_did || ' ' || of_collection || '/' || of_rkey FROM copies`)
	_, err := pgx.ForEachRow(rows, []any{&key, &of}, func() error { originals[key] = of; return nil })
	require.NoError(t, err)
	for i := range l.shares {
		s := &l.shares[i]
		s.Copied = slices.Contains(linked[originals[s.DID+" "+s.Key]], s.Link)
	}
}

// root returns the link that counts in place of another.
func (l story) root(link int64) int64 {
	for into, ok := l.merged[link]; ok; into, ok = l.merged[link] {
		link = into
	}
	return link
}

// fold ranks the links of a story without any SQL, one per line.
func (l story) fold(q Query) []string {
	latest := map[int64]map[string]time.Time{}
	who := l.members[strings.TrimSpace(q.Watch+" "+string(q.Degree))]
	found, by := l.found(q.Text), l.by(q)
	for _, s := range l.shares {
		counts := l.counts(s, q) && (q.Watch == "" || who[s.DID]) && (q.By == "" || by[s.Link]) &&
			(q.Site == "" || l.sites[s.Link] == q.Site) && (q.Text == "" || found[s.Link])
		if counts && s.At.After(q.At.Add(-8*24*time.Hour)) {
			if latest[s.Link] == nil {
				latest[s.Link] = map[string]time.Time{}
			}
			if s.At.After(latest[s.Link][s.DID]) {
				latest[s.Link][s.DID] = s.At
			}
		}
	}
	type ranked struct {
		id    int64
		key   int
		n     int
		speed float64
		last  time.Time
		dids  []string // of the latest sharers
	}
	var all []ranked
	for id, sharers := range latest {
		k := ranked{id: id}
		for did, at := range sharers {
			if q.At.Sub(at) < q.Window {
				k.n++
				k.last = later(k.last, at)
				k.dids = append(k.dids, did)
			}
			for _, hours := range []float64{1, 3, 6, 12, 24} { // the mean of the hourly rates
				if q.At.Sub(at).Hours() < hours {
					k.speed += 1 / hours / 5
					k.key += int(24 / hours)
				}
			}
		}
		if k.n < max(q.AtLeast, 1) || q.Sort == Speed && k.key == 0 {
			continue
		}
		slices.SortFunc(k.dids, func(a, b string) int { return cmp.Or(sharers[b].Compare(sharers[a]), cmp.Compare(a, b)) })
		switch q.Sort {
		case Newest:
			k.key = int(id)
		case Sharers:
			k.key, k.speed = k.n, 0
		}
		if q.Sort == Newest {
			k.speed = 0
		}
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b ranked) int { return cmp.Or(b.key-a.key, b.last.Compare(a.last), int(b.id-a.id)) })
	var lines []string
	for _, k := range all {
		lines = append(lines, line(k.id, k.n, k.speed, k.last, k.dids[:min(3, len(k.dids))], l.headline(q, k.id)))
	}
	return lines
}

// counts reports whether a share counts for everyone, regardless of its time.
func (l story) counts(s toldShare, q Query) bool {
	alive := s.Author == "" || !l.hidden[s.Author] && slices.Contains(l.subjects[[2]string{s.Author, s.Rkey}], s.Named)
	network := q.Network == BothNetworks || strings.HasPrefix(s.DID, "did:nostr:") == (q.Network == Nostr)
	return alive && network && !s.Copied && !l.hidden[s.DID] && (!l.watched || l.members[""][s.DID]) &&
		(len(q.Ways) == 0 || slices.Contains(q.Ways, s.How))
}

// by returns the links that the account of the query shares in the window.
func (l story) by(q Query) map[int64]bool {
	all := map[int64]bool{}
	q.Network = BothNetworks
	for _, s := range l.shares {
		all[s.Link] = all[s.Link] || s.DID == q.By && l.counts(s, q) && q.At.Sub(s.At) < q.Window
	}
	return all
}

// found returns the links that a text selects.
func (l story) found(text string) map[int64]bool {
	all := map[int64]bool{}
	asked := strings.Fields(text)
	has := func(said []string) bool {
		for i, word := range asked {
			begins := func(s string) bool {
				return s == word || i == len(asked)-1 && len(word) >= 3 && strings.HasPrefix(s, word)
			}
			if !slices.ContainsFunc(said, begins) {
				return false
			}
		}
		return true
	}
	for id, identity := range l.identities {
		all[l.root(id)] = all[l.root(id)] || strings.Contains(text, "/") && strings.Contains(identity, text)
	}
	for id, pages := range l.pages {
		for _, p := range pages {
			all[id] = all[id] || !strings.Contains(text, "/") && has(append(strings.Fields(strings.ToLower(p.Title)), p.Description))
		}
	}
	for _, s := range l.shares {
		if !l.hidden[s.DID] && (!l.watched || l.members[""][s.DID]) && !strings.Contains(text, "/") {
			c := l.claims[s.Claim]
			all[s.Link] = all[s.Link] || s.Stored && has(s.Words) || s.Claim != 0 && has([]string{strings.ToLower(c.title), c.description})
		}
	}
	return all
}

// randomText returns a text: often one of some words, rarely another.
func randomText(r *rand.Rand) (text string) {
	for range r.IntN(3) {
		text += []string{"Heron ", "heroic ", "the ", "the, ", "Owl."}[r.IntN(5)]
	}
	if r.IntN(40) == 0 {
		text += "seldom"
	}
	return text
}

func line(id int64, sharers int, speed float64, last time.Time, by []string, headline said) string {
	return fmt.Sprintf("link %d: %d sharers, speed %.4f, last at %s by %s, %v", id, sharers, speed,
		last.UTC().Format(time.RFC3339Nano), by, headline)
}

func randomQuery(r *rand.Rand, now time.Time) Query {
	q := Query{
		At: now, Window: Windows()[r.IntN(windows)].Length, Sort: []Sort{Sharers, Speed, Newest}[r.IntN(3)],
		Limit: []int{10, 30, 300}[r.IntN(3)],
	}
	if r.IntN(3) == 0 {
		q.At = now.Add(time.Duration(r.IntN(int(10*time.Minute))) - 5*time.Minute).Truncate(time.Microsecond)
	}
	if r.IntN(3) == 0 {
		q.Watch = target(r)
		q.Degree = []Degree{BothDegrees, FirstDegree, SecondDegree}[r.IntN(3)]
	}
	if r.IntN(4) == 0 {
		q.Ways = [][]string{{"post"}, {"repost"}, {"post", "quote"}, {"quote", "repost"}}[r.IntN(4)]
	}
	if r.IntN(2) == 0 {
		q.Network = []Network{Bluesky, Nostr}[r.IntN(2)]
	}
	if r.IntN(5) == 0 {
		q.Site = fmt.Sprintf("site%d.example", r.IntN(3))
	}
	if r.IntN(3) == 0 {
		q.Text = []string{
			"heron", "her", "the", "the owl", "seldom", "a", "b d2", "c", "d3", "never", "host1.example/", "host2.example/1",
			"example/7", "heron a", "page", "page 7",
		}[r.IntN(16)]
	}
	if r.IntN(5) == 0 {
		q.By = historyDID(r.IntN(8))
	}
	if r.IntN(4) == 0 {
		q.AtLeast = 1 + r.IntN(4)
	}
	return q
}

// within returns the same snapshot again and again.
type within struct{ tx pgx.Tx }

func (w within) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) { return w.tx.Begin(ctx) }

// pages reads a whole ranking, page by page. at is the time of the pages: that of the counts if too
// many shares have crossed the end of a window.
func pages(t *testing.T, db Beginner, q Query, l limits) (lines []string, recounted bool, at time.Time) {
	t.Helper()
	for {
		p, err := trending(t.Context(), db, q, l)
		require.NoError(t, err)
		require.True(t, at.IsZero() || at.Equal(p.At), "pages of different times")
		at = p.At
		recounted = recounted || p.Recounted
		for _, k := range p.Links {
			var by []string
			for _, f := range k.Faces {
				by = append(by, f.DID)
			}
			lines = append(lines, line(k.ID, k.Sharers, k.Speed, k.LastShared, by,
				said{k.URL, k.Site, k.Title, k.Description, k.Image, k.CardFrom, 0}))
		}
		if p.Next == "" {
			return lines, recounted, at
		}
		q.After = p.Next
	}
}
