-- What the migrations make, as the catalog has it; River's own tables are left out. Written by `go generate ./schema`.

-- Accounts that are followed, that something is stored of, or that are not active. An account without a row is active.
CREATE TABLE accounts (
    did text COLLATE "C" NOT NULL,
    handle text,
    handle_at timestamp with time zone,
    display_name text,
    avatar text,
    status text DEFAULT 'active'::text NOT NULL, -- active, deactivated, suspended, takendown, deleted, or another word of the network; hidden: it is not shown, and the stream has not said why. Only active counts.
    status_at timestamp with time zone, -- When the status was set, by the network's clock: an older event changes nothing.
    feed_newest timestamp with time zone, -- The newest post seen in a complete backfill: the next one needs to go back no further.
    feed_read_at timestamp with time zone, -- When its feed was last read to the end of a window.
    feed_problem text DEFAULT ''::text NOT NULL, -- Why its feed could not be read, the last time; empty when it could.
    purged_for timestamp with time zone, -- The status_at of the deletion after which what it had written was purged.
    purge_at timestamp with time zone, -- When it is purged once more, of what a replay brought back in the meantime.
    check_at timestamp with time zone DEFAULT (now() + '1 day'::interval) NOT NULL, -- When expiry next looks whether anything needs this row.
    feed_since timestamp with time zone, -- What it wrote since then is stored, as long as it is kept: so far back its posts were read. Null: they have not been read to the end yet.
    reread_since timestamp with time zone, -- What it wrote since then may be missing, because it could not be read: it is read again when it is active. Null: nothing is.
    reread_asked integer DEFAULT 0 NOT NULL, -- How often a second read was asked for: one that began earlier does not settle it.
    reread_at timestamp with time zone, -- When to try again, where it is active and could not be read.
    PRIMARY KEY (did)
);
CREATE INDEX accounts_check ON public.accounts USING btree (check_at);
CREATE INDEX accounts_hidden ON public.accounts USING btree (did) WHERE (status <> 'active'::text);
CREATE INDEX accounts_purge ON public.accounts USING btree (purge_at) WHERE (purge_at IS NOT NULL);
CREATE INDEX accounts_reread ON public.accounts USING btree (reread_at) WHERE (reread_since IS NOT NULL);
CREATE INDEX accounts_unpurged ON public.accounts USING btree (did) WHERE ((status = 'deleted'::text) AND (purged_for IS DISTINCT FROM COALESCE(status_at, '-infinity'::timestamp with time zone)));

-- A row per condition of /health that has ever held, with its latest time.
CREATE TABLE alerts (
    name text NOT NULL,
    about text NOT NULL, -- The stream or queue; empty: the whole.
    severity text NOT NULL,
    says text NOT NULL,
    look text NOT NULL, -- What to look at first.
    since timestamp with time zone NOT NULL, -- When it began to hold.
    seen_at timestamp with time zone NOT NULL, -- When it was last seen to hold.
    fired_at timestamp with time zone, -- When it had held for long enough to tell somebody; null: not yet.
    resolved_at timestamp with time zone, -- When it had been gone for long enough; null: it has not.
    told text DEFAULT ''::text NOT NULL, -- What the latest send_alert job is about; empty: there was none, or no webhook.
    PRIMARY KEY (name, about),
    CHECK ((told = ANY (ARRAY[''::text, 'fired'::text, 'resolved'::text])))
);

-- What an audit found, the first thousand of each. unread: the account could not be compared.
CREATE TABLE audit_faults (
    audit_id bigint NOT NULL,
    did text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL, -- Empty where the whole account is meant.
    fault text NOT NULL,
    detail text DEFAULT ''::text NOT NULL,
    PRIMARY KEY (audit_id, did, rkey),
    CHECK ((fault = ANY (ARRAY['missing'::text, 'extra'::text, 'stale'::text, 'unread'::text]))),
    FOREIGN KEY (audit_id) REFERENCES audits(id) ON DELETE CASCADE
);
CREATE INDEX audit_faults_record ON public.audit_faults USING btree (did, rkey);

-- Comparisons of what is stored with the accounts' own repositories.
CREATE TABLE audits (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    started_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone NOT NULL,
    from_at timestamp with time zone, -- The posts compared have rkeys from this moment on, up to to_at; of an account, from when its posts are claimed to be stored. Null: nothing was compared.
    to_at timestamp with time zone, -- See from_at.
    accounts integer NOT NULL, -- How many accounts were to be compared.
    failures integer NOT NULL, -- How many of them could not be: their posts count as nothing.
    records integer NOT NULL, -- How many posts were compared: those in the repositories, and those stored that are not in them.
    missing integer NOT NULL,
    extra integer NOT NULL,
    stale integer NOT NULL,
    score double precision, -- The part of the posts that agree, from 0 to 1; null where no post was compared.
    repaired boolean NOT NULL, -- Whether what was found was repaired, or asked to be.
    pending integer DEFAULT 0 NOT NULL, -- How many followed accounts were left out, because their posts have not been read to the end yet.
    PRIMARY KEY (id)
);
CREATE INDEX audits_ended ON public.audits USING btree (ended_at);

-- When the next call may start, over all processes.
CREATE TABLE call_clock (
    one boolean DEFAULT true NOT NULL,
    next_at timestamp with time zone DEFAULT now() NOT NULL,
    PRIMARY KEY (one),
    CHECK (one)
);

-- How many calls may run at once, over all processes: a row each. A holder that died loses its slot when it expires.
CREATE TABLE call_slots (
    slot integer NOT NULL,
    holder text,
    expires_at timestamp with time zone,
    PRIMARY KEY (slot)
);

-- Events, records and jobs that could not be processed, with the cause: set aside so that the rest goes on.
CREATE TABLE dead_letters (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    key bytea NOT NULL, -- sha256 over the stage and the input, of a job over its kind and arguments: the same letter twice is one row.
    stage text NOT NULL, -- decode: the frame is no event; commit: the event cannot be stored; process: the record cannot be projected; job: the job ended without success.
    stream text,
    collection text,
    did text,
    rkey text,
    cause text NOT NULL, -- Why it failed the first time, with path, expected and received where they are known.
    path text DEFAULT ''::text NOT NULL,
    expected text DEFAULT ''::text NOT NULL,
    received text DEFAULT ''::text NOT NULL,
    raw bytea NOT NULL, -- The input as it came, of a job its arguments; only its beginning where raw_bytes is larger; empty once its record or account is deleted.
    raw_bytes bigint NOT NULL,
    first_seen timestamp with time zone NOT NULL,
    last_seen timestamp with time zone NOT NULL,
    count bigint DEFAULT 1 NOT NULL,
    class text DEFAULT 'permanent'::text NOT NULL, -- permanent: no retry would help until something else changes; retryable: every retry failed.
    kind text, -- Of a job: its kind. queue is where it was worked.
    queue text,
    job bigint, -- Of a job: its id, or that of the job that replays it. Null while a replay of it is asked for.
    last_cause text DEFAULT ''::text NOT NULL, -- Why it failed the last time, where that was not the first.
    state text DEFAULT 'open'::text NOT NULL, -- open; replaying: asked for, or under way; replayed: it passed; dismissed: it stays so, however often it comes again.
    state_at timestamp with time zone,
    PRIMARY KEY (id),
    UNIQUE (key),
    CHECK ((class = ANY (ARRAY['permanent'::text, 'retryable'::text]))),
    CHECK ((stage = ANY (ARRAY['decode'::text, 'commit'::text, 'process'::text, 'job'::text]))),
    CHECK ((state = ANY (ARRAY['open'::text, 'replaying'::text, 'replayed'::text, 'dismissed'::text])))
);
CREATE INDEX dead_letters_job ON public.dead_letters USING btree (job) WHERE (job IS NOT NULL);
CREATE INDEX dead_letters_large ON public.dead_letters USING btree (id) WHERE ((octet_length(raw) > 16384) AND (stage <> 'job'::text));
CREATE INDEX dead_letters_last_seen ON public.dead_letters USING btree (last_seen);
CREATE INDEX dead_letters_nameless ON public.dead_letters USING btree (id) WHERE ((did IS NULL) AND (stage <> 'job'::text));
CREATE INDEX dead_letters_record ON public.dead_letters USING btree (did, collection, rkey) WHERE (did IS NOT NULL);
CREATE INDEX dead_letters_replaying ON public.dead_letters USING btree (id) WHERE (state = 'replaying'::text);

-- Compression dictionaries, kept after the first download.
CREATE TABLE dictionaries (
    sha256 text NOT NULL,
    url text NOT NULL,
    bytes bytea NOT NULL,
    fetched_at timestamp with time zone NOT NULL,
    PRIMARY KEY (sha256)
);

-- Every account followed, once.
CREATE TABLE follows (
    did text COLLATE "C",
    handle text,
    display_name text,
    added_at timestamp with time zone,
    last_seen_at timestamp with time zone,
    backfill_completed boolean
);

-- The accounts that are still to be compared with their repositories before a gap is closed.
CREATE TABLE gap_backfills (
    gap_id bigint NOT NULL,
    did text COLLATE "C" NOT NULL,
    PRIMARY KEY (did, gap_id),
    FOREIGN KEY (gap_id) REFERENCES gaps(id) ON DELETE CASCADE
);
CREATE INDEX gap_backfills_gap ON public.gap_backfills USING btree (gap_id);

-- What a stream may have missed: the intervals that a resume could not be shown to cover.
CREATE TABLE gaps (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    stream text NOT NULL,
    from_at timestamp with time zone NOT NULL,
    to_at timestamp with time zone NOT NULL,
    reason text NOT NULL,
    opened_at timestamp with time zone NOT NULL,
    closed_at timestamp with time zone,
    how_closed text,
    accounts integer DEFAULT 0 NOT NULL, -- How many accounts are to be compared with their repositories before it is closed: checked and unchecked are done, the others are left.
    unchecked integer DEFAULT 0 NOT NULL, -- How many of them could not be: they are read when they can be.
    problem text DEFAULT ''::text NOT NULL, -- Why it cannot be closed, and stays open until somebody accepts it; empty where it can.
    checked integer DEFAULT 0 NOT NULL, -- How many of them were compared.
    later integer DEFAULT 0 NOT NULL, -- How many other accounts were not active: they are read when they are.
    PRIMARY KEY (id),
    UNIQUE (stream, from_at, to_at),
    CHECK ((to_at > from_at))
);
CREATE INDEX gaps_closed ON public.gaps USING btree (closed_at) WHERE (closed_at IS NOT NULL);
CREATE INDEX gaps_open ON public.gaps USING btree (stream, from_at) WHERE (closed_at IS NULL);

-- Every page shared, under its normalised URL, with the card that describes it.
CREATE TABLE links (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    url text COLLATE "C" NOT NULL,
    site text NOT NULL,
    title text DEFAULT ''::text NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    image text DEFAULT ''::text NOT NULL, -- blob:<did>/<cid>, the picture a poster uploaded with the card.
    card_from text DEFAULT ''::text NOT NULL, -- Where the card came from: the AT-URI of a post, or empty while there is none.
    card_at timestamp with time zone, -- When that post was first stored: the earliest card stays.
    first_seen timestamp with time zone NOT NULL,
    fell_at timestamp with time zone, -- When expiry noticed that too few accounts share it still to keep it; null while it has not had as many.
    check_at timestamp with time zone, -- When expiry looks at it next; infinity: kept until a share of it is lost; null: not looked at yet.
    PRIMARY KEY (id),
    UNIQUE (url),
    CHECK ((octet_length(url) <= 2048))
) WITH (autovacuum_vacuum_scale_factor=0.1);
CREATE INDEX links_check ON public.links USING btree (check_at) WHERE (check_at < 'infinity'::timestamp with time zone);
CREATE INDEX links_unchecked ON public.links USING btree (first_seen) WHERE (check_at IS NULL);

-- Whom the listing that a sync_follows job is reading has named so far. Nobody is followed or unfollowed before its end.
CREATE TABLE listed (
    job_id bigint NOT NULL,
    degree integer NOT NULL, -- 1: of the watch's own listing; 2: whom those follow; 0: members that neither names, and of whom it was asked.
    did text COLLATE "C" NOT NULL,
    handle text NOT NULL,
    display_name text NOT NULL,
    avatar text NOT NULL,
    times integer DEFAULT 1 NOT NULL, -- Of degree 2: by how many of degree 1 it is followed. Of degree 0: 1 where it is shown, and so no member any more; 0 where it is hidden.
    last_by text COLLATE "C" NOT NULL, -- Of degree 2: who was counted last, so that nobody is counted twice.
    PRIMARY KEY (job_id, degree, did),
    CHECK (((degree >= 0) AND (degree <= 2)))
);

-- The shares deleted since the last expiry: their links may be shared by too few accounts now.
CREATE TABLE lost_shares (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    link_id bigint NOT NULL,
    did text COLLATE "C" NOT NULL,
    PRIMARY KEY (id)
) WITH (autovacuum_vacuum_scale_factor=0.05);
CREATE INDEX lost_shares_link ON public.lost_shares USING btree (link_id);

-- The partitions of posts but for posts_default: the time that each holds, and its range of rkeys. posts_ahead holds the time after the last one.
CREATE TABLE post_partitions (
    part text COLLATE "C",
    begins timestamp with time zone,
    ends timestamp with time zone,
    lower text COLLATE "C",
    upper text COLLATE "C"
);

-- Every stored record of any collection, in its newest revision.
CREATE TABLE records (
    collection text COLLATE "C" NOT NULL,
    did text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL,
    rev text COLLATE "C" NOT NULL, -- The revision of the repository that wrote it: a TID, sorts by time. 2222222222222, the smallest, where a listing brought it: listings do not name revisions.
    cid text NOT NULL,
    created_at timestamp with time zone NOT NULL, -- The author's claim, never later than the event that brought it.
    indexed_at timestamp with time zone DEFAULT now() NOT NULL, -- When Weir first stored it, by the database's clock.
    record jsonb NOT NULL,
    PRIMARY KEY (collection, did, rkey)
) PARTITION BY LIST (collection);
CREATE INDEX records_created_at ON ONLY public.records USING btree (created_at);

-- The records of app.bsky.feed.post, partitioned by rkey: a TID sorts by time. post_partitions lists the partitions.
CREATE TABLE posts PARTITION OF records FOR VALUES IN ('app.bsky.feed.post') PARTITION BY RANGE (rkey);

-- The records of every other collection that is stored.
CREATE TABLE records_other PARTITION OF records DEFAULT;

-- Posts whose rkey is no TID, or names a time before the partitions.
CREATE TABLE posts_default PARTITION OF posts DEFAULT;

-- How the followed accounts are shared out over a stream and its shards: as the consumer says that was started last.
CREATE TABLE sharding (
    root text NOT NULL,
    mode text NOT NULL, -- Above so many accounts: shards; network: one stream that asks for everyone's events; auto: shards while they are few.
    accounts integer NOT NULL, -- How many accounts one stream asks for, at most.
    made integer DEFAULT 1 NOT NULL, -- The number of the latest shard. None comes twice: an epoch counts for one stream.
    PRIMARY KEY (root),
    CHECK (((accounts >= 1) AND (accounts <= 10000))),
    CHECK ((mode = ANY (ARRAY['auto'::text, 'shards'::text, 'network'::text]))),
    FOREIGN KEY (root) REFERENCES streams(name) ON DELETE CASCADE
);

-- The ledger: who shared which link by which record. Outlives the post's retention; loses a row only when the share is gone.
CREATE TABLE shares (
    did text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL,
    link_id bigint NOT NULL,
    how text NOT NULL, -- post: in a post of its own; quote: in a post that quotes another.
    shared_at timestamp with time zone NOT NULL, -- The created_at of the record.
    PRIMARY KEY (did, collection, rkey, link_id),
    CHECK ((how = ANY (ARRAY['post'::text, 'quote'::text, 'repost'::text]))),
    FOREIGN KEY (link_id) REFERENCES links(id) ON DELETE CASCADE
) WITH (autovacuum_vacuum_scale_factor=0.05);
CREATE INDEX shares_link ON public.shares USING btree (link_id, shared_at);
CREATE INDEX shares_window ON public.shares USING btree (shared_at, link_id, did);

-- Which stream follows which account. An account stays where it is for as long as there is room. Weir alone writes here: moving one takes more than a new name.
CREATE TABLE stream_accounts (
    root text NOT NULL,
    did text COLLATE "C" NOT NULL,
    stream text NOT NULL,
    assigned_at timestamp with time zone NOT NULL, -- Since when: the stream began before it, where another one had the account.
    PRIMARY KEY (root, did),
    FOREIGN KEY (stream) REFERENCES streams(name) ON DELETE CASCADE
);
CREATE INDEX stream_accounts_stream ON public.stream_accounts USING btree (stream);

-- One row per stream shard: how far it has been committed, and who may commit to it.
CREATE TABLE streams (
    name text NOT NULL,
    wire text NOT NULL,
    host text DEFAULT ''::text NOT NULL, -- The host the cursor belongs to: a sequence number means nothing on another host.
    cursor_kind text DEFAULT ''::text NOT NULL, -- seq: a sequence number of host; time: microseconds since 1970; empty: nothing read yet.
    cursor bigint DEFAULT 0 NOT NULL,
    anchor jsonb, -- The identity of the last event committed; a resume must deliver it again.
    last_event_at timestamp with time zone, -- When the last event committed happened, by the server's clock.
    caught_up_at timestamp with time zone, -- The latest moment at which the stream was known to have nothing unread. A quiet stream moves this, not the cursor.
    filter_hash text DEFAULT ''::text NOT NULL,
    state text DEFAULT 'stopped'::text NOT NULL,
    state_detail text DEFAULT ''::text NOT NULL,
    state_since timestamp with time zone DEFAULT now() NOT NULL,
    lease_owner text,
    lease_expires_at timestamp with time zone,
    epoch bigint DEFAULT 0 NOT NULL, -- Raised by each new lease holder. A commit that carries an older epoch is refused.
    advanced_at timestamp with time zone, -- When a batch was last committed, by the database's clock.
    failed_tries integer DEFAULT 0 NOT NULL, -- Tries to connect that failed since the last event.
    root text, -- Of a shard: the stream whose accounts it takes some of. It goes when its last account does.
    lease_renewed_at timestamp with time zone, -- By the database's clock. A lease that was renewed in the future is of a clock that has been set back since, and free.
    anchors bigint[], -- The last events of eight different accounts, hashed, the latest first: a resume that delivers one of them has missed nothing since. NULL: none known.
    written_at timestamp with time zone, -- When the last event committed was written, by the authors' clocks: last_event_at less how much later than its rev the median of the last hundred events was dated.
    PRIMARY KEY (name),
    CHECK ((cursor_kind = ANY (ARRAY[''::text, 'seq'::text, 'time'::text]))),
    FOREIGN KEY (root) REFERENCES streams(name) ON DELETE CASCADE
) WITH (fillfactor=50);

-- The newest deletion of a record: what was written at or before rev stays deleted.
CREATE TABLE tombstones (
    collection text COLLATE "C" NOT NULL,
    did text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL,
    rev text COLLATE "C" NOT NULL,
    deleted_at timestamp with time zone NOT NULL,
    PRIMARY KEY (collection, did, rkey)
) WITH (autovacuum_vacuum_scale_factor=0.05);
CREATE INDEX tombstones_deleted_at ON public.tombstones USING btree (deleted_at);

-- Accounts that a watch has lost: purged after a grace, unless another watch brings them.
CREATE TABLE unwatched (
    did text COLLATE "C" NOT NULL,
    unwatched_at timestamp with time zone NOT NULL,
    PRIMARY KEY (did)
);
CREATE INDEX unwatched_at ON public.unwatched USING btree (unwatched_at);

-- The accounts that each watch brings.
CREATE TABLE watched (
    watch_id bigint NOT NULL,
    did text COLLATE "C" NOT NULL,
    added_at timestamp with time zone DEFAULT now() NOT NULL,
    PRIMARY KEY (did, watch_id),
    FOREIGN KEY (watch_id) REFERENCES watches(id) ON DELETE CASCADE
);
CREATE INDEX watched_watch ON public.watched USING btree (watch_id);

-- Why accounts are followed. Without a row here, the whole network is. Add and delete rows as you like: the lists follow.
CREATE TABLE watches (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    target text NOT NULL, -- A handle, a DID, or the at:// or bsky.app address of a list or starter pack.
    kind text DEFAULT 'follows'::text NOT NULL, -- follows: whom the target follows; account: the target alone; list, starterpack: its members; second-degree: whom at_least of those whom the target follows follow.
    at_least integer DEFAULT 5 NOT NULL,
    added_at timestamp with time zone DEFAULT now() NOT NULL,
    synced_at timestamp with time zone, -- When its members were last read, completely.
    problem text DEFAULT ''::text NOT NULL, -- Why they could not be read, the last time; empty when they could.
    PRIMARY KEY (id),
    UNIQUE (target, kind),
    CHECK ((at_least > 0)),
    CHECK ((kind = ANY (ARRAY['follows'::text, 'account'::text, 'list'::text, 'starterpack'::text, 'second-degree'::text]))),
    CHECK ((target <> ''::text))
);

-- Moves a stream's position and renews its lease, for the holder of the epoch only: SQLSTATE WR001 for anybody else.
CREATE OR REPLACE FUNCTION public.advance_stream(p_name text, p_epoch bigint, p_lease interval, p_host text, p_cursor_kind text, p_cursor bigint, p_anchor jsonb, p_last_event_at timestamp with time zone, p_caught_up_at timestamp with time zone, p_filter_hash text, p_anchors bigint[] DEFAULT NULL::bigint[], p_written_at timestamp with time zone DEFAULT NULL::timestamp with time zone)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
BEGIN
    -- What one host had nothing unread of says little of another, which may be ahead of it.
    UPDATE streams
    SET host             = p_host,
        cursor_kind      = p_cursor_kind,
        cursor           = p_cursor,
        anchor           = p_anchor,
        anchors          = p_anchors,
        last_event_at    = p_last_event_at,
        written_at       = p_written_at,
        caught_up_at     = greatest(CASE WHEN caught_up_at < clock_timestamp() AND host = p_host THEN caught_up_at END,
                                    CASE WHEN p_caught_up_at < clock_timestamp() THEN p_caught_up_at END),
        filter_hash      = p_filter_hash,
        advanced_at      = clock_timestamp(),
        lease_renewed_at = clock_timestamp(),
        lease_expires_at = clock_timestamp() + p_lease
    WHERE name = p_name AND epoch = p_epoch;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'epoch % of stream % is over: another process holds its lease', p_epoch, p_name
            USING ERRCODE = 'WR001';
    END IF;
END $function$;

-- Adds a job that replays every dead letter whose state is replaying, and wakes a worker.
CREATE OR REPLACE FUNCTION public.ask_for_replays()
 RETURNS bigint
 LANGUAGE sql
AS $function$
    SELECT enqueue_job('replay_dead_letters', 'network', '{}', ARRAY['asked-for'])
$function$;

-- Refuses a choice of dead letters that would silently be none. NULL chooses all.
CREATE OR REPLACE FUNCTION public.check_letters(stage text, class text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF stage NOT IN ('decode', 'commit', 'process', 'job') THEN
        RAISE EXCEPTION '% is no stage', quote_literal(left(stage, 100)) USING ERRCODE = '22023', HINT = 'A stage is decode, commit, process or job.';
    END IF;
    IF class NOT IN ('permanent', 'retryable') THEN
        RAISE EXCEPTION '% is no class', quote_literal(left(class, 100)) USING ERRCODE = '22023', HINT = 'A class is permanent or retryable.';
    END IF;
END $function$;

-- Has a new gap looked at, in the transaction that brings it.
CREATE OR REPLACE FUNCTION public.close_gap()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM enqueue_job('close_gap', 'network', jsonb_build_object('gap', NEW.id), ARRAY[tag('stream-' || NEW.stream)]);
    RETURN NULL;
END $function$;

-- How many jobs of a queue are in a state. It stops counting at a number, and costs no more than that.
CREATE OR REPLACE FUNCTION public.count_jobs(p_queue text, p_state river_job_state, p_most integer)
 RETURNS bigint
 LANGUAGE sql
 STABLE
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_indexonlyscan TO 'on'
 SET max_parallel_workers_per_gather TO '0'
AS $function$
    SELECT count(*)
    FROM (SELECT FROM river_job
          WHERE state = p_state AND queue = p_queue
          ORDER BY priority DESC, scheduled_at DESC, id DESC -- those that have been worked were at the other end, and may not have been vacuumed
          LIMIT p_most) AS j
$function$;

-- Says that a dead letter needs nothing: it is kept, and neither listed nor replayed with the others.
CREATE OR REPLACE FUNCTION public.dismiss_dead_letter(letter bigint)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
BEGIN
    UPDATE dead_letters AS d SET state = 'dismissed', state_at = now() WHERE d.id = letter;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no dead letter %', coalesce(letter::text, 'NULL') USING ERRCODE = '22023';
    END IF;
END $function$;

-- Dismisses every open dead letter, or those of a stage or class; answers how many.
CREATE OR REPLACE FUNCTION public.dismiss_dead_letters(stage text DEFAULT NULL::text, class text DEFAULT NULL::text)
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
DECLARE
    answer bigint;
BEGIN
    PERFORM check_letters(stage, class);
    WITH chosen AS MATERIALIZED (
        SELECT d.id FROM dead_letters AS d
        WHERE d.state = 'open' AND d.stage = coalesce(dismiss_dead_letters.stage, d.stage) AND d.class = coalesce(dismiss_dead_letters.class, d.class)
        ORDER BY d.id
        FOR UPDATE
    )
    UPDATE dead_letters AS d SET state = 'dismissed', state_at = now() FROM chosen AS c WHERE d.id = c.id;
    GET DIAGNOSTICS answer = ROW_COUNT;
    RETURN answer;
END $function$;

-- Dismisses the dead letter of a watch that is removed.
CREATE OR REPLACE FUNCTION public.dismiss_watch_letters()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    UPDATE dead_letters SET state = 'dismissed', state_at = now()
    WHERE key = sha256(convert_to(E'job\nsync_follows\n' || jsonb_build_object('watch', OLD.id)::text, 'UTF8')) AND state IN ('open', 'replaying');
    RETURN NULL;
END $function$;

-- Drops a partition of posts; false where there is none of that name; SQLSTATE 55P03 while it is in use.
CREATE OR REPLACE FUNCTION public.drop_post_partition(part text)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET lock_timeout TO '50ms'
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    -- Writers queue behind this lock while it waits: hence so short a wait. The others are free once it is held, or
    -- somebody else uses them for long.
    LOCK TABLE ONLY posts IN ACCESS EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'posts'::regclass AND inhrelid = to_regclass(quote_ident(part)))
       OR part IN ('posts_default', 'posts_ahead') THEN
        RETURN false;
    END IF;
    LOCK TABLE posts_default IN ACCESS EXCLUSIVE MODE NOWAIT;
    EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE NOWAIT', part);
    EXECUTE format('DROP TABLE %I', part);
    RETURN true;
END $function$;

-- Asks for the posts of an account, by handle or DID, so far back; answers the id of the job that asks.
CREATE OR REPLACE FUNCTION public.enqueue_backfill(account text, back interval DEFAULT '24:00:00'::interval, priority integer DEFAULT 2)
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF account IS NULL OR NOT ((length(account) <= 2048 AND account ~ '^did:[a-z]+:[a-zA-Z0-9._:%-]*[a-zA-Z0-9._-]$')
                               OR (length(account) <= 253 AND account ~ '^@?([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)+[a-zA-Z]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$')) THEN
        RAISE EXCEPTION '% is neither a handle nor a DID', coalesce(quote_literal(left(account, 100)), 'NULL')
            USING ERRCODE = '22023', HINT = 'For example: SELECT enqueue_backfill(''alice.example'', interval ''24 hours'')';
    END IF;
    IF back IS NULL OR back <= interval '0' OR back > interval '10 years' THEN
        RAISE EXCEPTION 'a backfill goes back more than nothing and 10 years at most, not %', back USING ERRCODE = '22023';
    END IF;
    IF priority IS NULL OR priority NOT BETWEEN 1 AND 4 THEN
        RAISE EXCEPTION 'a priority is 1 (first) to 4, not %', priority USING ERRCODE = '22023';
    END IF;
    RETURN enqueue_request(jsonb_build_object('account', ltrim(account, '@'), 'since', now() - back, 'priority', priority));
END $function$;

-- Asks for the posts of every followed account, so far back; answers the id of the job that asks.
CREATE OR REPLACE FUNCTION public.enqueue_backfill_all(back interval DEFAULT '24:00:00'::interval, priority integer DEFAULT 4)
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF back IS NULL OR back <= interval '0' OR back > interval '10 years' THEN
        RAISE EXCEPTION 'a backfill goes back more than nothing and 10 years at most, not %', back USING ERRCODE = '22023';
    END IF;
    IF priority IS NULL OR priority NOT BETWEEN 1 AND 4 THEN
        RAISE EXCEPTION 'a priority is 1 (first) to 4, not %', priority USING ERRCODE = '22023';
    END IF;
    RETURN enqueue_request(jsonb_build_object('all', true, 'since', now() - back, 'priority', priority));
END $function$;

-- Adds a job that needs no unique key, and wakes a worker; returns its id.
CREATE OR REPLACE FUNCTION public.enqueue_job(p_kind text, p_queue text, p_args jsonb, p_tags text[] DEFAULT '{}'::text[])
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
DECLARE
    job bigint;
BEGIN
    INSERT INTO river_job (args, kind, max_attempts, priority, queue, tags, scheduled_at)
    VALUES (p_args, p_kind, 45, 1, p_queue, array_remove(p_tags, NULL), now())
    RETURNING id INTO job;
    PERFORM pg_notify(current_schema() || '.river_insert', jsonb_build_object('queue', p_queue)::text);
    RETURN job;
END $function$;

-- Adds a job that asks for backfills, and wakes a worker.
CREATE OR REPLACE FUNCTION public.enqueue_request(p_args jsonb)
 RETURNS bigint
 LANGUAGE sql
AS $function$
    SELECT enqueue_job('request_backfill', 'network', p_args,
                       ARRAY[(ARRAY['gap', 'manual', 'new-follow', 'cold-start'])[(p_args ->> 'priority')::int],
                             CASE WHEN p_args ? 'all' THEN 'every-account' ELSE 'one-account' END])
$function$;

-- Makes the partition of posts for a moment, which ends where its span does and begins where the one before ends; false where it exists. Repeat until it is false; SQLSTATE 55P03 while posts is in use.
CREATE OR REPLACE FUNCTION public.ensure_post_partition(at timestamp with time zone, span interval DEFAULT '06:00:00'::interval)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET lock_timeout TO '50ms'
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    key     text COLLATE "C" := tid_floor(at);
    begins  timestamptz := date_bin(span, at, '2001-01-01 00:00:00+00'); -- a Monday
    lower_  text COLLATE "C" := tid_floor(begins);
    upper_  text COLLATE "C" := tid_floor(begins + span);
    beyond  CONSTANT text COLLATE "C" := '4'; -- no TID before the year 2041 reaches it
    horizon text COLLATE "C";
    found_  text COLLATE "C";
    part    text;
    renamed text;
BEGIN
    IF EXISTS (SELECT FROM post_partitions AS p WHERE key >= p.lower AND key < p.upper AND p.part <> 'posts_ahead') THEN
        RETURN false;
    END IF;
    SELECT p.lower INTO horizon FROM post_partitions AS p WHERE p.part = 'posts_ahead';
    -- Writers queue behind these locks while they wait: hence so short a wait.
    IF key >= horizon THEN
        LOCK TABLE ONLY posts IN ACCESS EXCLUSIVE MODE;
        LOCK TABLE posts_default, posts_ahead IN ACCESS EXCLUSIVE MODE NOWAIT;
    ELSE
        LOCK TABLE ONLY posts IN SHARE UPDATE EXCLUSIVE MODE;
        LOCK TABLE posts_default IN ACCESS EXCLUSIVE MODE;
    END IF;
    IF EXISTS (SELECT FROM post_partitions AS p WHERE key >= p.lower AND key < p.upper AND p.part <> 'posts_ahead') THEN
        RETURN false; -- made while this one waited
    END IF;
    SELECT p.lower INTO found_ FROM post_partitions AS p WHERE p.part = 'posts_ahead';
    IF found_ IS DISTINCT FROM horizon THEN
        RAISE EXCEPTION 'another partition of posts was made meanwhile: try again' USING ERRCODE = 'lock_not_available';
    END IF;

    IF key >= horizon THEN
        -- posts_ahead becomes the partition, from where the last one ends: only what lies further ahead has to move, which is next to nothing.
        -- After a pause one partition holds all of it, and goes when its end is old enough; the next call makes the moment's own.
        upper_ := CASE WHEN horizon < lower_ THEN lower_ ELSE upper_ END;
        part := to_char(tid_time(horizon) AT TIME ZONE 'UTC', '"posts_"YYYYMMDD_HH24');
        ALTER TABLE posts DETACH PARTITION posts_ahead;
        EXECUTE format('ALTER TABLE posts_ahead RENAME TO %I', part);
        FOR renamed IN SELECT c.relname FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid WHERE i.indrelid = to_regclass(quote_ident(part)) LOOP
            EXECUTE format('ALTER INDEX %I RENAME TO %I', renamed, replace(renamed, 'posts_ahead', part));
        END LOOP;
        EXECUTE format('COMMENT ON TABLE %I IS NULL', part);
        CREATE TABLE posts_ahead (LIKE posts INCLUDING DEFAULTS);
        EXECUTE format('WITH moved AS (DELETE FROM %I WHERE rkey >= %L RETURNING *) INSERT INTO posts_ahead SELECT * FROM moved', part, upper_);
        EXECUTE format('ALTER TABLE posts ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, horizon, upper_);
        EXECUTE format('ALTER TABLE posts ATTACH PARTITION posts_ahead FOR VALUES FROM (%L) TO (%L)', upper_, beyond);
        ALTER TABLE posts_default DROP CONSTRAINT IF EXISTS posts_default_ahead;
    ELSE
        -- Rows of that time may have come before their partition: they move in the same transaction.
        -- The first of all begins with the moment's six hours, for what is older expires row by row.
        SELECT CASE WHEN count(*) = 0 THEN tid_floor(date_bin('6 hours', at, '2001-01-01 00:00:00+00')) ELSE greatest(lower_, max(p.upper) FILTER (WHERE p.upper <= key)) END,
               least(upper_, min(p.lower) FILTER (WHERE p.lower > key))
        INTO lower_, upper_ FROM post_partitions AS p;
        part := to_char(tid_time(lower_) AT TIME ZONE 'UTC', '"posts_"YYYYMMDD_HH24');
        EXECUTE format('CREATE TABLE %I (LIKE posts INCLUDING DEFAULTS)', part);
        EXECUTE format('WITH moved AS (DELETE FROM posts_default WHERE rkey >= %L AND rkey < %L RETURNING *) INSERT INTO %I SELECT * FROM moved',
                       lower_, upper_, part);
        EXECUTE format('ALTER TABLE posts ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, lower_, upper_);
        IF horizon IS NULL THEN
            SELECT max(p.upper) INTO horizon FROM post_partitions AS p;
            CREATE TABLE posts_ahead (LIKE posts INCLUDING DEFAULTS);
            EXECUTE format('WITH moved AS (DELETE FROM posts_default WHERE rkey >= %L AND rkey < %L RETURNING *) INSERT INTO posts_ahead SELECT * FROM moved',
                           horizon, beyond);
            EXECUTE format('ALTER TABLE posts ATTACH PARTITION posts_ahead FOR VALUES FROM (%L) TO (%L)', horizon, beyond);
        END IF;
    END IF;
    COMMENT ON TABLE posts_ahead IS 'Posts whose rkey names a time after the last partition of posts. It becomes the next one.';
    RETURN true;
END $function$;

-- Deletes links, and their shares, that left the window and are shared by fewer than p_keep accounts. Repeat until looked_at is 0.
CREATE OR REPLACE FUNCTION public.expire_links(p_now timestamp with time zone, p_window interval, p_grace interval, p_keep integer, p_limit integer, OUT looked_at integer, OUT links_gone integer, OUT shares_gone integer)
 RETURNS record
 LANGUAGE plpgsql
 SET lock_timeout TO '50ms'
 SET jit TO 'off'
 SET enable_seqscan TO 'off'
AS $function$
DECLARE
    many CONSTANT int := 200;
    due  bigint[];
BEGIN
    SELECT array_agg(DISTINCT c.id) INTO due FROM (
        (SELECT l.id FROM links AS l WHERE l.check_at IS NULL AND l.first_seen <= p_now - p_window ORDER BY l.first_seen LIMIT p_limit)
        UNION ALL
        (SELECT l.id FROM links AS l WHERE l.check_at <= p_now AND l.check_at < 'infinity' ORDER BY l.check_at LIMIT p_limit)
        UNION ALL
        (SELECT s.link_id FROM lost_shares AS s ORDER BY s.id LIMIT p_limit)
        LIMIT p_limit
    ) AS c;
    looked_at := coalesce(cardinality(due), 0); links_gone := 0; shares_gone := 0;
    IF looked_at = 0 THEN
        RETURN;
    END IF;

    PERFORM set_config('weir.expiring', 'on', true); -- not a SET of the function: only a superuser may write that
    -- A worker finds a link in one statement and inserts its share in a later one; whoever inserts a share holds the table
    -- at least in ROW SHARE mode until it commits. So here nobody stands between the two, and the next statement sees
    -- every share there is.
    LOCK TABLE links IN EXCLUSIVE MODE;

    WITH latest AS MATERIALIZED (
        SELECT l.id, l.first_seen, l.fell_at, s.n, s.last, s.dids
        FROM unnest(due) AS d (id)
        CROSS JOIN LATERAL (SELECT l.id, l.first_seen, l.fell_at FROM links AS l WHERE l.id = d.id LIMIT 1) AS l
        CROSS JOIN LATERAL (
            SELECT count(*) AS n, max(s.shared_at) AS last, coalesce(array_agg(DISTINCT s.did), '{}') AS dids
            FROM (SELECT s.shared_at, s.did FROM shares AS s WHERE s.link_id = l.id ORDER BY s.shared_at DESC LIMIT many) AS s
        ) AS s
    ), found AS MATERIALIZED (
        -- A link that many share shows it within a few rows: only the others are counted to the end.
        SELECT t.id, t.first_seen, t.fell_at, t.last,
               CASE WHEN t.n < many OR cardinality(t.dids) >= p_keep THEN t.dids
                    ELSE ARRAY(SELECT DISTINCT s.did FROM shares AS s WHERE s.link_id = t.id) END AS dids
        FROM latest AS t
    ), noted AS (
        DELETE FROM lost_shares AS s WHERE s.link_id = ANY (due) RETURNING s.link_id, s.did
    ), lost AS MATERIALIZED (
        SELECT n.link_id AS id, array_agg(DISTINCT n.did) AS dids FROM noted AS n GROUP BY n.link_id
    ), fallen AS MATERIALIZED (
        SELECT f.id, f.first_seen, f.last, cardinality(f.dids) >= p_keep AS held,
               CASE WHEN cardinality(f.dids) >= p_keep THEN NULL
                    WHEN cardinality(ARRAY(SELECT unnest(f.dids) UNION SELECT unnest(s.dids))) >= p_keep THEN p_now
                    ELSE f.fell_at END AS fell_at
        FROM found AS f
        LEFT JOIN lost AS s ON s.id = f.id
    ), judged AS MATERIALIZED (
        SELECT f.id, f.fell_at,
               CASE WHEN f.held THEN 'infinity'
                    ELSE greatest(f.last + p_window, f.fell_at + p_grace, f.first_seen + p_window) END AS check_at
        FROM fallen AS f
    ), kept AS (
        UPDATE links AS l SET check_at = j.check_at, fell_at = j.fell_at
        FROM judged AS j
        WHERE l.id = j.id AND j.check_at > p_now
    ), unshared AS (
        DELETE FROM shares AS s USING judged AS j WHERE s.link_id = j.id AND j.check_at <= p_now
        RETURNING 1
    ), gone AS (
        DELETE FROM links AS l USING judged AS j WHERE l.id = j.id AND j.check_at <= p_now
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM unshared)
    INTO links_gone, shares_gone;
    PERFORM set_config('weir.expiring', '', true);
END $function$;

-- Tells the consumers that the followed accounts are others now.
CREATE OR REPLACE FUNCTION public.follows_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM pg_notify('weir_follows', '');
    RETURN NULL;
END $function$;

-- A watch of something else begins like a new one: whom it brought stops counting at once.
CREATE OR REPLACE FUNCTION public.forget_members()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    DELETE FROM watched WHERE watch_id = NEW.id;
    NEW.synced_at := NULL;
    NEW.problem := '';
    RETURN NEW;
END $function$;

-- Gives a slot back, where the holder has it still.
CREATE OR REPLACE FUNCTION public.give_call_slot(p_holder text, p_slot integer)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE call_slots SET holder = NULL, expires_at = NULL WHERE slot = p_slot AND holder = p_holder;
END $function$;

-- Makes a dead letter of a job that is discarded or cancels itself, whoever ends it, unless it is periodic and out of tries; settles the dead letter of one that succeeds at last.
CREATE OR REPLACE FUNCTION public.note_ended_job()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE
    most CONSTANT int   := 1 << 20;
    args CONSTANT bytea := convert_to(NEW.args::text, 'UTF8');
    why  CONSTANT text  := left(coalesce(NEW.errors[array_upper(NEW.errors, 1)] ->> 'error', 'it gave no reason'), 2000);
BEGIN
    IF NEW.state = 'completed' THEN
        UPDATE dead_letters SET state = 'replayed', state_at = now() WHERE job = NEW.id AND state IN ('open', 'replaying');
        RETURN NULL;
    END IF;
    IF NEW.state = 'cancelled' AND NEW.metadata ? 'cancel_attempted_at' THEN -- by a person, who knows
        UPDATE dead_letters SET state = 'open', state_at = now() WHERE job = NEW.id AND state = 'replaying';
        RETURN NULL;
    END IF;
    UPDATE dead_letters
    SET state = CASE state WHEN 'dismissed' THEN state ELSE 'open' END, state_at = now(), last_seen = now(), last_cause = why, count = count + 1
    WHERE job = NEW.id;
    IF FOUND OR NEW.state = 'discarded' AND NEW.kind IN ('expire', 'check_alerts', 'audit', 'sync_follows') THEN -- the next run does the same
        RETURN NULL;
    END IF;
    INSERT INTO dead_letters AS d (key, stage, class, kind, queue, job, cause, raw, raw_bytes, first_seen, last_seen)
    VALUES (sha256(convert_to(E'job\n' || NEW.kind || E'\n', 'UTF8') || args), 'job',
            CASE NEW.state WHEN 'discarded' THEN 'retryable' ELSE 'permanent' END,
            NEW.kind, NEW.queue, NEW.id, why, substr(args, 1, most), octet_length(args), now(), now())
    ON CONFLICT (key) DO UPDATE
    SET state      = CASE d.state WHEN 'replayed' THEN 'open' ELSE d.state END,
        job        = CASE d.state WHEN 'replaying' THEN d.job ELSE excluded.job END,
        last_seen  = excluded.last_seen,
        last_cause = excluded.cause,
        count      = d.count + 1;
    RETURN NULL;
END $function$;

-- Has expiry look at the link of a share that is gone, or happened earlier than it was said to.
CREATE OR REPLACE FUNCTION public.note_lost_share()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO lost_shares (link_id, did) VALUES (OLD.link_id, OLD.did);
    RETURN NULL;
END $function$;

-- Has expiry look at the accounts that a watch lost.
CREATE OR REPLACE FUNCTION public.note_unwatched()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO unwatched (did, unwatched_at) SELECT DISTINCT g.did, now() FROM gone AS g ORDER BY g.did
    ON CONFLICT (did) DO UPDATE SET unwatched_at = excluded.unwatched_at;
    RETURN NULL;
END $function$;

-- Since when the job that waits longest in a queue could be worked; NULL with none.
CREATE OR REPLACE FUNCTION public.oldest_job(p_queue text)
 RETURNS timestamp with time zone
 LANGUAGE sql
 STABLE
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_indexonlyscan TO 'on'
 SET max_parallel_workers_per_gather TO '0'
AS $function$
    SELECT min(first.scheduled_at)
    FROM generate_series(1, 4) AS p (priority)
    CROSS JOIN LATERAL (
        SELECT scheduled_at FROM river_job
        WHERE state = 'available' AND queue = p_queue AND priority = p.priority
        ORDER BY scheduled_at, id LIMIT 1
    ) AS first
$function$;

-- Makes and validates the constraint that spares ensure_post_partition a scan of posts_default. Repeat until it is false; SQLSTATE 55P03 while posts_default is in use.
CREATE OR REPLACE FUNCTION public.prepare_posts_default()
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET lock_timeout TO '50ms'
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    horizon text;
    valid   boolean;
BEGIN
    SELECT c.convalidated INTO valid FROM pg_constraint AS c WHERE c.conrelid = 'posts_default'::regclass AND c.conname = 'posts_default_ahead';
    IF valid OR NOT EXISTS (SELECT FROM post_partitions WHERE part = 'posts_ahead') THEN
        RETURN false;
    ELSIF NOT valid THEN
        ALTER TABLE posts_default VALIDATE CONSTRAINT posts_default_ahead; -- scans, and blocks neither readers nor writers
        RETURN true;
    END IF;
    LOCK TABLE posts_default IN ACCESS EXCLUSIVE MODE;
    -- Such rows go to posts_ahead: the constraint refuses nothing.
    SELECT p.lower INTO horizon FROM post_partitions AS p WHERE p.part = 'posts_ahead';
    EXECUTE format('ALTER TABLE posts_default ADD CONSTRAINT posts_default_ahead CHECK (rkey < %L OR rkey >= %L) NOT VALID', horizon, '4');
    RETURN true;
END $function$;

-- Has an account that is active again read, where something of it may be missing.
CREATE OR REPLACE FUNCTION public.read_again()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE
    followed timestamptz;
BEGIN
    SELECT min(w.added_at) INTO followed FROM watched AS w WHERE w.did = NEW.did;
    IF followed IS NULL THEN
        RETURN NEW;
    END IF;
    IF OLD.status = 'deleted' THEN -- what it had written may have been purged
        NEW.reread_since := least(NEW.reread_since, NEW.feed_since, followed);
        NEW.reread_asked := NEW.reread_asked + 1;
    END IF;
    NEW.reread_at := now() + interval '1 hour'; -- where the job below is lost
    PERFORM enqueue_request(jsonb_build_object('account', NEW.did, 'since', NEW.reread_since, 'priority', 1));
    RETURN NEW;
END $function$;

-- Has a dead letter tried again, in whatever state it is; answers the id of the job that does it.
CREATE OR REPLACE FUNCTION public.replay_dead_letter(letter bigint)
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM FROM dead_letters AS d WHERE d.id = letter FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no dead letter %', coalesce(letter::text, 'NULL') USING ERRCODE = '22023';
    END IF;
    UPDATE dead_letters AS d SET state = 'replaying', state_at = now(), job = NULL
    WHERE d.id = letter
      AND NOT (d.state = 'replaying' AND EXISTS (
          SELECT FROM river_job AS j
          WHERE j.id = d.job AND j.state IN ('available', 'pending', 'retryable', 'running', 'scheduled')
      ));
    RETURN ask_for_replays();
END $function$;

-- Has every open dead letter tried again, or those of a stage or class; answers how many.
CREATE OR REPLACE FUNCTION public.replay_dead_letters(stage text DEFAULT NULL::text, class text DEFAULT NULL::text)
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
DECLARE
    answer bigint;
BEGIN
    PERFORM check_letters(stage, class);
    WITH chosen AS MATERIALIZED (
        SELECT d.id FROM dead_letters AS d
        WHERE d.state = 'open' AND d.stage = coalesce(replay_dead_letters.stage, d.stage) AND d.class = coalesce(replay_dead_letters.class, d.class)
        ORDER BY d.id
        FOR UPDATE
    )
    UPDATE dead_letters AS d SET state = 'replaying', state_at = now(), job = NULL FROM chosen AS c WHERE d.id = c.id;
    GET DIAGNOSTICS answer = ROW_COUNT;
    IF answer > 0 THEN
        PERFORM ask_for_replays();
    END IF;
    RETURN answer;
END $function$;

-- Has the members of a watch that is new or changed read at once.
CREATE OR REPLACE FUNCTION public.sync_watch()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM enqueue_job('sync_follows', 'network', jsonb_build_object('watch', NEW.id), ARRAY[NEW.kind]);
    RETURN NULL;
END $function$;

-- A text as a tag that River takes; NULL where nothing of it can be one.
CREATE OR REPLACE FUNCTION public.tag(p_text text)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE
AS $function$
    SELECT substring(left(regexp_replace(p_text, '[^A-Za-z0-9_-]+', '-', 'g'), 255) FROM '^-*([A-Za-z0-9_][A-Za-z0-9_-]+[A-Za-z0-9_])-*$')
$function$;

-- Reserves the next start of a call: wait so long, then call. No slot: all are taken, ask again after the wait. Both are counted from now_at.
CREATE OR REPLACE FUNCTION public.take_call_slot(p_holder text, p_slots integer, p_spacing interval, p_ttl interval, OUT slot integer, OUT wait interval, OUT now_at timestamp with time zone)
 RETURNS record
 LANGUAGE plpgsql
AS $function$
DECLARE
    at   timestamptz;
    -- How far ahead calls can have been reserved, at most: each has a slot, or had one and gave up.
    far CONSTANT interval := p_slots * (p_spacing + interval '100 milliseconds') + interval '1 second';
BEGIN
    -- A server that crashes may forget the last reservations: for a second, calls may then be closer or more than they
    -- should. Waiting for the disk at each call would make each late.
    PERFORM set_config('synchronous_commit', 'off', true);
    IF NOT EXISTS (SELECT FROM call_slots AS s WHERE s.slot = p_slots) THEN
        INSERT INTO call_slots (slot) SELECT n FROM generate_series(1, p_slots) AS n ON CONFLICT DO NOTHING;
    END IF;
    SELECT s.slot INTO slot
    FROM call_slots AS s
    WHERE s.slot <= p_slots AND (s.holder IS NULL OR s.expires_at < clock_timestamp())
    ORDER BY s.slot
    LIMIT 1
    FOR UPDATE SKIP LOCKED;
    IF slot IS NULL THEN
        -- Of a clock that was set back: nobody may hold a slot for longer than from now on.
        UPDATE call_slots AS s SET expires_at = clock_timestamp() + p_ttl
        WHERE s.slot IN (SELECT o.slot FROM call_slots AS o WHERE o.expires_at > clock_timestamp() + p_ttl + 2 * far FOR UPDATE SKIP LOCKED);
        wait := interval '20 milliseconds';
        now_at := clock_timestamp();
        RETURN;
    END IF;
    SELECT next_at INTO at FROM call_clock FOR UPDATE;
    IF at > clock_timestamp() + 2 * far THEN
        at := clock_timestamp() + far; -- the clock was set back; whoever reserved before has called by then
    END IF;
    at := greatest(at, clock_timestamp());
    UPDATE call_clock SET next_at = at + p_spacing;
    UPDATE call_slots AS s SET holder = p_holder, expires_at = at + p_ttl WHERE s.slot = take_call_slot.slot;
    now_at := clock_timestamp();
    wait := at - now_at;
END $function$;

-- The first TID of a moment: rkeys of later moments sort after it.
CREATE OR REPLACE FUNCTION public.tid_floor(at timestamp with time zone)
 RETURNS text
 LANGUAGE plpgsql
 IMMUTABLE STRICT
AS $function$
DECLARE
    n      bigint := (extract(epoch FROM at) * 1000000)::bigint << 10;
    answer text := '';
BEGIN
    FOR i IN 1..13 LOOP
        answer := substr('234567abcdefghijklmnopqrstuvwxyz', (n & 31)::int + 1, 1) || answer;
        n := n >> 5;
    END LOOP;
    RETURN answer;
END $function$;

-- The moment that a TID names, or the first TID that begins with it; null for anything else.
CREATE OR REPLACE FUNCTION public.tid_time(tid text)
 RETURNS timestamp with time zone
 LANGUAGE sql
 IMMUTABLE STRICT
AS $function$
    SELECT 'epoch'::timestamptz + (sum((strpos('234567abcdefghijklmnopqrstuvwxyz', substr(rpad(tid, 13, '2'), i, 1)) - 1)::bigint << (5 * (13 - i)))::bigint >> 10) * interval '1 microsecond'
    FROM generate_series(1, 13) AS i
    WHERE tid ~ '^[2-7a-j][2-7a-z]{0,12}$'
$function$;
