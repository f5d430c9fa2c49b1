-- Calls at their distance; watches that change; listings that are read in turns.

-- The clock is locked only by whoever has a slot, and only for as long as a memory write takes.
DROP FUNCTION take_call_slot(text, int, interval, interval);

CREATE FUNCTION take_call_slot(p_holder text, p_slots int, p_spacing interval, p_ttl interval, OUT slot int, OUT wait interval, OUT took interval)
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
        took := clock_timestamp() - statement_timestamp();
        RETURN;
    END IF;
    SELECT next_at INTO at FROM call_clock FOR UPDATE;
    at := greatest(at, clock_timestamp());
    UPDATE call_clock SET next_at = at + p_spacing;
    UPDATE call_slots AS s SET holder = p_holder, expires_at = at + p_ttl WHERE s.slot = take_call_slot.slot;
    wait := at - clock_timestamp();
    took := clock_timestamp() - statement_timestamp();
END $$;

COMMENT ON FUNCTION take_call_slot IS 'Reserves the next start of a call: wait so long, then call. No slot: all are taken, ask again after the wait. took is how long the reservation itself took.';

CREATE FUNCTION give_call_slot(p_holder text, p_slot int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE call_slots SET holder = NULL, expires_at = NULL WHERE slot = p_slot AND holder = p_holder;
END $$;

COMMENT ON FUNCTION give_call_slot IS 'Gives a slot back, where the holder has it still.';
