-- One clock says when a job is due, and whether a lease holds: the database's. And what it promised for a time that it has been set back
-- from must not wait for that time.

CREATE FUNCTION date_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    backoff CONSTANT interval := least(coalesce(array_length(NEW.errors, 1), 0), 30) ^ 4 * interval '1 second';
BEGIN
    IF TG_OP = 'INSERT' THEN
        NEW.created_at   := least(NEW.created_at, now());
        NEW.scheduled_at := least(NEW.scheduled_at, now());
    ELSIF NEW.state = 'retryable' THEN
        NEW.scheduled_at := least(greatest(NEW.scheduled_at, now() + 0.9 * backoff), now() + 1.1 * backoff);
    ELSE
        NEW.scheduled_at := least(NEW.scheduled_at, now() + interval '5 seconds');
    END IF;
    RETURN NEW;
END $$;

COMMENT ON FUNCTION date_job IS 'River dates jobs by the clock of the process that adds or ends them. Due is due, and a retry comes after as long as River''s policy says, by the database''s clock.';

CREATE TRIGGER job_added BEFORE INSERT ON river_job FOR EACH ROW
    WHEN (NEW.state = 'available') EXECUTE FUNCTION date_job();
CREATE TRIGGER job_put_off BEFORE UPDATE ON river_job FOR EACH ROW
    WHEN (OLD.state = 'running' AND NEW.state IN ('available', 'retryable')) EXECUTE FUNCTION date_job();

-- It is called every few seconds, and what the planner believes must not have it read a backlog: of a queue's jobs the index
-- river_job_prioritized_fetching_index gives those that are too late, and running ones are as many as can run at once. Of those
-- to be tried again it gives all that wait, since how long each may is in the job.
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
        FROM (VALUES ('available'::river_job_state, interval '5 seconds'), ('scheduled', interval '1 day'), ('retryable', interval '0')) AS s (state, wait)
        CROSS JOIN river_queue AS q
        CROSS JOIN generate_series(1, 4) AS p (priority)
        CROSS JOIN LATERAL (
            SELECT r.id, due.latest
            FROM river_job AS r
            CROSS JOIN LATERAL (
                SELECT now() + s.wait + CASE s.state WHEN 'retryable' THEN 1.1 * least(coalesce(array_length(r.errors, 1), 0), 30) ^ 4 ELSE 0 END
                                        * interval '1 second' AS latest
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

COMMENT ON FUNCTION mend_times IS 'Sets right what is dated later than it can be, since a clock was set back: jobs of the queues that are served, those to be tried again only where asked to, and the leader of the workers. Answers how many.';

ALTER TABLE streams ADD COLUMN lease_renewed_at timestamptz;

COMMENT ON COLUMN streams.lease_renewed_at IS 'By the database''s clock. A lease that was renewed in the future is of a clock that has been set back since, and free.';

CREATE OR REPLACE FUNCTION advance_stream(
    p_name text, p_epoch bigint, p_lease interval,
    p_host text, p_cursor_kind text, p_cursor bigint, p_anchor jsonb,
    p_last_event_at timestamptz, p_caught_up_at timestamptz, p_filter_hash text
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE streams
    SET host             = p_host,
        cursor_kind      = p_cursor_kind,
        cursor           = p_cursor,
        anchor           = p_anchor,
        last_event_at    = p_last_event_at,
        caught_up_at     = greatest(CASE WHEN caught_up_at < clock_timestamp() THEN caught_up_at END,
                                    CASE WHEN p_caught_up_at < clock_timestamp() THEN p_caught_up_at END),
        filter_hash      = p_filter_hash,
        advanced_at      = clock_timestamp(),
        lease_renewed_at = clock_timestamp(),
        lease_expires_at = clock_timestamp() + p_lease
    WHERE name = p_name AND epoch = p_epoch;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'epoch % of stream % is over: another process holds its lease', p_epoch, p_name
            USING ERRCODE = 'WR001';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION take_call_slot(p_holder text, p_slots int, p_spacing interval, p_ttl interval, OUT slot int, OUT wait interval, OUT now_at timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
    at   timestamptz;
    -- How far ahead calls can have been reserved, at most: each has a slot, or had one and gave up.
    far CONSTANT interval := p_slots * (p_spacing + interval '100 milliseconds') + interval '1 second';
BEGIN
    -- A server that crashes may forget the last reservations: for a second, calls may then be closer or more than they
    -- should. Waiting for the disk at each call would make each late.
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
        -- Of a clock that was set back: nobody may hold a slot for longer than from now on.
        UPDATE call_slots AS s SET expires_at = clock_timestamp() + p_ttl
        WHERE s.slot IN (SELECT o.slot FROM call_slots AS o WHERE o.expires_at > clock_timestamp() + p_ttl + 2 * far FOR UPDATE SKIP LOCKED);
        wait := interval '20 milliseconds';
        now_at := clock_timestamp();
        RETURN;
    END IF;
    SELECT next_at INTO at FROM call_clock FOR UPDATE;
    IF at > clock_timestamp() + 2 * far THEN
        at := clock_timestamp() + far; -- the clock was set back; whoever reserved before has called by then
    END IF;
    at := greatest(at, clock_timestamp());
    UPDATE call_clock SET next_at = at + p_spacing;
    UPDATE call_slots AS s SET holder = p_holder, expires_at = at + p_ttl WHERE s.slot = take_call_slot.slot;
    now_at := clock_timestamp();
    wait := at - now_at;
END $$;
