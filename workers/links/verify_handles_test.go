package links

import (
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

// TestHandleHasOneOwner shows that a handle is verified in both directions: of the accounts that claim
// it, only the one to which it resolves and whose document names it gets it, also if another had it.
func TestHandleHasOneOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	// The first periodic job would record what it heard before. The next one comes after a minute.
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'verify_handles' AND state = 'completed'`)
	owner, other, renamed := r.net.Accounts()[0], r.net.Accounts()[1], r.net.Accounts()[2]
	const stranger = "did:plc:nobodynobodynobodynobody"
	for _, did := range []string{owner.DID, other.DID, stranger, renamed.DID} {
		r.execute(`INSERT INTO accounts (did, handle, handle_unverified) VALUES ($1, $2, true)`, did, owner.Handle)
		r.execute(`INSERT INTO sharers (did, link_id, at) VALUES ($1, 1, now())`, did)
	}
	r.execute(`UPDATE accounts SET handle = $2 WHERE did = $1`, renamed.DID, renamed.Handle)
	require.NoError(t, r.net.Rename(renamed.DID, "renamed.test"))
	find := func(handle string) string {
		t.Helper()
		did, err := schema.FindDID(t.Context(), r.pool, handle)
		if err != nil {
			require.ErrorIs(t, err, schema.ErrNoRows)
		}
		return did
	}
	require.Empty(t, find(owner.Handle), "three accounts claim it")
	r.execute(`UPDATE accounts SET handle_unverified = false WHERE did = $1`, other.DID) // it owned the handle before
	require.Equal(t, other.DID, find(owner.Handle))
	w := &VerifyHandles{pool: r.pool, api: r.api, patience: time.Minute}
	require.NoError(t, w.Work(t.Context(), &river.Job[VerifyHandlesArgs]{}))
	require.Equal(t, owner.DID, find(owner.Handle))
	require.Equal(t, 3, r.count(`SELECT count(*) FROM accounts WHERE handle_unverified`))
	require.NoError(t, w.Work(t.Context(), &river.Job[VerifyHandlesArgs]{}))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM accounts WHERE NOT handle_unverified`))
	require.Equal(t, 3, r.count(`SELECT count(*) FROM accounts
		WHERE handle_unverified AND handle_checked_at IS NOT NULL`), "also the former owner")
}
