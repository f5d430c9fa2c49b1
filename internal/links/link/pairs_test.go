package link

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	//go:embed testdata/pairs.tsv
	knownPairs string
	//go:embed testdata/pairs-collected.tsv
	collectedPairs string
	//go:embed testdata/pairs-held-out.tsv
	heldOutPairs string
)

// tally counts pairs of one page that are joined, and pairs of different pages that are kept apart.
type tally struct{ joined, same, apart, different int }

func (c *tally) add(want, got bool) {
	switch {
	case want:
		c.same++
		if got {
			c.joined++
		}
	default:
		c.different++
		if !got {
			c.apart++
		}
	}
}

func (c tally) recall() float64 { return float64(c.joined) / float64(max(c.same, 1)) }

// String returns recall and precision, and the pairs that are kept apart.
func (c tally) String() string {
	merged := c.different - c.apart
	return fmt.Sprintf("%3d of %3d joined (%3.0f %%), %3d of %3d kept apart, precision %3.0f %%", c.joined, c.same,
		100*c.recall(), c.apart, c.different,
		100*float64(c.joined)/float64(max(c.joined+merged, 1)))
}

// TestPairs measures how many addresses of one page have one identity, and how many pages that look
// alike have their own.
func TestPairs(t *testing.T) {
	t.Parallel()
	known := tallies(t, knownPairs)
	require.GreaterOrEqual(t, known["common"].recall(), 0.9)
	require.GreaterOrEqual(t, known["niche"].recall(), 0.7)
	require.Equal(t, known["all"].different, known["all"].apart, "two pages count as one")
	collected := tallies(t, collectedPairs)
	require.GreaterOrEqual(t, collected["all"].recall(), 0.95)
	require.Equal(t, collected["all"].different, collected["all"].apart)
	unseen := tallies(t, heldOutPairs)
	require.GreaterOrEqual(t, unseen["all"].recall(), 0.75)
	require.GreaterOrEqual(t, float64(unseen["all"].apart)/float64(unseen["all"].different), 0.98)
	for name, of := range map[string]map[string]tally{"known": known, "collected": collected, "held out": unseen} {
		for _, kind := range slices.Sorted(maps.Keys(of)) {
			t.Logf("%-9s %-10s %s", name, kind, of[kind])
		}
	}
}

// tallies counts the pairs of a list by their tiers, by their kinds, and all of them.
func tallies(t *testing.T, list string) map[string]tally {
	t.Helper()
	of := map[string]tally{}
	for line := range strings.Lines(list) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if strings.HasPrefix(line, "#") {
			continue
		}
		require.Len(t, fields, 6, line)
		one, err := Parse(fields[3])
		require.NoError(t, err, line)
		other, err := Parse(fields[4])
		require.NoError(t, err, line)
		requireOneIdentity(t, one)
		requireOneIdentity(t, other)
		for _, name := range []string{"all", fields[1], fields[2]} {
			c := of[name]
			c.add(fields[0] == "same", one.Identity == other.Identity)
			of[name] = c
		}
	}
	return of
}
