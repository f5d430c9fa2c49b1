-- The queue: what Weir adds to River's tables, and the calls to other services. River's own migrations run first.

-- River's open-source code never reads the GIN index on args, and the one on metadata serves only list filters. Together they triple the
-- WAL of an insert. Rows of the queue live for minutes: vacuum them often.
DROP INDEX IF EXISTS river_job_args_index;
DROP INDEX IF EXISTS river_job_metadata_index;
ALTER TABLE river_job SET (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold    = 1000,
    autovacuum_vacuum_cost_delay   = 0
);

CREATE FUNCTION enqueue_job(p_kind text, p_queue text, p_args jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    answer bigint;
BEGIN
    INSERT INTO river_job (args, kind, max_attempts, priority, queue)
    VALUES (p_args, p_kind, 25, 1, p_queue)
    RETURNING id INTO answer;
    PERFORM pg_notify(current_schema() || '.river_insert', jsonb_build_object('queue', p_queue)::text);
    RETURN answer;
END $$;

COMMENT ON FUNCTION enqueue_job IS 'Adds a job that needs no unique key, and wakes a worker. Returns the id of the job.';

-- Every job carries tags, whoever adds it: River UI shows them and filters by them.

CREATE FUNCTION tag(p_text text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT substring(left(regexp_replace(p_text, '[^A-Za-z0-9_-]+', '-', 'g'), 255) FROM '^-*([A-Za-z0-9_][A-Za-z0-9_-]+[A-Za-z0-9_])-*$')
$$;

COMMENT ON FUNCTION tag IS 'Turns a text into a tag that River accepts. NULL if that is impossible.';

-- Each branch is an expression that the server plans once per session: the function runs for every job.
CREATE FUNCTION tags_of(p_kind text, p_priority int, p_args jsonb) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    reasons CONSTANT text[] := ARRAY['gap', 'manual', 'new-follow', 'cold-start'];
    found   text;
BEGIN
    CASE p_kind
    WHEN 'process_posts' THEN
        IF p_args ->> 'stream' <> '' THEN
            RETURN ARRAY[coalesce(tag('stream-' || (p_args ->> 'stream')), 'stream')];
        END IF;
        RETURN ARRAY[CASE WHEN p_args ? 'arrived' THEN 'replay' ELSE 'feed' END];
    WHEN 'backfill_account' THEN
        RETURN ARRAY[reasons[p_priority]];
    WHEN 'request_backfill' THEN
        RETURN array_remove(ARRAY[CASE WHEN p_args ->> 'priority' IN ('1', '2', '3', '4') THEN reasons[(p_args ->> 'priority')::int] END,
                                  CASE WHEN p_args ->> 'all' = 'true' THEN 'every-account' WHEN p_args ? 'watch' THEN 'second-read' ELSE 'one-account' END], NULL);
    WHEN 'sync_follows' THEN
        IF p_args ->> 'watch' = '0' THEN
            RETURN ARRAY['every-watch'];
        END IF;
        SELECT w.kind INTO found FROM watches AS w WHERE w.id::text = p_args ->> 'watch';
        RETURN ARRAY[coalesce(found, 'no-watch')];
    WHEN 'close_gap' THEN
        SELECT coalesce(tag('stream-' || g.stream), 'stream') INTO found FROM gaps AS g WHERE g.id::text = p_args ->> 'gap';
        RETURN ARRAY[coalesce(found, 'no-gap')];
    WHEN 'send_alert' THEN
        RETURN array_remove(ARRAY[tag(p_args ->> 'severity'), tag(p_args ->> 'name'), CASE p_args ->> 'resolved' WHEN 'true' THEN 'resolved' ELSE 'fires' END], NULL);
    WHEN 'replay_dead_letters' THEN
        RETURN ARRAY['asked-for'];
    WHEN 'check_alerts', 'expire', 'audit' THEN
        RETURN ARRAY['periodic'];
    ELSE
        RETURN '{}';
    END CASE;
END $$;

COMMENT ON FUNCTION tags_of IS 'The tags of a job: its stream, the kind of its watch, or the reason for reading a feed. A few words, never text from strangers.';

CREATE FUNCTION tag_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    kept text[] := NEW.tags;
BEGIN
    IF kept = '{}' THEN
        NEW.tags := tags_of(NEW.kind, NEW.priority, NEW.args);
        RETURN NEW;
    END IF;
    IF TG_OP = 'UPDATE' THEN -- another priority means another reason
        SELECT coalesce(array_agg(t), '{}') INTO kept FROM unnest(NEW.tags) AS t WHERE t <> ALL (tags_of(OLD.kind, OLD.priority, OLD.args));
    END IF;
    SELECT coalesce(array_agg(t ORDER BY n), '{}') INTO NEW.tags
    FROM (SELECT t, min(n) AS n FROM unnest(tags_of(NEW.kind, NEW.priority, NEW.args) || kept) WITH ORDINALITY AS a (t, n) GROUP BY t) AS b;
    RETURN NEW;
END $$;

COMMENT ON FUNCTION tag_job IS 'Puts the tags of a job before the tags that it already has.';

CREATE TRIGGER job_tagged BEFORE INSERT ON river_job FOR EACH ROW EXECUTE FUNCTION tag_job();
CREATE TRIGGER job_retagged BEFORE UPDATE OF priority ON river_job FOR EACH ROW
    WHEN (OLD.priority <> NEW.priority) EXECUTE FUNCTION tag_job();

-- The database's clock decides when a job is due.

CREATE FUNCTION date_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    backoff CONSTANT interval := least(coalesce(array_length(NEW.errors, 1), 0), 30) ^ 4 * interval '1 second';
    most    CONSTANT int      := 20; -- deaths in a row: after that, the job itself may kill its process
    deaths  int;
BEGIN
    IF TG_OP = 'INSERT' THEN
        NEW.created_at   := least(NEW.created_at, now());
        NEW.scheduled_at := least(NEW.scheduled_at, now());
        RETURN NEW;
    END IF;
    IF NEW.metadata -> 'river:rescue_count' IS NOT DISTINCT FROM OLD.metadata -> 'river:rescue_count' THEN -- the attempt ended by itself
        NEW.metadata := NEW.metadata - 'weir:deaths';
        IF NEW.state = 'retryable' THEN
            NEW.scheduled_at := least(greatest(NEW.scheduled_at, now() + 0.9 * backoff), now() + 1.1 * backoff);
        ELSIF NEW.state = 'available' THEN
            NEW.scheduled_at := least(NEW.scheduled_at, now() + interval '5 seconds');
        END IF;
        RETURN NEW;
    END IF;
    deaths := 1 + CASE jsonb_typeof(OLD.metadata -> 'weir:deaths') WHEN 'number' THEN (OLD.metadata ->> 'weir:deaths')::int ELSE 0 END;
    NEW.metadata := NEW.metadata || jsonb_build_object('weir:deaths', deaths);
    IF deaths < most THEN -- River's rescuer has counted the attempt and added an error: undo both
        NEW.state        := 'available';
        NEW.attempt      := greatest(OLD.attempt - 1, 0);
        NEW.errors       := OLD.errors;
        NEW.finalized_at := NULL;
        NEW.scheduled_at := now(); -- it has already waited for the rescuer
    ELSE
        NEW.state        := 'discarded';
        NEW.finalized_at := now();
        NEW.errors       := array_append(OLD.errors, jsonb_build_object('at', now(), 'attempt', OLD.attempt, 'trace', '', 'error',
            format('the process died, or the job never returned, %s times in a row: the job may be what kills its process', deaths)));
    END IF;
    RETURN NEW;
END $$;

COMMENT ON FUNCTION date_job IS 'Dates jobs by the database''s clock; River uses the clock of the process that adds or ends them. A retry waits as long as River''s policy says. A job whose process died gets its attempt back, up to 20 times in a row.';

CREATE TRIGGER job_added BEFORE INSERT ON river_job FOR EACH ROW
    WHEN (NEW.state = 'available') EXECUTE FUNCTION date_job();
CREATE TRIGGER job_put_off BEFORE UPDATE ON river_job FOR EACH ROW
    WHEN (OLD.state = 'running' AND NEW.state IN ('available', 'retryable', 'scheduled', 'discarded')) EXECUTE FUNCTION date_job();

-- It runs every few seconds and must never read a backlog, whatever the planner believes. In each queue the index
-- river_job_prioritized_fetching_index finds the jobs that are dated too late. Running jobs are few. Retryable jobs are all read, because the
-- longest wait of each depends on the job. The first read of a new account's feed, and the second, start within three minutes.
CREATE FUNCTION mend_times(p_retries boolean) RETURNS bigint LANGUAGE plpgsql
    SET enable_seqscan TO off
    SET enable_bitmapscan TO off
    SET enable_mergejoin TO off
AS $$
DECLARE
    mended bigint;
    leader bigint;
BEGIN
    WITH waiting AS (
        SELECT j.id, j.latest
        FROM (VALUES ('available'::river_job_state, interval '5 seconds'), ('scheduled', interval '3 minutes'), ('retryable', interval '0')) AS s (state, wait)
        CROSS JOIN river_queue AS q
        CROSS JOIN generate_series(1, 4) AS p (priority)
        CROSS JOIN LATERAL (
            SELECT r.id, due.latest
            FROM river_job AS r
            CROSS JOIN LATERAL (
                SELECT now() + CASE WHEN s.state = 'retryable' THEN 1.1 * least(coalesce(array_length(r.errors, 1), 0), 30) ^ 4 * interval '1 second'
                                    WHEN s.state = 'scheduled' AND (r.kind NOT IN ('backfill_account', 'request_backfill') OR r.attempted_at IS NOT NULL)
                                    THEN interval '1 day' -- a service may have asked it to wait this long
                                    ELSE s.wait END AS latest
            ) AS due
            WHERE r.state = s.state AND r.queue = q.name AND r.priority = p.priority AND r.scheduled_at > now() + s.wait + interval '5 seconds'
              AND r.scheduled_at > due.latest + interval '5 seconds'
            FOR UPDATE OF r SKIP LOCKED
        ) AS j
        WHERE p_retries OR s.state <> 'retryable'
        LIMIT 10000
    ), running AS (
        SELECT id, now() AS latest
        FROM river_job
        WHERE state = 'running' AND attempted_at > now() + interval '5 seconds'
        LIMIT 10000
        FOR UPDATE SKIP LOCKED
    )
    UPDATE river_job AS j
    SET scheduled_at = least(j.scheduled_at, a.latest), attempted_at = least(j.attempted_at, now())
    FROM (SELECT id, latest FROM waiting UNION ALL SELECT id, latest FROM running) AS a
    WHERE j.id = a.id;
    GET DIAGNOSTICS mended = ROW_COUNT;
    DELETE FROM river_leader WHERE expires_at > now() + interval '5 minutes';
    GET DIAGNOSTICS leader = ROW_COUNT;
    RETURN mended + leader;
END $$;

COMMENT ON FUNCTION mend_times IS 'Corrects dates that are later than they can be, because a clock was set back: of jobs in the queues that are served (retryable ones only if asked to), and of the workers'' leader. Returns how many rows it corrected.';

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

-- Calls to other services share one rate and one concurrency over all processes.

CREATE TABLE call_slots (
    slot       int PRIMARY KEY,
    holder     text,
    expires_at timestamptz
);

COMMENT ON TABLE  call_slots IS 'How many calls may run at once over all processes: one row each.';
COMMENT ON COLUMN call_slots.holder IS 'The process that has the slot. NULL: free.';
COMMENT ON COLUMN call_slots.expires_at IS 'When the slot becomes free even if its holder has not returned it, because it died.';

CREATE TABLE call_clock (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    next_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO call_clock DEFAULT VALUES;

COMMENT ON TABLE  call_clock IS 'When the next call may start, over all processes. Always one row.';
COMMENT ON COLUMN call_clock.one IS 'Always true: the key that keeps this one row.';

CREATE FUNCTION take_call_slot(p_holder text, p_slots int, p_spacing interval, p_ttl interval, OUT slot int, OUT wait interval, OUT now_at timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
    at   timestamptz;
    -- The furthest that calls can be reserved ahead: each has a slot, or had one and gave up.
    far CONSTANT interval := p_slots * (p_spacing + interval '100 milliseconds') + interval '1 second';
BEGIN
    -- A server that crashes may lose the last reservations. Then calls may be too close or too many for a second. Waiting
    -- for the disk would delay every call.
    PERFORM set_config('synchronous_commit', 'off', true);
    IF NOT EXISTS (SELECT FROM call_slots AS s WHERE s.slot = p_slots) THEN
        INSERT INTO call_slots (slot) SELECT n FROM generate_series(1, p_slots) AS n ON CONFLICT DO NOTHING;
    END IF;
    SELECT s.slot INTO slot
    FROM call_slots AS s
    WHERE s.slot <= p_slots AND (s.holder IS NULL OR s.expires_at < clock_timestamp())
    ORDER BY s.slot
    LIMIT 1
    FOR UPDATE SKIP LOCKED;
    IF slot IS NULL THEN
        -- If the clock was set back, some slots expire too late: shorten them.
        UPDATE call_slots AS s SET expires_at = clock_timestamp() + p_ttl
        WHERE s.slot IN (SELECT o.slot FROM call_slots AS o WHERE o.expires_at > clock_timestamp() + p_ttl + 2 * far FOR UPDATE SKIP LOCKED);
        wait := interval '20 milliseconds';
        now_at := clock_timestamp();
        RETURN;
    END IF;
    SELECT next_at INTO at FROM call_clock FOR UPDATE;
    IF at > clock_timestamp() + 2 * far THEN
        at := clock_timestamp() + far; -- the clock was set back; earlier reservations are used up by then
    END IF;
    at := greatest(at, clock_timestamp());
    UPDATE call_clock SET next_at = at + p_spacing;
    UPDATE call_slots AS s SET holder = p_holder, expires_at = at + p_ttl WHERE s.slot = take_call_slot.slot;
    now_at := clock_timestamp();
    wait := at - now_at;
END $$;

COMMENT ON FUNCTION take_call_slot IS 'Reserves the start of a call: wait for `wait`, then call. If slot is NULL, all slots are taken: wait for `wait`, then ask again. Both waits begin at now_at.';

CREATE FUNCTION give_call_slot(p_holder text, p_slot int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE call_slots SET holder = NULL, expires_at = NULL WHERE slot = p_slot AND holder = p_holder;
END $$;

COMMENT ON FUNCTION give_call_slot IS 'Returns a slot, if the holder still has it.';
