-- Any collection: each expires under its own retention, by the moment at which it was stored, and audits name it.

DROP INDEX records_created_at;
CREATE INDEX posts_indexed_at ON posts (indexed_at);
CREATE INDEX records_other_indexed_at ON records_other (collection, indexed_at);

COMMENT ON COLUMN records.created_at IS 'The author''s claim, never later than the event that brought it. Nothing expires by it.';
COMMENT ON COLUMN records.indexed_at IS 'When Weir first stored it, by the database''s clock. Whatever is not in a partition of posts expires by it.';
COMMENT ON TABLE posts_default IS 'Posts whose rkey is no TID, or names a time before the partitions. They expire by indexed_at.';
COMMENT ON TABLE records_other IS 'The records of every other collection that is stored. Each expires by indexed_at, under the retention that WEIR_COLLECTIONS gives it.';

ALTER TABLE audit_faults ADD COLUMN collection text COLLATE "C" NOT NULL DEFAULT '';
UPDATE audit_faults SET collection = 'app.bsky.feed.post' WHERE rkey <> '';
ALTER TABLE audit_faults ALTER COLUMN collection DROP DEFAULT,
    DROP CONSTRAINT audit_faults_pkey,
    ADD PRIMARY KEY (audit_id, did, collection, rkey);
DROP INDEX audit_faults_record;
CREATE INDEX audit_faults_record ON audit_faults (did, collection, rkey);

COMMENT ON COLUMN audit_faults.collection IS 'Empty where the whole account is meant.';
COMMENT ON COLUMN audits.from_at IS 'Records whose rkey is a TID are compared from this moment up to to_at; of an account, from when its records are claimed to be stored. Other rkeys are compared whatever their age. Null: nothing was compared.';
COMMENT ON COLUMN audits.records IS 'How many records were compared: those in the repositories, and those stored that are not in them.';
COMMENT ON COLUMN audits.failures IS 'How many of them could not be: their records count as nothing.';
COMMENT ON COLUMN audits.score IS 'The part of the records that agree, from 0 to 1; null where no record was compared.';

COMMENT ON FUNCTION enqueue_backfill IS 'Asks for the records of an account, of every stored collection, by handle or DID, so far back; returns the id of the job that asks.';
COMMENT ON FUNCTION enqueue_backfill_all IS 'Asks for the records of every followed account, of every stored collection, so far back; returns the id of the job that asks.';
