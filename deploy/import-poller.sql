-- Takes the accounts over from a program that polls feeds into the tables poll_state and follows. Run it in that
-- program's database: it prints the statements for Weir's, and changes nothing there.
--
--     psql OLD --file=deploy/import-poller.sql | psql weir --set ON_ERROR_STOP=1
--
-- Each account becomes a watch of that account, by its DID if follows has it, or else by its handle. If only one of
-- the tables exists, that one is read. Nothing else in them is needed: Weir reads the last day of every account by
-- itself, and its position is one of the stream. Running it again adds only the accounts that are not watched yet.

\set ON_ERROR_STOP on
\set QUIET on
\pset format unaligned
\pset tuples_only on
SELECT to_regclass('follows') IS NOT NULL AS has_follows, to_regclass('poll_state') IS NOT NULL AS has_poll_state \gset
\set follows 'SELECT NULL, NULL WHERE false'
\set polled :follows
\if :has_follows
    \set follows 'SELECT did, handle FROM follows'
\endif
\if :has_poll_state
    \set polled 'SELECT NULL, user_handle FROM poll_state'
\endif
\if :has_follows
\elif :has_poll_state
\else
    DO $$ BEGIN RAISE EXCEPTION 'there is neither a table follows nor a table poll_state: run this in the database of the program that polls'; END $$;
\endif

-- A line for psql for each account: a statement, or what is wrong with it.
WITH known (did, handle) AS (
    SELECT btrim(did::text), lower(ltrim(btrim(handle::text), '@')) FROM (:follows UNION ALL :polled) AS k (did, handle)
), targets AS (
    SELECT DISTINCT CASE WHEN did <> '' THEN did ELSE handle END AS target
    FROM known AS k
    WHERE did <> '' OR NOT EXISTS (SELECT FROM known AS o WHERE o.did <> '' AND o.handle = k.handle)
)
SELECT CASE WHEN target ~ '^(did:[a-z]+:[A-Za-z0-9._:%-]+|[a-z0-9-]+(\.[a-z0-9-]+)+)$'
            THEN format('INSERT INTO watches (target, kind) VALUES (%L, ''account'') ON CONFLICT DO NOTHING;', target)
            ELSE format(E'\\warn ''not imported, because it is neither a DID nor a handle: %s''',
                        regexp_replace(left(coalesce(target, ''), 100), '[^A-Za-z0-9._:@-]', '?', 'g')) END
FROM targets
ORDER BY target;
