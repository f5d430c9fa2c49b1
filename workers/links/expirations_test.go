package links

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

// TestEventsExpireAtTheirTime shows that events expire with their shares. A newer revision that
// does not expire is kept, and an older one is not stored again.
func TestEventsExpireAtTheirTime(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	note, later := nostrKey("1", "a", noteID("1")), nostrKey("1", "a", noteID("2"))
	edited, article := nostrKey("30023", "a", "edited"), nostrKey("30023", "a", "article")
	raw, err := json.Marshal(map[string]any{"content": c.news, "tags": []string{}})
	require.NoError(t, err)
	store := func(key schema.Key, rev string, expires time.Time) {
		c.apply(schema.Batch{Writes: []schema.Write{{Key: key, Rev: rev, CreatedAt: time.Now().Add(-time.Hour), Record: raw, Expires: expires}}})
		c.work(key)
	}
	soon := time.Now().Add(time.Hour)
	store(note, "1", soon)
	store(later, "1", soon.Add(time.Hour))
	store(edited, "1", soon)
	store(edited, "2", time.Time{})
	store(article, "2", soon)
	err = c.deletesExpired(time.Now())
	require.NoError(t, err)
	require.Len(t, c.rows(`SELECT rkey FROM records`), 4, "nothing is due")

	err = c.deletesExpired(soon.Add(time.Minute))
	require.NoError(t, err)
	require.Len(t, c.rows(`SELECT rkey FROM records`), 4, "a clock that is ahead deletes nothing early")
	_, err = c.pool.Exec(t.Context(), `UPDATE expirations SET expires_at = expires_at - interval '61 minutes'`)
	require.NoError(t, err)
	err = c.deletesExpired(time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{later.Rkey, "edited"}, c.rows(`SELECT rkey FROM records ORDER BY rkey`))
	require.Equal(t, []string{later.Rkey, "edited"}, c.rows(`SELECT rkey FROM shares ORDER BY rkey`))
	require.Equal(t, []string{later.Rkey}, c.rows(`SELECT rkey FROM expirations`))
	store(article, "1", time.Time{})
	require.Empty(t, c.sharedBy(article), "the older version, sent by a relay again, must not be stored")
	store(article, "3", time.Time{})
	require.NotEmpty(t, c.sharedBy(article))
}

// deletesExpired deletes what is due, as the core's job does.
func (c *town) deletesExpired(now time.Time) error {
	return pgx.BeginFunc(c.t.Context(), c.pool, func(tx pgx.Tx) error {
		_, err := schema.DeleteExpired(c.t.Context(), tx, schema.NewProjections(Projection()), now, 500)
		return err
	})
}
