-- A job that died with its process has not failed. What the next run replaces, or its watch reports, is no dead letter. A recording that
-- was replayed leaves no stream.

CREATE OR REPLACE FUNCTION date_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    backoff CONSTANT interval := least(coalesce(array_length(NEW.errors, 1), 0), 30) ^ 4 * interval '1 second';
    most    CONSTANT int      := 20; -- deaths in a row: then the job itself may be what kills its process
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
    IF deaths < most THEN -- River's rescuer has counted the attempt and noted an error: both are taken back
        NEW.state        := 'available';
        NEW.attempt      := greatest(OLD.attempt - 1, 0);
        NEW.errors       := OLD.errors;
        NEW.finalized_at := NULL;
        NEW.scheduled_at := now(); -- it has waited for the rescuer
    ELSE
        NEW.state        := 'discarded';
        NEW.finalized_at := now();
        NEW.errors       := array_append(OLD.errors, jsonb_build_object('at', now(), 'attempt', OLD.attempt, 'trace', '', 'error',
            format('the process died, or the job never returned, %s times in a row: the job may be what kills its process', deaths)));
    END IF;
    RETURN NEW;
END $$;

COMMENT ON FUNCTION date_job IS 'River dates jobs by the clock of the process that adds or ends them. Due is due, and a retry comes after as long as River''s policy says, by the database''s clock. A job that died with its process gets its attempt back, up to 20 times in a row.';

DROP TRIGGER job_put_off ON river_job;
CREATE TRIGGER job_put_off BEFORE UPDATE ON river_job FOR EACH ROW
    WHEN (OLD.state = 'running' AND NEW.state IN ('available', 'retryable', 'scheduled', 'discarded')) EXECUTE FUNCTION date_job();

CREATE OR REPLACE FUNCTION note_ended_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    most CONSTANT int   := 1 << 20;
    args CONSTANT bytea := convert_to(NEW.args::text, 'UTF8');
    why  CONSTANT text  := left(coalesce(NEW.errors[array_upper(NEW.errors, 1)] ->> 'error', 'it gave no reason'), 2000);
BEGIN
    IF NEW.state = 'completed' THEN
        UPDATE dead_letters SET state = 'replayed', state_at = now() WHERE job = NEW.id AND state IN ('open', 'replaying');
        RETURN NULL;
    END IF;
    IF NEW.state = 'cancelled' AND NEW.metadata ? 'cancel_attempted_at' THEN -- by a person, who knows
        UPDATE dead_letters SET state = 'open', state_at = now() WHERE job = NEW.id AND state = 'replaying';
        RETURN NULL;
    END IF;
    UPDATE dead_letters
    SET state = CASE state WHEN 'dismissed' THEN state ELSE 'open' END, state_at = now(), last_seen = now(), last_cause = why, count = count + 1
    WHERE job = NEW.id;
    IF FOUND OR NEW.state = 'discarded' AND NEW.kind IN ('expire', 'check_alerts', 'audit', 'sync_follows') THEN -- the next run does the same
        RETURN NULL;
    END IF;
    INSERT INTO dead_letters AS d (key, stage, class, kind, queue, job, cause, raw, raw_bytes, first_seen, last_seen)
    VALUES (sha256(convert_to(E'job\n' || NEW.kind || E'\n', 'UTF8') || args), 'job',
            CASE NEW.state WHEN 'discarded' THEN 'retryable' ELSE 'permanent' END,
            NEW.kind, NEW.queue, NEW.id, why, substr(args, 1, most), octet_length(args), now(), now())
    ON CONFLICT (key) DO UPDATE
    SET state      = CASE d.state WHEN 'replayed' THEN 'open' ELSE d.state END,
        job        = CASE d.state WHEN 'replaying' THEN d.job ELSE excluded.job END,
        last_seen  = excluded.last_seen,
        last_cause = excluded.cause,
        count      = d.count + 1;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION note_ended_job IS 'Makes a dead letter of a job that is discarded or cancels itself, whoever ends it, unless it is periodic and out of tries; settles the dead letter of one that succeeds at last.';

-- The first read of a new account's feed, and the second, start within three minutes. Later ones were dated by a clock that has been set back since.
CREATE OR REPLACE FUNCTION mend_times(p_retries boolean) RETURNS bigint LANGUAGE plpgsql
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
                                    THEN interval '1 day' -- it may wait for as long as a service asked it to
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

CREATE FUNCTION dismiss_watch_letters() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE dead_letters SET state = 'dismissed', state_at = now()
    WHERE key = sha256(convert_to(E'job\nsync_follows\n' || jsonb_build_object('watch', OLD.id)::text, 'UTF8')) AND state IN ('open', 'replaying');
    RETURN NULL;
END $$;

COMMENT ON FUNCTION dismiss_watch_letters IS 'Dismisses the dead letter of a watch that is removed.';

CREATE TRIGGER watch_removed AFTER DELETE ON watches FOR EACH ROW EXECUTE FUNCTION dismiss_watch_letters();

UPDATE dead_letters SET state = 'dismissed', state_at = now()
WHERE stage = 'job' AND state = 'open' AND (kind = 'sync_follows' OR kind IN ('expire', 'check_alerts', 'audit') AND class = 'retryable');

DELETE FROM streams WHERE wire = 'recording' AND (lease_owner IS NULL OR lease_expires_at < clock_timestamp());
