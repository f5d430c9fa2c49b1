// Package schematest gives every test its own database with Weir's schema: a copy of a
// template that is migrated once. The server is the one in WEIR_TEST_DATABASE_URL, or
// one that devpg starts for this test process.
package schematest

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/schema"
)

// patience is how long a server and a template may take on a busy machine, where a minute was too short.
const patience = 8 * time.Minute

// started starts the server of this test process. The variable keeps the server alive:
// it stops when nothing refers to it.
var started = sync.OnceValues(func() (*devpg.Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return devpg.Start(ctx, devpg.Options{})
})

// shared returns the URL of the server that the tests share.
func shared() (string, error) {
	if given := os.Getenv("WEIR_TEST_DATABASE_URL"); given != "" {
		return given, nil
	}
	server, err := started()
	if err != nil {
		return "", err
	}
	return server.URL("postgres"), nil
}

// template returns the name of the migrated database on the shared server.
var template = sync.OnceValues(func() (string, error) {
	at, err := shared()
	if err != nil {
		return "", err
	}
	parts, err := Parts()
	if err != nil {
		return "", err
	}
	fingerprint, err := schema.Fingerprint(parts...)
	if err != nil {
		return "", err
	}
	name := "weir_template_" + fingerprint
	return name, makeTemplate(at, name)
})

// Parts returns the parts of the schema that the features of this checkout have: a test of the core, which
// may not import a feature, has their tables too.
var Parts = sync.OnceValues(func() (parts []fs.FS, err error) {
	root, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		if root == filepath.Dir(root) {
			return nil, errors.New("the tests do not run in a checkout")
		}
		root = filepath.Dir(root)
	}
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(filepath.Join(root, "internal"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == "migrations" {
			parts = append(parts, os.DirFS(filepath.Dir(path)))
		}
		return err
	})
	return parts, err
})

// Migrate migrates a database like the program.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	parts, err := Parts()
	if err != nil {
		return err
	}
	return schema.Migrate(ctx, pool, parts...)
}

// Check returns nil if a database has the schema of the program.
func Check(ctx context.Context, pool *pgxpool.Pool) error {
	parts, err := Parts()
	if err != nil {
		return err
	}
	return schema.Check(ctx, pool, parts...)
}

// makeTemplate makes and migrates a database, once for all test processes that share
// a server.
func makeTemplate(at, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, at)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) // the connection is no longer needed
	const lock = 0x7765697274657374
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, int64(lock)); err != nil {
		return err
	}
	var exists bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&exists); err != nil || exists {
		return err
	}
	unfinished := name + "_unfinished"
	for _, sql := range []string{`DROP DATABASE IF EXISTS ` + unfinished, `CREATE DATABASE ` + unfinished} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	pool, err := pgxpool.New(ctx, in(at, unfinished))
	if err != nil {
		return err
	}
	err = Migrate(ctx, pool)
	pool.Close()
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `ALTER DATABASE `+unfinished+` RENAME TO `+name)
	return err
}

// NewURL makes a database for the test and returns its URL. The database is dropped if
// the test passes, and otherwise kept and logged.
func NewURL(t testing.TB) string {
	t.Helper()
	from, err := template()
	require.NoError(t, err)
	at, err := shared()
	require.NoError(t, err)
	name := "weir_test_" + strings.ToLower(rand.Text()[:12])
	execute(t, `CREATE DATABASE `+name+` TEMPLATE `+from+` STRATEGY FILE_COPY`) // takes half the CPU of the default, which writes WAL
	at = in(at, name)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the test's database is %s (kept where the server outlives the test)", at)
			return
		}
		execute(t, `ALTER DATABASE `+name+` ALLOW_CONNECTIONS false`) // a pooler may be about to open one
		execute(t, `DROP DATABASE `+name+` WITH (FORCE)`)
	})
	return at
}

// New makes a database for the test and opens a pool on it.
func New(t testing.TB) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(NewURL(t))
	require.NoError(t, err)
	config.ConnConfig.RuntimeParams["jit"] = "off" // as on Weir's connections: compiling the ranking takes longer than the test
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// Server starts a server for one test, which can stop and restart it. It has an empty
// database named weir.
func Server(t testing.TB) *devpg.Server {
	t.Helper()
	server, err := devpg.Start(context.Background(), devpg.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	return server
}

// admin is a pool on the shared server, for making and dropping databases. It stays open: most
// tests would otherwise spend as much on connections of their own as on their database.
var admin = sync.OnceValues(func() (*pgxpool.Pool, error) {
	at, err := shared()
	if err != nil {
		return nil, err
	}
	return pgxpool.New(context.Background(), at)
})

func execute(t testing.TB, sql string) {
	t.Helper()
	pool, err := admin()
	require.NoError(t, err)
	_, err = pool.Exec(context.Background(), sql)
	require.NoError(t, err)
}

// in returns the URL of another database on the same server.
func in(at, database string) string {
	u, err := url.Parse(at)
	if err != nil {
		return at
	}
	u.Path = "/" + database
	return u.String()
}

// Main runs a package's tests, two at once for each core.
func Main(m *testing.M) {
	AtOnce(2)
	os.Exit(m.Run())
}

// AtOnce sets how many tests of a package run at once for each core, regardless of -parallel: they
// wait more than they compute. TestMain calls it before it runs the tests.
func AtOnce(each int) {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(each*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
}

// Long skips a test under -short that takes more than a few seconds, or needs more than Postgres.
func Long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: skipped by -short")
	}
}

// Blocks reports whether another transaction waits for a lock of tx.
func Blocks(t testing.TB, db schema.DB, tx pgx.Tx) bool {
	t.Helper()
	blocks, err := schema.One(context.Background(), db, "look for waiting transactions", pgx.RowTo[bool],
		`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND $1 = ANY (pg_blocking_pids(pid)))`,
		tx.Conn().PgConn().PID())
	require.NoError(t, err)
	return blocks
}

// CPU returns the CPU time that a process has used so far, such as a connection's backend, in steps
// of 10 ms.
func CPU(t testing.TB, pid uint32) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	ticks := 0
	for _, field := range fields[11:13] { // user and system time
		n, err := strconv.Atoi(field)
		require.NoError(t, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
