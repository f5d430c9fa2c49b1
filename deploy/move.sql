-- Prints what people asked of a database, as statements for a new one: watches, collections, backfills, merges of links
-- and blocks. It changes nothing. docs/operations.md, "Starting anew", says when and how to run it. The new database must
-- be migrated, and Weir must not have run on it: the links keep their ids. A table that the old database does not have is
-- passed over.

\set ON_ERROR_STOP on
\set QUIET on
\pset format unaligned
\pset tuples_only on
SELECT to_regclass('watches') IS NOT NULL AS has_watches, to_regclass('collections') IS NOT NULL AS has_collections,
       to_regclass('histories') IS NOT NULL AS has_histories, to_regclass('network_backfills') IS NOT NULL AS has_network_backfills,
       to_regclass('river_job') IS NOT NULL AS has_jobs, to_regclass('link_merges') IS NOT NULL AS has_merges,
       to_regclass('blocks') IS NOT NULL AS has_blocks \gset

\if :has_watches
    SELECT format('INSERT INTO watches (target, kind, at_least, added_at) VALUES (%L, %L, %L, %L);', target, kind, at_least, added_at)
    FROM watches ORDER BY id;
\endif
\if :has_collections
    SELECT format('INSERT INTO collections (collection, retention, stored) VALUES (%L, %L, %L);', collection, retention, stored)
    FROM collections ORDER BY collection;
\endif

-- Backfills that were requested, also those that ended: the new database has nothing of what they read. Of accounts,
-- only those that have not ended are known.
\if :has_histories
    SELECT format('SELECT enqueue_history(%L);', collection)
    FROM histories WHERE reason = 'requested' AND cancelled_at IS NULL ORDER BY collection;
\endif
\if :has_network_backfills
    SELECT format('SELECT enqueue_network_backfill(least(now() - %L, interval ''10 years''), %L);', from_at, collections)
    FROM network_backfills WHERE gap_id IS NULL AND cancelled_at IS NULL ORDER BY id;
\endif
\if :has_jobs
    SELECT format('SELECT enqueue_backfill(%L, least(now() - %L, interval ''10 years''));', coalesce(args ->> 'account', args ->> 'did'),
        args ->> 'since')
    FROM river_job
    WHERE kind IN ('request_backfill', 'backfill_account') AND 'manual' = ANY (tags) AND NOT args ? 'all' AND finalized_at IS NULL
    ORDER BY id;
\endif

-- Merges, splits too, with their links.
\if :has_merges
    SELECT format('INSERT INTO links (id, identity, url, site, first_seen, merged_into) OVERRIDING SYSTEM VALUE VALUES (%L, %L, %L, %L, %L, %L);',
        id, identity, url, site, first_seen, merged_into)
    FROM links WHERE id IN (SELECT unnest(ARRAY[link_id, into_id]) FROM link_merges) ORDER BY merged_into NULLS FIRST, id;
    SELECT format('INSERT INTO link_merges (link_id, into_id, why, merged_at, split_at) VALUES (%L, %L, %L, %L, %L);',
        link_id, into_id, why, merged_at, split_at)
    FROM link_merges ORDER BY merged_at, link_id;
    SELECT 'SELECT setval(pg_get_serial_sequence(''links'', ''id''), max(id)) FROM links;';
\endif
\if :has_blocks
    SELECT format('INSERT INTO blocks (kind, target, added_at) VALUES (%L, %L, %L);', kind, target, added_at) FROM blocks ORDER BY id;
\endif
