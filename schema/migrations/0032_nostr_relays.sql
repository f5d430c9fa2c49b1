-- A relay that lost its place keeps its failures: without them it would take the place back at once.

ALTER TABLE nostr_relays ADD COLUMN chosen boolean NOT NULL DEFAULT true;

COMMENT ON COLUMN nostr_relays.chosen IS 'Whether the relay is among those that are asked. Others keep what is known of them as long as a followed account names them.';

-- A deletion of an event of Nostr names an id, and its tombstones name the kinds that were stored
-- then. When others are stored, they need the same tombstones.

ALTER TABLE streams ADD COLUMN deletes_in text[] NOT NULL DEFAULT '{}';

COMMENT ON COLUMN streams.deletes_in IS 'The collections in which deletions by id have tombstones, of those that were made before the stream was read. Empty: the network has no such deletions.';
