-- A relay that lost its place keeps its failures: without them it would take the place back at once.

ALTER TABLE nostr_relays ADD COLUMN chosen boolean NOT NULL DEFAULT true;

COMMENT ON COLUMN nostr_relays.chosen IS 'Whether the relay is among those that are asked. Others keep what is known of them as long as a followed account names them.';
