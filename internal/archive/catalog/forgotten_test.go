package catalog_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestDeletedAccountIsForgotten shows that an account is forgotten up to the time at which its
// server reported the deletion, also if the account comes back. A report that is older than its
// status does not count. The account's purge is finished when a list in the store names it.
func TestDeletedAccountIsForgotten(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	const did = "did:plc:é"
	status := func(status string, at, sent time.Time) {
		t.Helper()
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := (&schema.Batch{
				Statuses:  []schema.Status{{DID: did, Status: status, At: at, Sent: sent}},
				Committer: schema.Committer{Hooks: []schema.Hook{catalog.Hook("")}},
			}).Apply(t.Context(), tx, schema.Lease{})
			return err
		}))
	}
	unlisted := func() []archive.Forgotten {
		t.Helper()
		list, err := catalog.UnlistedAccounts(t.Context(), pool, 10)
		require.NoError(t, err)
		return list
	}
	at := time.Now().Add(-24 * time.Hour).UTC().Truncate(time.Microsecond)
	status("deleted", at.Add(-time.Hour), at.Add(-time.Hour))
	require.Empty(t, unlisted(), "there is no archive")
	_, err := pool.Exec(t.Context(), `INSERT INTO archive_open (stream, wire, records, raw_bytes, blob) VALUES ('s', 'w', 0, 0, '')`)
	require.NoError(t, err)
	status("deleted", at, at.Add(time.Second))
	require.Equal(t, []archive.Forgotten{{DID: did, Until: at.Add(time.Second), Reason: archive.ReasonDeleted}}, unlisted())

	done, err := schema.FinishPurge(t.Context(), pool, nil, did, nil, time.Now(), time.Hour, catalog.Hook(""))
	require.NoError(t, err)
	require.False(t, done, "the purge must not be finished before a list names the account")
	require.NoError(t, catalog.MarkListed(t.Context(), pool, unlisted()))
	require.Empty(t, unlisted())
	done, err = schema.FinishPurge(t.Context(), pool, nil, did, nil, time.Now(), time.Hour, catalog.Hook(""))
	require.NoError(t, err)
	require.True(t, done)

	forget, err := catalog.ToForget(t.Context(), pool, []int64{archive.AuthorHash(did)})
	require.NoError(t, err)
	late := archive.Said{Author: did, At: at.Add(time.Minute)}
	require.True(t, forget.Goes(late), "it is still deleted")
	status("active", at.Add(2*time.Second), at.Add(2*time.Second))
	status("deleted", at.Add(-time.Minute), time.Now())
	require.Empty(t, unlisted(), "it is active since later")
	forget, err = catalog.ToForget(t.Context(), pool, []int64{archive.AuthorHash(did), 7})
	require.NoError(t, err)
	require.False(t, forget.Goes(late), "records after the account's return must stay")
	require.True(t, forget.Goes(archive.Said{Author: did, At: at}))
	require.False(t, forget.Goes(archive.Said{Author: "did:plc:other", At: at}))
}

// TestDeletedRecordIsForgotten shows that all revisions up to the deletion are forgotten. A record
// from a listing has no revision: it is forgotten if it was read before the deletion.
func TestDeletedRecordIsForgotten(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO archive_open (stream, wire, records, raw_bytes, blob) VALUES ('s', 'w', 0, 0, '')`)
	require.NoError(t, err)
	at := time.Now().UTC().Truncate(time.Microsecond)
	key := schema.Key{Collection: "c", DID: "did:plc:a", Rkey: "k"}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return schema.DeleteRecords(t.Context(), tx, []schema.Deletion{{Key: key, Rev: "3m", At: at}}, nil, catalog.Hook(""))
	}))
	forget, err := catalog.ToForget(t.Context(), pool, []int64{archive.AuthorHash(key.DID)})
	require.NoError(t, err)
	said := func(key, rev string, sent time.Time) archive.Said {
		return archive.Said{Author: "did:plc:a", At: sent, Collection: "c", Key: key, Revision: rev}
	}
	require.True(t, forget.Goes(said("k", "3l", at.Add(time.Hour))))
	require.True(t, forget.Goes(said("k", "3m", at)))
	require.False(t, forget.Goes(said("k", "3n", at)), "a record that was written again must stay")
	require.False(t, forget.Goes(said("l", "3l", at)))
	require.True(t, forget.Goes(said("k", schema.ListedRev, at)))
	require.False(t, forget.Goes(said("k", schema.ListedRev, at.Add(time.Hour))))
	require.False(t, forget.Goes(archive.Said{Author: "did:plc:a", At: at}), "its name")
}
