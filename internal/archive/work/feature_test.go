package work

import (
	"os"
	"testing"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/ops/compare"
	"github.com/weir-social/weir/internal/ops/doctor"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestForgettingCanBeSwitchedOff reads never as an interval that does not end.
func TestForgettingCanBeSwitchedOff(t *testing.T) {
	t.Setenv("WEIR_ARCHIVE_FORGET", "never")
	v, err := env.ParseAs[Variables]()
	require.NoError(t, err)
	require.Greater(t, time.Duration(v.Forget), 99*365*24*time.Hour)
	for _, wrong := range []string{"Never", "30 days"} {
		t.Setenv("WEIR_ARCHIVE_FORGET", wrong)
		_, err = env.ParseAs[Variables]()
		require.Error(t, err, wrong)
	}
	v.Forget = orNever(time.Millisecond)
	_, err = v.open(feature.Core{})
	require.ErrorContains(t, err, "WEIR_ARCHIVE_FORGET")
}

// TestDoctorTriesTheStore shows that a check writes, reads and deletes an object.
func TestDoctorTriesTheStore(t *testing.T) {
	t.Parallel()
	v, err := env.ParseAs[Variables]()
	require.NoError(t, err)
	root := t.TempDir()
	v.Archive = "dir:" + root
	parts, err := v.open(feature.Core{})
	require.NoError(t, err)
	found := doctor.Run(t.Context(), time.Minute, parts.Checks...)
	require.Len(t, found, 1)
	require.Equal(t, doctor.OK, found[0].Level, "%+v", found)
	left, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, os.Remove(root))
	require.Equal(t, doctor.Fail, doctor.Run(t.Context(), time.Minute, parts.Checks...)[0].Level)
}

// TestForgottenDeletionsAreNotCompared shows that a rebuilt database may lack them.
func TestForgottenDeletionsAreNotCompared(t *testing.T) {
	t.Parallel()
	v, err := env.ParseAs[Variables]()
	require.NoError(t, err)
	parts, err := v.open(feature.Core{})
	require.NoError(t, err)
	first, second := schematest.New(t), schematest.New(t)
	_, err = first.Exec(t.Context(), `
INSERT INTO accounts (did) VALUES ('did:plc:gone');
INSERT INTO tombstones (collection, did, rkey, rev, deleted_at) VALUES ('app.bsky.feed.like', 'did:plc:gone', 'gone', '3', '2026-01-01Z')`)
	require.NoError(t, err)
	differences := func() (n int) {
		_, err := compare.Databases(t.Context(), first, second, compare.Tables(nil, parts.Uncompared...), func(compare.Difference) { n++ })
		require.NoError(t, err)
		return n
	}
	require.Equal(t, 1, differences())
	_, err = first.Exec(t.Context(), `INSERT INTO forgotten (did, until, reason) VALUES ('did:plc:gone', '2026-01-01Z', 'deleted')`)
	require.NoError(t, err)
	require.Zero(t, differences())
}
