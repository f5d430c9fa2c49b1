-- Calls at their distance; watches that change; listings that are read in turns.

-- The clock is locked only by whoever has a slot, and only for as long as a memory write takes.
DROP FUNCTION take_call_slot(text, int, interval, interval);

CREATE FUNCTION take_call_slot(p_holder text, p_slots int, p_spacing interval, p_ttl interval, OUT slot int, OUT wait interval, OUT now_at timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
    at timestamptz;
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
        wait := interval '20 milliseconds';
        now_at := clock_timestamp();
        RETURN;
    END IF;
    SELECT next_at INTO at FROM call_clock FOR UPDATE;
    at := greatest(at, clock_timestamp());
    UPDATE call_clock SET next_at = at + p_spacing;
    UPDATE call_slots AS s SET holder = p_holder, expires_at = at + p_ttl WHERE s.slot = take_call_slot.slot;
    now_at := clock_timestamp();
    wait := at - now_at;
END $$;

COMMENT ON FUNCTION take_call_slot IS 'Reserves the next start of a call: wait so long, then call. No slot: all are taken, ask again after the wait. Both are counted from now_at.';

CREATE FUNCTION give_call_slot(p_holder text, p_slot int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE call_slots SET holder = NULL, expires_at = NULL WHERE slot = p_slot AND holder = p_holder;
END $$;

COMMENT ON FUNCTION give_call_slot IS 'Gives a slot back, where the holder has it still.';

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

COMMENT ON FUNCTION enqueue_job IS 'Adds a job that needs no unique key, and wakes a worker; answers its id.';

CREATE OR REPLACE FUNCTION enqueue_request(p_args jsonb) RETURNS bigint LANGUAGE sql AS $$
    SELECT enqueue_job('request_backfill', 'network', p_args)
$$;

CREATE OR REPLACE FUNCTION close_gap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM enqueue_job('close_gap', 'network', jsonb_build_object('gap', NEW.id));
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION sync_watch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM enqueue_job('sync_follows', 'network', jsonb_build_object('watch', NEW.id));
    RETURN NULL;
END $$;

CREATE FUNCTION forget_members() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM watched WHERE watch_id = NEW.id;
    NEW.synced_at := NULL;
    NEW.problem := '';
    RETURN NEW;
END $$;

COMMENT ON FUNCTION forget_members IS 'A watch of something else begins like a new one: whom it brought stops counting at once.';

CREATE TRIGGER watch_turned BEFORE UPDATE OF target, kind ON watches FOR EACH ROW
    WHEN (OLD.target <> NEW.target OR OLD.kind <> NEW.kind) EXECUTE FUNCTION forget_members();
CREATE TRIGGER watch_updated AFTER UPDATE OF target, kind, at_least ON watches FOR EACH ROW
    WHEN (OLD.target <> NEW.target OR OLD.kind <> NEW.kind OR OLD.at_least <> NEW.at_least) EXECUTE FUNCTION sync_watch();

COMMENT ON FUNCTION sync_watch IS 'Has the members of a watch that is new or changed read at once.';

CREATE TABLE listed (
    job_id       bigint           NOT NULL,
    degree       int              NOT NULL CHECK (degree BETWEEN 0 AND 2),
    did          text COLLATE "C" NOT NULL,
    handle       text             NOT NULL,
    display_name text             NOT NULL,
    avatar       text             NOT NULL,
    times        int              NOT NULL DEFAULT 1,
    last_by      text COLLATE "C" NOT NULL,
    PRIMARY KEY (job_id, degree, did)
);

COMMENT ON TABLE  listed IS 'Whom the listing that a sync_follows job is reading has named so far. Nobody is followed or unfollowed before its end.';
COMMENT ON COLUMN listed.degree IS '1: of the watch''s own listing; 2: whom those follow; 0: members that neither names, and of whom it was asked.';
COMMENT ON COLUMN listed.times IS 'Of degree 2: by how many of degree 1 it is followed. Of degree 0: 1 where it is shown, and so no member any more; 0 where it is hidden.';
COMMENT ON COLUMN listed.last_by IS 'Of degree 2: who was counted last, so that nobody is counted twice.';

COMMENT ON COLUMN accounts.status IS 'active, deactivated, suspended, takendown, deleted, or another word of the network; hidden: it is not shown, and the stream has not said why. Only active counts.';
