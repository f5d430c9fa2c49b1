package bisect

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEachIsolatesTheBad shows that the good ones pass once and in order, that each bad one is alone, and that
// another error ends the search.
func TestEachIsolatesTheBad(t *testing.T) {
	t.Parallel()
	errBad, errOther := errors.New("bad"), errors.New("other")
	var passed, isolated []int
	try := func(part []int) error {
		if slices.Contains(part, 3) || slices.Contains(part, 8) {
			return errBad
		}
		if slices.Contains(part, 99) {
			return errOther
		}
		passed = append(passed, part...)
		return nil
	}
	ofOne := func(err error) bool { return errors.Is(err, errBad) }
	alone := func(n int, err error) error {
		require.ErrorIs(t, err, errBad)
		isolated = append(isolated, n)
		return nil
	}
	require.NoError(t, Each([]int{1, 2, 3, 4, 5, 6, 7, 8, 9}, try, ofOne, alone))
	require.Equal(t, []int{1, 2, 4, 5, 6, 7, 9}, passed)
	require.Equal(t, []int{3, 8}, isolated)

	passed, isolated = nil, nil
	require.ErrorIs(t, Each([]int{3, 1, 99, 2}, try, ofOne, alone), errOther)
	require.Equal(t, []int{1}, passed)
	require.ErrorIs(t, Each([]int{3}, try, ofOne, func(int, error) error { return errOther }), errOther)
	require.NoError(t, Each(nil, func([]int) error { return errOther }, ofOne, alone))
}
