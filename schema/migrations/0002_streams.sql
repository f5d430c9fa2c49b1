-- Streams: how far each has been committed, what it may have missed, the inputs that could not be processed, and what is made of the
-- records.

CREATE TABLE streams (
    name             text PRIMARY KEY,
    wire             text        NOT NULL,
    host             text        NOT NULL DEFAULT '',
    cursor_kind      text        NOT NULL DEFAULT '' CHECK (cursor_kind IN ('', 'seq', 'time')),
    cursor           bigint      NOT NULL DEFAULT 0,
    anchor           jsonb,
    anchors          bigint[],
    anchor_seqs      bigint[],
    filter_hash      text        NOT NULL DEFAULT '',
    last_event_at    timestamptz,
    written_at       timestamptz,
    caught_up_at     timestamptz,
    advanced_at      timestamptz,
    state            text        NOT NULL DEFAULT 'stopped',
    state_detail     text        NOT NULL DEFAULT '',
    state_since      timestamptz NOT NULL DEFAULT now(),
    failed_tries     int         NOT NULL DEFAULT 0,
    lease_owner      text,
    lease_renewed_at timestamptz,
    lease_expires_at timestamptz,
    epoch            bigint      NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

COMMENT ON TABLE  streams IS 'One row per stream: how far it has been committed, and who may commit to it. Not compared: how far streams, listings and repositories were read.';
COMMENT ON COLUMN streams.wire IS 'The protocol that the stream is read with.';
COMMENT ON COLUMN streams.host IS 'The host that the cursor belongs to. A sequence number means nothing on another host.';
COMMENT ON COLUMN streams.cursor_kind IS 'seq: a sequence number of host; time: microseconds since 1970; empty: nothing has been read yet.';
COMMENT ON COLUMN streams.anchor IS 'The identity of the last committed frame that has one. A resume must deliver that frame again.';
COMMENT ON COLUMN streams.anchors IS 'Hashes of the last events of eight different accounts, the latest first. A resume that delivers one of them has missed nothing since. NULL: none is known.';
COMMENT ON COLUMN streams.anchor_seqs IS 'The sequence numbers of anchors, in their order, for a source whose servers may omit one of them. 0: unknown. NULL: the source needs none.';
COMMENT ON COLUMN streams.filter_hash IS 'A hash of the filter that the stream was read with; empty: it has changed meanwhile. A resume with another filter proves nothing.';
COMMENT ON COLUMN streams.last_event_at IS 'When the last committed event happened, by the server''s clock.';
COMMENT ON COLUMN streams.written_at IS 'When the last committed event was written, by the authors'' clocks: last_event_at minus the median delay between an event''s rev and its date, over the last hundred events.';
COMMENT ON COLUMN streams.caught_up_at IS 'The latest moment at which the stream was known to have nothing unread. A quiet stream moves this, not the cursor.';
COMMENT ON COLUMN streams.advanced_at IS 'When a batch was last committed, by the database''s clock. A connected stream that does not move has stalled.';
COMMENT ON COLUMN streams.state IS 'What the consumer is doing, as the page shows it.';
COMMENT ON COLUMN streams.failed_tries IS 'Failed tries to connect since the last event.';
COMMENT ON COLUMN streams.lease_owner IS 'The process that took the lease last. NULL: the lease was returned.';
COMMENT ON COLUMN streams.lease_renewed_at IS 'When the lease was renewed, by the database''s clock. If this is in the future, the clock has been set back since, and the lease is free.';
COMMENT ON COLUMN streams.epoch IS 'Each new lease holder raises it. A commit that carries an older epoch is refused.';

CREATE FUNCTION advance_stream(
    p_name text, p_epoch bigint, p_lease interval,
    p_host text, p_cursor_kind text, p_cursor bigint, p_anchor jsonb,
    p_last_event_at timestamptz, p_caught_up_at timestamptz, p_filter_hash text,
    p_anchors bigint[], p_written_at timestamptz, p_anchor_seqs bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- Having read everything of one host says little about another host, which may be ahead.
    UPDATE streams
    SET host             = p_host,
        cursor_kind      = p_cursor_kind,
        cursor           = p_cursor,
        anchor           = p_anchor,
        anchors          = p_anchors,
        anchor_seqs      = p_anchor_seqs,
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
END $$;

COMMENT ON FUNCTION advance_stream IS 'Moves a stream''s position and renews its lease. Only for the holder of the epoch; anybody else gets SQLSTATE WR001.';

CREATE TABLE gaps (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream     text        NOT NULL,
    from_at    timestamptz NOT NULL,
    to_at      timestamptz NOT NULL,
    reason     text        NOT NULL,
    opened_at  timestamptz NOT NULL,
    accounts   int         NOT NULL DEFAULT 0,
    checked    int         NOT NULL DEFAULT 0,
    unchecked  int         NOT NULL DEFAULT 0,
    later      int         NOT NULL DEFAULT 0,
    problem    text        NOT NULL DEFAULT '',
    closed_at  timestamptz,
    how_closed text,
    CHECK (to_at > from_at),
    UNIQUE (stream, from_at, to_at)
);
CREATE INDEX gaps_open ON gaps (stream, from_at) WHERE closed_at IS NULL;
CREATE INDEX gaps_closed ON gaps (closed_at) WHERE closed_at IS NOT NULL;

COMMENT ON TABLE  gaps IS 'Intervals that a stream may have missed, because a resume could not be shown to cover them. Not compared: how far streams, listings and repositories were read.';
COMMENT ON COLUMN gaps.reason IS 'Why the interval may have been missed.';
COMMENT ON COLUMN gaps.accounts IS 'How many accounts must be compared with their repositories before the gap closes. Those in checked and unchecked are done.';
COMMENT ON COLUMN gaps.checked IS 'How many of these accounts were compared.';
COMMENT ON COLUMN gaps.unchecked IS 'How many of these accounts could not be compared. They are read when that becomes possible.';
COMMENT ON COLUMN gaps.later IS 'How many other accounts were not active. They are read when they become active.';
COMMENT ON COLUMN gaps.problem IS 'Why the gap cannot be closed and stays open until somebody accepts it. Empty: it can be closed.';
COMMENT ON COLUMN gaps.how_closed IS 'What closed the gap, in words.';

CREATE TABLE gap_backfills (
    gap_id bigint           NOT NULL REFERENCES gaps ON DELETE CASCADE,
    did    text COLLATE "C" NOT NULL,
    PRIMARY KEY (did, gap_id)
);
CREATE INDEX gap_backfills_gap ON gap_backfills (gap_id);

COMMENT ON TABLE gap_backfills IS 'The accounts that must still be compared with their repositories before a gap closes. Not compared: how far streams, listings and repositories were read.';

CREATE TABLE network_backfills (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    gap_id       bigint UNIQUE REFERENCES gaps ON DELETE CASCADE,
    from_at      timestamptz NOT NULL,
    to_at        timestamptz NOT NULL,
    collections  text[]      NOT NULL DEFAULT '{}',
    requested_at timestamptz NOT NULL DEFAULT now(),
    read_to      timestamptz,
    host         text        NOT NULL DEFAULT '',
    events       bigint      NOT NULL DEFAULT 0,
    records      bigint      NOT NULL DEFAULT 0,
    problem      text        NOT NULL DEFAULT '',
    unread_since timestamptz,
    completed_at timestamptz,
    cancelled_at timestamptz,
    CHECK (to_at > from_at)
);
CREATE INDEX network_backfills_open ON network_backfills (id) WHERE completed_at IS NULL AND cancelled_at IS NULL;

COMMENT ON TABLE  network_backfills IS 'Intervals that are read from the archive of a Jetstream server, for a gap or on request. Not compared: how far streams, listings and repositories were read.';
COMMENT ON COLUMN network_backfills.gap_id IS 'The gap that is closed when the interval has been read. NULL: somebody requested the interval.';
COMMENT ON COLUMN network_backfills.from_at IS 'The interval is of the times at which the server saw the events.';
COMMENT ON COLUMN network_backfills.collections IS 'The collections to read: names and prefixes. Empty: all that are stored.';
COMMENT ON COLUMN network_backfills.read_to IS 'All events before this time are stored. NULL: nothing has been read.';
COMMENT ON COLUMN network_backfills.events IS 'How many events have been read. A repeated job counts some of them twice.';
COMMENT ON COLUMN network_backfills.records IS 'How many records they changed.';
COMMENT ON COLUMN network_backfills.problem IS 'Why nothing is read for now. Of a completed one, why it is not complete.';
COMMENT ON COLUMN network_backfills.unread_since IS 'Since when the archive could not be read: the next attempt comes after as long again. NULL: it could be read.';

CREATE FUNCTION enqueue_network_backfill(back interval DEFAULT '24 hours', collections text[] DEFAULT '{}') RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    backfill bigint;
    job      bigint;
BEGIN
    IF back IS NULL OR back <= interval '0' OR back > interval '10 years' THEN
        RAISE EXCEPTION 'a backfill goes back more than 0 and at most 10 years, not %', back USING ERRCODE = '22023';
    END IF;
    IF EXISTS (SELECT FROM unnest(collections) AS c WHERE c IS NULL OR length(c) > 317 OR c !~ '^[a-zA-Z][a-zA-Z0-9-]*(\.[a-zA-Z0-9][a-zA-Z0-9-]*)+\.([a-zA-Z][a-zA-Z0-9]*|\*)$') THEN
        RAISE EXCEPTION 'not all of these are collections: %', left(collections::text, 200)
            USING ERRCODE = '22023', HINT = 'For example: SELECT enqueue_network_backfill(interval ''24 hours'', ARRAY[''app.bsky.feed.post''])';
    END IF;
    INSERT INTO network_backfills (from_at, to_at, collections) VALUES (now() - back, now(), coalesce(enqueue_network_backfill.collections, '{}'))
    RETURNING id INTO backfill;
    job := enqueue_job('backfill_network', 'backfill', jsonb_build_object('backfill', backfill), ARRAY['manual']);
    UPDATE river_job SET priority = 3 WHERE id = job; -- behind the backfills of gaps
    RETURN job;
END $$;

COMMENT ON FUNCTION enqueue_network_backfill IS 'Requests what the archive of a Jetstream server has of the stored accounts and collections, or of some of these collections, as far back as given. Returns the id of the job.';

CREATE FUNCTION close_gap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM enqueue_job('close_gap', 'network', jsonb_build_object('gap', NEW.id), ARRAY[tag('stream-' || NEW.stream)]);
    RETURN NULL;
END $$;

COMMENT ON FUNCTION close_gap IS 'Adds the job that closes a new gap, in the transaction that opens it, unless the gap is known not to be closable.';

CREATE TRIGGER gap_opened AFTER INSERT ON gaps FOR EACH ROW WHEN (NEW.problem = '') EXECUTE FUNCTION close_gap();

CREATE TABLE resyncs (
    did               text COLLATE "C" PRIMARY KEY,
    desynchronized_at timestamptz,
    cause             text             NOT NULL,
    wanted            text COLLATE "C" NOT NULL,
    sought            text COLLATE "C" NOT NULL DEFAULT '',
    requested_at      timestamptz      NOT NULL,
    due_at            timestamptz      NOT NULL,
    begun_at          timestamptz,
    rev               text COLLATE "C" NOT NULL DEFAULT '',
    synchronized_at   timestamptz,
    unchanged         int              NOT NULL DEFAULT 0,
    problem           text             NOT NULL DEFAULT ''
);
CREATE INDEX resyncs_open ON resyncs (desynchronized_at) WHERE desynchronized_at IS NOT NULL;
CREATE INDEX resyncs_begun ON resyncs (begun_at);
CREATE INDEX resyncs_synchronized ON resyncs (synchronized_at) WHERE desynchronized_at IS NULL;

COMMENT ON TABLE  resyncs IS 'Accounts whose stored records may differ from their repositories, because a commit of them could not be verified, or was announced without its contents. Those that were compared since stay for as long as deletions are known. Not compared: how far streams, listings and repositories were read.';
COMMENT ON COLUMN resyncs.desynchronized_at IS 'Since when its records may differ. NULL: they were compared with the repository.';
COMMENT ON COLUMN resyncs.cause IS 'Why they may differ.';
COMMENT ON COLUMN resyncs.wanted IS 'The highest revision that could not be verified since the last resync began. Empty: none; zzzzzzzzzzzzz: it is unknown.';
COMMENT ON COLUMN resyncs.sought IS 'The highest revision that resyncs which have begun, and have not ended, look for, in the form of wanted. A mirror''s copy must have it.';
COMMENT ON COLUMN resyncs.requested_at IS 'When a job was last added for it.';
COMMENT ON COLUMN resyncs.due_at IS 'The next resync does not begin earlier. Resyncs that find nothing make it later, up to a day: whoever sends forgeries cannot have the repository fetched as often as he likes.';
COMMENT ON COLUMN resyncs.begun_at IS 'When the last resync began.';
COMMENT ON COLUMN resyncs.rev IS 'The revision of the repository that was last compared. What is refused up to it needs no other resync.';
COMMENT ON COLUMN resyncs.unchanged IS 'How many resyncs in a row found no difference.';
COMMENT ON COLUMN resyncs.problem IS 'Why the repository could not be compared the last time. Empty: it could.';

CREATE TABLE chains (
    did  text COLLATE "C" PRIMARY KEY,
    rev  text COLLATE "C" NOT NULL,
    data bytea            NOT NULL
) WITH (fillfactor = 50);

COMMENT ON TABLE  chains IS 'The last commit of each followed account, if the chain of commits is verified: the next one must follow from it. It moves in the transaction of the stream''s position. Not compared: how far streams, listings and repositories were read.';
COMMENT ON COLUMN chains.data IS 'The hash of the root of the repository''s tree at that commit.';

CREATE FUNCTION enqueue_resync(account text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF account IS NULL OR length(account) > 2048 OR account !~ '^did:[a-z]+:[a-zA-Z0-9._:%-]*[a-zA-Z0-9._-]$' THEN
        RAISE EXCEPTION '% is not a DID', coalesce(quote_literal(left(account, 100)), 'NULL') USING ERRCODE = '22023';
    END IF;
    INSERT INTO resyncs AS r (did, desynchronized_at, cause, wanted, requested_at, due_at)
    VALUES (account, now(), 'requested', 'zzzzzzzzzzzzz', now(), now())
    ON CONFLICT (did) DO UPDATE
    SET desynchronized_at = coalesce(r.desynchronized_at, now()), cause = excluded.cause, wanted = excluded.wanted, requested_at = now(), due_at = now();
    RETURN enqueue_job('resync_repo', 'resync', jsonb_build_object('did', account), ARRAY['resync']); -- a second job finds nothing to do
END $$;

COMMENT ON FUNCTION enqueue_resync IS 'Requests that an account is compared with its repository, by DID: at once, however often that was done. Returns the id of the job.';

CREATE TABLE dead_letters (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key        bytea       NOT NULL UNIQUE,
    stage      text        NOT NULL CHECK (stage IN ('decode', 'verify', 'commit', 'process', 'lexicon', 'rules', 'reference', 'job')),
    class      text        NOT NULL DEFAULT 'permanent' CHECK (class IN ('permanent', 'retryable')),
    state      text        NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'retrying', 'retried', 'dismissed')),
    state_at   timestamptz,
    stream     text,
    position   bigint,
    wire       text        NOT NULL DEFAULT '',
    collection text,
    did        text,
    rkey       text,
    kind       text,
    queue      text,
    projection text,
    job        bigint,
    cause      text        NOT NULL,
    last_cause text        NOT NULL DEFAULT '',
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
CREATE INDEX dead_letters_retrying ON dead_letters (id) WHERE state = 'retrying';
CREATE INDEX dead_letters_job ON dead_letters (job) WHERE job IS NOT NULL;
CREATE INDEX dead_letters_projection ON dead_letters (projection) WHERE projection IS NOT NULL;
CREATE INDEX dead_letters_record ON dead_letters (did, collection, rkey) WHERE did IS NOT NULL;
CREATE INDEX dead_letters_nameless ON dead_letters (id) WHERE did IS NULL AND stage <> 'job';
CREATE INDEX dead_letters_large ON dead_letters (id) WHERE octet_length(raw) > 16384 AND class <> 'retryable' AND stage <> 'job';
CREATE INDEX dead_letters_waiting ON dead_letters ((did LIKE 'did:plc:%')) WHERE class = 'retryable' AND stage <> 'job' AND state IN ('open', 'retrying');

COMMENT ON TABLE  dead_letters IS 'Events, records and jobs that could not be processed, with the cause. They are set aside so that the rest goes on. Not compared: how it went, not what is stored.';
COMMENT ON COLUMN dead_letters.key IS 'sha256 over the stage, the input and its wire; of a job, over its kind and arguments. The same dead letter twice is one row.';
COMMENT ON COLUMN dead_letters.stage IS 'decode: the frame is not an event; verify: the event is not proven; commit: the event cannot be stored; process: the record cannot be projected; lexicon: it is invalid; rules: it breaks a hard rule; reference: a record that it requires cannot be had; job: the job ended without success.';
COMMENT ON COLUMN dead_letters.class IS 'permanent: a retry cannot help until something else changes; retryable: every retry of the job failed, or, of an event, it is retried by itself until it passes.';
COMMENT ON COLUMN dead_letters.state IS 'open; retrying: a retry was requested or is running; retried: the retry succeeded; dismissed: it stays dismissed even if it fails again.';
COMMENT ON COLUMN dead_letters.position IS 'Where the event is in its stream: the sequence number or, if the stream has none, the server''s time in microseconds since 1970. NULL: unknown, or not an event of a stream.';
COMMENT ON COLUMN dead_letters.wire IS 'The format of raw: a retry needs the decoder of this name. Empty: the input came over no wire.';
COMMENT ON COLUMN dead_letters.kind IS 'Of a job: its kind.';
COMMENT ON COLUMN dead_letters.queue IS 'Of a job: its queue.';
COMMENT ON COLUMN dead_letters.projection IS 'Of a record that cannot be projected: the projection that fails. A retry goes through it.';
COMMENT ON COLUMN dead_letters.job IS 'The id of the failed job, or of the job that retries this dead letter. NULL while a retry is requested.';
COMMENT ON COLUMN dead_letters.cause IS 'Why it failed the first time, with path, expected and received if they are known.';
COMMENT ON COLUMN dead_letters.last_cause IS 'Why it failed the last time. Empty: it failed once.';
COMMENT ON COLUMN dead_letters.raw IS 'The input as it arrived, of a frame with many events an excerpt with one of them; of a job, its arguments. Only the beginning if raw_bytes is larger. Empty once the record or account is deleted.';
COMMENT ON COLUMN dead_letters.count IS 'How often it failed.';

CREATE FUNCTION record_ended_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    most CONSTANT int   := 1 << 20;
    args CONSTANT bytea := convert_to(NEW.args::text, 'UTF8');
    args_key CONSTANT bytea := sha256(convert_to(E'job\n' || NEW.kind || E'\n', 'UTF8') || args);
    why  CONSTANT text  := left(coalesce(NEW.errors[array_upper(NEW.errors, 1)] ->> 'error', 'it gave no reason'), 2000);
BEGIN
    IF NEW.state = 'completed' THEN
        UPDATE dead_letters SET state = 'retried', state_at = now() WHERE job = NEW.id AND state IN ('open', 'retrying');
        IF 'periodic' = ANY (NEW.tags) THEN -- an earlier run may have left one
            UPDATE dead_letters SET state = 'retried', state_at = now() WHERE key = args_key AND state = 'open';
        END IF;
        RETURN NULL;
    END IF;
    IF NEW.state = 'cancelled' AND NEW.metadata ? 'cancel_attempted_at' THEN -- a person cancelled it
        UPDATE dead_letters SET state = 'open', state_at = now() WHERE job = NEW.id AND state = 'retrying';
        RETURN NULL;
    END IF;
    UPDATE dead_letters
    SET state = CASE state WHEN 'dismissed' THEN state ELSE 'open' END, state_at = now(), last_seen = now(), last_cause = why, count = count + 1
    WHERE job = NEW.id;
    IF FOUND OR NEW.state = 'discarded' AND ('periodic' = ANY (NEW.tags) OR NEW.kind IN ('fill_collections', 'retry_dead_letters', 'sync_follows')) THEN -- the next run does the same work
        RETURN NULL;
    END IF;
    INSERT INTO dead_letters AS d (key, stage, class, kind, queue, job, cause, raw, raw_bytes, first_seen, last_seen)
    VALUES (args_key, 'job',
            CASE NEW.state WHEN 'discarded' THEN 'retryable' ELSE 'permanent' END,
            NEW.kind, NEW.queue, NEW.id, why, substr(args, 1, most), octet_length(args), now(), now())
    ON CONFLICT (key) DO UPDATE
    SET state      = CASE d.state WHEN 'retried' THEN 'open' ELSE d.state END,
        job        = CASE d.state WHEN 'retrying' THEN d.job ELSE excluded.job END,
        last_seen  = excluded.last_seen,
        last_cause = excluded.cause,
        count      = d.count + 1;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION record_ended_job IS 'Stores a dead letter for a job that is discarded or cancels itself, whoever ends it, except for a periodic job that is out of tries. Settles the dead letter of a job that succeeds at last, or of a periodic job whose next run succeeds.';

CREATE TRIGGER job_ended AFTER UPDATE ON river_job FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND (NEW.state IN ('discarded', 'cancelled')
          OR NEW.state = 'completed' AND (cardinality(NEW.errors) > 0 OR NEW.tags && '{dead-letter,periodic}')))
    EXECUTE FUNCTION record_ended_job();

CREATE FUNCTION enqueue_retries() RETURNS bigint LANGUAGE sql AS $$
    SELECT enqueue_job('retry_dead_letters', 'network', '{}', ARRAY['manual'])
$$;

COMMENT ON FUNCTION enqueue_retries IS 'Adds a job that retries every dead letter in the state retrying, and wakes a worker.';

CREATE FUNCTION retry_dead_letter(dead_letter bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM dead_letters AS d WHERE d.id = dead_letter FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no dead letter %', coalesce(dead_letter::text, 'NULL') USING ERRCODE = '22023';
    END IF;
    UPDATE dead_letters AS d SET state = 'retrying', state_at = now(), job = NULL
    WHERE d.id = dead_letter
      AND NOT (d.state = 'retrying' AND EXISTS (
          SELECT FROM river_job AS j
          WHERE j.id = d.job AND j.state IN ('available', 'pending', 'retryable', 'running', 'scheduled')
      ));
    RETURN enqueue_retries();
END $$;

COMMENT ON FUNCTION retry_dead_letter IS 'Requests a retry of a dead letter, whatever its state. Returns the id of the job.';

CREATE FUNCTION check_dead_letter_filter(stage text, class text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF stage NOT IN ('decode', 'verify', 'commit', 'process', 'lexicon', 'rules', 'reference', 'job') THEN
        RAISE EXCEPTION '% is not a stage', quote_literal(left(stage, 100)) USING ERRCODE = '22023', HINT = 'A stage is decode, verify, commit, process, lexicon, rules, reference or job.';
    END IF;
    IF class NOT IN ('permanent', 'retryable') THEN
        RAISE EXCEPTION '% is not a class', quote_literal(left(class, 100)) USING ERRCODE = '22023', HINT = 'A class is permanent or retryable.';
    END IF;
END $$;

COMMENT ON FUNCTION check_dead_letter_filter IS 'Refuses a stage or class that does not exist and would match nothing. NULL matches all.';

CREATE FUNCTION retry_dead_letters(stage text DEFAULT NULL, class text DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    n bigint;
BEGIN
    PERFORM check_dead_letter_filter(stage, class);
    WITH chosen AS MATERIALIZED (
        SELECT d.id FROM dead_letters AS d
        WHERE d.state = 'open' AND d.stage = coalesce(retry_dead_letters.stage, d.stage) AND d.class = coalesce(retry_dead_letters.class, d.class)
        ORDER BY d.id
        FOR UPDATE
    )
    UPDATE dead_letters AS d SET state = 'retrying', state_at = now(), job = NULL FROM chosen AS c WHERE d.id = c.id;
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n > 0 THEN
        PERFORM enqueue_retries();
    END IF;
    RETURN n;
END $$;

COMMENT ON FUNCTION retry_dead_letters IS 'Requests a retry of all open dead letters, or of those of a stage or class. Returns how many.';

CREATE FUNCTION dismiss_dead_letter(dead_letter bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE dead_letters AS d SET state = 'dismissed', state_at = now() WHERE d.id = dead_letter;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no dead letter %', coalesce(dead_letter::text, 'NULL') USING ERRCODE = '22023';
    END IF;
END $$;

COMMENT ON FUNCTION dismiss_dead_letter IS 'Marks a dead letter as needing no action. It is kept, but no longer listed or retried with the others.';

CREATE FUNCTION dismiss_dead_letters(stage text DEFAULT NULL, class text DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    n bigint;
BEGIN
    PERFORM check_dead_letter_filter(stage, class);
    WITH chosen AS MATERIALIZED (
        SELECT d.id FROM dead_letters AS d
        WHERE d.state = 'open' AND d.stage = coalesce(dismiss_dead_letters.stage, d.stage) AND d.class = coalesce(dismiss_dead_letters.class, d.class)
        ORDER BY d.id
        FOR UPDATE
    )
    UPDATE dead_letters AS d SET state = 'dismissed', state_at = now() FROM chosen AS c WHERE d.id = c.id;
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END $$;

COMMENT ON FUNCTION dismiss_dead_letters IS 'Dismisses all open dead letters, or those of a stage or class. Returns how many.';

-- Projections: what is made of the stored records.

CREATE TABLE projections (
    name          text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,62}$'),
    collections   text[]      NOT NULL CHECK (cardinality(collections) > 0),
    kind          text        NOT NULL UNIQUE,
    queue         text        NOT NULL,
    tables        text[]      NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT now(),
    queues        text[]      NOT NULL DEFAULT '{}'
);

COMMENT ON TABLE  projections IS 'The projections of this database, as the last process started registered them. A process whose binary lacks one refuses to start. Not compared: of the program and its configuration.';
COMMENT ON COLUMN projections.collections IS 'The collections whose records it reads: names, and prefixes such as pub.layers.*';
COMMENT ON COLUMN projections.kind IS 'The kind of its jobs: a commit adds one for the records it wrote.';
COMMENT ON COLUMN projections.queue IS 'The queue of its jobs, but for the collections that have one of their own.';
COMMENT ON COLUMN projections.tables IS 'Its tables with the columns collection, did and rkey: their rows are deleted in the transaction that deletes the record.';
COMMENT ON COLUMN projections.registered_at IS 'When it was registered, or last changed.';
COMMENT ON COLUMN projections.queues IS 'The queues of collections that have one of their own, as in WEIR_QUEUES.';

CREATE FUNCTION keep_projection() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM river_job WHERE kind = OLD.kind AND state IN ('available', 'pending', 'retryable', 'running', 'scheduled')) THEN
        RAISE EXCEPTION 'projection % has unfinished % jobs', OLD.name, OLD.kind
            USING ERRCODE = '55006', HINT = 'Run the program that has the projection until they are finished, or delete them first, as in River UI.';
    END IF;
    UPDATE dead_letters SET state = 'dismissed', state_at = now() WHERE projection = OLD.name AND state IN ('open', 'retrying');
    RETURN OLD;
END $$;

COMMENT ON FUNCTION keep_projection IS 'Refuses to delete a projection that has unfinished jobs; dismisses its dead letters.';

CREATE TRIGGER projection_removed BEFORE DELETE ON projections FOR EACH ROW EXECUTE FUNCTION keep_projection();

CREATE FUNCTION run_projection(name text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM projections AS p WHERE p.name = run_projection.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no projection %', coalesce(quote_literal(left(name, 100)), 'NULL') USING ERRCODE = '22023', HINT = 'SELECT name FROM projections';
    END IF;
    RETURN enqueue_job('run_projection', 'maintenance', jsonb_build_object('name', name), ARRAY[tag(name)]);
END $$;

COMMENT ON FUNCTION run_projection IS 'Adds a job that projects all stored records of a projection''s collections again. Returns the id of the job.';

CREATE TABLE waiting (
    projection     text COLLATE "C" NOT NULL,
    collection     text COLLATE "C" NOT NULL,
    did            text COLLATE "C" NOT NULL,
    rkey           text COLLATE "C" NOT NULL,
    for_collection text COLLATE "C" NOT NULL,
    for_did        text COLLATE "C" NOT NULL,
    for_rkey       text COLLATE "C" NOT NULL,
    since          timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (did, collection, rkey, projection, for_did, for_collection, for_rkey)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX waiting_for ON waiting (for_did, for_collection, for_rkey, projection, did, collection, rkey);
CREATE INDEX waiting_since ON waiting (collection, since);

COMMENT ON TABLE  waiting IS 'Records that a projection cannot use before another record is known, such as reposts of a post that is not stored or shares no link. A row whose record was deleted goes when its turn comes. Not compared: how it went, not what is stored.';
COMMENT ON COLUMN waiting.projection IS 'The projection that waits.';
COMMENT ON COLUMN waiting.for_collection IS 'The collection of the record that it waits for.';
COMMENT ON COLUMN waiting.since IS 'When the record began to wait. It waits as long as its collection is kept, and at most for a week; if too many wait, the oldest go.';

-- Networks without repositories, whose servers may bring any event at any time.

CREATE TABLE seen (
    id uuid PRIMARY KEY
);

COMMENT ON TABLE seen IS 'The first 16 bytes of the ids of events that were stored, for networks whose servers bring the same events. They stay, because an event may come again at any time. Not compared: of the archive and its known events.';
