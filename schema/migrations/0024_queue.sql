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
