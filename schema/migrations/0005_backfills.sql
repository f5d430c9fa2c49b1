-- Calls to other people's services, shared by all processes; backfills asked for in SQL.

CREATE TABLE call_slots (
    slot       int PRIMARY KEY,
    holder     text,
    expires_at timestamptz
);

COMMENT ON TABLE call_slots IS 'How many calls may run at once, over all processes: a row each. A holder that died loses its slot when it expires.';

CREATE TABLE call_clock (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    next_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO call_clock DEFAULT VALUES;

COMMENT ON TABLE call_clock IS 'When the next call may start, over all processes.';

CREATE FUNCTION take_call_slot(p_holder text, p_slots int, p_spacing interval, p_ttl interval, OUT slot int, OUT wait interval)
LANGUAGE plpgsql AS $$
DECLARE
    at timestamptz;
BEGIN
    SELECT next_at INTO at FROM call_clock FOR UPDATE;
    INSERT INTO call_slots (slot) SELECT n FROM generate_series(1, p_slots) AS n ON CONFLICT DO NOTHING;
    SELECT s.slot INTO slot
    FROM call_slots AS s
    WHERE s.slot <= p_slots AND (s.holder IS NULL OR s.expires_at < clock_timestamp())
    ORDER BY s.slot
    LIMIT 1
    FOR UPDATE SKIP LOCKED;
    IF slot IS NULL THEN
        wait := interval '20 milliseconds';
        RETURN;
    END IF;
    at := greatest(at, clock_timestamp());
    UPDATE call_clock SET next_at = at + p_spacing;
    UPDATE call_slots AS s SET holder = p_holder, expires_at = at + p_ttl WHERE s.slot = take_call_slot.slot;
    wait := at - clock_timestamp();
END $$;

COMMENT ON FUNCTION take_call_slot IS 'Reserves the next start of a call: wait so long, then call. No slot: all are taken, ask again after the wait.';

CREATE FUNCTION enqueue_request(p_args jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    answer bigint;
BEGIN
    INSERT INTO river_job (args, kind, max_attempts, priority, queue)
    VALUES (p_args, 'request_backfill', 25, 1, 'network')
    RETURNING id INTO answer;
    PERFORM pg_notify(current_schema() || '.river_insert', '{"queue":"network"}');
    RETURN answer;
END $$;

COMMENT ON FUNCTION enqueue_request IS 'Adds a job that asks for backfills, and wakes a worker.';

CREATE FUNCTION enqueue_backfill(account text, back interval DEFAULT '24 hours', priority int DEFAULT 2) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF account IS NULL OR NOT ((length(account) <= 2048 AND account ~ '^did:[a-z]+:[a-zA-Z0-9._:%-]*[a-zA-Z0-9._-]$')
                               OR (length(account) <= 253 AND account ~ '^@?([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)+[a-zA-Z]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$')) THEN
        RAISE EXCEPTION '% is neither a handle nor a DID', coalesce(quote_literal(left(account, 100)), 'NULL')
            USING ERRCODE = '22023', HINT = 'For example: SELECT enqueue_backfill(''alice.example'', interval ''24 hours'')';
    END IF;
    IF back IS NULL OR back <= interval '0' OR back > interval '10 years' THEN
        RAISE EXCEPTION 'a backfill goes back more than nothing and 10 years at most, not %', back USING ERRCODE = '22023';
    END IF;
    IF priority IS NULL OR priority NOT BETWEEN 1 AND 4 THEN
        RAISE EXCEPTION 'a priority is 1 (first) to 4, not %', priority USING ERRCODE = '22023';
    END IF;
    RETURN enqueue_request(jsonb_build_object('account', ltrim(account, '@'), 'since', now() - back, 'priority', priority));
END $$;

COMMENT ON FUNCTION enqueue_backfill IS 'Asks for the posts of an account, by handle or DID, so far back; answers the id of the job that asks.';

CREATE FUNCTION enqueue_backfill_all(back interval DEFAULT '24 hours', priority int DEFAULT 4) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF back IS NULL OR back <= interval '0' OR back > interval '10 years' THEN
        RAISE EXCEPTION 'a backfill goes back more than nothing and 10 years at most, not %', back USING ERRCODE = '22023';
    END IF;
    IF priority IS NULL OR priority NOT BETWEEN 1 AND 4 THEN
        RAISE EXCEPTION 'a priority is 1 (first) to 4, not %', priority USING ERRCODE = '22023';
    END IF;
    RETURN enqueue_request(jsonb_build_object('all', true, 'since', now() - back, 'priority', priority));
END $$;

COMMENT ON FUNCTION enqueue_backfill_all IS 'Asks for the posts of every followed account, so far back; answers the id of the job that asks.';

CREATE TABLE gap_backfills (
    gap_id bigint           NOT NULL REFERENCES gaps ON DELETE CASCADE,
    did    text COLLATE "C" NOT NULL,
    PRIMARY KEY (did, gap_id)
);
CREATE INDEX gap_backfills_gap ON gap_backfills (gap_id);

COMMENT ON TABLE gap_backfills IS 'The accounts whose feeds are still to be read before a gap is closed.';

ALTER TABLE gaps
    ADD COLUMN accounts  int NOT NULL DEFAULT 0,
    ADD COLUMN unchecked int NOT NULL DEFAULT 0;

COMMENT ON COLUMN gaps.accounts IS 'How many accounts'' feeds were to be read.';
COMMENT ON COLUMN gaps.unchecked IS 'How many of them could not be.';

CREATE FUNCTION close_gap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO river_job (args, kind, max_attempts, priority, queue)
    VALUES (jsonb_build_object('gap', NEW.id), 'close_gap', 25, 1, 'network');
    PERFORM pg_notify(current_schema() || '.river_insert', '{"queue":"network"}');
    RETURN NULL;
END $$;

COMMENT ON FUNCTION close_gap IS 'Has a new gap looked at, in the transaction that brings it.';

CREATE TRIGGER gap_opened AFTER INSERT ON gaps FOR EACH ROW EXECUTE FUNCTION close_gap();
