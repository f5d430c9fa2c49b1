package schema

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Setting is a setting of the server, with its value in this session.
type Setting struct {
	Name   string
	Value  string
	Unit   string // such as 8kB, MB, ms, s; empty: none
	Source string // where the value comes from: default, configuration file, database, user, …
}

// Settings reads settings by name. It skips settings that this server does not have or
// that this role may not read.
func Settings(ctx context.Context, db DB, names []string) ([]Setting, error) {
	const sql = `
SELECT name               AS name,
       setting            AS value,
       coalesce(unit, '') AS unit,
       source             AS source
FROM pg_settings
WHERE name = ANY ($1)
ORDER BY name`
	return All(ctx, db, "read the settings of the server", pgx.RowToStructByName[Setting], sql, names)
}

// Server describes the state of the server and the database.
type Server struct {
	Now         time.Time // by the server's clock
	Backend     int64     // the process id of the backend
	Version     int       // such as 150004
	Encoding    string
	Database    string
	Bytes       int64  // of the database on disk
	Standby     bool   // the server replays another server's log
	Collation   string // version of the default collation when the database was created; empty: it has none
	CollationIs string // the current version of that collation
	XIDAge      int64  // transactions since the database was last frozen
	Ours        int    // connections with the application name weir
	Others      int    // other clients' connections
	Reserved    int    // connections kept for superusers and privileged roles
	Limit       int    // connection limit of this role or this database; -1: none
}

// ReadServer reads the state of the server. A role without pg_read_all_stats does not
// see the type of other roles' sessions: a session with a user and a database counts
// as a client.
func ReadServer(ctx context.Context, db DB) (Server, error) {
	const sql = `
SELECT clock_timestamp()                                                                AS now,
       pg_backend_pid()                                                                 AS backend,
       current_setting('server_version_num')::int                                       AS version,
       pg_encoding_to_char(d.encoding)::text                                            AS encoding,
       d.datname::text                                                                  AS database,
       pg_database_size(d.oid)                                                          AS bytes,
       pg_is_in_recovery()                                                              AS standby,
       coalesce(d.datcollversion, '')                                                   AS collation,
       coalesce(pg_database_collation_actual_version(d.oid), '')                        AS collation_is,
       age(d.datfrozenxid)::bigint                                                      AS xid_age,
       a.ours                                                                           AS ours,
       a.others                                                                         AS others,
       current_setting('superuser_reserved_connections')::int
           + coalesce(current_setting('reserved_connections', true)::int, 0)            AS reserved,
       coalesce((SELECT min(n) FROM unnest(ARRAY[d.datconnlimit, r.rolconnlimit]) AS n WHERE n >= 0), -1) AS "limit"
FROM pg_database AS d
JOIN pg_roles AS r ON r.rolname = current_user
CROSS JOIN (
    SELECT count(*) FILTER (WHERE application_name = 'weir')                  AS ours,
           count(*) FILTER (WHERE application_name IS DISTINCT FROM 'weir')   AS others
    FROM pg_stat_activity
    WHERE backend_type = 'client backend' OR backend_type IS NULL AND usesysid IS NOT NULL AND datid IS NOT NULL
) AS a
WHERE d.datname = current_database()`
	return One(ctx, db, "read the state of the server", pgx.RowToStructByName[Server], sql)
}

// OldTransaction is a long transaction. Rows deleted since it began cannot be vacuumed.
type OldTransaction struct {
	What  string // the statement that ends it
	Since time.Time
}

// OldTransactions lists at most ten transactions that began before a time, including
// prepared ones, oldest first. It lists transactions of other roles only if
// CanSeeSessions returns true.
func OldTransactions(ctx context.Context, db DB, before time.Time) ([]OldTransaction, error) {
	const sql = `
SELECT what AS what, since AS since FROM (
    SELECT format('SELECT pg_terminate_backend(%s)', pid) AS what, xact_start AS since
    FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
      AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    UNION ALL
    SELECT format('ROLLBACK PREPARED %L', gid), prepared FROM pg_prepared_xacts
) AS t
WHERE since < $1
ORDER BY since
LIMIT 10`
	return All(ctx, db, "list old transactions", pgx.RowToStructByName[OldTransaction], sql, before)
}

// CanSeeSessions reports whether this role sees when other roles' transactions began.
func CanSeeSessions(ctx context.Context, db DB) (bool, error) {
	return One(ctx, db, "read which sessions this role sees", pgx.RowTo[bool], `SELECT pg_has_role('pg_read_all_stats', 'USAGE')`)
}

// Slot is a replication slot. The server keeps its log for the slot's reader.
type Slot struct {
	Name   string
	Active bool  // a reader is connected
	Bytes  int64 // of log kept for the slot
	Lost   bool  // the server no longer keeps the log
}

// Slots lists the replication slots of the server.
func Slots(ctx context.Context, db DB) ([]Slot, error) {
	const sql = `
SELECT slot_name::text                                      AS name,
       active                                               AS active,
       CASE WHEN pg_is_in_recovery() THEN 0
            ELSE coalesce(pg_current_wal_lsn() - restart_lsn, 0) END::bigint AS bytes,
       coalesce(wal_status = 'lost', false)                 AS lost
FROM pg_replication_slots
WHERE NOT temporary
ORDER BY slot_name`
	return All(ctx, db, "list the replication slots", pgx.RowToStructByName[Slot], sql)
}

// InvalidIndexes lists indexes whose creation was interrupted. No query uses them, and
// they slow down every write. It skips indexes that are being created; if another role
// creates one, only the lock on its table may be visible.
func InvalidIndexes(ctx context.Context, db DB) ([]string, error) {
	const sql = `
SELECT i.indexrelid::regclass::text
FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND NOT (i.indisvalid AND i.indisready)
  AND NOT EXISTS (
      SELECT FROM pg_stat_progress_create_index AS p
      LEFT JOIN pg_locks AS l ON l.pid = p.pid AND l.relation = i.indrelid AND l.mode = 'ShareUpdateExclusiveLock'
      WHERE p.index_relid = i.indexrelid OR p.index_relid IS NULL AND l.pid IS NOT NULL)
ORDER BY 1`
	return All(ctx, db, "list invalid indexes", pgx.RowTo[string], sql)
}

// CheckNotifications returns an error if a notification from one session does not reach
// a listening session before ctx ends: a pooler in transaction mode drops it.
func CheckNotifications(ctx context.Context, listener *pgx.Conn, sender DB, channel string) error {
	if _, err := listener.Exec(ctx, `LISTEN `+pgx.Identifier{channel}.Sanitize()); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if _, err := sender.Exec(ctx, `SELECT pg_notify($1, '')`, channel); err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	if _, err := listener.WaitForNotification(ctx); err != nil {
		return fmt.Errorf("wait for a notification: %w", err)
	}
	return nil
}
