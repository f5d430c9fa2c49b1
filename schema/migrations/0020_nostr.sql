-- Networks without repositories, whose servers may bring any event at any time.

CREATE TABLE seen (
    id uuid PRIMARY KEY
);

COMMENT ON TABLE seen IS 'The first 16 bytes of the ids of events that were stored, for networks whose servers bring the same events. They stay, because an event may come again at any time.';

ALTER TABLE tombstones ALTER COLUMN deleted_at DROP NOT NULL;

COMMENT ON COLUMN tombstones.deleted_at IS 'When the record was deleted: the tombstone expires by it. NULL: it stays, because a server may bring the record at any time.';

ALTER TABLE accounts ADD COLUMN erased_rev text COLLATE "C";

COMMENT ON COLUMN accounts.erased_rev IS 'Nothing of the account up to this revision may be stored: its author has demanded so. NULL: no such demand.';
