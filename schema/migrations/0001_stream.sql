-- What the stream brings: where it stands, the records it wrote, what it deleted.

CREATE TABLE streams (
    name             text PRIMARY KEY,
    wire             text        NOT NULL,
    host             text        NOT NULL DEFAULT '',
    cursor_kind      text        NOT NULL DEFAULT '' CHECK (cursor_kind IN ('', 'seq', 'time')),
    cursor           bigint      NOT NULL DEFAULT 0,
    anchor           jsonb,
    last_event_at    timestamptz,
    caught_up_at     timestamptz,
    filter_hash      text        NOT NULL DEFAULT '',
    state            text        NOT NULL DEFAULT 'stopped',
    state_detail     text        NOT NULL DEFAULT '',
    state_since      timestamptz NOT NULL DEFAULT now(),
    lease_owner      text,
    lease_expires_at timestamptz,
    epoch            bigint      NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

COMMENT ON TABLE  streams IS 'One row per stream shard: how far it has been committed, and who may commit to it.';
COMMENT ON COLUMN streams.host IS 'The host the cursor belongs to: a sequence number means nothing on another host.';
COMMENT ON COLUMN streams.cursor_kind IS 'seq: a sequence number of host; time: microseconds since 1970; empty: nothing read yet.';
COMMENT ON COLUMN streams.anchor IS 'The identity of the last event committed; a resume must deliver it again.';
COMMENT ON COLUMN streams.last_event_at IS 'When the last event committed happened, by the server''s clock.';
COMMENT ON COLUMN streams.caught_up_at IS 'The latest moment at which the stream was known to have nothing unread. A quiet stream moves this, not the cursor.';
COMMENT ON COLUMN streams.epoch IS 'Raised by each new lease holder. A commit that carries an older epoch is refused.';

CREATE TABLE records (
    collection text COLLATE "C" NOT NULL,
    did        text COLLATE "C" NOT NULL,
    rkey       text COLLATE "C" NOT NULL,
    rev        text COLLATE "C" NOT NULL,
    cid        text             NOT NULL,
    created_at timestamptz      NOT NULL,
    indexed_at timestamptz      NOT NULL DEFAULT now(),
    record     jsonb            NOT NULL,
    PRIMARY KEY (collection, did, rkey)
) PARTITION BY LIST (collection);

COMMENT ON TABLE  records IS 'Every stored record of any collection, in its newest revision.';
COMMENT ON COLUMN records.rev IS 'The revision of the repository that wrote it: a TID, sorts by time.';
COMMENT ON COLUMN records.created_at IS 'The author''s claim, never later than the event that brought it.';
COMMENT ON COLUMN records.indexed_at IS 'When Weir first stored it, by the database''s clock.';

CREATE TABLE posts PARTITION OF records FOR VALUES IN ('app.bsky.feed.post') PARTITION BY RANGE (rkey);
CREATE TABLE posts_default PARTITION OF posts DEFAULT;
CREATE TABLE records_other PARTITION OF records DEFAULT;
CREATE INDEX records_created_at ON records (created_at);

COMMENT ON TABLE posts IS 'The records of app.bsky.feed.post, a partition a day of rkey: a TID sorts by time.';
COMMENT ON TABLE records_other IS 'The records of every other collection that is stored.';
COMMENT ON TABLE posts_default IS 'Posts whose rkey is no TID, or names a day that has no partition.';

CREATE TABLE tombstones (
    collection text COLLATE "C" NOT NULL,
    did        text COLLATE "C" NOT NULL,
    rkey       text COLLATE "C" NOT NULL,
    rev        text COLLATE "C" NOT NULL,
    deleted_at timestamptz      NOT NULL,
    PRIMARY KEY (collection, did, rkey)
);

COMMENT ON TABLE tombstones IS 'The newest deletion of a record: what was written at or before rev stays deleted.';

CREATE TABLE accounts (
    did          text COLLATE "C" PRIMARY KEY,
    handle       text,
    handle_at    timestamptz,
    display_name text,
    avatar       text,
    status       text NOT NULL DEFAULT 'active',
    status_at    timestamptz
);
CREATE INDEX accounts_hidden ON accounts (did) WHERE status <> 'active';

COMMENT ON TABLE  accounts IS 'What the stream said of accounts. An account without a row is active.';
COMMENT ON COLUMN accounts.status IS 'active, deactivated, suspended, takendown, deleted, or another word of the network; only active counts.';
COMMENT ON COLUMN accounts.status_at IS 'When the status was set, by the network''s clock: an older event changes nothing.';

CREATE TABLE gaps (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream     text        NOT NULL,
    from_at    timestamptz NOT NULL,
    to_at      timestamptz NOT NULL,
    reason     text        NOT NULL,
    opened_at  timestamptz NOT NULL,
    closed_at  timestamptz,
    how_closed text,
    CHECK (to_at > from_at),
    UNIQUE (stream, from_at, to_at)
);
CREATE INDEX gaps_open ON gaps (stream, from_at) WHERE closed_at IS NULL;

COMMENT ON TABLE gaps IS 'What a stream may have missed: the intervals that a resume could not be shown to cover.';

CREATE TABLE dead_letters (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key        bytea       NOT NULL UNIQUE,
    stage      text        NOT NULL CHECK (stage IN ('decode', 'commit', 'process')),
    stream     text,
    collection text,
    did        text,
    rkey       text,
    cause      text        NOT NULL,
    path       text        NOT NULL DEFAULT '',
    expected   text        NOT NULL DEFAULT '',
    received   text        NOT NULL DEFAULT '',
    raw        bytea       NOT NULL,
    raw_bytes  bigint      NOT NULL,
    first_seen timestamptz NOT NULL,
    last_seen  timestamptz NOT NULL,
    count      bigint      NOT NULL DEFAULT 1
);
CREATE INDEX dead_letters_last_seen ON dead_letters (last_seen);

COMMENT ON TABLE  dead_letters IS 'Events and records that could not be processed, with the cause: set aside so that the rest goes on.';
COMMENT ON COLUMN dead_letters.key IS 'sha256 over the stage and the input: the same letter twice is one row.';
COMMENT ON COLUMN dead_letters.raw IS 'The input as it came; its first megabyte where raw_bytes is larger.';

CREATE TABLE dictionaries (
    sha256     text PRIMARY KEY,
    url        text        NOT NULL,
    bytes      bytea       NOT NULL,
    fetched_at timestamptz NOT NULL
);

COMMENT ON TABLE dictionaries IS 'Compression dictionaries, kept after the first download.';

CREATE FUNCTION tid_floor(at timestamptz) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    n      bigint := (extract(epoch FROM at) * 1000000)::bigint << 10;
    answer text := '';
BEGIN
    FOR i IN 1..13 LOOP
        answer := substr('234567abcdefghijklmnopqrstuvwxyz', (n & 31)::int + 1, 1) || answer;
        n := n >> 5;
    END LOOP;
    RETURN answer;
END $$;

COMMENT ON FUNCTION tid_floor IS 'The first TID of a moment: rkeys of later moments sort after it.';

CREATE FUNCTION ensure_post_partition(day date) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    part  text := 'posts_' || to_char(day, 'YYYYMMDD');
    lower text := tid_floor(day::timestamp AT TIME ZONE 'UTC');
    upper text := tid_floor((day + 1)::timestamp AT TIME ZONE 'UTC');
BEGIN
    IF to_regclass(part) IS NOT NULL THEN
        RETURN false;
    END IF;
    LOCK TABLE posts_default IN ACCESS EXCLUSIVE MODE;
    IF to_regclass(part) IS NOT NULL THEN
        RETURN false; -- made while this one waited
    END IF;
    -- Rows of that day may have come before their partition: they move in the same transaction.
    EXECUTE format('CREATE TABLE %I (LIKE posts INCLUDING DEFAULTS)', part);
    EXECUTE format('WITH moved AS (DELETE FROM posts_default WHERE rkey >= %L AND rkey < %L RETURNING *) INSERT INTO %I SELECT * FROM moved',
                   lower, upper, part);
    EXECUTE format('ALTER TABLE posts ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, lower, upper);
    RETURN true;
END $$;

COMMENT ON FUNCTION ensure_post_partition IS 'Makes the partition of posts for one UTC day; false where it exists.';

CREATE FUNCTION advance_stream(
    p_name text, p_epoch bigint, p_lease interval,
    p_host text, p_cursor_kind text, p_cursor bigint, p_anchor jsonb,
    p_last_event_at timestamptz, p_caught_up_at timestamptz, p_filter_hash text
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE streams
    SET host             = p_host,
        cursor_kind      = p_cursor_kind,
        cursor           = p_cursor,
        anchor           = p_anchor,
        last_event_at    = p_last_event_at,
        caught_up_at     = greatest(caught_up_at, p_caught_up_at),
        filter_hash      = p_filter_hash,
        lease_expires_at = clock_timestamp() + p_lease
    WHERE name = p_name AND epoch = p_epoch;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'epoch % of stream % is over: another process holds its lease', p_epoch, p_name
            USING ERRCODE = 'WR001';
    END IF;
END $$;

COMMENT ON FUNCTION advance_stream IS 'Moves a stream''s position and renews its lease, for the holder of the epoch only: SQLSTATE WR001 for anybody else.';
