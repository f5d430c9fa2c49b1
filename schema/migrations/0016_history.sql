-- History: the past of collections, which no stream brings.

CREATE TABLE stored_collections (
    collection text COLLATE "C" PRIMARY KEY,
    since      timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE  stored_collections IS 'The entries of WEIR_COLLECTIONS by which the stream is read: names, and prefixes such as pub.layers.*. The consumer that takes the lease writes them.';
COMMENT ON COLUMN stored_collections.since IS 'When a consumer first had this entry: what was written earlier is in no stream.';

CREATE TABLE histories (
    collection   text COLLATE "C" PRIMARY KEY CHECK (collection <> ''),
    reason       text        NOT NULL CHECK (reason IN ('new', 'requested')),
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    run          int         NOT NULL DEFAULT 1,
    began_at     timestamptz,
    completed_at timestamptz,
    cancelled_at timestamptz,
    accounts     bigint      NOT NULL DEFAULT 0,
    done         bigint      NOT NULL DEFAULT 0,
    unread       bigint      NOT NULL DEFAULT 0,
    limited      bigint      NOT NULL DEFAULT 0,
    records      bigint      NOT NULL DEFAULT 0,
    bytes        bigint      NOT NULL DEFAULT 0,
    problem      text        NOT NULL DEFAULT ''
);

COMMENT ON TABLE  histories IS 'The collections whose past is read, or was: entries of WEIR_COLLECTIONS, or collections under one. Deleting a row has a collection that is kept for ever read again.';
COMMENT ON COLUMN histories.reason IS 'new: WEIR_COLLECTIONS names it, and keeps it for ever; requested: somebody asked for it.';
COMMENT ON COLUMN histories.run IS 'How often it was requested. Each run reads every account again.';
COMMENT ON COLUMN histories.began_at IS 'When this run began. NULL: no stream stores the collection yet.';
COMMENT ON COLUMN histories.completed_at IS 'When every account had been read, except those that cannot be. NULL: not yet.';
COMMENT ON COLUMN histories.cancelled_at IS 'When the run was cancelled. A request continues it.';
COMMENT ON COLUMN histories.accounts IS 'The accounts of this run so far. done of them are read to the end or to the limit, unread cannot be read for now, and the others wait.';
COMMENT ON COLUMN histories.limited IS 'How many of done reached the limit of an account: older records of them are not stored.';
COMMENT ON COLUMN histories.records IS 'The records of the accounts in done, whether this run stored them or the stream had.';
COMMENT ON COLUMN histories.bytes IS 'The JSON of these records, in bytes.';
COMMENT ON COLUMN histories.problem IS 'Why it does not advance. Empty: it does, or is complete.';

CREATE TABLE history_listings (
    collection text COLLATE "C" NOT NULL REFERENCES histories ON DELETE CASCADE,
    name       text COLLATE "C" NOT NULL,
    run        int              NOT NULL,
    host       text             NOT NULL DEFAULT '',
    cursor     text             NOT NULL DEFAULT '',
    pages      bigint           NOT NULL DEFAULT 0,
    seen       bigint           NOT NULL DEFAULT 0,
    tries      int              NOT NULL DEFAULT 0,
    retry_at   timestamptz      NOT NULL DEFAULT '-infinity',
    ended_at   timestamptz,
    problem    text             NOT NULL DEFAULT '',
    PRIMARY KEY (collection, name)
);

COMMENT ON TABLE  history_listings IS 'Where the whole network is followed: how far relays have named the accounts that have records in a collection.';
COMMENT ON COLUMN history_listings.name IS 'The collection that relays are asked for. A prefix has a listing for each name under it that is known.';
COMMENT ON COLUMN history_listings.run IS 'The run of the history that it belongs to.';
COMMENT ON COLUMN history_listings.host IS 'The relay that gave the cursor. The cursor means nothing on another one.';
COMMENT ON COLUMN history_listings.seen IS 'How many accounts the pages have named so far. Many more than there are accounts: the relay repeats itself.';
COMMENT ON COLUMN history_listings.tries IS 'Failed tries in a row. After some of them another relay is asked.';

CREATE TABLE history_accounts (
    collection text COLLATE "C" NOT NULL REFERENCES histories ON DELETE CASCADE,
    did        text COLLATE "C" NOT NULL,
    run        int              NOT NULL,
    state      text             NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'done', 'unread')),
    place      jsonb,
    records    bigint           NOT NULL DEFAULT 0,
    bytes      bigint           NOT NULL DEFAULT 0,
    limited    boolean          NOT NULL DEFAULT false,
    tries      int              NOT NULL DEFAULT 0,
    retry_at   timestamptz,
    read_at    timestamptz,
    problem    text             NOT NULL DEFAULT '',
    PRIMARY KEY (collection, did)
);
CREATE INDEX history_accounts_waiting ON history_accounts (did) WHERE state = 'waiting';
CREATE INDEX history_accounts_retry ON history_accounts (retry_at) WHERE state = 'unread' AND retry_at IS NOT NULL;
CREATE INDEX history_accounts_limited ON history_accounts (collection, did) WHERE limited;

COMMENT ON TABLE  history_accounts IS 'The accounts of each history, and how far each has been read.';
COMMENT ON COLUMN history_accounts.state IS 'waiting; done: read to the end or to the limit; unread: it cannot be read for now, and problem says why.';
COMMENT ON COLUMN history_accounts.place IS 'The position in the account''s repository. NULL: nothing has been read in this run.';
COMMENT ON COLUMN history_accounts.records IS 'The records read so far. An account that reaches the limit has only its newest ones.';
COMMENT ON COLUMN history_accounts.bytes IS 'The JSON of these records, in bytes.';
COMMENT ON COLUMN history_accounts.limited IS 'It reached WEIR_HISTORY_RECORDS or WEIR_HISTORY_BYTES: older records are not stored.';
COMMENT ON COLUMN history_accounts.tries IS 'How often it could not be read.';
COMMENT ON COLUMN history_accounts.retry_at IS 'When an unread account is tried again, if it is active. NULL: not again in this run.';

CREATE FUNCTION enqueue_history(collection text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF collection IS NULL OR length(collection) > 317 OR collection !~ '^[a-zA-Z][a-zA-Z0-9-]*(\.[a-zA-Z0-9][a-zA-Z0-9-]*)+\.([a-zA-Z][a-zA-Z0-9]*|\*)$' THEN
        RAISE EXCEPTION '% is not a collection', coalesce(quote_literal(left(collection, 100)), 'NULL')
            USING ERRCODE = '22023', HINT = 'For example: SELECT enqueue_history(''site.standard.document''), or a prefix such as pub.layers.*';
    END IF;
    -- An unfinished run goes on. A completed one is followed by another, which reads every account again.
    INSERT INTO histories AS h (collection, reason) VALUES (enqueue_history.collection, 'requested')
    ON CONFLICT ON CONSTRAINT histories_pkey DO UPDATE
    SET reason       = 'requested',
        requested_at = clock_timestamp(),
        run          = h.run + (h.completed_at IS NOT NULL)::int,
        began_at     = CASE WHEN h.completed_at IS NULL THEN h.began_at END,
        accounts     = CASE WHEN h.completed_at IS NULL THEN h.accounts ELSE 0 END,
        done         = CASE WHEN h.completed_at IS NULL THEN h.done     ELSE 0 END,
        unread       = CASE WHEN h.completed_at IS NULL THEN h.unread   ELSE 0 END,
        limited      = CASE WHEN h.completed_at IS NULL THEN h.limited  ELSE 0 END,
        records      = CASE WHEN h.completed_at IS NULL THEN h.records  ELSE 0 END,
        bytes        = CASE WHEN h.completed_at IS NULL THEN h.bytes    ELSE 0 END,
        problem      = '',
        completed_at = NULL,
        cancelled_at = NULL;
    RETURN enqueue_job('fill_collections', 'network', '{"once": true}', ARRAY['manual']);
END $$;

COMMENT ON FUNCTION enqueue_history IS 'Requests the past of a collection, or of all collections under a prefix such as pub.layers.*. Returns the id of the job that begins it.';
