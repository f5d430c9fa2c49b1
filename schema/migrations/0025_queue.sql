-- Jobs get their tags where they are inserted, and their dates from the database's clock without a trigger: one trigger is left on River's
-- table, which makes dead letters.

DROP TRIGGER job_tagged ON river_job;
DROP TRIGGER job_retagged ON river_job;
DROP TRIGGER job_added ON river_job;
DROP TRIGGER job_put_off ON river_job;
DROP FUNCTION tag_job;
DROP FUNCTION tags_of;
DROP FUNCTION date_job;
DROP FUNCTION mend_times;
DROP FUNCTION enqueue_job(text, text, jsonb);

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

CREATE OR REPLACE FUNCTION enqueue_request(p_args jsonb) RETURNS bigint LANGUAGE sql AS $$
    SELECT enqueue_job('request_backfill', 'network', p_args,
                       ARRAY[(ARRAY['gap', 'manual', 'new-follow', 'cold-start'])[(p_args ->> 'priority')::int],
                             CASE WHEN p_args ? 'all' THEN 'every-account' ELSE 'one-account' END])
$$;

CREATE OR REPLACE FUNCTION close_gap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM enqueue_job('close_gap', 'network', jsonb_build_object('gap', NEW.id), ARRAY[tag('stream-' || NEW.stream)]);
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION sync_watch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM enqueue_job('sync_follows', 'network', jsonb_build_object('watch', NEW.id), ARRAY[NEW.kind]);
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION ask_for_replays() RETURNS bigint LANGUAGE sql AS $$
    SELECT enqueue_job('replay_dead_letters', 'network', '{}', ARRAY['asked-for'])
$$;

DROP FUNCTION take_call_slot;
CREATE FUNCTION take_call_slot(p_holder text, p_slots int, p_spacing interval, p_ttl interval, OUT slot int, OUT wait interval)
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
        RETURN;
    END IF;
    SELECT next_at INTO at FROM call_clock FOR UPDATE;
    IF at > clock_timestamp() + 2 * far THEN
        at := clock_timestamp() + far; -- the clock was set back; whoever reserved before has called by then
    END IF;
    at := greatest(at, clock_timestamp());
    UPDATE call_clock SET next_at = at + p_spacing;
    UPDATE call_slots AS s SET holder = p_holder, expires_at = at + p_ttl WHERE s.slot = take_call_slot.slot;
    wait := at - clock_timestamp();
END $$;

COMMENT ON FUNCTION take_call_slot IS 'Reserves the next start of a call: wait for this long, then call. Without a slot all are taken: ask again after the wait.';
