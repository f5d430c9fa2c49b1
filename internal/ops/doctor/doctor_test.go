package doctor

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestChecksRunInParallel also shows that a check that does not end affects only its own finding.
func TestChecksRunInParallel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		after := func(d time.Duration, name string) Check {
			return Check{name, func(context.Context) []Finding { // ignores its context
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
	for offset, level := range map[time.Duration]Level{
		0: OK, time.Second: OK, -3 * time.Second: Warn, 3 * time.Second: Warn, -2 * time.Minute: Fail,
	} {
		require.Equal(t, level, clock("c", offset, 0).Level, offset)
	}
	require.Equal(t, OK, clock("c", 3*time.Second, time.Second+time.Millisecond).Level, "the offset may be an error of the measurement")
	require.Contains(t, clock("c", -time.Hour, 0).Message, "behind")
	require.Contains(t, clock("c", time.Hour, 0).Message, "ahead")
}

// TestUnusualServers checks servers that a test cannot start.
func TestUnusualServers(t *testing.T) {
	t.Parallel()
	good := schema.Server{Version: 150004, Encoding: "UTF8"}
	levels := func(s schema.Server) map[string]Level {
		found := map[string]Level{}
		for _, f := range checkServer(s) {
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
	require.Equal(t, Fail, checkRole(standby, schema.Rights{}).Level)

	require.Equal(t, OK, checkSlots(nil)[0].Level)
	require.Equal(t, OK, checkSlots([]schema.Slot{{Name: "s", Active: true, Bytes: giga}})[0].Level)
	require.Equal(t, Warn, checkSlots([]schema.Slot{{Name: "s"}})[0].Level)
	require.Equal(t, Fail, checkSlots([]schema.Slot{{Name: "s", Active: true, Bytes: 6 * giga}})[0].Level)
}

func TestConnections(t *testing.T) {
	t.Parallel()
	needs := Needs{Connections: 29}
	most := schema.Setting{Name: "max_connections", Value: "100"}
	level := func(others, limit int) Level {
		return checkConnections(needs, schema.Server{Reserved: 3, Others: others, Limit: limit}, most).Level
	}
	require.Equal(t, OK, level(10, -1))
	require.Equal(t, Warn, level(50, -1))
	require.Equal(t, Fail, level(70, -1))
	require.Equal(t, Fail, level(0, 20))
	needs.Pooled = true
	require.Equal(t, OK, level(70, -1), "a pooler needs few connections")
	require.Equal(t, Fail, level(95, -1))
}

// TestRoles checks that the owner and the role of deploy/roles.sql have every
// privilege that Weir needs, and that each revoked privilege is reported.
func TestRoles(t *testing.T) {
	t.Parallel()
	admin := schematest.New(t)
	run := func(sql string) {
		t.Helper()
		_, err := admin.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	role := strings.ToLower("app_" + rand.Text()) // roles belong to the whole server
	run(`CREATE ROLE ` + role + ` LOGIN`)
	t.Cleanup(func() {
		_, err := admin.Exec(context.WithoutCancel(t.Context()), `DROP OWNED BY `+role+`; DROP ROLE `+role)
		require.NoError(t, err)
	})
	checked := func() Finding {
		t.Helper()
		tx, err := admin.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(t.Context()) // it only reads
		_, err = tx.Exec(t.Context(), `SET LOCAL ROLE `+role)
		require.NoError(t, err)
		rights, err := schema.ReadRights(t.Context(), tx)
		require.NoError(t, err)
		return checkRole(schema.Server{}, rights)
	}
	rights, err := schema.ReadRights(t.Context(), admin)
	require.NoError(t, err)
	require.Contains(t, checkRole(schema.Server{}, rights).Message, "owns the tables")
	require.Regexp(t, `lacks privileges: .* on accounts; .* and \d+ more`, checked().Message)

	run(`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO ` + role)
	run(`GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO ` + role)
	run(`GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO ` + role)
	run(`REVOKE INSERT, UPDATE, DELETE ON weir_migration, river_migration FROM ` + role)
	run(`CREATE TABLE of_another_program (x int)`)
	require.Equal(t, OK, checked().Level, "%+v", checked())
	require.Contains(t, checked().Message, "migrations and indexes need weir")

	for _, c := range []struct{ revoke, grant, says string }{
		{`REVOKE DELETE, INSERT ON records FROM ` + role, `GRANT DELETE, INSERT ON records TO ` + role, "INSERT, DELETE on records"},
		{`REVOKE SELECT ON weir_migration FROM ` + role, `GRANT SELECT ON weir_migration TO ` + role, "SELECT on weir_migration"},
		{
			`REVOKE USAGE ON SEQUENCE river_job_id_seq FROM ` + role, `GRANT USAGE ON SEQUENCE river_job_id_seq TO ` + role,
			"USAGE on sequence river_job_id_seq",
		},
		{
			`REVOKE EXECUTE ON FUNCTION drop_partition FROM ` + role, `GRANT EXECUTE ON FUNCTION drop_partition TO ` + role,
			"EXECUTE on drop_partition(text)",
		},
		{`ALTER FUNCTION ensure_partition SECURITY INVOKER`, `ALTER FUNCTION ensure_partition SECURITY DEFINER`, "cannot create partitions"},
		{`REVOKE USAGE ON SCHEMA public FROM PUBLIC`, `GRANT USAGE ON SCHEMA public TO PUBLIC`, "cannot use any schema"},
	} {
		run(c.revoke)
		f := checked()
		require.Equal(t, Fail, f.Level, c.revoke)
		require.Contains(t, f.Message, c.says)
		require.NotEmpty(t, f.Do)
		run(c.grant)
		require.Equal(t, OK, checked().Level, c.grant)
	}
}

// TestHiddenSessions checks a role that cannot see the sessions of other roles: it is
// reported, the other sessions are counted, and an index that another role is
// building is not reported as invalid.
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
	held, err := admin.Begin(t.Context()) // a concurrent index waits for the end of this transaction
	require.NoError(t, err)
	defer held.Rollback(context.WithoutCancel(t.Context())) // the transaction has ended
	_, err = held.Exec(t.Context(), `INSERT INTO watches (target) VALUES ('a.example')`)
	require.NoError(t, err)
	made := make(chan error, 1)
	go func() {
		_, err := admin.Exec(context.WithoutCancel(t.Context()), `CREATE INDEX CONCURRENTLY being_made ON watches (target)`)
		made <- err
	}()
	tx, err := admin.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.WithoutCancel(t.Context())) // it only reads
	const invalid = `SELECT count(*) FROM pg_index WHERE indexrelid = to_regclass('being_made') AND NOT indisvalid`
	eventually.True(t, func() bool {
		var n int
		require.NoError(t, admin.QueryRow(t.Context(), invalid).Scan(&n))
		return n == 1
	}, 10*time.Millisecond)
	_, err = tx.Exec(t.Context(), `SET LOCAL ROLE `+role)
	require.NoError(t, err)
	broken, err := schema.InvalidIndexes(t.Context(), tx)
	require.NoError(t, err)
	require.NotContains(t, broken, "being_made")
	server, err := schema.ReadServer(t.Context(), tx)
	require.NoError(t, err)
	require.GreaterOrEqual(t, server.Others, 3, "its own session, the writer's and that of the index")
	seesAll, err := schema.CanSeeSessions(t.Context(), tx)
	require.NoError(t, err)
	require.False(t, seesAll)
	require.NoError(t, held.Rollback(t.Context()))
	require.NoError(t, tx.Rollback(t.Context())) // otherwise the index build waits for it
	require.NoError(t, <-made)
}

// TestSettingsOfADefaultServer checks that the server has every setting that the doctor checks,
// except those of newer servers.
func TestSettingsOfADefaultServer(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	settings, err := schema.Settings(t.Context(), pool, settingNames())
	require.NoError(t, err)
	known := map[string]bool{}
	for _, s := range settings {
		known[s.Name] = true
	}
	for _, name := range settingNames() {
		require.True(t, known[name] || name == "transaction_timeout", name)
	}
}

// TestOldTransactions checks that an open transaction with a snapshot is found, with
// the statement that ends it.
func TestOldTransactions(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.WithoutCancel(t.Context())) // the transaction has ended
	var pid string
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT pg_backend_pid()::text FROM (SELECT pg_current_xact_id()) AS x`).Scan(&pid))
	mine := func(before time.Time) bool {
		old, err := schema.OldTransactions(t.Context(), pool, before)
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
