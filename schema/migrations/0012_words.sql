-- Words: what the filter by text finds. docs/decisions/text-search.md explains them.

CREATE EXTENSION IF NOT EXISTS pg_trgm;

ALTER TABLE claims ADD COLUMN words tsvector NOT NULL DEFAULT '';
ALTER TABLE shares ADD COLUMN words tsvector;
CREATE INDEX claims_words ON claims USING gin (words) WITH (gin_pending_list_limit = 1024);
CREATE INDEX shares_words ON shares USING gin (words) WITH (gin_pending_list_limit = 1024) WHERE words IS NOT NULL;
CREATE INDEX links_address ON links USING gin (identity gin_trgm_ops) WITH (gin_pending_list_limit = 1024);

-- The counter soon gives a new link its headline. In the space that is left, the row needs no new entries in the indexes.
ALTER TABLE links SET (fillfactor = 60);

COMMENT ON COLUMN claims.words IS 'The words of the title, the description and the address. Workers make them: Postgres'' parser depends on the locale.';
COMMENT ON COLUMN shares.words IS 'The words of the post that the sharer wrote. NULL: none, or a repost. They are searched while the post is stored.';
