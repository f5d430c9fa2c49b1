-- When a stream last moved: one that is connected and does not move has stalled. And how often it tried in vain to connect.

ALTER TABLE streams
    ADD COLUMN advanced_at  timestamptz,
    ADD COLUMN failed_tries int NOT NULL DEFAULT 0;

COMMENT ON COLUMN streams.advanced_at IS 'When a batch was last committed, by the database''s clock.';
COMMENT ON COLUMN streams.failed_tries IS 'Tries to connect that failed since the last event.';

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
        caught_up_at     = greatest(caught_up_at, p_caught_up_at),
        filter_hash      = p_filter_hash,
        advanced_at      = clock_timestamp(),
        lease_expires_at = clock_timestamp() + p_lease
    WHERE name = p_name AND epoch = p_epoch;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'epoch % of stream % is over: another process holds its lease', p_epoch, p_name
            USING ERRCODE = 'WR001';
    END IF;
END $$;
