-- A stream asks for so many accounts at most: the others are followed by shards of it, streams of their own.

ALTER TABLE streams ADD COLUMN root text REFERENCES streams ON DELETE CASCADE;

COMMENT ON COLUMN streams.root IS 'Of a shard: the stream whose accounts it takes some of. It goes when its last account does.';

CREATE TABLE sharding (
    root     text PRIMARY KEY REFERENCES streams ON DELETE CASCADE,
    mode     text NOT NULL CHECK (mode IN ('auto', 'shards', 'network')),
    accounts int  NOT NULL CHECK (accounts BETWEEN 1 AND 10000),
    made     int  NOT NULL DEFAULT 1
);

COMMENT ON TABLE  sharding IS 'How the followed accounts are shared out over a stream and its shards: as the consumer says that was started last.';
COMMENT ON COLUMN sharding.mode IS 'Above so many accounts: shards; network: one stream that asks for everyone''s events; auto: shards while they are few.';
COMMENT ON COLUMN sharding.accounts IS 'How many accounts one stream asks for, at most.';
COMMENT ON COLUMN sharding.made IS 'The number of the latest shard. None comes twice: an epoch counts for one stream.';

CREATE TABLE stream_accounts (
    root        text             NOT NULL,
    did         text COLLATE "C" NOT NULL,
    stream      text             NOT NULL REFERENCES streams ON DELETE CASCADE,
    assigned_at timestamptz      NOT NULL,
    PRIMARY KEY (root, did)
);
CREATE INDEX stream_accounts_stream ON stream_accounts (stream);

COMMENT ON TABLE  stream_accounts IS 'Which stream follows which account. An account stays where it is for as long as there is room. Weir alone writes here: moving one takes more than a new name.';
COMMENT ON COLUMN stream_accounts.assigned_at IS 'Since when: the stream began before it, where another one had the account.';

-- Every consumer looks again, and finds the same.
CREATE TRIGGER sharding_changed AFTER INSERT OR UPDATE ON sharding FOR EACH STATEMENT EXECUTE FUNCTION follows_changed();
