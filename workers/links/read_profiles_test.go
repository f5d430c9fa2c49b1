package links

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
	page "github.com/weir-social/weir/internal/web/links"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

const labelled = `{"$type":"app.bsky.actor.profile","labels":{"$type":"com.atproto.label.defs#selfLabels","values":[{"val":"other"},` +
	`{"val":"!no-unauthenticated"}]}}`

// label has an account put a profile on its repository.
func (r *rig) label(did, record string) {
	r.t.Helper()
	_, err := r.net.PutRecord(did, "app.bsky.actor.profile", "self", json.RawMessage(record))
	require.NoError(r.t, err)
}

// shown returns 1 if an account is shown, and 0 if it is withheld.
func (r *rig) shown(did string) int {
	r.t.Helper()
	return r.count(`SELECT count(*) FROM (VALUES (1)) AS v WHERE NOT`+schema.Withheld("$1"), did)
}

// TestProfileIsReadBeforeItsAccountIsShown has two accounts share a link and two be quoted. All are
// withheld until their profiles are read, and those that ask for it stay so. An account that the
// service refuses withholds no other.
func TestProfileIsReadBeforeItsAccountIsShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	all := r.followed()[:4]
	asks, open, quoted, quotedOpen := all[0], all[1], all[2], all[3]
	r.label(asks, labelled)
	r.label(quoted, labelled)
	r.pauses(jobs.QueueNetwork)
	records := map[string]string{asks: quoted, open: quotedOpen}
	a := newAuthor(t, r.pool)
	var b schema.Batch
	var posts []string
	for did, subject := range records {
		b.Writes = append(b.Writes, schema.Write{Key: schema.Key{
			Collection: schema.PostCollection, DID: did, Rkey: "1",
		}, Rev: "1", CID: "c", CreatedAt: time.Now(),
			Record: []byte(`{"text":"x","facets":[{"index":{"byteStart":0,"byteEnd":1},
			"features":[{"$type":"app.bsky.richtext.facet#link","uri":"https://a.example/"}]}],
			"embed":{"$type":"app.bsky.embed.record","record":{"uri":"at://` + subject + `/app.bsky.feed.post/1","cid":"c"}}}`)})
		posts = append(posts, did+"/1")
	}
	a.apply(b)
	_, err := r.client.Insert(t.Context(), ProcessPostsArgs{Posts: posts}, nil)
	require.NoError(t, err)
	r.becomes(2, `SELECT count(*) FROM shares`)
	for _, did := range all {
		require.Zero(t, r.shown(did), "its profile has not been read")
	}
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'read_profiles' AND state = 'available'`)
	r.execute(`INSERT INTO profiles (did) VALUES ('nobody')`) // it cannot be asked for, nor can those that are asked for with it
	w := &ReadProfiles{pool: r.pool, api: r.api, patience: time.Minute}
	work := func() { require.NoError(t, w.Work(t.Context(), &river.Job[ReadProfilesArgs]{})) }
	work()
	want := []int{0, 1, 0, 1}
	is := func() (now []int) {
		for _, did := range all {
			now = append(now, r.shown(did))
		}
		return now
	}
	require.Equal(t, want, is())

	r.label(asks, `{"$type":"app.bsky.actor.profile"}`)
	r.label(open, labelled)
	work()
	require.Equal(t, want, is(), "no profile is due")
	r.execute(`UPDATE profiles SET read_at = now() - interval '25 hours'`)
	work()
	require.Equal(t, []int{1, 0, 0, 1}, is())

	r.execute(`DELETE FROM shares`)
	r.execute(`DELETE FROM subjects`)
	r.execute(`UPDATE profiles SET read_at = now() - interval '25 hours'`)
	work()
	require.Equal(t, []int{1, 0, 0, 1}, is())
	require.Zero(t, r.count(`SELECT count(*) FROM profiles WHERE NOT withheld`), "the accounts share nothing any more")
	r.execute(`UPDATE profiles SET read_at = NULL`)
	work()
	require.Zero(t, r.count(`SELECT count(*) FROM profiles WHERE read_at IS NULL`), "all of these are withheld")
}

// TestListingSaysWhoIsNotShown follows accounts: the listing has their labels.
func TestListingSaysWhoIsNotShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	followed := r.followed()
	asks, open := followed[0], followed[1]
	r.label(asks, labelled)
	_, err := ranking.RequestProfiles(t.Context(), r.pool, []string{asks, open, "did:nostr:" + open})
	require.NoError(t, err)
	r.execute(`INSERT INTO watches (target) VALUES ($1)`, r.net.Hub().Handle)
	r.becomes(1, `SELECT count(*) FROM watches WHERE synced_at IS NOT NULL`)
	require.Equal(t, []int{0, 1}, []int{r.shown(asks), r.shown(open)})
	require.Equal(t, 1, r.count(`SELECT count(*) FROM profiles WHERE withheld`))
}

// TestFacesGetTheirNames has the accounts of a whole network share links. The page first shows DIDs, and then the
// handles of its faces, which take a call for 25 of them. No other account is asked for; those that are withheld,
// deactivated or deleted get no name.
func TestFacesGetTheirNames(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.pauses(jobs.QueueNetwork)
	var dids []string
	handles := map[string]string{}
	for _, a := range r.net.Accounts() {
		if a.Status == "" && len(dids) < 80 {
			dids, handles[a.DID] = append(dids, a.DID), a.Handle
		}
	}
	r.execute(`WITH l AS (
			INSERT INTO links (identity, url, site, first_seen)
			SELECT 'https://a.example/' || n, 'https://a.example/' || n, 'a.example', now() FROM generate_series(1, 20) AS n RETURNING id
		) INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT d.did, 'app.bsky.feed.post', '1', l.id, l.id, 'post', now() - d.n * interval '1 minute'
		FROM l JOIN unnest($1::text[]) WITH ORDINALITY AS d (did, n) ON (d.n - 1) % 20 = l.id - (SELECT min(id) FROM l)`, dids)
	r.execute(`INSERT INTO profiles (did, read_at, withheld) SELECT DISTINCT did, now(), false FROM shares`)
	asks, deactivated, deleted := dids[0], dids[1], dids[2]
	r.execute(`UPDATE profiles SET withheld = true WHERE did = $1`, asks)
	require.NoError(t, r.net.Deactivate(deactivated))
	require.NoError(t, r.net.Delete(deleted))
	r.becomes(20, `SELECT count(*) FROM top_links WHERE span = '6h'`)
	r.becomes(80, `SELECT count(*) FROM sharers`)
	faces := dids[:60] // the latest three of each link

	handler, err := web.Handler(web.Config{
		Parts: []web.Part{page.Part("")}, DB: r.pool, Now: time.Now, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	shown := func() (names string) {
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
		require.Equal(t, http.StatusOK, rec.Code)
		return rec.Body.String()
	}
	before := shown()
	for _, did := range faces[1:] {
		require.Contains(t, before, "by="+did)
		require.NotContains(t, before, handles[did])
	}
	r.net.ForgetCalls()
	w := &ReadProfiles{pool: r.pool, api: r.api, patience: time.Minute}
	require.NoError(t, w.Work(t.Context(), &river.Job[ReadProfilesArgs]{}))
	after := shown()
	for i, did := range faces {
		if i < 3 {
			require.NotContains(t, after, handles[did])
		} else {
			require.Contains(t, after, handles[did])
		}
	}
	asked := func() (all []string) {
		calls := r.net.Calls("app.bsky.actor.getProfiles")
		require.LessOrEqual(t, len(calls), 3, "59 accounts")
		for _, call := range calls {
			all = append(all, call.Actors...)
		}
		return all
	}
	require.ElementsMatch(t, faces[1:], asked())
	require.NoError(t, w.Work(t.Context(), &river.Job[ReadProfilesArgs]{}))
	require.ElementsMatch(t, faces[1:], asked(), "nobody is asked for again")
	require.Equal(t, 57, r.count(`SELECT count(*) FROM accounts WHERE handle <> '' AND handle_unverified`))
	verify := &VerifyHandles{pool: r.pool, api: r.api, patience: time.Minute}
	require.NoError(t, verify.Work(t.Context(), &river.Job[VerifyHandlesArgs]{}))
	require.Zero(t, r.count(`SELECT count(*) FROM accounts WHERE handle <> '' AND handle_unverified`), "more than a page, in one run")

	r.execute(`UPDATE profiles SET named_at = now() - interval '25 hours', read_at = now()`)
	require.NoError(t, r.net.Rename(faces[9], "renamed.test"))
	require.NoError(t, w.Work(t.Context(), &river.Job[ReadProfilesArgs]{}))
	require.Contains(t, shown(), "renamed.test", "names are read once a day")
}
