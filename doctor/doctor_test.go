package doctor

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// TestChecksRunSideBySide, and one that does not end costs its own answer only.
func TestChecksRunSideBySide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		after := func(d time.Duration, name string) Check {
			return Check{name, func(context.Context) []Finding { // it does not listen to its context
				time.Sleep(d)
				return []Finding{ok(name, "fine")}
			}}
		}
		began := time.Now()
		found := Run(t.Context(), 5*time.Second, after(4*time.Second, "a"), after(time.Minute, "b"), after(5*time.Second, "c"))
		require.Equal(t, 5*time.Second+grace, time.Since(began))
		require.Len(t, found, 3)
		require.Equal(t, OK, found[0].Level)
		require.Equal(t, Fail, found[1].Level)
		require.Equal(t, "b", found[1].Check)
		require.Equal(t, OK, found[2].Level)
		require.Equal(t, Fail, Worst(found))
		require.Equal(t, OK, Worst(nil))
		time.Sleep(time.Minute) // b ends too
	})
}

func TestClocks(t *testing.T) {
	t.Parallel()
	for apart, level := range map[time.Duration]Level{0: OK, time.Second: OK, -3 * time.Second: Warn, 3 * time.Second: Warn, -2 * time.Minute: Fail} {
		require.Equal(t, level, clock("c", apart, 0).Level, apart)
	}
	require.Equal(t, OK, clock("c", 3*time.Second, time.Second+time.Millisecond).Level, "what is uncertain is no fault")
	require.Contains(t, clock("c", -time.Hour, 0).Says, "behind")
	require.Contains(t, clock("c", time.Hour, 0).Says, "ahead")
}

// TestServers that a test cannot have.
func TestServers(t *testing.T) {
	t.Parallel()
	good := schema.Server{Version: 150004, Encoding: "UTF8", MayCreate: true}
	levels := func(s schema.Server) map[string]Level {
		found := map[string]Level{}
		for _, f := range judgeServer(s) {
			if f.Level != OK {
				found[f.Check] = f.Level
				require.NotEmpty(t, f.Do)
			}
		}
		return found
	}
	require.Empty(t, levels(good))
	for what, c := range map[string]struct {
		change func(*schema.Server)
		level  Level
	}{
		"version of Postgres": {func(s *schema.Server) { s.Version = 140011 }, Fail},
		"collation":           {func(s *schema.Server) { s.Collation, s.CollationIs = "2.31", "2.36" }, Warn},
		"role":                {func(s *schema.Server) { s.Standby = true }, Fail},
		"transaction ids":     {func(s *schema.Server) { s.XIDAge = 600_000_000 }, Warn},
	} {
		bad := good
		c.change(&bad)
		require.Equal(t, map[string]Level{what: c.level}, levels(bad))
	}
	late := good
	late.XIDAge = 1_600_000_000
	require.Equal(t, map[string]Level{"transaction ids": Fail}, levels(late))
	future := good
	future.Version = 190000
	require.Equal(t, map[string]Level{"version of Postgres": Warn}, levels(future))
	powerless := good
	powerless.MayCreate = false
	require.Equal(t, map[string]Level{"role": Fail}, levels(powerless))

	require.Equal(t, OK, judgeSlots(nil)[0].Level)
	require.Equal(t, OK, judgeSlots([]schema.Slot{{Name: "s", Active: true, Bytes: giga}})[0].Level)
	require.Equal(t, Warn, judgeSlots([]schema.Slot{{Name: "s"}})[0].Level)
	require.Equal(t, Fail, judgeSlots([]schema.Slot{{Name: "s", Active: true, Bytes: 6 * giga}})[0].Level)
}

func TestConnections(t *testing.T) {
	t.Parallel()
	needs := Needs{Connections: 29}
	most := schema.Setting{Name: "max_connections", Value: "100"}
	level := func(others, limit int) Level {
		return judgeConnections(needs, schema.Server{Reserved: 3, Others: others, Limit: limit}, most).Level
	}
	require.Equal(t, OK, level(10, -1))
	require.Equal(t, Warn, level(50, -1))
	require.Equal(t, Fail, level(70, -1))
	require.Equal(t, Fail, level(0, 20))
}

// TestSettingsOfADefaultServer: every setting that is judged is one that the
// server has, but those of newer ones.
func TestSettingsOfADefaultServer(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	settings, err := schema.Settings(t.Context(), pool, settingNames())
	require.NoError(t, err)
	there := map[string]bool{}
	for _, s := range settings {
		there[s.Name] = true
	}
	for _, name := range settingNames() {
		require.True(t, there[name] || name == "transaction_timeout", name)
	}
}

// TestOldTransactions: one that is open with a snapshot is found, with the
// statement that ends it.
func TestOldTransactions(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it is ended
	var pid string
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT pg_backend_pid()::text FROM (SELECT pg_current_xact_id()) AS x`).Scan(&pid))
	mine := func(before time.Time) bool {
		old, err := schema.OldSnapshots(t.Context(), pool, before)
		require.NoError(t, err)
		for _, s := range old {
			if strings.Contains(s.What, "("+pid+")") {
				return true
			}
		}
		return false
	}
	require.True(t, mine(time.Now().Add(time.Hour)))
	require.False(t, mine(time.Now().Add(-time.Hour)))
	require.NoError(t, tx.Rollback(t.Context()))
	require.False(t, mine(time.Now().Add(time.Hour)))
}
