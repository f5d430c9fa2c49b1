-- part core
-- Jobs: what Weir adds to River's tables, and the calls to other services. River's own migrations run first.

-- River's open-source code never reads the GIN index on args, and the one on metadata serves only list filters. Together they triple the
-- WAL of an insert. Rows of the queue live for minutes: vacuum them often.
DROP INDEX IF EXISTS river_job_args_index;
DROP INDEX IF EXISTS river_job_metadata_index;
ALTER TABLE river_job SET (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold    = 1000,
    autovacuum_vacuum_cost_delay   = 0
);

-- 45 attempts: the 25 that River gives a job, and 20 for those that end with their process (jobs.Deaths).
CREATE FUNCTION enqueue_job(p_kind text, p_queue text, p_args jsonb, p_tags text[] DEFAULT '{}') RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    job bigint;
BEGIN
    INSERT INTO river_job (args, kind, max_attempts, priority, queue, tags, scheduled_at)
    VALUES (p_args, p_kind, 45, 1, p_queue, array_remove(p_tags, NULL), now())
    RETURNING id INTO job;
    PERFORM pg_notify(current_schema() || '.river_insert', jsonb_build_object('queue', p_queue)::text);
    RETURN job;
END $$;

COMMENT ON FUNCTION enqueue_job IS 'Adds a job that needs no unique key, and wakes a worker; returns its id.';

-- Every job carries tags, whoever adds it: River UI shows them and filters by them. Go sets them in the insert options.

CREATE FUNCTION tag(p_text text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT substring(left(regexp_replace(p_text, '[^A-Za-z0-9_-]+', '-', 'g'), 255) FROM '^-*([A-Za-z0-9_][A-Za-z0-9_-]+[A-Za-z0-9_])-*$')
$$;

COMMENT ON FUNCTION tag IS 'Turns a text into a tag that River accepts. NULL if that is impossible.';

-- How full a queue is, at a cost that does not grow with the queue. A LIMIT alone bounds nothing if the planner reads the whole table, or a
-- bitmap of the whole backlog, to find a few jobs. These functions leave it one way: along river_job_prioritized_fetching_index.

CREATE FUNCTION count_jobs(p_queue text, p_state river_job_state, p_most int) RETURNS bigint LANGUAGE sql STABLE
    SET enable_seqscan TO off
    SET enable_bitmapscan TO off
    SET enable_indexonlyscan TO on
    SET max_parallel_workers_per_gather TO 0
AS $$
    SELECT count(*)
    FROM (SELECT FROM river_job
          WHERE state = p_state AND queue = p_queue
          ORDER BY priority DESC, scheduled_at DESC, id DESC -- processed jobs were at the other end, and may not be vacuumed yet
          LIMIT p_most) AS j
$$;

COMMENT ON FUNCTION count_jobs IS 'How many jobs of a queue are in a state. Stops counting at a limit, and costs no more than that.';

CREATE FUNCTION oldest_job(p_queue text) RETURNS timestamptz LANGUAGE sql STABLE
    SET enable_seqscan TO off
    SET enable_bitmapscan TO off
    SET enable_indexonlyscan TO on
    SET max_parallel_workers_per_gather TO 0
AS $$
    SELECT min(first.scheduled_at)
    FROM generate_series(1, 4) AS p (priority)
    CROSS JOIN LATERAL (
        SELECT scheduled_at FROM river_job
        WHERE state = 'available' AND queue = p_queue AND priority = p.priority
        ORDER BY scheduled_at, id LIMIT 1
    ) AS first
$$;

COMMENT ON FUNCTION oldest_job IS 'When the longest-waiting job of a queue became available. NULL if none is.';

CREATE TABLE workers (
    name        text PRIMARY KEY,
    seen_at     timestamptz NOT NULL,
    alive_since timestamptz NOT NULL
) WITH (fillfactor = 50);

COMMENT ON TABLE  workers IS 'The processes that process jobs. Each stores a heartbeat every two seconds. Others remove one without a heartbeat, and start its running jobs again. Not compared: how it went, not what is stored.';
COMMENT ON COLUMN workers.name IS 'As in river_job.attempted_by.';
COMMENT ON COLUMN workers.seen_at IS 'The last heartbeat, by the database''s clock.';
COMMENT ON COLUMN workers.alive_since IS 'Since when heartbeats have come without a pause. A process that has just had one does not judge others: the database may have been away for all.';

-- Calls to other services share one rate and one concurrency over all processes.

CREATE TABLE api_slots (
    slot       int PRIMARY KEY,
    holder     text,
    expires_at timestamptz
);

COMMENT ON TABLE  api_slots IS 'How many calls may run at once over all processes: one row each. Not compared: how it went, not what is stored.';
COMMENT ON COLUMN api_slots.holder IS 'The process that has the slot. NULL: free.';
COMMENT ON COLUMN api_slots.expires_at IS 'When the slot becomes free even if its holder has not returned it, because it died.';

CREATE TABLE api_schedule (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    next_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO api_schedule DEFAULT VALUES;

COMMENT ON TABLE  api_schedule IS 'When the next call may start, over all processes. Always one row. Not compared: how it went, not what is stored.';
COMMENT ON COLUMN api_schedule.one IS 'Always true: the key that keeps this one row.';

CREATE FUNCTION take_api_slot(p_holder text, p_slots int, p_spacing interval, p_ttl interval, OUT slot int, OUT wait interval, OUT now_at timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
    at   timestamptz;
    -- The furthest that calls can be reserved ahead: each has a slot, or had one and gave up.
    far CONSTANT interval := p_slots * (p_spacing + interval '100 milliseconds') + interval '1 second';
BEGIN
    -- A server that crashes may lose the last reservations. Then calls may be too close or too many for a second. Waiting
    -- for the disk would delay every call.
    PERFORM set_config('synchronous_commit', 'off', true);
    IF NOT EXISTS (SELECT FROM api_slots AS s WHERE s.slot = p_slots) THEN
        INSERT INTO api_slots (slot) SELECT n FROM generate_series(1, p_slots) AS n ON CONFLICT DO NOTHING;
    END IF;
    SELECT s.slot INTO slot
    FROM api_slots AS s
    WHERE s.slot <= p_slots AND (s.holder IS NULL OR s.expires_at < clock_timestamp())
    ORDER BY s.slot
    LIMIT 1
    FOR UPDATE SKIP LOCKED;
    IF slot IS NULL THEN
        -- If the clock was set back, some slots expire too late: shorten them.
        UPDATE api_slots AS s SET expires_at = clock_timestamp() + p_ttl
        WHERE s.slot IN (SELECT o.slot FROM api_slots AS o WHERE o.expires_at > clock_timestamp() + p_ttl + 2 * far FOR UPDATE SKIP LOCKED);
        wait := interval '20 milliseconds';
        now_at := clock_timestamp();
        RETURN;
    END IF;
    SELECT next_at INTO at FROM api_schedule FOR UPDATE;
    IF at > clock_timestamp() + 2 * far THEN
        at := clock_timestamp() + far; -- the clock was set back; earlier reservations are used up by then
    END IF;
    at := greatest(at, clock_timestamp());
    UPDATE api_schedule SET next_at = at + p_spacing;
    UPDATE api_slots AS s SET holder = p_holder, expires_at = at + p_ttl WHERE s.slot = take_api_slot.slot;
    now_at := clock_timestamp();
    wait := at - now_at;
END $$;

COMMENT ON FUNCTION take_api_slot IS 'Reserves the start of a call: wait for `wait`, then call. If slot is NULL, all slots are taken: wait for `wait`, then try again. Both waits begin at now_at.';

CREATE FUNCTION release_api_slot(p_holder text, p_slot int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE api_slots SET holder = NULL, expires_at = NULL WHERE slot = p_slot AND holder = p_holder;
END $$;

COMMENT ON FUNCTION release_api_slot IS 'Returns a slot, if the holder still has it.';
