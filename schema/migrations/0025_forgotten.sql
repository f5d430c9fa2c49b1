-- What the archive must forget: accounts that were deleted, and records that were.

CREATE FUNCTION author_hash(p_did text) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT ('x' || encode(substring(sha256(convert_to(p_did, 'UTF8')) FROM 1 FOR 5), 'hex'))::bit(40)::bigint
$$;

COMMENT ON FUNCTION author_hash IS 'The first 40 bits of the SHA-256 of a DID: indexes of authors in the archive have the same.';

CREATE TABLE forgotten (
    did       text COLLATE "C" PRIMARY KEY,
    author    bigint      NOT NULL GENERATED ALWAYS AS (author_hash(did)) STORED,
    until     timestamptz NOT NULL,
    reason    text        NOT NULL,
    at        timestamptz NOT NULL DEFAULT now(),
    listed_at timestamptz
);
CREATE INDEX forgotten_author ON forgotten (author);
CREATE INDEX forgotten_unlisted ON forgotten (at) WHERE listed_at IS NULL;

COMMENT ON TABLE  forgotten IS 'Accounts that the archive must forget. Lists of them are in its store.';
COMMENT ON COLUMN forgotten.author IS 'See author_hash.';
COMMENT ON COLUMN forgotten.until IS 'What servers sent up to then is forgotten: when they sent the deletion. What came later belongs to an account that came back.';
COMMENT ON COLUMN forgotten.reason IS 'deleted: the account was deleted. erased: its author demanded that everything vanishes.';
COMMENT ON COLUMN forgotten.listed_at IS 'When a list with it was read back from the store. NULL: not yet, and the account''s purge is not finished.';

CREATE TABLE deleted_records (
    author     bigint GENERATED ALWAYS AS (author_hash(did)) STORED,
    did        text        COLLATE "C" NOT NULL,
    collection text        COLLATE "C" NOT NULL,
    rkey       text        COLLATE "C" NOT NULL,
    rev        text        COLLATE "C" NOT NULL,
    deleted_at timestamptz NOT NULL,
    at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (author, did, collection, rkey)
);
CREATE INDEX deleted_records_at ON deleted_records (at);

COMMENT ON TABLE  deleted_records IS 'Records that were deleted, until every segment of the archive has been compared with them. Tombstones expire sooner.';
COMMENT ON COLUMN deleted_records.author IS 'See author_hash.';
COMMENT ON COLUMN deleted_records.rev IS 'The record''s text up to this revision must go.';
COMMENT ON COLUMN deleted_records.deleted_at IS 'When the record was deleted, by the server''s clock.';

ALTER TABLE segments
    ADD COLUMN rewritten    int         NOT NULL DEFAULT 0,
    ADD COLUMN origin       text        NOT NULL DEFAULT '',
    ADD COLUMN forgotten_at timestamptz;

COMMENT ON COLUMN segments.rewritten IS 'How often the segment was written again without what must be forgotten.';
COMMENT ON COLUMN segments.origin IS 'The content of the first version. Empty: this is it.';
COMMENT ON COLUMN segments.forgotten_at IS 'When it was compared with what must be forgotten the last time. NULL: never.';

-- Accounts that were deleted before this was remembered, and have not come back.
INSERT INTO forgotten (did, until, reason)
SELECT did, coalesce(status_at, now()), 'deleted' FROM accounts WHERE status = 'deleted' AND EXISTS (SELECT FROM segments);
