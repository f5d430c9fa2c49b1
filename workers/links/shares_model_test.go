package links

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
)

// shareModel is a naive model: all shares and links, checked one by one.
type shareModel struct {
	keep          Retention
	oldest, ahead time.Time // the partitions of days hold the TIDs between the two
	swept         time.Time
	shares        map[modelKey]modelShare
	links         map[string]*modelLink
	hidden        map[string]bool
	followed      map[string]bool // if empty, there are no watches
}

type modelKey struct {
	schema.Key
	url string
}

type modelShare struct {
	shared, stored time.Time
	inDefault      bool
}

type modelLink struct {
	kept     int
	keptAt   time.Time
	unshared time.Time
}

const oneDay = 24 * time.Hour

func (l *shareModel) share(url string, key schema.Key, at, now time.Time) {
	named, err := syntax.ParseTID(key.Rkey)
	k := modelKey{key, url}
	s, ok := l.shares[k]
	if !ok {
		s = modelShare{stored: now, inDefault: err != nil || named.Time().Before(l.oldest)}
	}
	s.shared = at
	l.shares[k] = s
	if l.links[url] == nil {
		l.links[url] = &modelLink{}
	}
}

// shared reports whether any account shares a link, whether that counts or not.
func (l *shareModel) shared(url string) bool {
	for k := range l.shares {
		if k.url == url {
			return true
		}
	}
	return false
}

// sharers returns the number of accounts that share a link and count.
func (l *shareModel) sharers(url string) int {
	dids := map[string]bool{}
	for k := range l.shares {
		if k.url == url && !l.hidden[k.DID] && (len(l.followed) == 0 || l.followed[k.DID]) {
			dids[k.DID] = true
		}
	}
	return len(dids)
}

// expireShares removes shares, and keeps their links if they have enough sharers.
func (l *shareModel) expireShares(now time.Time, due func(modelKey, modelShare) bool) (kept int) {
	var gone []modelKey
	for k, s := range l.shares {
		if due(k, s) {
			gone = append(gone, k)
			if n := l.sharers(k.url); n >= l.keep.KeepSharers {
				link := l.links[k.url]
				link.kept, link.keptAt = max(link.kept, n), now
				kept++
			}
		}
	}
	for _, k := range gone {
		delete(l.shares, k)
	}
	return kept
}

func (l *shareModel) time(k modelKey) time.Time {
	named, err := syntax.ParseTID(k.Rkey)
	if err != nil {
		return time.Time{}
	}
	return named.Time()
}

func (l *shareModel) expire(now time.Time) (kept, gone int) {
	l.ahead = now.Add(48 * time.Hour).Truncate(oneDay).Add(oneDay)
	before := now.Add(-l.keep.Shares)
	for {
		end := l.oldest.Truncate(oneDay).Add(oneDay)
		if end.After(before) {
			break
		}
		kept += l.expireShares(now, func(k modelKey, s modelShare) bool { return !s.inDefault && l.time(k).Before(end) })
		l.oldest, l.swept = end, time.Time{}
	}
	kept += l.expireShares(now, func(_ modelKey, s modelShare) bool { return s.inDefault && !s.stored.After(before) })
	kept += l.expireShares(now, func(k modelKey, s modelShare) bool {
		return !s.inDefault && !s.stored.After(before) && !l.time(k).Before(l.ahead)
	})
	staying := func(link *modelLink) bool { return link.kept > 0 && link.keptAt.After(now.Add(-l.keep.Links)) }
	sweep := now.Sub(l.swept) >= sweepInterval
	if sweep {
		l.swept = now
	}
	for url, link := range l.links {
		shared := l.shared(url)
		switch {
		case sweep && shared:
			link.unshared = time.Time{}
		case sweep && link.unshared.IsZero() && !staying(link):
			link.unshared = now
		}
		if !link.unshared.IsZero() && !link.unshared.After(now.Add(-l.keep.Grace)) {
			link.unshared = time.Time{}
			if !shared && !staying(link) {
				delete(l.links, url)
				gone++
			}
		}
	}
	return kept, gone
}

func (l *shareModel) lines() []string {
	var lines []string
	for url, link := range l.links {
		lines = append(lines, fmt.Sprintf("%s %d %d %d", url, link.kept, max(0, link.keptAt.Unix()), max(0, link.unshared.Unix())))
	}
	for k, s := range l.shares {
		lines = append(lines, fmt.Sprintf("%s %s %s %d %d", k.url, k.DID, k.Rkey, s.shared.Unix(), s.stored.Unix()))
	}
	slices.Sort(lines)
	return lines
}

// decide hides or shows an account, or follows or unfollows it, in the model and in the database.
func (l *shareModel) decide(t *testing.T, pool *pgxpool.Pool, random *rand.Rand) {
	t.Helper()
	exec := func(sql string, args ...any) {
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	did, counts := fmt.Sprint("did:", random.IntN(4)), random.IntN(5) > 0
	if random.IntN(2) == 0 {
		l.hidden[did] = !counts
		exec(`INSERT INTO accounts (did, status) VALUES ($1, $2)
			ON CONFLICT (did) DO UPDATE SET status = excluded.status`, did, map[bool]string{true: "deactivated", false: "active"}[l.hidden[did]])
		return
	}
	if len(l.followed) == 0 { // the first watch
		exec(`INSERT INTO watches (target) VALUES ('hub.example')`)
		for i := range 4 {
			l.followed[fmt.Sprint("did:", i)] = true
			exec(`INSERT INTO watch_members (watch_id, did) SELECT id, $1 FROM watches`, fmt.Sprint("did:", i))
		}
		return
	}
	l.followed[did] = counts
	exec(`DELETE FROM watch_members WHERE did = $1`, did)
	if counts {
		exec(`INSERT INTO watch_members (watch_id, did) SELECT id, $1 FROM watches`, did)
	}
}

// change adds a share of a link, or removes the shares of an account, in the model and in the
// database.
func (l *shareModel) change(t *testing.T, pool *pgxpool.Pool, random *rand.Rand, url string, n int, now time.Time) {
	t.Helper()
	did := fmt.Sprint("did:", random.IntN(4))
	var old []modelKey
	for k := range l.shares {
		if k.DID == did && k.url == url {
			old = append(old, k)
		}
	}
	if len(old) > 0 && random.IntN(2) == 0 {
		for _, k := range old {
			delete(l.shares, k)
			require.NoError(t, setShares(t.Context(), pool, k.Key, nil, now))
		}
		return
	}
	at := now.Add(-time.Duration(random.IntN(40)) * time.Hour)
	rkey := tid(at, n)
	switch random.IntN(6) {
	case 0:
		rkey = "no-tid-" + url
	case 1:
		rkey = tid(now.Add(time.Duration(random.IntN(500))*time.Hour), n)
	}
	key := postKey(did, rkey)
	l.share(url, key, at, now)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return ranking.ReplaceShares(t.Context(), tx, nil, []ranking.Share{{
			Key: key, Link: link.Link{Identity: url, URL: url}, How: "post", SharedAt: at, StoredAt: now,
		}}, now)
	}))
}
