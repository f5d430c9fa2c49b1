package app

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

// followed returns this many followed accounts.
func followed(n int) schema.Followed {
	var f schema.Followed
	for i := range n {
		f.DIDs = append(f.DIDs, fmt.Sprintf("did:plc:%d", i))
	}
	return f
}

// TestEveryoneIsRequestedAboveTheLimit shows that all accounts are requested above the limit, until
// the number of accounts is a tenth below it.
func TestEveryoneIsRequestedAboveTheLimit(t *testing.T) {
	t.Parallel()
	f := &follows{limit: 20}
	for _, step := range []struct {
		accounts int
		everyone bool
	}{{0, false}, {20, false}, {21, true}, {20, true}, {19, true}, {18, false}, {20, false}, {30, true}, {0, false}} {
		filter := f.filter(followed(step.accounts), []string{schema.PostCollection})
		require.Equal(t, step.everyone, filter.Everyone, "%v", step)
		require.Equal(t, []string{schema.PostCollection}, filter.Collections)
		if step.everyone {
			require.Empty(t, filter.Accounts)
		} else {
			require.Len(t, filter.Accounts, step.accounts)
		}
	}
	require.True(t, f.filter(schema.Followed{Everyone: true}, nil).Everyone)
	require.True(t, (&follows{}).filter(followed(0), nil).Everyone, "a source that cannot request accounts must request everyone")
}

// TestOnlyFollowedAccountsAreIncluded shows that this holds whatever is requested.
func TestOnlyFollowedAccountsAreIncluded(t *testing.T) {
	t.Parallel()
	f := &follows{}
	require.True(t, f.includes("did:plc:0"), "everyone must be included until the accounts are known")
	f.take(followed(2))
	require.True(t, f.includes("did:plc:1"))
	require.False(t, f.includes("did:plc:2"))
	f.take(schema.Followed{Everyone: true})
	require.True(t, f.includes("did:plc:2"))
}
