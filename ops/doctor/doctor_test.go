package doctor

import (
	"context"
	"crypto/rand"
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
	good := schema.Server{Version: 150004, Encoding: "UTF8"}
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
	standby := good
	standby.Standby = true
	require.Equal(t, Fail, judgeRole(standby, schema.Rights{}).Level)

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
	needs.Pooled = true
	require.Equal(t, OK, level(70, -1), "a pooler needs few of them")
	require.Equal(t, Fail, level(95, -1))
}

// TestRoles: the owner, and the role of deploy/roles.sql, may do what Weir does;
// each right that is taken away is named.
func TestRoles(t *testing.T) {
	t.Parallel()
	admin := schematest.New(t)
	run := func(sql string) {
		t.Helper()
		_, err := admin.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	role := strings.ToLower("app_" + rand.Text()) // roles are the whole server's
	run(`CREATE ROLE ` + role + ` LOGIN`)
	t.Cleanup(func() {
		_, err := admin.Exec(context.WithoutCancel(t.Context()), `DROP OWNED BY `+role+`; DROP ROLE `+role)
		require.NoError(t, err)
	})
	judged := func() Finding {
		t.Helper()
		tx, err := admin.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(t.Context()) //nolint:errcheck // it only asks
		_, err = tx.Exec(t.Context(), `SET LOCAL ROLE `+role)
		require.NoError(t, err)
		rights, err := schema.ReadRights(t.Context(), tx)
		require.NoError(t, err)
		return judgeRole(schema.Server{}, rights)
	}
	rights, err := schema.ReadRights(t.Context(), admin)
	require.NoError(t, err)
	require.Contains(t, judgeRole(schema.Server{}, rights).Says, "owns the tables")
	require.Regexp(t, `lacks rights: .* on accounts; .* and \d+ more`, judged().Says)

	run(`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO ` + role)
	run(`GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO ` + role)
	run(`GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO ` + role)
	run(`REVOKE INSERT, UPDATE, DELETE ON weir_migration, river_migration FROM ` + role)
	run(`CREATE TABLE of_somebody_else (x int)`)
	require.Equal(t, OK, judged().Level, "%+v", judged())
	require.Contains(t, judged().Says, "are left to weir")

	for _, c := range []struct{ take, give, says string }{
		{`REVOKE DELETE, INSERT ON links FROM ` + role, `GRANT DELETE, INSERT ON links TO ` + role, "INSERT, DELETE on links"},
		{`REVOKE SELECT ON weir_migration FROM ` + role, `GRANT SELECT ON weir_migration TO ` + role, "SELECT on weir_migration"},
		{`REVOKE USAGE ON SEQUENCE river_job_id_seq FROM ` + role, `GRANT USAGE ON SEQUENCE river_job_id_seq TO ` + role, "USAGE on sequence river_job_id_seq"},
		{`REVOKE EXECUTE ON FUNCTION drop_post_partition FROM ` + role, `GRANT EXECUTE ON FUNCTION drop_post_partition TO ` + role, "EXECUTE on drop_post_partition(text)"},
		{`ALTER FUNCTION ensure_post_partition SECURITY INVOKER`, `ALTER FUNCTION ensure_post_partition SECURITY DEFINER`, "may not have partitions made"},
		{`REVOKE USAGE ON SCHEMA public FROM PUBLIC`, `GRANT USAGE ON SCHEMA public TO PUBLIC`, "no schema"},
	} {
		run(c.take)
		f := judged()
		require.Equal(t, Fail, f.Level, c.take)
		require.Contains(t, f.Says, c.says)
		require.NotEmpty(t, f.Do)
		run(c.give)
		require.Equal(t, OK, judged().Level, c.give)
	}
}

// TestHiddenSessions: a role that sees only its own says so, counts the others
// all the same, and takes no index that another role is making for a broken one.
func TestHiddenSessions(t *testing.T) {
	t.Parallel()
	admin := schematest.New(t)
	role := strings.ToLower("blind_" + rand.Text())
	_, err := admin.Exec(t.Context(), `CREATE ROLE `+role+` LOGIN`)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := admin.Exec(context.WithoutCancel(t.Context()), `DROP ROLE `+role)
		require.NoError(t, err)
	})
	held, err := admin.Begin(t.Context()) // a writer: a concurrent index waits for its end
	require.NoError(t, err)
	defer held.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it is ended
	_, err = held.Exec(t.Context(), `INSERT INTO watches (target) VALUES ('a.example')`)
	require.NoError(t, err)
	made := make(chan error, 1)
	go func() {
		_, err := admin.Exec(context.WithoutCancel(t.Context()), `CREATE INDEX CONCURRENTLY being_made ON watches (target)`)
		made <- err
	}()
	tx, err := admin.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it only asks
	const invalid = `SELECT count(*) FROM pg_index WHERE indexrelid = to_regclass('being_made') AND NOT indisvalid`
	require.Eventually(t, func() bool {
		var n int
		require.NoError(t, admin.QueryRow(t.Context(), invalid).Scan(&n))
		return n == 1
	}, time.Minute, time.Millisecond)
	_, err = tx.Exec(t.Context(), `SET LOCAL ROLE `+role)
	require.NoError(t, err)
	broken, err := schema.InvalidIndexes(t.Context(), tx)
	require.NoError(t, err)
	require.NotContains(t, broken, "being_made")
	server, err := schema.ReadServer(t.Context(), tx)
	require.NoError(t, err)
	require.GreaterOrEqual(t, server.Others, 3, "its own, the writer's and the index's")
	everybodys, err := schema.SeesSessions(t.Context(), tx)
	require.NoError(t, err)
	require.False(t, everybodys)
	require.NoError(t, held.Rollback(t.Context()))
	require.NoError(t, tx.Rollback(t.Context())) // else the index waits for it
	require.NoError(t, <-made)
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
