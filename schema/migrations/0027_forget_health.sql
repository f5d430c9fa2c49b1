-- What keeps the archive from forgetting: segments that cannot be compared, and lists that cannot be read.

ALTER TABLE segments
    ADD COLUMN forget_failing_since timestamptz,
    ADD COLUMN forget_failed_at     timestamptz,
    ADD COLUMN missed_until         timestamptz,
    ADD COLUMN forget_again         boolean NOT NULL DEFAULT false;

COMMENT ON COLUMN segments.forget_failing_since IS 'When the comparison with what must be forgotten failed first. NULL: the last one succeeded.';
COMMENT ON COLUMN segments.forget_failed_at IS 'When it failed last. NULL: the last one succeeded.';
COMMENT ON COLUMN segments.missed_until IS 'The segment could not be compared for so long that deletions up to then were dropped without it. NULL: it missed none.';
COMMENT ON COLUMN segments.forget_again IS 'An operator wants it to be compared at once.';

UPDATE segments SET forget_again = true, forgotten_at = NULL WHERE forgotten_at = '-infinity';

CREATE TABLE unreadable_lists (
    name  text COLLATE "C" PRIMARY KEY,
    since timestamptz NOT NULL DEFAULT now(),
    error text        NOT NULL
);

COMMENT ON TABLE  unreadable_lists IS 'Lists of forgotten accounts in the archive''s store that could not be read when sweep_archive last tried.';
COMMENT ON COLUMN unreadable_lists.since IS 'When that was found first.';
