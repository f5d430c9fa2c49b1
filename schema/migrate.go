package schema

import (
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
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

// Core is the part of the schema that every database of Weir has. Each feature has a part of its own: numbered
// files migrations/NNNN_name.sql, each of which is applied in a transaction of its own. The first line of the first
// one is "-- part NAME", followed by ", after A, B" if it uses the tables of other features. Once a release has a
// file, it never changes: what comes later is another file.
const Core = "core"

// riverPart is the part that River's migrator applies, before all others.
const riverPart = "river"

// migrationLock is the advisory lock of the process that migrates.
const migrationLock = 0x77656972 // "weir"

// migration is one numbered step of a part.
type migration struct {
	part    string
	version int
	name    string
	sql     string
}

func (m *migration) String() string { return m.part + "/" + m.name }

// sum is the checksum that the database keeps of the migration.
func (m *migration) sum() string {
	sum := sha256.Sum256([]byte(m.sql))
	return hex.EncodeToString(sum[:])
}

// TooNewError means that the database was migrated by a newer binary.
type TooNewError struct {
	What             string // whose migrations: a part's name
	Database, Binary int
}

func (e *TooNewError) Error() string {
	return fmt.Sprintf("the database is at %s migration %d, this binary knows %d at most: run the newer binary, "+
		"or restore a backup from before its upgrade",
		e.What, e.Database, e.Binary)
}

// UnreleasedError means that the database has another migration than the binary. A build from source
// made one of them, before the first release or between two.
type UnreleasedError struct {
	Migration string // its name in the database
}

func (e *UnreleasedError) Error() string {
	return fmt.Sprintf("the migration %s of the database is not that of this binary: an unreleased version of Weir made one of the two. "+
		"Nothing was changed. Run a released binary. If the database is the unreleased one, it cannot be upgraded: make a new "+
		"database and move the watches to it: see \"Starting anew\" in docs/operations.md", e.Migration)
}

// MissingPartError means that the database has tables of a feature that this binary lacks.
type MissingPartError struct{ Part string }

func (e *MissingPartError) Error() string {
	return fmt.Sprintf("the database has the tables of the feature %q, which this binary lacks: "+
		"run a binary that has it, or remove it: drop its tables, DELETE FROM weir_migration WHERE part = '%[1]s', "+
		"and `weir projection list` shows the rest. Nothing was changed", e.Part)
}

// Migrate brings the database to this binary's schema: River's tables, the core's, and those of the features. If
// several processes call it at once, one migrates, and the others wait and find nothing to do. It returns
// a *TooNewError if the database is newer than the binary, a *MissingPartError if it has a feature that the binary
// lacks, and an *UnreleasedError if an unreleased version made it; all leave the database unchanged. A migration that
// fails leaves it as the ones before left it.
func Migrate(ctx context.Context, pool *pgxpool.Pool, features ...fs.FS) error {
	return withLock(ctx, pool, migrationLock, func() error {
		return compare(ctx, pool, features, func(conn *pgxpool.Conn, _, missing []migration, err error) error {
			if err == nil {
				err = applicable(ctx, conn, missing)
			}
			for i := 0; i < len(missing) && err == nil; i++ {
				err = missing[i].apply(ctx, pool, conn.Conn())
			}
			return err
		})
	})
}

// Step is a migration of this binary.
type Step struct {
	Name    string // of its part, with its number, such as "core/0001_jobs"
	Applied bool   // the database has it
}

// Plan returns the migrations in their order, and which of them Migrate would apply. It changes nothing, and returns
// the errors with which Migrate changes nothing.
func Plan(ctx context.Context, pool *pgxpool.Pool, features ...fs.FS) (steps []Step, err error) {
	err = compare(ctx, pool, features, func(conn *pgxpool.Conn, all, missing []migration, err error) error {
		for _, m := range all {
			steps = append(steps, Step{Name: m.String(), Applied: !slices.Contains(missing, m)})
		}
		if err != nil {
			return err
		}
		return applicable(ctx, conn, missing)
	})
	return steps, err
}

// applicable returns an error that says what to do if migrations cannot be applied.
func applicable(ctx context.Context, db DB, missing []migration) error {
	if len(missing) == 0 {
		return nil
	}
	if err := requireExtension(ctx, db, "pg_trgm"); err != nil {
		return err
	}
	return requireSchema(ctx, db)
}

// requireSchema returns an error if new tables would not be in the schema of those that exist.
func requireSchema(ctx context.Context, db DB) error {
	const sql = `
SELECT coalesce(current_schema()::text, '') AS new,
       coalesce((SELECT n.nspname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
           WHERE c.oid = to_regclass('weir_migration')), '') AS old`
	found, err := One(ctx, db, "read the schema of the tables", pgx.RowToStructByName[struct{ New, Old string }], sql)
	if err == nil && found.Old != "" && found.Old != found.New {
		err = fmt.Errorf("the tables are in the schema %s, but new ones would be in %s, which this role's search_path names first: "+
			"add search_path=%[1]s to the parameters of DATABASE_URL. Nothing was changed", found.Old, cmp.Or(found.New, "none"))
	}
	return err
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
	return compare(ctx, pool, features, func(_ *pgxpool.Conn, all, missing []migration, err error) error {
		if err == nil && len(missing) > 0 {
			err = fmt.Errorf("the database lacks %d of %d migrations, the first of them %s: run `weir migrate`", len(missing), len(all),
				&missing[0])
		}
		return err
	})
}

// CheckRunning is Check for a process that started before a newer binary migrated the database: it goes on.
func CheckRunning(ctx context.Context, pool *pgxpool.Pool, features ...fs.FS) error {
	err := Check(ctx, pool, features...)
	if errors.As(err, new(*TooNewError)) || errors.As(err, new(*MissingPartError)) {
		return nil
	}
	return err
}

// Versions returns the last migration of each part, such as "core/0005_ops", in the order in which they
// are applied.
func Versions(features ...fs.FS) ([]string, error) {
	all, err := readMigrations(features)
	var last []string
	for i := range all {
		if i+1 == len(all) || all[i+1].part != all[i].part {
			last = append(last, all[i].String())
		}
	}
	return last, err
}

// Fingerprint returns a hash of all migrations.
func Fingerprint(features ...fs.FS) (string, error) {
	all, err := readMigrations(features)
	h := sha256.New()
	for i := range all {
		fmt.Fprintf(h, "%s\n%s\n", &all[i], all[i].sql)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], err
}

// part is the migrations of the core or of a feature.
type part struct {
	name  string
	after []string // the features whose tables it uses
	files []migration
}

// readMigrations returns the migrations of River, the core and the features, each part after those that it uses.
func readMigrations(features []fs.FS) ([]migration, error) {
	all, err := riverMigrations()
	if err != nil {
		return nil, err
	}
	core, err := readPart(migrations)
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
	all = append(all, core.files...)
	done := []string{core.name}
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

func riverMigrations() (all []migration, err error) {
	migrator, err := riverMigrator(nil)
	if err != nil {
		return nil, err
	}
	for _, m := range migrator.AllVersions() {
		name := fmt.Sprintf("%04d_%s", m.Version, strings.ReplaceAll(m.Name, " ", "_"))
		all = append(all, migration{part: riverPart, version: m.Version, name: name, sql: m.SQLUp})
	}
	return all, nil
}

// riverMigrator opens River's migrator. Without a pool, it only lists its migrations.
func riverMigrator(pool *pgxpool.Pool) (*rivermigrate.Migrator[pgx.Tx], error) {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return nil, fmt.Errorf("open river's migrator: %w", err)
	}
	return migrator, nil
}

// readPart reads the migrations of one part.
func readPart(folder fs.FS) (p part, err error) {
	names, err := fs.Glob(folder, "migrations/*.sql")
	if err != nil || len(names) == 0 {
		return p, errors.Join(errors.New("a part of the schema has no migrations"), err)
	}
	for i, at := range names { // fs.Glob sorts them
		file := path.Base(at)
		sql, err := fs.ReadFile(folder, at)
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

// compare calls f with this binary's migrations, those of them that the database lacks, and an error if the database
// has others.
func compare(
	ctx context.Context, pool *pgxpool.Pool, features []fs.FS, f func(conn *pgxpool.Conn, all, missing []migration, err error) error,
) error {
	all, err := readMigrations(features)
	if err != nil {
		return err
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer conn.Release()
	applied, err := appliedMigrations(ctx, conn)
	if err != nil {
		return err
	}
	missing, err := notApplied(all, applied)
	return f(conn, all, missing, err)
}

// notApplied returns the migrations that the database lacks, and an error if the database has other ones than this
// binary.
func notApplied(all []migration, applied map[partVersion]appliedMigration) (missing []migration, err error) {
	newest := map[string]int{} // the last version of each part
	for _, m := range all {
		at := partVersion{m.part, m.version}
		found, ok := applied[at]
		if !ok {
			missing = append(missing, m)
		} else if m.part != riverPart && (found.Name != m.name || found.SHA256 != m.sum()) {
			return nil, &UnreleasedError{Migration: m.part + "/" + found.Name}
		}
		delete(applied, at)
		newest[m.part] = m.version
	}
	for at, found := range applied {
		switch tooNew := (*TooNewError)(nil); {
		case newest[at.Part] == 0:
			if err == nil { // a newer binary may have it
				err = &MissingPartError{Part: at.Part}
			}
		case at.Version <= newest[at.Part]:
			return nil, &UnreleasedError{Migration: at.Part + "/" + found.Name}
		case !errors.As(err, &tooNew) || tooNew.Database < at.Version:
			err = &TooNewError{What: at.Part, Database: at.Version, Binary: newest[at.Part]}
		}
	}
	return missing, err
}

// partVersion identifies a migration.
type partVersion struct {
	Part    string
	Version int
}

// appliedMigration is what the database knows of a migration. Of River's it knows only that it has it.
type appliedMigration struct {
	partVersion
	Name   string
	SHA256 string
}

// appliedMigrations returns the database's migrations.
func appliedMigrations(ctx context.Context, db DB) (map[partVersion]appliedMigration, error) {
	applied := map[partVersion]appliedMigration{}
	if exists, err := isTable(ctx, db, "river_migration"); err != nil {
		return nil, err
	} else if exists {
		versions, err := All(ctx, db, "read river_migration", pgx.RowTo[int], `SELECT version FROM river_migration`)
		if err != nil {
			return nil, err
		}
		for _, version := range versions {
			applied[partVersion{riverPart, version}] = appliedMigration{}
		}
	}
	exists, err := isTable(ctx, db, "weir_migration")
	if err != nil || !exists {
		return applied, err
	}
	const before = `SELECT name FROM weir_migration WHERE to_jsonb(weir_migration) ->> 'sha256' IS NULL ORDER BY version LIMIT 1`
	old, err := All(ctx, db, "read weir_migration", pgx.RowTo[string], before)
	if err != nil {
		return nil, err
	}
	if len(old) > 0 {
		return nil, &UnreleasedError{Migration: old[0]}
	}
	rows, err := All(ctx, db, "read weir_migration", pgx.RowToStructByName[appliedMigration],
		`SELECT part AS part, version AS version, name AS name, sha256 AS sha256 FROM weir_migration`)
	for _, r := range rows {
		applied[r.partVersion] = r
	}
	return applied, err
}

func isTable(ctx context.Context, db DB, name string) (bool, error) {
	return One(ctx, db, "look for "+name, pgx.RowTo[bool], `SELECT to_regclass($1) IS NOT NULL`, name)
}

// Limits for a migration while other processes run. A migration that waits for a lock blocks
// everybody behind it, and can deadlock with them. River's have no lock_timeout: its migrator opens
// the transactions.
const (
	migrationLockTimeout = 2 * time.Second
	migrationTries       = 30
)

// apply runs the migration, and retries it if it cannot get its locks.
func (m migration) apply(ctx context.Context, pool *pgxpool.Pool, conn *pgx.Conn) error {
	for try := 1; ; try++ {
		err := m.try(ctx, pool, conn)
		if err == nil {
			return nil
		}
		var pgErr *pgconn.PgError
		blocked := errors.As(err, &pgErr) && (pgErr.Code == "40P01" || pgErr.Code == "55P03")
		if blocked && try == migrationTries {
			return fmt.Errorf("apply migration %s: other transactions kept what it changes locked for a minute (%w). Nothing of it was kept. "+
				"End those transactions, which `SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY xact_start` shows, "+
				"and run `weir migrate` again", &m, err)
		}
		if !blocked {
			return fmt.Errorf("apply migration %s: %w. Nothing of it was kept, and what ran still runs: "+
				"correct what Postgres names, and run `weir migrate` again", &m, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("apply migration %s: %w", &m, ctx.Err())
		case <-time.After(200 * time.Millisecond): // let the waiting processes go first
		}
	}
}

func (m migration) try(ctx context.Context, pool *pgxpool.Pool, conn *pgx.Conn) error {
	if m.part == riverPart { // its migrator opens the transactions
		migrator, err := riverMigrator(pool)
		if err == nil {
			_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, &rivermigrate.MigrateOpts{TargetVersion: m.version})
		}
		return err
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf(`SET LOCAL lock_timeout = %d`, migrationLockTimeout.Milliseconds())); err != nil {
			return err
		}
		const table = `CREATE TABLE IF NOT EXISTS weir_migration (
			part       text        NOT NULL,
			version    int         NOT NULL,
			name       text        NOT NULL,
			sha256     text        NOT NULL,
			applied_at timestamptz NOT NULL DEFAULT now(),
			PRIMARY KEY (part, version)
		)`
		if _, err := tx.Exec(ctx, table); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, m.sql); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO weir_migration (part, version, name, sha256) VALUES ($1, $2, $3, $4)`,
			m.part, m.version, m.name, m.sum())
		return err
	})
}
