-- A resume is judged by more than the last event: several anchors, and a second opinion on the time of the position.

ALTER TABLE streams
    ADD COLUMN anchors    bigint[],
    ADD COLUMN written_at timestamptz;

COMMENT ON COLUMN streams.anchors IS 'The last events of eight different accounts, hashed, the latest first: a resume that delivers one of them has missed nothing since. NULL: none known.';
COMMENT ON COLUMN streams.written_at IS 'When the last event committed was written, by the authors'' clocks: last_event_at less how much later than its rev the median of the last hundred events was dated.';

DROP FUNCTION advance_stream(text, bigint, interval, text, text, bigint, jsonb, timestamptz, timestamptz, text);

-- The defaults are for a process of the version before, which runs until it is restarted.
CREATE FUNCTION advance_stream(
    p_name text, p_epoch bigint, p_lease interval,
    p_host text, p_cursor_kind text, p_cursor bigint, p_anchor jsonb,
    p_last_event_at timestamptz, p_caught_up_at timestamptz, p_filter_hash text,
    p_anchors bigint[] DEFAULT NULL, p_written_at timestamptz DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- What one host had nothing unread of says little of another, which may be ahead of it.
    UPDATE streams
    SET host             = p_host,
        cursor_kind      = p_cursor_kind,
        cursor           = p_cursor,
        anchor           = p_anchor,
        anchors          = p_anchors,
        last_event_at    = p_last_event_at,
        written_at       = p_written_at,
        caught_up_at     = greatest(CASE WHEN caught_up_at < clock_timestamp() AND host = p_host THEN caught_up_at END,
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

COMMENT ON FUNCTION advance_stream IS 'Moves a stream''s position and renews its lease, for the holder of the epoch only: SQLSTATE WR001 for anybody else.';
