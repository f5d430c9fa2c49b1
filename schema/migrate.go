package schema

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migrationLock is the advisory lock of the process that migrates.
const migrationLock = 0x77656972 // "weir"

// migration is one numbered file.
type migration struct {
	version int
	name    string
	sql     string
}

// TooNewError means that the database was migrated by a newer binary.
type TooNewError struct {
	What            string // whose migrations: "weir" or "river"
	Database, Known int
}

func (e *TooNewError) Error() string {
	return fmt.Sprintf("the database is at %s migration %d, this binary knows %d at most: run the newer binary, or restore a backup from before its upgrade",
		e.What, e.Database, e.Known)
}

// UnreleasedError means that the database has a migration that no release has. It was
// made by a build from source, before the first release or between two.
type UnreleasedError struct {
	Migration string // its name in the database
}

func (e *UnreleasedError) Error() string {
	return fmt.Sprintf("an unreleased version of Weir made this database: its migration %s is not one of this binary's. "+
		"It cannot be upgraded, and nothing in it was changed. Make a new database and move the watches to it: see \"Starting anew\" in docs/operations.md", e.Migration)
}

// Migrate brings the database to this binary's schema: first River's tables, through
// River's migrator, then Weir's. Each migration is a transaction of its own. If
// several processes call it at once, one migrates, and the others wait and find
// nothing to do. It returns a *TooNewError if the database is newer than the binary,
// and an *UnreleasedError if an unreleased version made it; both leave the database
// unchanged.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	all, err := readMigrations()
	if err != nil {
		return err
	}
	return withLock(ctx, pool, migrationLock, func() error { return migrate(ctx, pool, all) })
}

func migrate(ctx context.Context, pool *pgxpool.Pool, all []migration) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect to migrate: %w", err)
	}
	defer conn.Release()
	missing, err := notApplied(ctx, conn.Conn(), pool, all)
	if err != nil {
		return err
	}
	if err := requireExtension(ctx, conn, "pg_trgm"); err != nil {
		return err
	}
	if err := migrateRiver(ctx, pool); err != nil {
		return err
	}
	const table = `CREATE TABLE IF NOT EXISTS weir_migration (
		version    int PRIMARY KEY,
		name       text        NOT NULL,
		applied_at timestamptz NOT NULL DEFAULT now()
	)`
	if _, err := conn.Exec(ctx, table); err != nil {
		return fmt.Errorf("make weir_migration: %w", err)
	}
	for _, m := range missing {
		if err := m.apply(ctx, conn.Conn()); err != nil {
			return err
		}
	}
	return nil
}

// requireExtension returns an error that says what to do if the database does not have
// an extension and cannot get it.
func requireExtension(ctx context.Context, db DB, name string) error {
	const sql = `
SELECT EXISTS (SELECT FROM pg_extension WHERE extname = $1)            AS installed,
       EXISTS (SELECT FROM pg_available_extensions WHERE name = $1)    AS available,
       has_database_privilege(current_database(), 'CREATE')            AS allowed,
       current_user::text                                              AS role`
	type row struct {
		Installed, Available, Allowed bool
		Role                          string
	}
	found, err := One(ctx, db, "look for the extension "+name, pgx.RowToStructByName[row], sql, name)
	switch {
	case err != nil || found.Installed:
		return err
	case !found.Available:
		return fmt.Errorf("the server lacks the Postgres extension %s: install the package with Postgres' contrib modules (postgresql-contrib) on it, or enable the extension where the provider lists them. Nothing was changed", name)
	case !found.Allowed:
		return fmt.Errorf("the role %s may not create the extension %s: run `CREATE EXTENSION %s` in this database as its owner or a superuser, then migrate again. Nothing was changed", found.Role, name, name)
	}
	return nil
}

// Check returns nil if the database has exactly this binary's migrations. It returns
// a *TooNewError if the database has more, an *UnreleasedError if it has others, and
// an error that names the command to run if it has fewer.
func Check(ctx context.Context, pool *pgxpool.Pool) error {
	all, err := readMigrations()
	if err != nil {
		return err
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer conn.Release()
	missing, err := notApplied(ctx, conn.Conn(), pool, all)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("the database lacks %d of %d weir migrations, the first of them %s: run `weir migrate`", len(missing), len(all), missing[0].name)
	}
	return nil
}

// Version identifies a schema: the number and name of Weir's last migration, and the
// number of River's.
type Version struct {
	Weir  int
	Name  string
	River int
}

// Latest returns the schema of this binary.
func Latest() (Version, error) {
	all, err := readMigrations()
	if err != nil {
		return Version{}, err
	}
	river, err := rivermigrate.New(riverpgxv5.New(nil), nil)
	if err != nil {
		return Version{}, fmt.Errorf("open river's migrator: %w", err)
	}
	last := all[len(all)-1]
	_, name, _ := strings.Cut(last.name, "_")
	return Version{Weir: last.version, Name: name, River: latestRiver(river)}, nil
}

// latestRiver returns the number of the last migration of River's migrator.
func latestRiver[T any](river *rivermigrate.Migrator[T]) int {
	known := 0
	for _, m := range river.AllVersions() {
		known = max(known, m.Version)
	}
	return known
}

// Fingerprint returns a hash of Weir's and River's migrations.
func Fingerprint() string {
	h := sha256.New()
	all, err := readMigrations()
	if err != nil {
		panic(err) // the files are embedded: only a broken build fails
	}
	for _, m := range all {
		fmt.Fprintf(h, "%s\n%s\n", m.name, m.sql)
	}
	river, err := rivermigrate.New(riverpgxv5.New(nil), nil)
	if err != nil {
		panic(err)
	}
	for _, m := range river.AllVersions() {
		fmt.Fprintf(h, "river %d\n%s\n", m.Version, m.SQLUp)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

func readMigrations() ([]migration, error) {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	all := make([]migration, 0, len(names))
	for _, path := range names { // fs.Glob sorts them
		sql, err := migrations.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", path, err)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(path, "migrations/"), ".sql")
		number, _, _ := strings.Cut(name, "_")
		version, err := strconv.Atoi(number)
		if err != nil || version <= 0 || len(all) > 0 && version <= all[len(all)-1].version {
			return nil, fmt.Errorf("migration %s has no number above the one before", path)
		}
		all = append(all, migration{version: version, name: name, sql: string(sql)})
	}
	return all, nil
}

// notApplied returns the migrations that the database lacks, and an error if the
// database has migrations that this binary lacks. Numbers need not be contiguous.
func notApplied(ctx context.Context, conn *pgx.Conn, pool *pgxpool.Pool, all []migration) ([]migration, error) {
	applied, err := appliedNames(ctx, conn)
	if err != nil {
		return nil, err
	}
	var missing []migration
	for _, m := range all {
		name, ok := applied[m.version]
		if !ok {
			missing = append(missing, m)
		} else if name != m.name {
			return nil, &UnreleasedError{Migration: name}
		}
		delete(applied, m.version)
	}
	newest, known := 0, all[len(all)-1].version
	for version, name := range applied {
		if version < known {
			return nil, &UnreleasedError{Migration: name}
		}
		newest = max(newest, version)
	}
	if newest > 0 {
		return nil, &TooNewError{What: "weir", Database: newest, Known: known}
	}
	return missing, checkRiver(ctx, pool)
}

// appliedNames returns the names of the database's Weir migrations, by number.
func appliedNames(ctx context.Context, db DB) (map[int]string, error) {
	type row struct {
		Version int
		Name    string
	}
	exists, err := isTable(ctx, db, "weir_migration")
	if err != nil || !exists {
		return nil, err
	}
	rows, err := All(ctx, db, "read weir_migration", pgx.RowToStructByName[row], `SELECT version AS version, name AS name FROM weir_migration`)
	if err != nil {
		return nil, err
	}
	names := make(map[int]string, len(rows))
	for _, r := range rows {
		names[r.Version] = r.Name
	}
	return names, nil
}

func checkRiver(ctx context.Context, pool *pgxpool.Pool) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return fmt.Errorf("open river's migrator: %w", err)
	}
	known := latestRiver(migrator)
	exists, err := isTable(ctx, pool, "river_migration")
	if err != nil || !exists {
		return err
	}
	at, err := One(ctx, pool, "read river_migration", pgx.RowTo[int], `SELECT coalesce(max(version), 0) FROM river_migration`)
	if err != nil {
		return err
	}
	if at > known {
		return &TooNewError{What: "river", Database: at, Known: known}
	}
	return nil
}

func isTable(ctx context.Context, db DB, name string) (bool, error) {
	return One(ctx, db, "look for "+name, pgx.RowTo[bool], `SELECT to_regclass($1) IS NOT NULL`, name)
}

func migrateRiver(ctx context.Context, pool *pgxpool.Pool) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return fmt.Errorf("open river's migrator: %w", err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrate river's tables: %w", err)
	}
	return nil
}

// Limits for a migration while other processes run. A migration that waits for a lock
// blocks everybody behind it, and can deadlock with them.
const (
	migrationLockTimeout = 2 * time.Second
	migrationTries       = 30
)

// apply runs the migration, and retries it if it cannot get its locks.
func (m migration) apply(ctx context.Context, conn *pgx.Conn) error {
	for try := 1; ; try++ {
		err := m.try(ctx, conn)
		if err == nil {
			return nil
		}
		var pgErr *pgconn.PgError
		blocked := errors.As(err, &pgErr) && (pgErr.Code == "40P01" || pgErr.Code == "55P03")
		if !blocked || try == migrationTries {
			return fmt.Errorf("apply migration %s: %w", m.name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("apply migration %s: %w", m.name, ctx.Err())
		case <-time.After(200 * time.Millisecond): // let the waiting processes go first
		}
	}
}

func (m migration) try(ctx context.Context, conn *pgx.Conn) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf(`SET LOCAL lock_timeout = %d`, migrationLockTimeout.Milliseconds())); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, m.sql); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO weir_migration (version, name) VALUES ($1, $2)`, m.version, m.name)
		return err
	})
}
