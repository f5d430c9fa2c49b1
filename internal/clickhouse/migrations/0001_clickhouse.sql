-- part clickhouse, after archive
-- Which segments of the archive ClickHouse has.

ALTER TABLE segments
    ADD COLUMN index_attempt    int NOT NULL DEFAULT 0,
    ADD COLUMN index_begun_at   timestamptz,
    ADD COLUMN indexed_at       timestamptz,
    -- weir archive index gives the blocks of a segment new tokens: ClickHouse drops a block whose token it remembers, also if its rows were
    -- deleted meanwhile.
    ADD COLUMN index_generation int NOT NULL DEFAULT 0;
CREATE INDEX segments_unindexed ON segments (number) WHERE indexed_at IS NULL;

COMMENT ON COLUMN segments.index_attempt IS 'How many attempts to insert it into ClickHouse were begun.';
COMMENT ON COLUMN segments.index_begun_at IS 'When the last of them was begun. Until it is settled, it may still insert rows.';
COMMENT ON COLUMN segments.indexed_at IS 'When ClickHouse was seen to have all its events. NULL: not yet, or WEIR_CLICKHOUSE is not set.';
COMMENT ON COLUMN segments.index_generation IS 'How often weir archive index began again. It is part of the tokens by which ClickHouse drops a block that comes twice.';

CREATE FUNCTION index_rewritten() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.index_attempt := OLD.index_attempt + 1;
    NEW.index_begun_at := clock_timestamp();
    NEW.indexed_at := NULL;
    RETURN NEW;
END $$;

COMMENT ON FUNCTION index_rewritten IS 'Has ClickHouse get a later version of a segment. Running attempts then count as superseded, and nothing is inserted until they are settled.';

CREATE TRIGGER index_rewritten BEFORE UPDATE OF rewritten ON segments FOR EACH ROW EXECUTE FUNCTION index_rewritten();
