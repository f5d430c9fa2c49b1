package schema

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Rights describes the rights of this role in Weir's schema.
type Rights struct {
	Role       string
	Schema     string   // where Weir's tables are or would be created; empty: this role may use no schema
	Migrated   bool     // the tables exist
	Create     bool     // it may create tables, as `weir migrate` does
	Owner      string   // the tables' owner; empty if there are no tables
	Owns       bool     // this role owns the tables, or is a member of the owner
	Partitions bool     // it may create and drop partitions, as retention does every day
	Missing    []string // missing rights that Weir needs, such as "INSERT, UPDATE on records"
}

// Uses are the tables and functions that the running roles need for a feature. Those of
// the core are in this file.
type Uses struct {
	Written []string // tables that are written, and read
	Read    []string // tables that are only read
	Called  []string // functions that Weir, operators and other functions call
}

// writtenTables are the tables that the running roles write.
func writtenTables() []string {
	return []string{
		"accounts", "alerts", "api_schedule", "api_slots", "archive_open", "archive_snapshots", "archived_ids", "archived_ids_default", "audit_faults",
		"audits", "chains", "dead_letters", "deleted_records", "expirations", "forgotten", "gap_backfills", "gaps", "histories",
		"history_accounts", "history_listings", "lexicons", "listing_members", "nostr_authors", "nostr_relays", "parked", "posts", "posts_default",
		"profiles", "projections", "purge_queue", "record_refs", "record_texts", "records", "records_other", "relay_audits", "resyncs", "seen", "segments",
		"stored_collections", "streams", "strict_lexicons", "tombstones", "unreadable_lists", "verdicts", "waiting", "watch_members", "watches", "workers",
		"river_job", "river_leader", "river_notification", "river_queue",
	}
}

// readTables are the tables that the running roles only read.
func readTables() []string {
	return []string{"follows", "instance_key", "partitions", "record_views", "river_migration", "weir_migration"}
}

// calledFunctions are the functions that Weir, operators and other functions call.
func calledFunctions() []string {
	return []string{
		"advance_stream", "author_hash", "check_dead_letter_filter", "count_jobs", "dismiss_dead_letter", "dismiss_dead_letters", "drop_archived_days", "drop_partition",
		"drop_record_view", "enqueue_backfill", "enqueue_backfill_all", "enqueue_history", "enqueue_job", "enqueue_request", "enqueue_resync",
		"enqueue_retries", "ensure_archived_day", "ensure_partition", "lock_partition", "lock_partitioned", "make_record_view", "oldest_job",
		"prepare_default_partition", "record_integer", "record_time", "release_api_slot", "retry_dead_letter",
		"retry_dead_letters", "river_job_state_in_bitmask", "run_projection", "tag", "take_api_slot", "tid_floor", "tid_time",
	}
}

// ReadRights reads the rights of this role that the core and these features need. Tables
// and functions that do not exist yet are not missing.
func ReadRights(ctx context.Context, db DB, features ...Uses) (Rights, error) {
	// A function that makes partitions runs as its owner if it is SECURITY DEFINER, and as its
	// caller otherwise.
	const sql = `
SELECT current_user::text                                                    AS role,
       coalesce(current_schema()::text, '')                                  AS schema,
       to_regclass('streams') IS NOT NULL                                    AS migrated,
       coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)     AS "create",
       coalesce((SELECT relowner::regrole::text FROM pg_class WHERE oid = to_regclass('streams')), '')               AS owner,
       coalesce((SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass('streams')), false)     AS owns,
       coalesce((
           SELECT bool_and(has_function_privilege(f.oid, 'EXECUTE') AND has_schema_privilege(f.worker, p.relnamespace, 'CREATE')
                           AND pg_has_role(f.worker, p.relowner, 'USAGE')) AND count(*) = 4
           FROM (SELECT oid, CASE WHEN prosecdef THEN proowner ELSE current_user::regrole::oid END AS worker
                 FROM pg_proc
                 WHERE oid IN (to_regprocedure('ensure_partition(text,timestamptz,interval)'), to_regprocedure('prepare_default_partition(text)'),
                               to_regprocedure('lock_partition(text)'), to_regprocedure('drop_partition(text)'))) AS f
           JOIN pg_class AS p ON p.oid = to_regclass('posts')
       ), false)                                                             AS partitions,
       ARRAY(
           SELECT format('%s on %s', string_agg(r.right_, ', ' ORDER BY r.n), t.name)
           FROM (SELECT name, to_regclass(name)::oid AS oid, true AS written FROM unnest($1::text[]) AS w (name)
                 UNION ALL SELECT name, to_regclass(name), false FROM unnest($2::text[]) AS w (name)) AS t
           CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) WITH ORDINALITY AS r (right_, n)
           WHERE (t.written OR r.right_ = 'SELECT') AND NOT has_table_privilege(t.oid, r.right_)
           GROUP BY t.name ORDER BY t.name
       ) || ARRAY(
           SELECT 'USAGE on sequence ' || s.oid::regclass
           FROM pg_depend AS d
           JOIN pg_class AS s ON s.oid = d.objid
           WHERE d.deptype = 'a' AND d.refobjid IN (SELECT to_regclass(name)::oid FROM unnest($1::text[]) AS w (name))
             AND CASE s.relkind WHEN 'S' THEN NOT has_sequence_privilege(s.oid, 'USAGE') END
           ORDER BY 1
       ) || ARRAY(
           SELECT 'EXECUTE on ' || f.oid::regprocedure
           FROM pg_proc AS f
           WHERE f.pronamespace = current_schema()::regnamespace AND f.proname = ANY ($3) AND NOT has_function_privilege(f.oid, 'EXECUTE')
           ORDER BY 1
       )                                                                     AS missing`
	all := Uses{Written: writtenTables(), Read: readTables(), Called: calledFunctions()}
	for _, f := range features {
		all.Written, all.Read, all.Called = append(all.Written, f.Written...), append(all.Read, f.Read...), append(all.Called, f.Called...)
	}
	return One(ctx, db, "read the rights of this role", pgx.RowToStructByName[Rights], sql, all.Written, all.Read, all.Called)
}

// OwnsTables reports whether this role owns the tables: only owners can rebuild
// indexes.
func OwnsTables(ctx context.Context, db DB) (bool, error) {
	return One(ctx, db, "read the owner of the tables", pgx.RowTo[bool], `SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'streams'::regclass`)
}
