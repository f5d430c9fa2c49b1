-- weir archive index gives the blocks of a segment new tokens: ClickHouse drops a block whose
-- token it remembers, also if its rows were deleted meanwhile.

ALTER TABLE segments ADD COLUMN index_generation int NOT NULL DEFAULT 0;

COMMENT ON COLUMN segments.index_generation IS 'How often weir archive index began again. It is part of the tokens by which ClickHouse drops a block that comes twice.';
