package e2e

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ops/doctor"
	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// careful starts a server with safe settings, unlike the server of the other
// tests, so that the doctor finds nothing wrong with it.
func careful(t *testing.T) *devpg.Server {
	t.Helper()
	server, err := devpg.Start(context.Background(), devpg.Options{Fsync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	executes(t, server.URL("weir"), `ALTER SYSTEM SET idle_in_transaction_session_timeout = '10min'`, `SELECT pg_reload_conf()`)
	return server
}

// executes runs the statements one by one.
func executes(t *testing.T, database string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	require.NoError(t, err)
	defer conn.Close(t.Context()) // the test is over
	for _, sql := range statements {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
}

// examined returns the doctor's findings.
func examined(t *testing.T, env []string, args ...string) (found []doctor.Finding, code int) {
	t.Helper()
	stdout, stderr, code := weir(t, env, append([]string{"doctor", "--json", "--within", "5m"}, args...)...)
	var report struct {
		Level    doctor.Level
		Findings []doctor.Finding
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &report), stdout+stderr)
	require.Equal(t, report.Level == doctor.Fail, code == 1, "only a failure sets the exit code")
	return report.Findings, code
}

// of returns the findings of one check.
func of(found []doctor.Finding, check string) (some []doctor.Finding) {
	for _, f := range found {
		if f.Check == check {
			some = append(some, f)
		}
	}
	return some
}

// finding returns the only finding of a check.
func finding(t *testing.T, found []doctor.Finding, check string) doctor.Finding {
	t.Helper()
	some := of(found, check)
	require.Len(t, some, 1, "%s in %+v", check, found)
	return some[0]
}

// TestDoctorFindsNothing shows that every check of a healthy system is ok.
func TestDoctorFindsNothing(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n, err := simnet.New(simnet.Config{Seed: 11, Accounts: 400, History: 100, HistorySpan: time.Hour,
		Access: simnet.Access{Password: "only for Weir"}})
	require.NoError(t, err)
	startNetwork(t, n)
	server := careful(t)
	env := append(keeping(follower(n, server.URL("weir"))), "WEIR_PDS="+n.PDSURL(), "WEIR_IDENTIFIER="+n.Hub().Handle,
		"WEIR_APP_PASSWORD=only for Weir")
	succeed(t, env, "migrate")
	serve := start(t, env, "serve")
	becomes(t, serve.opsURL(t), "quiet")
	stop := live(t, n, 100)
	defer stop()
	found := allWell(t, env)
	for _, check := range []string{"configuration", "version", "database", "migrations", "version of Postgres", "clock of Postgres",
		"setting fsync", "setting max_connections", "projections", "lease", "old transactions", "replication slots", "indexes", "pooler",
		"jetstream " + n.Address(), "appview " + n.Address(), "clock of appview " + n.Address(), "directory " + n.Address(), "login",
		"collections"} {
		finding(t, found, check)
	}
	require.Contains(t, finding(t, found, "lease").Message, "holds the lease")
	text, _, _ := weir(t, env, "doctor", "--within", "5m")
	for line := range strings.Lines(text) {
		require.Regexp(t, `^(ok|warn|fail) `, line, "one line for each check:\n%s", text)
	}
	require.Greater(t, strings.Count(text, "\n"), 20)
}

// TestDoctorChecksSettings shows that each harmful setting is reported with a
// statement that repairs it.
func TestDoctorChecksSettings(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := network(t, 50)
	server := careful(t)
	database := server.URL("weir")
	env := follower(n, database)
	succeed(t, env, "migrate")
	hurts := map[string]doctor.Level{"fsync = off": doctor.Fail, "full_page_writes = off": doctor.Fail,
		"synchronous_commit = off": doctor.Warn, "autovacuum = off": doctor.Fail, "track_counts = off": doctor.Fail,
		"work_mem = '64kB'": doctor.Warn, "max_wal_size = '64MB'": doctor.Warn, "checkpoint_timeout = '30s'": doctor.Warn,
		"lock_timeout = '7s'": doctor.Warn}
	ofDatabase := map[string]doctor.Level{"statement_timeout = '7s'": doctor.Fail,
		"default_transaction_isolation = 'repeatable read'": doctor.Fail, "session_replication_role = replica": doctor.Fail,
		"TimeZone = 'Europe/Berlin'": doctor.Warn, "idle_session_timeout = '1min'": doctor.Warn}
	var statements []string
	for set := range hurts {
		statements = append(statements, `ALTER SYSTEM SET `+set)
	}
	for set, level := range ofDatabase {
		statements = append(statements, `ALTER DATABASE weir SET `+set)
		hurts[set] = level
	}
	executes(t, database, append(statements, `ALTER DATABASE weir CONNECTION LIMIT 20`, `SELECT pg_reload_conf()`)...)
	var found []doctor.Finding
	eventually.True(t, func() bool {
		found, _ = examined(t, env)
		return finding(t, found, "setting fsync").Level == doctor.Fail
	}, 10*time.Millisecond, "the server has not reloaded its configuration")
	var repairs []string
	for set, level := range hurts {
		name, _, _ := strings.Cut(set, " ")
		f := finding(t, found, "setting "+name)
		require.Equal(t, level, f.Level, "%+v", f)
		require.Regexp(t, `^ALTER (SYSTEM|DATABASE "weir") SET `+name+` = `, f.Do)
		repairs = append(repairs, strings.Split(f.Do, "; ")...)
	}
	f := finding(t, found, "setting max_connections")
	require.Equal(t, doctor.Fail, f.Level, "%+v", f)
	require.Contains(t, f.Do, "CONNECTION LIMIT")
	executes(t, database, append(repairs, `ALTER DATABASE weir CONNECTION LIMIT -1`)...)
	eventually.True(t, func() bool {
		found, _ = examined(t, env)
		return finding(t, found, "setting fsync").Level == doctor.OK
	}, 10*time.Millisecond)
	for _, f := range found {
		if strings.HasPrefix(f.Check, "setting ") {
			require.Equal(t, doctor.OK, f.Level, "still reported after its statement: %+v", f)
		}
	}
}

// TestDoctorChecksTheDatabase checks migrations, replication slots, indexes,
// the lease, the encoding and the pooler.
func TestDoctorChecksTheDatabase(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := network(t, 50)
	server := careful(t)
	database := server.URL("weir")
	env := follower(n, database)
	found, code := examined(t, env)
	require.Equal(t, 1, code)
	require.Equal(t, "weir migrate", finding(t, found, "migrations").Do)

	succeed(t, env, "migrate")
	executes(t, database, `SELECT pg_create_physical_replication_slot('forgotten', true)`,
		`INSERT INTO watches (target, kind) VALUES ('a.example', 'account'), ('a.example', 'follows')`,
		`UPDATE streams SET lease_owner = 'dead'`)
	conn, err := pgx.Connect(t.Context(), database)
	require.NoError(t, err)
	defer conn.Close(t.Context()) // the test is over
	_, err = conn.Exec(t.Context(), `CREATE UNIQUE INDEX CONCURRENTLY broken ON watches (target)`)
	require.ErrorContains(t, err, "unique")
	found = noFailure(t, env)
	require.Contains(t, finding(t, found, "replication slots").Do, "pg_drop_replication_slot('forgotten')")
	require.Contains(t, finding(t, found, "indexes").Message, "broken is invalid")
	require.Contains(t, finding(t, found, "lease").Message, "has never been read")

	executes(t, database, `CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0`)
	found, code = examined(t, follower(n, server.URL("ascii")))
	require.Equal(t, 1, code)
	require.Contains(t, finding(t, found, "encoding").Message, "SQL_ASCII")

	found = noFailure(t, follower(n, relabelled(t, database)))
	require.Contains(t, finding(t, found, "pooler").Message, "keeps sessions")
}

// noFailure waits until no check fails, and returns the findings. A check may fail on a busy machine:
// a notification has three seconds.
func noFailure(t *testing.T, env []string) (found []doctor.Finding) {
	t.Helper()
	eventually.True(t, func() bool {
		var code int
		found, code = examined(t, env)
		return code == 0
	}, 100*time.Millisecond, "%+v", &found)
	return found
}

// allWell is noFailure for a system in which every check is ok, except those named and that of the
// machine's disk.
func allWell(t *testing.T, env []string, except ...string) (found []doctor.Finding) {
	t.Helper()
	var wrong []doctor.Finding
	eventually.True(t, func() bool {
		found, _ = examined(t, env)
		wrong = slices.DeleteFunc(slices.Clone(found), func(f doctor.Finding) bool {
			return f.Level == doctor.OK || f.Check == "disk" || slices.Contains(except, f.Check)
		})
		return len(wrong) == 0
	}, 100*time.Millisecond, "%+v", &wrong)
	return found
}

// TestDoctorUnderLeastPrivilege shows that with the roles of deploy/roles.sql
// every check is ok, directly and through a pooler. Connections of other roles
// are counted, and the doctor reports what the role cannot see. It finds
// missing privileges.
func TestDoctorUnderLeastPrivilege(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := network(t, 300)
	server := careful(t)
	database := server.URL("weir")
	withRoles(t, database)
	app := as(t, "weir_app", database)
	found, code := examined(t, follower(n, app))
	require.Equal(t, 1, code)
	require.Contains(t, finding(t, found, "role").Do, "weir migrate")
	succeed(t, follower(n, as(t, "weir_owner", database)), "migrate")
	withRoles(t, database) // as an upgrade does
	env := keeping(follower(n, app))
	serve := start(t, env, "serve")
	becomes(t, serve.opsURL(t), "quiet")

	found = allWell(t, env)
	require.Equal(t, "weir_app has every privilege that Weir needs; migrations and indexes need weir_owner", finding(t, found, "role").Message)
	require.Contains(t, finding(t, found, "old transactions").Message, "those of other roles are hidden")
	allWell(t, append(follower(n, pooled(t, app)), "WEIR_POOLER=transaction"))

	owner := open(t, as(t, "weir_owner", database))
	for range 3 {
		conn, err := owner.Acquire(t.Context())
		require.NoError(t, err)
		t.Cleanup(conn.Release)
	}
	found, _ = examined(t, env)
	require.Regexp(t, `; others use ([3-9]|\d\d+) and `, finding(t, found, "setting max_connections").Message)

	executes(t, database, `REVOKE EXECUTE ON FUNCTION ensure_partition FROM weir_app`)
	found, code = examined(t, env)
	require.Equal(t, 1, code)
	require.Contains(t, finding(t, found, "role").Message, "EXECUTE on ensure_partition")
	executes(t, database, `REVOKE UPDATE ON streams FROM weir_app`)
	found, _ = examined(t, env)
	require.Contains(t, finding(t, found, "role").Message, "UPDATE on streams")
}

// TestDoctorThroughPgBouncer runs with and without a pooler, in both modes, and
// with both values of WEIR_POOLER. Only the combination that does not work
// fails; every other check is the same as without a pooler.
func TestDoctorThroughPgBouncer(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := network(t, 300)
	database := careful(t).URL("weir")
	succeed(t, follower(n, database), "migrate")
	serve := start(t, keeping(follower(n, database)), "serve")
	becomes(t, serve.opsURL(t), "quiet")
	transaction, session := pooled(t, database), pooledIn(t, "session", database)
	for name, c := range map[string]struct {
		database, variable string
		level              doctor.Level
		message            string
	}{
		"none":                       {database, "none", doctor.OK, "none, and notifications arrive"},
		"none, and the variable":     {database, "transaction", doctor.OK, "none, although"},
		"transactions":               {transaction, "none", doctor.Fail, "keeps no sessions"},
		"transactions, the variable": {transaction, "transaction", doctor.OK, "keeps no state in its sessions"},
		"sessions":                   {session, "none", doctor.OK, "keeps sessions"},
		"sessions, and the variable": {session, "transaction", doctor.OK, "keeps no state in its sessions"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := append(follower(n, c.database), "WEIR_POOLER="+c.variable)
			if c.level == doctor.OK {
				require.Contains(t, finding(t, allWell(t, env), "pooler").Message, c.message)
				return
			}
			f := finding(t, allWell(t, env, "pooler"), "pooler")
			require.Equal(t, c.level, f.Level, "%+v", f)
			require.Contains(t, f.Message, c.message)
			require.Contains(t, f.Do, "WEIR_POOLER=transaction")
		})
	}
}

// relabelled returns a URL of the same database by way of a proxy that changes the
// sessions' process numbers, as poolers do.
func relabelled(t *testing.T, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	require.NoError(t, err)
	behind := u.Host
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() }) // the test is over
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go relabel(client, behind)
		}
	}()
	u.Host = l.Addr().String()
	return u.String()
}

// relabel forwards every message, and changes the session's process number.
func relabel(client net.Conn, behind string) {
	defer client.Close()
	server, err := net.Dial("tcp", behind)
	if err != nil {
		return
	}
	defer server.Close()
	go io.Copy(server, client) // it ends with the other direction
	messages := pgproto3.NewFrontend(server, nil)
	for {
		m, err := messages.Receive()
		if err != nil {
			return
		}
		if key, is := m.(*pgproto3.BackendKeyData); is {
			key.ProcessID += 100_000
		}
		out, err := m.Encode(nil)
		if err != nil {
			return
		}
		if _, err := client.Write(out); err != nil {
			return
		}
	}
}

// TestDoctorChecksTheNetwork finds a wrong clock, a broken AppView and an
// unreachable Jetstream. The stream's row is not changed.
func TestDoctorChecksTheNetwork(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := network(t, 300)
	database := schematest.NewURL(t)
	pool := open(t, database)
	env := keeping(follower(n, database))
	consume := start(t, env, "consume")
	becomes(t, consume.opsURL(t), "quiet")
	apart := 10 * time.Minute
	wrong := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(apart).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusInternalServerError)
	}))
	t.Cleanup(wrong.Close)
	before := texts(t, pool, `SELECT concat_ws(' ', cursor, epoch, lease_owner, anchor) FROM streams`)
	host := strings.TrimPrefix(wrong.URL, "http://")
	found, code := examined(t, append(env, "WEIR_APPVIEW="+wrong.URL, "WEIR_JETSTREAM=ws://127.0.0.1:1,"+n.URL()))
	require.Equal(t, 1, code)
	require.Equal(t, doctor.Fail, finding(t, found, "appview "+host).Level)
	f := finding(t, found, "clock of appview "+host)
	require.Equal(t, doctor.Fail, f.Level)
	require.Regexp(t, `^(9|10)m.* ahead of`, f.Message)
	require.Equal(t, doctor.Warn, finding(t, found, "jetstream 127.0.0.1:1").Level, "another endpoint works")
	require.Equal(t, doctor.OK, finding(t, found, "jetstream "+n.Address()).Level)

	executes(t, database, `UPDATE streams SET last_event_at = now() + interval '1 hour'`)
	found, _ = examined(t, env)
	require.Equal(t, doctor.Fail, finding(t, found, "clock of the newest event").Level)

	consume.kill()
	n.Stop()
	found, code = examined(t, env)
	require.Equal(t, 1, code)
	f = finding(t, found, "jetstream "+n.Address())
	require.Equal(t, doctor.Fail, f.Level)
	require.Contains(t, f.Message, "refused")
	require.Equal(t, before, texts(t, pool, `SELECT concat_ws(' ', cursor, epoch, lease_owner, anchor) FROM streams`))
	require.NoError(t, n.Restart())
	executes(t, database, `UPDATE streams SET lease_expires_at = now() - interval '1 second'`)
	found, _ = examined(t, env)
	require.Contains(t, finding(t, found, "lease").Message, "stopped renewing it")
}

// TestDoctorTimesOut shows that the doctor ends if servers accept connections
// and never respond.
func TestDoctorTimesOut(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { silent.Close() }) // the test is over
	at := silent.Addr().String()
	found, code := examined(t, []string{"DATABASE_URL=postgres://u:p@" + at + "/x?sslmode=disable", "WEIR_JETSTREAM=ws://" + at,
		"WEIR_APPVIEW=http://" + at, "WEIR_DIRECTORY=http://" + at}, "--within", "2s")
	require.Equal(t, 1, code)
	for _, check := range []string{"database", "jetstream " + at, "appview " + at, "directory " + at} {
		require.Equal(t, doctor.Fail, finding(t, found, check).Level)
	}
}
