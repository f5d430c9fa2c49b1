-- What the migrations make, as pg_dump shows it; River's own tables are left out. Written by `go generate ./schema`.

CREATE TYPE public.river_job_state AS ENUM (
    'available',
    'cancelled',
    'completed',
    'discarded',
    'pending',
    'retryable',
    'running',
    'scheduled'
);

CREATE FUNCTION public.advance_stream(p_name text, p_epoch bigint, p_lease interval, p_host text, p_cursor_kind text, p_cursor bigint, p_anchor jsonb, p_last_event_at timestamp with time zone, p_caught_up_at timestamp with time zone, p_filter_hash text) RETURNS void
    LANGUAGE plpgsql
    AS $$
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

COMMENT ON FUNCTION public.advance_stream(p_name text, p_epoch bigint, p_lease interval, p_host text, p_cursor_kind text, p_cursor bigint, p_anchor jsonb, p_last_event_at timestamp with time zone, p_caught_up_at timestamp with time zone, p_filter_hash text) IS 'Moves a stream''s position and renews its lease, for the holder of the epoch only: SQLSTATE WR001 for anybody else.';

CREATE FUNCTION public.ensure_post_partition(day date) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
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

COMMENT ON FUNCTION public.ensure_post_partition(day date) IS 'Makes the partition of posts for one UTC day; false where it exists.';

CREATE FUNCTION public.river_job_state_in_bitmask(bitmask bit, state public.river_job_state) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT CASE state
        WHEN 'available' THEN get_bit(bitmask, 7)
        WHEN 'cancelled' THEN get_bit(bitmask, 6)
        WHEN 'completed' THEN get_bit(bitmask, 5)
        WHEN 'discarded' THEN get_bit(bitmask, 4)
        WHEN 'pending'   THEN get_bit(bitmask, 3)
        WHEN 'retryable' THEN get_bit(bitmask, 2)
        WHEN 'running'   THEN get_bit(bitmask, 1)
        WHEN 'scheduled' THEN get_bit(bitmask, 0)
        ELSE 0
    END = 1;
$$;

CREATE FUNCTION public.tid_floor(at timestamp with time zone) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT
    AS $$
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

COMMENT ON FUNCTION public.tid_floor(at timestamp with time zone) IS 'The first TID of a moment: rkeys of later moments sort after it.';

CREATE TABLE public.accounts (
    did text NOT NULL COLLATE pg_catalog."C",
    handle text,
    handle_at timestamp with time zone,
    display_name text,
    avatar text,
    status text DEFAULT 'active'::text NOT NULL,
    status_at timestamp with time zone
);

COMMENT ON TABLE public.accounts IS 'What the stream said of accounts. An account without a row is active.';

COMMENT ON COLUMN public.accounts.status IS 'active, deactivated, suspended, takendown, deleted, or another word of the network; only active counts.';

COMMENT ON COLUMN public.accounts.status_at IS 'When the status was set, by the network''s clock: an older event changes nothing.';

CREATE TABLE public.dead_letters (
    id bigint NOT NULL,
    key bytea NOT NULL,
    stage text NOT NULL,
    stream text,
    collection text,
    did text,
    rkey text,
    cause text NOT NULL,
    path text DEFAULT ''::text NOT NULL,
    expected text DEFAULT ''::text NOT NULL,
    received text DEFAULT ''::text NOT NULL,
    raw bytea NOT NULL,
    raw_bytes bigint NOT NULL,
    first_seen timestamp with time zone NOT NULL,
    last_seen timestamp with time zone NOT NULL,
    count bigint DEFAULT 1 NOT NULL,
    CONSTRAINT dead_letters_stage_check CHECK ((stage = ANY (ARRAY['decode'::text, 'commit'::text, 'process'::text])))
);

COMMENT ON TABLE public.dead_letters IS 'Events and records that could not be processed, with the cause: set aside so that the rest goes on.';

COMMENT ON COLUMN public.dead_letters.key IS 'sha256 over the stage and the input: the same letter twice is one row.';

COMMENT ON COLUMN public.dead_letters.raw IS 'The input as it came; its first megabyte where raw_bytes is larger.';

ALTER TABLE public.dead_letters ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.dead_letters_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.dictionaries (
    sha256 text NOT NULL,
    url text NOT NULL,
    bytes bytea NOT NULL,
    fetched_at timestamp with time zone NOT NULL
);

COMMENT ON TABLE public.dictionaries IS 'Compression dictionaries, kept after the first download.';

CREATE TABLE public.gaps (
    id bigint NOT NULL,
    stream text NOT NULL,
    from_at timestamp with time zone NOT NULL,
    to_at timestamp with time zone NOT NULL,
    reason text NOT NULL,
    opened_at timestamp with time zone NOT NULL,
    closed_at timestamp with time zone,
    how_closed text,
    CONSTRAINT gaps_check CHECK ((to_at > from_at))
);

COMMENT ON TABLE public.gaps IS 'What a stream may have missed: the intervals that a resume could not be shown to cover.';

ALTER TABLE public.gaps ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.gaps_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.links (
    id bigint NOT NULL,
    url text NOT NULL COLLATE pg_catalog."C",
    site text NOT NULL,
    title text DEFAULT ''::text NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    image text DEFAULT ''::text NOT NULL,
    card_from text DEFAULT ''::text NOT NULL,
    card_at timestamp with time zone,
    first_seen timestamp with time zone NOT NULL,
    CONSTRAINT links_url_check CHECK ((octet_length(url) <= 2048))
);

COMMENT ON TABLE public.links IS 'Every page shared, under its normalised URL, with the card that describes it.';

COMMENT ON COLUMN public.links.image IS 'blob:<did>/<cid>, the picture a poster uploaded with the card.';

COMMENT ON COLUMN public.links.card_from IS 'Where the card came from: the AT-URI of a post, or empty while there is none.';

COMMENT ON COLUMN public.links.card_at IS 'When that post was first stored: the earliest card stays.';

ALTER TABLE public.links ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.links_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.records (
    collection text NOT NULL COLLATE pg_catalog."C",
    did text NOT NULL COLLATE pg_catalog."C",
    rkey text NOT NULL COLLATE pg_catalog."C",
    rev text NOT NULL COLLATE pg_catalog."C",
    cid text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    indexed_at timestamp with time zone DEFAULT now() NOT NULL,
    record jsonb NOT NULL
)
PARTITION BY LIST (collection);

COMMENT ON TABLE public.records IS 'Every stored record of any collection, in its newest revision.';

COMMENT ON COLUMN public.records.rev IS 'The revision of the repository that wrote it: a TID, sorts by time.';

COMMENT ON COLUMN public.records.created_at IS 'The author''s claim, never later than the event that brought it.';

COMMENT ON COLUMN public.records.indexed_at IS 'When Weir first stored it, by the database''s clock.';

CREATE TABLE public.posts (
    collection text NOT NULL COLLATE pg_catalog."C",
    did text NOT NULL COLLATE pg_catalog."C",
    rkey text NOT NULL COLLATE pg_catalog."C",
    rev text NOT NULL COLLATE pg_catalog."C",
    cid text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    indexed_at timestamp with time zone DEFAULT now() NOT NULL,
    record jsonb NOT NULL
)
PARTITION BY RANGE (rkey);

COMMENT ON TABLE public.posts IS 'The records of app.bsky.feed.post, a partition a day of rkey: a TID sorts by time.';

CREATE TABLE public.posts_default (
    collection text NOT NULL COLLATE pg_catalog."C",
    did text NOT NULL COLLATE pg_catalog."C",
    rkey text NOT NULL COLLATE pg_catalog."C",
    rev text NOT NULL COLLATE pg_catalog."C",
    cid text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    indexed_at timestamp with time zone DEFAULT now() NOT NULL,
    record jsonb NOT NULL
);

COMMENT ON TABLE public.posts_default IS 'Posts whose rkey is no TID, or names a day that has no partition.';

CREATE TABLE public.records_other (
    collection text NOT NULL COLLATE pg_catalog."C",
    did text NOT NULL COLLATE pg_catalog."C",
    rkey text NOT NULL COLLATE pg_catalog."C",
    rev text NOT NULL COLLATE pg_catalog."C",
    cid text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    indexed_at timestamp with time zone DEFAULT now() NOT NULL,
    record jsonb NOT NULL
);

CREATE TABLE public.shares (
    did text NOT NULL COLLATE pg_catalog."C",
    collection text NOT NULL COLLATE pg_catalog."C",
    rkey text NOT NULL COLLATE pg_catalog."C",
    link_id bigint NOT NULL,
    how text NOT NULL,
    shared_at timestamp with time zone NOT NULL,
    CONSTRAINT shares_how_check CHECK ((how = ANY (ARRAY['post'::text, 'quote'::text, 'repost'::text])))
);

COMMENT ON TABLE public.shares IS 'The ledger: who shared which link by which record. Outlives the post''s retention; loses a row only when the share is gone.';

COMMENT ON COLUMN public.shares.how IS 'post: in a post of its own; quote: in a post that quotes another.';

COMMENT ON COLUMN public.shares.shared_at IS 'The created_at of the record.';

CREATE TABLE public.streams (
    name text NOT NULL,
    wire text NOT NULL,
    host text DEFAULT ''::text NOT NULL,
    cursor_kind text DEFAULT ''::text NOT NULL,
    cursor bigint DEFAULT 0 NOT NULL,
    anchor jsonb,
    last_event_at timestamp with time zone,
    caught_up_at timestamp with time zone,
    filter_hash text DEFAULT ''::text NOT NULL,
    state text DEFAULT 'stopped'::text NOT NULL,
    state_detail text DEFAULT ''::text NOT NULL,
    state_since timestamp with time zone DEFAULT now() NOT NULL,
    lease_owner text,
    lease_expires_at timestamp with time zone,
    epoch bigint DEFAULT 0 NOT NULL,
    CONSTRAINT streams_cursor_kind_check CHECK ((cursor_kind = ANY (ARRAY[''::text, 'seq'::text, 'time'::text])))
)
WITH (fillfactor='50');

COMMENT ON TABLE public.streams IS 'One row per stream shard: how far it has been committed, and who may commit to it.';

COMMENT ON COLUMN public.streams.host IS 'The host the cursor belongs to: a sequence number means nothing on another host.';

COMMENT ON COLUMN public.streams.cursor_kind IS 'seq: a sequence number of host; time: microseconds since 1970; empty: nothing read yet.';

COMMENT ON COLUMN public.streams.anchor IS 'The identity of the last event committed; a resume must deliver it again.';

COMMENT ON COLUMN public.streams.last_event_at IS 'When the last event committed happened, by the server''s clock.';

COMMENT ON COLUMN public.streams.caught_up_at IS 'The latest moment at which the stream was known to have nothing unread. A quiet stream moves this, not the cursor.';

COMMENT ON COLUMN public.streams.epoch IS 'Raised by each new lease holder. A commit that carries an older epoch is refused.';

CREATE TABLE public.tombstones (
    collection text NOT NULL COLLATE pg_catalog."C",
    did text NOT NULL COLLATE pg_catalog."C",
    rkey text NOT NULL COLLATE pg_catalog."C",
    rev text NOT NULL COLLATE pg_catalog."C",
    deleted_at timestamp with time zone NOT NULL
);

COMMENT ON TABLE public.tombstones IS 'The newest deletion of a record: what was written at or before rev stays deleted.';

ALTER TABLE ONLY public.records ATTACH PARTITION public.posts FOR VALUES IN ('app.bsky.feed.post');

ALTER TABLE ONLY public.posts ATTACH PARTITION public.posts_default DEFAULT;

ALTER TABLE ONLY public.records ATTACH PARTITION public.records_other DEFAULT;

ALTER TABLE ONLY public.accounts
    ADD CONSTRAINT accounts_pkey PRIMARY KEY (did);

ALTER TABLE ONLY public.dead_letters
    ADD CONSTRAINT dead_letters_key_key UNIQUE (key);

ALTER TABLE ONLY public.dead_letters
    ADD CONSTRAINT dead_letters_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.dictionaries
    ADD CONSTRAINT dictionaries_pkey PRIMARY KEY (sha256);

ALTER TABLE ONLY public.gaps
    ADD CONSTRAINT gaps_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.gaps
    ADD CONSTRAINT gaps_stream_from_at_to_at_key UNIQUE (stream, from_at, to_at);

ALTER TABLE ONLY public.links
    ADD CONSTRAINT links_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.links
    ADD CONSTRAINT links_url_key UNIQUE (url);

ALTER TABLE ONLY public.records
    ADD CONSTRAINT records_pkey PRIMARY KEY (collection, did, rkey);

ALTER TABLE ONLY public.posts
    ADD CONSTRAINT posts_pkey PRIMARY KEY (collection, did, rkey);

ALTER TABLE ONLY public.posts_default
    ADD CONSTRAINT posts_default_pkey PRIMARY KEY (collection, did, rkey);

ALTER TABLE ONLY public.records_other
    ADD CONSTRAINT records_other_pkey PRIMARY KEY (collection, did, rkey);

ALTER TABLE ONLY public.shares
    ADD CONSTRAINT shares_pkey PRIMARY KEY (did, collection, rkey, link_id);

ALTER TABLE ONLY public.streams
    ADD CONSTRAINT streams_pkey PRIMARY KEY (name);

ALTER TABLE ONLY public.tombstones
    ADD CONSTRAINT tombstones_pkey PRIMARY KEY (collection, did, rkey);

CREATE INDEX accounts_hidden ON public.accounts USING btree (did) WHERE (status <> 'active'::text);

CREATE INDEX dead_letters_last_seen ON public.dead_letters USING btree (last_seen);

CREATE INDEX gaps_open ON public.gaps USING btree (stream, from_at) WHERE (closed_at IS NULL);

CREATE INDEX records_created_at ON ONLY public.records USING btree (created_at);

CREATE INDEX posts_created_at_idx ON ONLY public.posts USING btree (created_at);

CREATE INDEX posts_default_created_at_idx ON public.posts_default USING btree (created_at);

CREATE INDEX records_other_created_at_idx ON public.records_other USING btree (created_at);

CREATE INDEX shares_link ON public.shares USING btree (link_id, shared_at);

CREATE INDEX shares_window ON public.shares USING btree (shared_at, link_id, did);

ALTER INDEX public.records_created_at ATTACH PARTITION public.posts_created_at_idx;

ALTER INDEX public.posts_created_at_idx ATTACH PARTITION public.posts_default_created_at_idx;

ALTER INDEX public.posts_pkey ATTACH PARTITION public.posts_default_pkey;

ALTER INDEX public.records_pkey ATTACH PARTITION public.posts_pkey;

ALTER INDEX public.records_created_at ATTACH PARTITION public.records_other_created_at_idx;

ALTER INDEX public.records_pkey ATTACH PARTITION public.records_other_pkey;

ALTER TABLE ONLY public.shares
    ADD CONSTRAINT shares_link_id_fkey FOREIGN KEY (link_id) REFERENCES public.links(id) ON DELETE CASCADE;
