-- The folder of a segment is the day of its first event.

COMMENT ON COLUMN segments.name IS 'The name in the store: stream, day on which the first event arrived, number, and the beginning of sha256.';
