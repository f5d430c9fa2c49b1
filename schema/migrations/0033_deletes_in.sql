-- A deletion of an event of Nostr names an id, and its tombstones name the kinds that were stored
-- then. When others are stored, they need the same tombstones.

ALTER TABLE streams ADD COLUMN deletes_in text[] NOT NULL DEFAULT '{}';

COMMENT ON COLUMN streams.deletes_in IS 'The collections in which deletions by id have tombstones, of those that were made before the stream was read. Empty: the network has no such deletions.';
