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

// ReadRights reads the rights of this role. Weir needs to write its tables and River's, without partitions of
// days, to read the views and the lists of migrations, and to call the functions. All of Weir's have a comment,
// which tells them from those of another program in the same schema.
func ReadRights(ctx context.Context, db DB) (Rights, error) {
	// A function that makes partitions runs as its owner if it is SECURITY DEFINER, and as its
	// caller otherwise.
	const sql = `
WITH owned AS (
    SELECT oid, relname, relkind FROM pg_class
    WHERE relnamespace = quote_ident(current_schema())::regnamespace
      AND relowner = (SELECT relowner FROM pg_class WHERE oid = to_regclass('streams'))
      AND NOT (relispartition AND relname ~ '_[0-9]')
      AND (relkind = 'S' OR relname LIKE 'river\_%' OR obj_description(oid, 'pg_class') IS NOT NULL)
)
SELECT current_user::text                                                    AS role,
       coalesce(current_schema()::text, '')                                  AS schema,
       to_regclass('streams') IS NOT NULL                                    AS migrated,
       coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)     AS "create",
       coalesce((SELECT relowner::regrole::text FROM pg_class WHERE oid = to_regclass('streams')), '')               AS owner,
       coalesce((SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass('streams')), false)     AS owns,
       coalesce((
           SELECT bool_and(has_function_privilege(f.oid, 'EXECUTE') AND has_schema_privilege(f.worker, p.relnamespace, 'CREATE')
                           AND pg_has_role(f.worker, p.relowner, 'USAGE')) AND count(*) = 4
           FROM (SELECT oid, CASE WHEN prosecdef THEN proowner ELSE quote_ident(current_user)::regrole::oid END AS worker
                 FROM pg_proc
                 WHERE oid IN (to_regprocedure('ensure_partition(text,timestamptz,interval)'),
                     to_regprocedure('prepare_default_partition(text)'),
                               to_regprocedure('lock_partition(text)'), to_regprocedure('drop_partition(text)'))) AS f
           JOIN pg_class AS p ON p.oid = to_regclass('posts')
       ), false)                                                             AS partitions,
       ARRAY(
           SELECT format('%s on %s', string_agg(r.right_, ', ' ORDER BY r.n), t.relname)
           FROM owned AS t
           CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) WITH ORDINALITY AS r (right_, n)
           WHERE t.relkind IN ('r', 'p', 'v') AND (t.relkind <> 'v' AND t.relname NOT IN ('weir_migration', 'river_migration')
               OR r.right_ = 'SELECT')
             AND NOT has_table_privilege(t.oid, r.right_)
           GROUP BY t.relname ORDER BY t.relname
       ) || ARRAY(
           SELECT 'USAGE on sequence ' || s.oid::regclass
           FROM owned AS s
           WHERE CASE s.relkind WHEN 'S' THEN NOT has_sequence_privilege(s.oid, 'USAGE') END
             -- an identity column needs none
             AND EXISTS (SELECT FROM pg_depend AS d JOIN owned AS o ON o.oid = d.refobjid WHERE d.objid = s.oid AND d.deptype = 'a')
           ORDER BY 1
       ) || ARRAY(
           SELECT 'EXECUTE on ' || f.oid::regprocedure
           FROM pg_proc AS f
           WHERE f.pronamespace = quote_ident(current_schema())::regnamespace AND f.prorettype <> 'trigger'::regtype
             AND f.proowner = (SELECT relowner FROM pg_class WHERE oid = to_regclass('streams'))
                 AND NOT has_function_privilege(f.oid, 'EXECUTE')
             AND (f.proname LIKE 'river\_%' OR obj_description(f.oid, 'pg_proc') IS NOT NULL)
             -- of an extension
             AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_proc'::regclass AND d.objid = f.oid AND d.deptype = 'e')
           ORDER BY 1
       )                                                                     AS missing`
	return One(ctx, db, "read the rights of this role", pgx.RowToStructByName[Rights], sql)
}

// OwnsTables reports whether this role owns the tables: only owners can rebuild
// indexes.
func OwnsTables(ctx context.Context, db DB) (bool, error) {
	return One(ctx, db, "read the owner of the tables", pgx.RowTo[bool],
		`SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'streams'::regclass`)
}
