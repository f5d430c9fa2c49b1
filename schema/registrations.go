package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/internal/retry"
)

// OutdatedError means that the database and this program have different projections.
// The program must not store records, because some of their jobs would be missing.
type OutdatedError struct {
	Name    string // the projection that differs
	Missing bool   // this program does not have it
}

func (e *OutdatedError) Error() string {
	if e.Missing {
		return fmt.Sprintf("the database has the projection %q, which this program lacks: run the program that has it, "+
			"or remove the projection by `weir projection remove %[1]s`", e.Name)
	}
	return fmt.Sprintf("the projection %q was changed or removed since this program started: start it again", e.Name)
}

const readProjections = `SELECT name, collections, kind, queue, tables, queues FROM projections ORDER BY name`

// Check returns an *OutdatedError unless exactly these projections are
// registered.
func (p Projections) Check(ctx context.Context, db DB) error {
	registered, err := All(ctx, db, "read the projections", pgx.RowToStructByPos[Projection], readProjections)
	if err != nil {
		return err
	}
	return p.compare(registered)
}

// Lock does what Check does, in a transaction that stores records
// without a lease. Nobody can register a projection until the transaction ends.
func (p Projections) Lock(ctx context.Context, tx pgx.Tx) error {
	q := &pgx.Batch{}
	q.Queue(`LOCK TABLE projections IN ROW SHARE MODE`)
	var registered []Projection
	q.Queue(readProjections).Query(func(rows pgx.Rows) (err error) {
		registered, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Projection])
		return err
	})
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return fmt.Errorf("lock the projections: %w", err)
	}
	return p.compare(registered)
}

// Watch checks at intervals. It returns an error as soon as the database has other
// projections than these, and nil when ctx ends.
func (p Projections) Watch(ctx context.Context, pool *pgxpool.Pool, every time.Duration) error {
	for retry.Sleep(ctx, every) == nil {
		err := p.Check(ctx, pool)
		if _, ok := errors.AsType[*OutdatedError](err); ok {
			return err
		}
	}
	return nil
}

// compare returns an error for the first projection that differs.
func (p Projections) compare(registered []Projection) error {
	left := slices.Clone(p)
	for i := range registered {
		at := slices.IndexFunc(left, func(o Projection) bool { return o.Name == registered[i].Name })
		if at < 0 {
			return &OutdatedError{Name: registered[i].Name, Missing: true}
		}
		if !left[at].equal(&registered[i]) {
			return &OutdatedError{Name: registered[i].Name}
		}
		left = slices.Delete(left, at, at+1)
	}
	if len(left) > 0 {
		return &OutdatedError{Name: left[0].Name}
	}
	return nil
}

// Register registers the program's projections, and returns the names of
// those that are new or changed. If the database has a projection that the program
// lacks, it changes nothing and returns an *OutdatedError: the program would store
// records without that projection's jobs, and River would discard jobs of a kind that
// it does not know.
//
// A new projection gets jobs for all records stored from then on. For this, the
// transaction waits for running commits and ends the leases of all streams, because
// a process that takes a lease checks the projections first. For the records stored
// before, it adds a run_projection job.
func (p Projections) Register(ctx context.Context, pool *pgxpool.Pool) (changed []string, err error) {
	if err := p.valid(); err != nil {
		return nil, err
	}
	if err := p.Check(ctx, pool); err == nil {
		return nil, nil
	} else if outdated, ok := errors.AsType[*OutdatedError](err); !ok || outdated.Missing {
		return nil, err
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		changed = nil
		// A commit of a stream locks the stream's row, and never the projections.
		if _, err := tx.Exec(ctx, `LOCK TABLE streams IN SHARE ROW EXCLUSIVE MODE; LOCK TABLE projections IN EXCLUSIVE MODE`); err != nil {
			return fmt.Errorf("lock the projections: %w", err)
		}
		registered, err := All(ctx, tx, "read the projections", pgx.RowToStructByPos[Projection], readProjections)
		if err != nil {
			return err
		}
		for i := range p {
			at := slices.IndexFunc(registered, func(o Projection) bool { return o.Name == p[i].Name })
			if at >= 0 && registered[at].equal(&p[i]) {
				continue
			}
			if err := p[i].register(ctx, tx, at < 0 || !registered[at].makesAs(&p[i])); err != nil {
				return err
			}
			changed = append(changed, p[i].Name)
		}
		if len(changed) > 0 {
			const fence = `UPDATE streams SET epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL WHERE lease_owner IS NOT NULL`
			if _, err := tx.Exec(ctx, fence); err != nil {
				return fmt.Errorf("end the leases of the streams: %w", err)
			}
		}
		return p.Check(ctx, tx) // another process may have registered other projections
	})
	return changed, err
}

// valid returns an error if the projections themselves are invalid.
func (p Projections) valid() error {
	kinds := map[string]string{}
	for i := range p {
		if other, ok := kinds[p[i].Kind]; ok {
			return fmt.Errorf("the projections %q and %q have the same kind of job, %q", other, p[i].Name, p[i].Kind)
		}
		kinds[p[i].Kind] = p[i].Name
		for _, pattern := range p[i].Collections {
			if pattern == "" || strings.Contains(strings.TrimSuffix(pattern, ".*"), "*") {
				return fmt.Errorf("projection %q: %q is neither a collection nor a prefix such as pub.layers.*", p[i].Name, pattern)
			}
		}
	}
	return nil
}

// checkTables returns an error unless the projection's tables exist and have the
// columns of a key.
func (p *Projection) checkTables(ctx context.Context, db DB) error {
	const sql = `
SELECT count(*) = 3 AS keyed, coalesce(bool_or(a.attname = 'did' AND EXISTS (SELECT FROM pg_index AS i
    WHERE i.indrelid = a.attrelid AND i.indkey[0] = a.attnum)), false) AS indexed
FROM pg_attribute AS a
WHERE a.attrelid = to_regclass(quote_ident($1)) AND a.attname IN ('collection', 'did', 'rkey') AND NOT a.attisdropped`
	type columns struct{ Keyed, Indexed bool }
	for _, table := range slices.Concat(p.Tables, p.Compared) {
		has, err := One(ctx, db, "check the table "+table, pgx.RowToStructByName[columns], sql, table)
		switch {
		case err != nil:
			return err
		case slices.Contains(p.Tables, table) && !(has.Keyed && has.Indexed):
			return fmt.Errorf("projection %q: there is no table %s with the columns collection, did and rkey, and an index that begins with did",
				p.Name, table)
		case !has.Keyed:
			return fmt.Errorf("projection %q: there is no table or view %s with the columns collection, did and rkey", p.Name, table)
		}
	}
	return nil
}

// register stores the projection's row. If runs is set and matching records are stored, it
// adds a job that projects them.
func (p *Projection) register(ctx context.Context, tx pgx.Tx, runs bool) error {
	if err := p.checkTables(ctx, tx); err != nil {
		return err
	}
	const row = `
INSERT INTO projections AS p (name, collections, kind, queue, tables, queues) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO UPDATE
SET collections = excluded.collections, kind = excluded.kind, queue = excluded.queue, tables = excluded.tables,
    queues = excluded.queues, registered_at = now()`
	_, err := tx.Exec(ctx, row, p.Name, p.Collections, p.Kind, p.Queue, append([]string{}, p.Tables...), append([]string{}, p.Queues...))
	if err != nil {
		return fmt.Errorf("register the projection %s: %w", p.Name, err)
	}
	if _, err := MoveStranded(ctx, tx); err != nil || !runs {
		return err
	}
	first, err := RecordsAfter(ctx, tx, p, Key{}, 1)
	if err != nil || len(first) == 0 {
		return err
	}
	_, err = RunProjection(ctx, tx, p.Name)
	return err
}

// MoveStranded moves waiting jobs of projections that are in none of the projection's
// queues, as after a change of the configuration, to the queue that every worker process
// serves. It returns how many it moved.
func MoveStranded(ctx context.Context, db DB) (int64, error) {
	const sql = `
UPDATE river_job AS j SET queue = p.queue
FROM projections AS p
WHERE j.kind = p.kind AND j.state IN ('available', 'pending', 'retryable', 'scheduled') AND j.queue <> p.queue
    AND j.queue <> ALL (p.queues)`
	n, err := Change(ctx, db, "move the jobs of queues that are gone", sql)
	return int64(n), err
}

// RunProjection adds a job that projects all stored records of a projection's
// collections, through the SQL function run_projection. It returns the job's id.
func RunProjection(ctx context.Context, db DB, name string) (int64, error) {
	return One(ctx, db, "run the projection", pgx.RowTo[int64], `SELECT run_projection($1)`, name)
}

// RemoveProjection removes a projection. It returns ErrNoRows if there is none, and an
// error if the projection has unfinished jobs.
func RemoveProjection(ctx context.Context, db DB, name string) error {
	done, err := db.Exec(ctx, `DELETE FROM projections WHERE name = $1`, name)
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Hint != "" {
		return fmt.Errorf("remove: %s: %s", refused.Message, refused.Hint)
	}
	if err == nil && done.RowsAffected() == 0 {
		err = ErrNoRows
	}
	if err != nil {
		return fmt.Errorf("remove the projection %s: %w", name, err)
	}
	return nil
}

// RegisteredProjection is a projection of the database.
type RegisteredProjection struct {
	Name         string    `json:"name"`
	Collections  []string  `json:"collections"`
	Kind         string    `json:"kind"`
	Queue        string    `json:"queue"`
	Tables       []string  `json:"tables"`
	RegisteredAt time.Time `json:"registered_at"`
	Running      bool      `json:"running"` // a run_projection job is unfinished
	Unfinished   int64     `json:"unfinished_jobs"`
	DeadLetters  int64     `json:"dead_letters"`
}

// RegisteredProjections lists the projections of the database.
func RegisteredProjections(ctx context.Context, db DB) ([]RegisteredProjection, error) {
	const sql = `
SELECT p.name, p.collections, p.kind, p.queue, p.tables, p.registered_at,
       EXISTS (SELECT FROM river_job AS j WHERE j.kind = 'run_projection' AND j.args ->> 'name' = p.name AND j.state IN ` +
		UnfinishedStates + `) AS running,
       (SELECT count(*) FROM river_job AS j WHERE j.kind = p.kind AND j.state IN ` + UnfinishedStates + `) AS unfinished,
       (SELECT count(*) FROM dead_letters AS d WHERE d.projection = p.name AND d.state IN ('open', 'retrying')) AS dead_letters
FROM projections AS p
ORDER BY p.name`
	return All(ctx, db, "list the projections", pgx.RowToStructByPos[RegisteredProjection], sql)
}

// RecordsAfter returns the keys of at most limit stored records that a projection
// reads, sorted, after a key. It returns fewer only at the end.
func RecordsAfter(ctx context.Context, db DB, p *Projection, after Key, limit int) (found []Key, err error) {
	const rest = `SELECT collection, did, rkey FROM records WHERE collection = $1 AND (did, rkey) > ($2, $3) ORDER BY did, rkey LIMIT $4`
	const next = `SELECT coalesce(min(collection), '') FROM records WHERE collection > $1`
	for {
		if p.Reads(after.Collection) {
			keys, err := All(ctx, db, "read the keys of "+after.Collection, pgx.RowToStructByPos[Key], rest, after.Collection, after.DID, after.Rkey,
				limit-len(found))
			if err != nil {
				return nil, err
			}
			if found = append(found, keys...); len(found) == limit {
				return found, nil
			}
		}
		collection, err := One(ctx, db, "find the next collection", pgx.RowTo[string], next, after.Collection)
		if err != nil || collection == "" {
			return found, err
		}
		after = Key{Collection: collection}
	}
}
