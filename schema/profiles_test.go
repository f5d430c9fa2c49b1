package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestNamesGoWithTheirAccounts stores names of accounts: only the active ones get any, whatever the service says, and
// these are gone when the account is deleted, or when nothing of it is stored.
func TestNamesGoWithTheirAccounts(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	named := func() []string {
		t.Helper()
		return column(t, pool, `SELECT did FROM accounts WHERE handle <> '' OR display_name <> '' OR avatar <> '' ORDER BY did`)
	}
	execute(t, pool, `INSERT INTO accounts (did, status, status_at, erased_rev) VALUES ('did:plc:active', 'active', NULL, NULL),
		('did:plc:gone', 'deleted', $1, NULL), ('did:plc:asleep', 'deactivated', $1, NULL), ('did:plc:erased', 'active', NULL, '3z')`, noon())
	var all []schema.Member
	var dids []string
	for _, name := range []string{"active", "asleep", "erased", "gone", "new"} {
		did := "did:plc:" + name
		dids = append(dids, did)
		all = append(all, schema.Member{DID: did, Handle: name + ".Example", DisplayName: "A\x00", Avatar: "https://a.example/"})
	}
	execute(t, pool, `INSERT INTO profiles (did, withheld) SELECT did, false FROM unnest($1::text[]) AS k (did)`, dids)
	require.NoError(t, schema.RecordNames(t.Context(), pool, dids, all, noon()))
	require.Equal(t, []string{"did:plc:active", "did:plc:new"}, named())
	require.Equal(t, []string{"active.example", "new.example"},
		column(t, pool, `SELECT handle FROM accounts WHERE handle_unverified AND display_name <> '' ORDER BY did`))

	execute(t, pool, `UPDATE accounts SET status = 'deleted', status_at = $1 WHERE did = 'did:plc:active'`, noon())
	done, err := schema.FinishPurge(t.Context(), pool, madeProjection(), "did:plc:active", nil, noon(), 7*day)
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, []string{"did:plc:new"}, named())
	execute(t, pool, `UPDATE accounts SET check_at = $1`, noon())
	expireAccounts(t, pool, noon())
	require.Empty(t, named())
}
