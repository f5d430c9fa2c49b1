package schema

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
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

// Core is the part of the schema that every database of Weir has. Each feature has a part of its own: a
// folder of numbered files NNNN_name.sql, each of which is applied in a transaction of its own. Its first
// line is "-- part NAME", followed by ", after A, B" if it uses the tables of other features.
const Core = "core"

// migrationLock is the advisory lock of the process that migrates.
const migrationLock = 0x77656972 // "weir"

// migration is one numbered file of a part.
type migration struct {
	part    string
	version int
	name    string
	sql     string
}

func (m *migration) String() string { return m.part + "/" + m.name }

// TooNewError means that the database was migrated by a newer binary.
type TooNewError struct {
	What             string // whose migrations: a part's name, or "river"
	Database, Binary int
}

func (e *TooNewError) Error() string {
	return fmt.Sprintf("the database is at %s migration %d, this binary knows %d at most: run the newer binary, "+
		"or restore a backup from before its upgrade",
		e.What, e.Database, e.Binary)
}

// UnreleasedError means that the database has a migration that no release has. It was
// made by a build from source, before the first release or between two.
type UnreleasedError struct {
	Migration string // its name in the database
}

func (e *UnreleasedError) Error() string {
	return fmt.Sprintf("an unreleased version of Weir made this database: its migration %s is not one of this binary's. "+
		"It cannot be upgraded, and nothing in it was changed. Make a new database and move the watches to it: "+
		"see \"Starting anew\" in docs/operations.md", e.Migration)
}

// MissingPartError means that the database has tables of a feature that this binary lacks.
type MissingPartError struct{ Part string }

func (e *MissingPartError) Error() string {
	return fmt.Sprintf("the database has the tables of the feature %q, which this binary lacks: "+
		"run a binary that has it, or remove it: drop its tables, DELETE FROM weir_migration WHERE part = '%[1]s', "+
		"and `weir projection list` shows the rest. Nothing was changed", e.Part)
}

// Migrate brings the database to this binary's schema: first River's tables, through
// River's migrator, then the core's and those of the features. If several processes
// call it at once, one migrates, and the others wait and find nothing to do. It returns
// a *TooNewError if the database is newer than the binary, a *MissingPartError if it has
// a feature that the binary lacks, and an *UnreleasedError if an unreleased version made
// it; all leave the database unchanged.
func Migrate(ctx context.Context, pool *pgxpool.Pool, features ...fs.FS) error {
	all, err := readMigrations(features)
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
		part       text        NOT NULL,
		version    int         NOT NULL,
		name       text        NOT NULL,
		applied_at timestamptz NOT NULL DEFAULT now(),
		PRIMARY KEY (part, version)
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
		return fmt.Errorf("the server lacks the Postgres extension %s: install the package with Postgres' contrib modules "+
			"(postgresql-contrib) on it, or enable the extension where the provider lists them. Nothing was changed", name)
	case !found.Allowed:
		return fmt.Errorf("the role %s may not create the extension %s: run `CREATE EXTENSION %s` in this database as its owner or a "+
			"superuser, then migrate again. Nothing was changed", found.Role, name, name)
	}
	return nil
}

// Check returns nil if the database has exactly this binary's migrations, and otherwise an error:
// those of Migrate, or one that names the command to run if it has fewer.
func Check(ctx context.Context, pool *pgxpool.Pool, features ...fs.FS) error {
	all, err := readMigrations(features)
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
		return fmt.Errorf("the database lacks %d of %d weir migrations, the first of them %s: run `weir migrate`", len(missing), len(all),
			&missing[0])
	}
	return nil
}

// Versions returns the last migration of each part, such as "core/0005_ops", in the order in which they
// are applied, and at the end River's.
func Versions(features ...fs.FS) ([]string, error) {
	all, err := readMigrations(features)
	if err != nil {
		return nil, err
	}
	river, err := rivermigrate.New(riverpgxv5.New(nil), nil)
	if err != nil {
		return nil, fmt.Errorf("open river's migrator: %w", err)
	}
	var last []string
	for i := range all {
		if i+1 == len(all) || all[i+1].part != all[i].part {
			last = append(last, all[i].String())
		}
	}
	return append(last, fmt.Sprintf("river/%d", latestRiver(river))), nil
}

// latestRiver returns the number of the last migration of River's migrator.
func latestRiver[T any](river *rivermigrate.Migrator[T]) int {
	newest := 0
	for _, m := range river.AllVersions() {
		newest = max(newest, m.Version)
	}
	return newest
}

// Fingerprint returns a hash of all migrations, River's too.
func Fingerprint(features ...fs.FS) (string, error) {
	all, err := readMigrations(features)
	if err != nil {
		return "", err
	}
	river, err := rivermigrate.New(riverpgxv5.New(nil), nil)
	if err != nil {
		return "", fmt.Errorf("open river's migrator: %w", err)
	}
	h := sha256.New()
	for i := range all {
		fmt.Fprintf(h, "%s\n%s\n", &all[i], all[i].sql)
	}
	for _, m := range river.AllVersions() {
		fmt.Fprintf(h, "river %d\n%s\n", m.Version, m.SQLUp)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// part is the migrations of the core or of a feature.
type part struct {
	name  string
	after []string // the features whose tables it uses
	files []migration
}

// readMigrations returns the migrations of the core and of the features, each part after those that it uses.
func readMigrations(features []fs.FS) ([]migration, error) {
	own, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	core, err := readPart(own)
	if err != nil {
		return nil, err
	}
	var left []part
	for _, files := range features {
		p, err := readPart(files)
		if err != nil {
			return nil, err
		}
		left = append(left, p)
	}
	slices.SortFunc(left, func(a, b part) int { return strings.Compare(a.name, b.name) })
	all, done := core.files, []string{core.name}
	for len(left) > 0 {
		i := slices.IndexFunc(left, func(p part) bool {
			return !slices.ContainsFunc(p.after, func(name string) bool { return !slices.Contains(done, name) })
		})
		if i < 0 {
			return nil, fmt.Errorf("the feature %s uses the tables of %s: this binary lacks one of them", left[0].name,
				strings.Join(left[0].after, ", "))
		}
		all, done = append(all, left[i].files...), append(done, left[i].name)
		left = slices.Delete(left, i, i+1)
	}
	return all, nil
}

// readPart reads the migrations of one part.
func readPart(folder fs.FS) (p part, err error) {
	names, err := fs.Glob(folder, "*.sql")
	if err != nil || len(names) == 0 {
		return p, errors.Join(errors.New("a part of the schema has no migrations"), err)
	}
	for i, file := range names { // fs.Glob sorts them
		sql, err := fs.ReadFile(folder, file)
		if err != nil {
			return p, fmt.Errorf("read a migration: %w", err)
		}
		if i == 0 {
			line, _, _ := strings.Cut(string(sql), "\n")
			name, after, _ := strings.Cut(strings.TrimPrefix(line, "-- part "), ", after ")
			if name == line {
				return p, fmt.Errorf("migration %s does not begin with the name of its part", file)
			}
			if p.name = name; after != "" {
				p.after = strings.Split(after, ", ")
			}
		}
		name := strings.TrimSuffix(file, ".sql")
		number, _, _ := strings.Cut(name, "_")
		version, err := strconv.Atoi(number)
		if err != nil || version != i+1 {
			return p, fmt.Errorf("migration %s of %s is not number %d", file, p.name, i+1)
		}
		p.files = append(p.files, migration{part: p.name, version: version, name: name, sql: string(sql)})
	}
	return p, nil
}

// notApplied returns the migrations that the database lacks, and an error if the
// database has migrations that this binary lacks.
func notApplied(ctx context.Context, conn *pgx.Conn, pool *pgxpool.Pool, all []migration) ([]migration, error) {
	applied, err := appliedNames(ctx, conn)
	if err != nil {
		return nil, err
	}
	var missing []migration
	newest := map[string]int{} // the last version of each part
	for _, m := range all {
		name, ok := applied[partVersion{m.part, m.version}]
		if !ok {
			missing = append(missing, m)
		} else if name != m.name {
			return nil, &UnreleasedError{Migration: name}
		}
		delete(applied, partVersion{m.part, m.version})
		newest[m.part] = m.version
	}
	var refused error
	for at, name := range applied {
		switch {
		case newest[at.Part] == 0:
			return nil, &MissingPartError{Part: at.Part}
		case at.Version <= newest[at.Part]:
			return nil, &UnreleasedError{Migration: name}
		default:
			refused = &TooNewError{What: at.Part, Database: at.Version, Binary: newest[at.Part]}
		}
	}
	if refused != nil {
		return nil, refused
	}
	return missing, checkRiver(ctx, pool)
}

// partVersion identifies a migration.
type partVersion struct {
	Part    string
	Version int
}

// appliedNames returns the names of the database's Weir migrations.
func appliedNames(ctx context.Context, db DB) (map[partVersion]string, error) {
	exists, err := isTable(ctx, db, "weir_migration")
	if err != nil || !exists {
		return nil, err
	}
	const before = `SELECT name FROM weir_migration WHERE to_jsonb(weir_migration) ->> 'part' IS NULL ORDER BY version LIMIT 1`
	old, err := All(ctx, db, "read weir_migration", pgx.RowTo[string], before)
	if err != nil {
		return nil, err
	}
	if len(old) > 0 {
		return nil, &UnreleasedError{Migration: old[0]}
	}
	type row struct {
		partVersion
		Name string
	}
	rows, err := All(ctx, db, "read weir_migration", pgx.RowToStructByName[row],
		`SELECT part AS part, version AS version, name AS name FROM weir_migration`)
	if err != nil {
		return nil, err
	}
	names := make(map[partVersion]string, len(rows))
	for _, r := range rows {
		names[r.partVersion] = r.Name
	}
	return names, nil
}

func checkRiver(ctx context.Context, pool *pgxpool.Pool) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return fmt.Errorf("open river's migrator: %w", err)
	}
	newest := latestRiver(migrator)
	exists, err := isTable(ctx, pool, "river_migration")
	if err != nil || !exists {
		return err
	}
	at, err := One(ctx, pool, "read river_migration", pgx.RowTo[int], `SELECT coalesce(max(version), 0) FROM river_migration`)
	if err != nil {
		return err
	}
	if at > newest {
		return &TooNewError{What: "river", Database: at, Binary: newest}
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
			return fmt.Errorf("apply migration %s: %w", &m, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("apply migration %s: %w", &m, ctx.Err())
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
		_, err := tx.Exec(ctx, `INSERT INTO weir_migration (part, version, name) VALUES ($1, $2, $3)`, m.part, m.version, m.name)
		return err
	})
}
