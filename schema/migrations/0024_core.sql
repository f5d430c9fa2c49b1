-- A source declares what it can do: a resume may need several anchors, and a dead letter is read by the decoder of its wire.

ALTER TABLE streams ADD COLUMN anchor_seqs bigint[];

COMMENT ON COLUMN streams.anchor_seqs IS 'The sequence numbers of anchors, in their order, for a source whose servers may omit one of them; 0: unknown. NULL: the source needs none.';

ALTER TABLE dead_letters ADD COLUMN wire text NOT NULL DEFAULT '';

UPDATE dead_letters SET wire = 'jetstream-v1' WHERE stage IN ('decode', 'commit');

COMMENT ON COLUMN dead_letters.wire IS 'The format of raw: a retry needs the decoder of that name. Empty: it came over no wire.';
COMMENT ON COLUMN dead_letters.raw IS 'The input: what its wire, or the arguments of its job, hold of the event alone; only its beginning where raw_bytes is larger; empty once its record or account is deleted.';

DROP FUNCTION advance_stream(text, bigint, interval, text, text, bigint, jsonb, timestamptz, timestamptz, text, bigint[], timestamptz);

CREATE FUNCTION advance_stream(
    p_name text, p_epoch bigint, p_lease interval,
    p_host text, p_cursor_kind text, p_cursor bigint, p_anchor jsonb,
    p_last_event_at timestamptz, p_caught_up_at timestamptz, p_filter_hash text,
    p_anchors bigint[], p_written_at timestamptz, p_anchor_seqs bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- What one host had nothing unread of says little of another, which may be ahead of it.
    UPDATE streams
    SET host             = p_host,
        cursor_kind      = p_cursor_kind,
        cursor           = p_cursor,
        anchor           = p_anchor,
        anchors          = p_anchors,
        anchor_seqs      = p_anchor_seqs,
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
