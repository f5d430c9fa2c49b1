-- A job that waits already makes the views of this transaction's schemas too, if nobody runs it before the transaction
-- ends: its row is locked, and workers skip locked rows. A job that is locked by another transaction may be about to run.
CREATE OR REPLACE FUNCTION lexicon_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM river_job WHERE kind = 'make_record_views' AND state = 'available' LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM enqueue_job('make_record_views', 'maintenance', '{}', ARRAY['lexicon']);
    END IF;
    RETURN NULL;
END $$;
