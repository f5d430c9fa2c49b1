-- Accounts: which are followed and why, what is known of each, and how far its past is read.

CREATE TABLE accounts (
    did          text COLLATE "C" PRIMARY KEY,
    handle       text,
    handle_at    timestamptz,
    handle_unverified    boolean NOT NULL DEFAULT false,
    handle_checked_at timestamptz,
    display_name text,
    avatar       text,
    status       text        NOT NULL DEFAULT 'active',
    status_at    timestamptz,
    hidden_at    timestamptz,
    read_since   timestamptz,
    feed_newest  timestamptz,
    feed_read_at timestamptz,
    feed_problem text        NOT NULL DEFAULT '',
    reread_since timestamptz,
    reread_count int         NOT NULL DEFAULT 0,
    reread_at    timestamptz,
    purged_for   timestamptz,
    purge_at     timestamptz,
    check_at     timestamptz NOT NULL DEFAULT now() + interval '1 day',
    erased_rev   text COLLATE "C",
    not_recommended boolean NOT NULL DEFAULT false
);
CREATE INDEX accounts_hidden ON accounts (did) WHERE status <> 'active' OR not_recommended;
CREATE INDEX accounts_unpurged ON accounts (did) WHERE status = 'deleted' AND purged_for IS DISTINCT FROM coalesce(status_at, '-infinity');
CREATE INDEX accounts_purge ON accounts (purge_at) WHERE purge_at IS NOT NULL;
CREATE INDEX accounts_reread ON accounts (reread_at) WHERE reread_since IS NOT NULL;
CREATE INDEX accounts_check ON accounts (check_at);
CREATE INDEX accounts_handle ON accounts (handle);
CREATE INDEX accounts_handle_unverified ON accounts (handle_checked_at NULLS FIRST) WHERE handle_unverified;

COMMENT ON TABLE  accounts IS 'Accounts that are followed, that something is stored of, or that are not active. An account without a row is active.';
COMMENT ON COLUMN accounts.handle IS 'In lower case. NULL: unknown; empty: it has no valid one.';
COMMENT ON COLUMN accounts.handle_unverified IS 'The account claims its handle, and nobody has verified it: others may claim it too. False: it is the only owner.';
COMMENT ON COLUMN accounts.handle_checked_at IS 'When it was last tried to verify the handle. NULL: never since the account claimed it.';
COMMENT ON COLUMN accounts.handle_at IS 'When the handle was set, by the network''s clock. An older event changes nothing.';
COMMENT ON COLUMN accounts.status IS 'active, deactivated, suspended, takendown, deleted, or another word of the network; hidden: the network does not show the account, and the stream has not said why; blocked: it would be active, but blocks has it. Only active accounts count.';
COMMENT ON COLUMN accounts.status_at IS 'When the status was set, by the network''s clock. An older event changes nothing.';
COMMENT ON COLUMN accounts.hidden_at IS 'When the listing began that found the account hidden. Being active hides it until the network says so at a later time; any other status replaces hidden, whatever its time. NULL: no listing did, or a later one had it.';
COMMENT ON COLUMN accounts.read_since IS 'Everything that the account wrote since then is stored, as long as it is kept. NULL: its posts have not been read to the end yet.';
COMMENT ON COLUMN accounts.feed_newest IS 'The newest post seen in a complete backfill. The next backfill needs to go back no further.';
COMMENT ON COLUMN accounts.feed_read_at IS 'When the feed was last read to the end of a window.';
COMMENT ON COLUMN accounts.feed_problem IS 'Why the feed could not be read the last time. Empty: it could.';
COMMENT ON COLUMN accounts.reread_since IS 'Posts since then may be missing, because the account could not be read. It is read again when it is active. NULL: nothing is missing.';
COMMENT ON COLUMN accounts.reread_count IS 'How many rereads were requested. A read that began before the latest request does not fulfil it.';
COMMENT ON COLUMN accounts.reread_at IS 'When to try again, if the account is active and could not be read.';
COMMENT ON COLUMN accounts.purged_for IS 'The status_at of the deletion after which the account was purged.';
COMMENT ON COLUMN accounts.purge_at IS 'When the account is purged once more, of what a replay stored in the meantime.';
COMMENT ON COLUMN accounts.check_at IS 'When expiry next checks whether anything needs this row.';
COMMENT ON COLUMN accounts.erased_rev IS 'Nothing of the account up to this revision may be stored: its author has demanded so. NULL: no such demand.';
COMMENT ON COLUMN accounts.not_recommended IS 'It declares that nobody should recommend it, in a stored record app.bsky.actor.contentVisibilityDeclaration. It counts only while a watch follows it.';

CREATE TABLE profiles (
    did      text COLLATE "C" PRIMARY KEY,
    read_at  timestamptz,
    withheld boolean          NOT NULL DEFAULT true,
    named_at timestamptz
);
CREATE INDEX profiles_read_at ON profiles (read_at NULLS FIRST);

COMMENT ON TABLE  profiles IS 'Which accounts are not shown to strangers: their names, handles, pictures and texts are left out, and their shares count. An account without a row is shown. Not compared: what servers said, who are asked again.';
COMMENT ON COLUMN profiles.read_at IS 'When the profile was last read. NULL: not yet.';
COMMENT ON COLUMN profiles.named_at IS 'When the names of the account were last read, for a page that shows it. NULL: never.';
COMMENT ON COLUMN profiles.withheld IS 'The account has put the label !no-unauthenticated on its profile, or its profile could not be read yet.';

CREATE TABLE watches (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target    text        NOT NULL CHECK (target <> ''),
    kind      text        NOT NULL DEFAULT 'follows' CHECK (kind IN ('follows', 'account', 'list', 'starterpack', 'second-degree')),
    at_least  int         NOT NULL DEFAULT 5 CHECK (at_least > 0),
    added_at  timestamptz NOT NULL DEFAULT now(),
    synced_at timestamptz,
    problem   text        NOT NULL DEFAULT '',
    UNIQUE (target, kind)
);

COMMENT ON TABLE  watches IS 'Why accounts are followed. Without a row here, Weir follows the whole network. Add, change and delete rows freely: the followed accounts change with them.';
COMMENT ON COLUMN watches.target IS 'A handle, a DID, the at:// or bsky.app address of a list or starter pack, or the npub of an account of Nostr.';
COMMENT ON COLUMN watches.kind IS 'follows: the accounts that the target follows; account: the target alone; list, starterpack: its members; second-degree: accounts followed by at_least of the target''s follows.';
COMMENT ON COLUMN watches.synced_at IS 'When the members were last read completely.';
COMMENT ON COLUMN watches.problem IS 'Why the members could not be read the last time. Empty: they could.';

CREATE TABLE watch_members (
    watch_id bigint           NOT NULL REFERENCES watches ON DELETE CASCADE,
    did      text COLLATE "C" NOT NULL,
    added_at timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (did, watch_id)
);
CREATE INDEX watch_members_watch ON watch_members (watch_id);

COMMENT ON TABLE watch_members IS 'The members of each watch: the accounts that it makes Weir follow.';

CREATE VIEW follows AS
SELECT w.did, coalesce(a.handle, '') AS handle, a.display_name, min(w.added_at) AS added_at, max(s.synced_at) AS last_seen_at,
       a.feed_read_at IS NOT NULL AS backfill_completed
FROM watch_members AS w
JOIN watches AS s ON s.id = w.watch_id
LEFT JOIN accounts AS a ON a.did = w.did
GROUP BY w.did, a.handle, a.display_name, a.feed_read_at;

COMMENT ON VIEW follows IS 'Every followed account, once.';

CREATE TABLE listing_members (
    job_id       bigint           NOT NULL,
    degree       int              NOT NULL CHECK (degree BETWEEN 0 AND 2),
    did          text COLLATE "C" NOT NULL,
    handle       text             NOT NULL,
    display_name text             NOT NULL,
    avatar       text             NOT NULL,
    withheld     boolean          NOT NULL DEFAULT false,
    times        int              NOT NULL DEFAULT 1,
    last_by      text COLLATE "C" NOT NULL,
    PRIMARY KEY (job_id, degree, did)
);

COMMENT ON TABLE  listing_members IS 'The accounts that a sync_follows job has read so far. Nobody is followed or unfollowed before the listing ends. Not compared: how far streams, listings and repositories were read.';
COMMENT ON COLUMN listing_members.degree IS '1: accounts in the watch''s own listing; 2: accounts that those follow; 0: members that are in neither, and were looked up.';
COMMENT ON COLUMN listing_members.times IS 'Of degree 2: how many accounts of degree 1 follow it. Of degree 0: 1 if the network shows the account, so that it is no longer a member; 0 if it is hidden.';
COMMENT ON COLUMN listing_members.last_by IS 'Of degree 2: the follower that was counted last, so that nobody is counted twice.';

CREATE TABLE purge_queue (
    did          text COLLATE "C" PRIMARY KEY,
    queued_at    timestamptz NOT NULL
);
CREATE INDEX purge_queue_queued_at ON purge_queue (queued_at);

COMMENT ON TABLE purge_queue IS 'Accounts that a watch has lost. They are purged after a grace period, unless another watch has them. Not compared: how it went, not what is stored.';

-- Consumers listen, and change the accounts that they request.

CREATE FUNCTION follows_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('weir_follows', '');
    RETURN NULL;
END $$;

COMMENT ON FUNCTION follows_changed IS 'Tells the consumers that the followed accounts have changed.';

CREATE TRIGGER watches_changed AFTER INSERT OR DELETE OR TRUNCATE ON watches FOR EACH STATEMENT EXECUTE FUNCTION follows_changed();
CREATE TRIGGER watch_members_changed AFTER INSERT OR DELETE OR TRUNCATE ON watch_members FOR EACH STATEMENT EXECUTE FUNCTION follows_changed();

CREATE FUNCTION sync_watch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM enqueue_job('sync_follows', 'network', jsonb_build_object('watch', NEW.id), ARRAY[NEW.kind]);
    RETURN NULL;
END $$;

COMMENT ON FUNCTION sync_watch IS 'Adds a job that reads the members of a new or changed watch.';

CREATE TRIGGER watch_added AFTER INSERT ON watches FOR EACH ROW EXECUTE FUNCTION sync_watch();
CREATE TRIGGER watch_updated AFTER UPDATE OF target, kind, at_least ON watches FOR EACH ROW
    WHEN (OLD.target <> NEW.target OR OLD.kind <> NEW.kind OR OLD.at_least <> NEW.at_least) EXECUTE FUNCTION sync_watch();

CREATE FUNCTION reset_watch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM watch_members WHERE watch_id = NEW.id;
    NEW.synced_at := NULL;
    NEW.problem := '';
    RETURN NEW;
END $$;

COMMENT ON FUNCTION reset_watch IS 'Removes the members of a watch that gets another target or kind: it starts like a new one.';

CREATE TRIGGER watch_turned BEFORE UPDATE OF target, kind ON watches FOR EACH ROW
    WHEN (OLD.target <> NEW.target OR OLD.kind <> NEW.kind) EXECUTE FUNCTION reset_watch();

CREATE FUNCTION dismiss_watch_dead_letters() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE dead_letters SET state = 'dismissed', state_at = now()
    WHERE key = sha256(convert_to(E'job\nsync_follows\n' || jsonb_build_object('watch', OLD.id)::text, 'UTF8')) AND state IN ('open', 'retrying');
    RETURN NULL;
END $$;

COMMENT ON FUNCTION dismiss_watch_dead_letters IS 'Dismisses the dead letter of a watch that is removed.';

CREATE TRIGGER watch_removed AFTER DELETE ON watches FOR EACH ROW EXECUTE FUNCTION dismiss_watch_dead_letters();

CREATE FUNCTION record_unwatched_accounts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO purge_queue (did, queued_at) SELECT DISTINCT g.did, now() FROM gone AS g ORDER BY g.did
    ON CONFLICT (did) DO UPDATE SET queued_at = excluded.queued_at;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION record_unwatched_accounts IS 'Has expiry check the accounts that a watch lost.';

CREATE TRIGGER watch_member_removed AFTER DELETE ON watch_members REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION record_unwatched_accounts();

-- A secret key must not get into a table, a listing or a backup.

CREATE FUNCTION refuse_secret_target() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'this is a secret key (nsec), which Weir never needs: name the public key (npub), and consider this one stolen if others may have seen it' USING ERRCODE = '22023';
END $$;

COMMENT ON FUNCTION refuse_secret_target IS 'Refuses a watch whose target contains a secret key of Nostr.';

CREATE TRIGGER watch_target_public BEFORE INSERT OR UPDATE OF target ON watches FOR EACH ROW
    WHEN (NEW.target ~* 'nsec1[0-9a-z]{20}') EXECUTE FUNCTION refuse_secret_target();

-- Backfills, from SQL too.

CREATE FUNCTION enqueue_request(p_args jsonb) RETURNS bigint LANGUAGE sql AS $$
    SELECT enqueue_job('request_backfill', 'network', p_args,
                       ARRAY[(ARRAY['gap', 'manual', 'new-follow', 'cold-start'])[(p_args ->> 'priority')::int],
                             CASE WHEN p_args ? 'all' THEN 'every-account' ELSE 'one-account' END])
$$;

COMMENT ON FUNCTION enqueue_request IS 'Adds a job that requests backfills, and wakes a worker.';

CREATE FUNCTION enqueue_backfill(account text, back interval DEFAULT '24 hours', priority int DEFAULT 2) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF account IS NULL OR NOT ((length(account) <= 2048 AND account ~ '^did:[a-z]+:[a-zA-Z0-9._:%-]*[a-zA-Z0-9._-]$')
                               OR (length(account) <= 253 AND account ~ '^@?([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)+[a-zA-Z]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$')) THEN
        RAISE EXCEPTION '% is neither a handle nor a DID', coalesce(quote_literal(left(account, 100)), 'NULL')
            USING ERRCODE = '22023', HINT = 'For example: SELECT enqueue_backfill(''alice.example'', interval ''24 hours'')';
    END IF;
    IF back IS NULL OR back <= interval '0' OR back > interval '10 years' THEN
        RAISE EXCEPTION 'a backfill goes back more than 0 and at most 10 years, not %', back USING ERRCODE = '22023';
    END IF;
    IF priority IS NULL OR priority NOT BETWEEN 1 AND 4 THEN
        RAISE EXCEPTION 'a priority is 1 (first) to 4, not %', priority USING ERRCODE = '22023';
    END IF;
    RETURN enqueue_request(jsonb_build_object('account', ltrim(account, '@'), 'since', now() - back, 'priority', priority));
END $$;

COMMENT ON FUNCTION enqueue_backfill IS 'Requests a backfill of one account, by handle or DID: its records in every stored collection, as far back as given. Returns the id of the job.';

CREATE FUNCTION enqueue_backfill_all(back interval DEFAULT '24 hours', priority int DEFAULT 4) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF back IS NULL OR back <= interval '0' OR back > interval '10 years' THEN
        RAISE EXCEPTION 'a backfill goes back more than 0 and at most 10 years, not %', back USING ERRCODE = '22023';
    END IF;
    IF priority IS NULL OR priority NOT BETWEEN 1 AND 4 THEN
        RAISE EXCEPTION 'a priority is 1 (first) to 4, not %', priority USING ERRCODE = '22023';
    END IF;
    RETURN enqueue_request(jsonb_build_object('all', true, 'since', now() - back, 'priority', priority));
END $$;

COMMENT ON FUNCTION enqueue_backfill_all IS 'Requests a backfill of every followed account: its records in every stored collection, as far back as given. Returns the id of the job.';

-- The stream, a sync or a person makes an account active again. In each case its posts are read again. The stream may also
-- report so of an account that was taken for active, but could not be read.
CREATE FUNCTION enqueue_reread() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    followed timestamptz;
BEGIN
    SELECT min(w.added_at) INTO followed FROM watch_members AS w WHERE w.did = NEW.did;
    IF followed IS NULL THEN
        RETURN NEW;
    END IF;
    NEW.reread_count := NEW.reread_count + 1; -- a read that has begun before may be refused
    IF OLD.status = 'deleted' THEN -- its posts may have been purged
        NEW.reread_since := least(NEW.reread_since, NEW.read_since, followed);
    END IF;
    IF NEW.reread_since IS NULL THEN
        RETURN NEW;
    END IF;
    NEW.reread_at := now() + interval '1 hour'; -- in case the job below is lost
    PERFORM enqueue_request(jsonb_build_object('account', NEW.did, 'since', NEW.reread_since, 'priority', 1));
    RETURN NEW;
END $$;

COMMENT ON FUNCTION enqueue_reread IS 'Requests a backfill of an account that is active again, if posts of it may be missing.';

CREATE TRIGGER account_reactivated BEFORE UPDATE OF status ON accounts FOR EACH ROW
    WHEN (NEW.status = 'active' AND (OLD.status <> 'active' OR NEW.status_at IS DISTINCT FROM OLD.status_at)) EXECUTE FUNCTION enqueue_reread();

-- What is stored.

CREATE TABLE collections (
    collection text COLLATE "C" PRIMARY KEY
               CHECK (length(collection) <= 317 AND collection ~ '^[a-zA-Z][a-zA-Z0-9-]*(\.[a-zA-Z0-9][a-zA-Z0-9-]*)*\.([a-zA-Z][a-zA-Z0-9]*|[0-9]+|\*)$'),
    retention  interval CHECK (retention >= '0'),
    stored     boolean NOT NULL DEFAULT true
);

COMMENT ON TABLE  collections IS 'What `weir collection` and SQL have changed about WEIR_COLLECTIONS. Add, change and delete rows freely: every process follows within seconds. Not compared: chosen by the operator.';
COMMENT ON COLUMN collections.collection IS 'A name, or a prefix such as pub.layers.*';
COMMENT ON COLUMN collections.retention IS 'How long its records are kept; 0: for ever. NULL: as long as WEIR_RETENTION says.';
COMMENT ON COLUMN collections.stored IS 'false: it is no longer stored, although WEIR_COLLECTIONS names it.';

-- History: the past of collections, which no stream brings.

CREATE TABLE stored_collections (
    collection text COLLATE "C" PRIMARY KEY,
    since      timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE  stored_collections IS 'The entries of WEIR_COLLECTIONS by which the stream is read: names, and prefixes such as pub.layers.*. The consumer that takes the lease writes them. Not compared: of the program and its configuration.';
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

COMMENT ON TABLE  histories IS 'The collections whose past is read, or was: entries of WEIR_COLLECTIONS, or collections under one. Deleting a row has a collection that is kept for ever read again. Not compared: how far streams, listings and repositories were read.';
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

COMMENT ON TABLE  history_listings IS 'Where the whole network is followed: how far relays have named the accounts that have records in a collection. Not compared: how far streams, listings and repositories were read.';
COMMENT ON COLUMN history_listings.name IS 'The collection that relays are asked for. A prefix has a listing for each name under it that is known. Of kinds of Nostr: the stream of the relay that is asked for the events; the cursor is then the date, in seconds, at which the rest begins, and seen counts events.';
COMMENT ON COLUMN history_listings.run IS 'The run of the history that it belongs to.';
COMMENT ON COLUMN history_listings.host IS 'The relay that gave the cursor. The cursor means nothing on another one.';
COMMENT ON COLUMN history_listings.seen IS 'How many accounts the pages have named so far. Many more than there are accounts: the relay repeats itself.';
COMMENT ON COLUMN history_listings.tries IS 'Failed tries in a row. After some of them another relay is asked.';

CREATE TABLE history_accounts (
    collection text COLLATE "C" NOT NULL REFERENCES histories ON DELETE CASCADE,
    did        text COLLATE "C" NOT NULL,
    run        int              NOT NULL,
    state      text             NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'done', 'unread')),
    position   jsonb,
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

COMMENT ON TABLE  history_accounts IS 'The accounts of each history, and how far each has been read. Not compared: how far streams, listings and repositories were read.';
COMMENT ON COLUMN history_accounts.state IS 'waiting; done: read to the end or to the limit; unread: it cannot be read for now, and problem says why.';
COMMENT ON COLUMN history_accounts.position IS 'The position in the account''s repository. NULL: nothing has been read in this run.';
COMMENT ON COLUMN history_accounts.records IS 'The records read so far. An account that reaches the limit has only its newest ones.';
COMMENT ON COLUMN history_accounts.bytes IS 'The JSON of these records, in bytes.';
COMMENT ON COLUMN history_accounts.limited IS 'It reached WEIR_HISTORY_RECORDS or WEIR_HISTORY_BYTES: older records are not stored.';
COMMENT ON COLUMN history_accounts.tries IS 'How often it could not be read.';
COMMENT ON COLUMN history_accounts.retry_at IS 'When an unread account is tried again, if it is active. NULL: not again in this run.';

CREATE FUNCTION enqueue_history(collection text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF collection IS NULL OR length(collection) > 317 OR collection !~ '^[a-zA-Z][a-zA-Z0-9-]*(\.[a-zA-Z0-9][a-zA-Z0-9-]*)+\.([a-zA-Z][a-zA-Z0-9]*|\*)$' AND collection !~ '^nostr\.(\*|[0-9]{1,5})$' THEN
        RAISE EXCEPTION '% is not a collection', coalesce(quote_literal(left(collection, 100)), 'NULL')
            USING ERRCODE = '22023', HINT = 'For example: SELECT enqueue_history(''site.standard.document''), a prefix such as pub.layers.*, or a kind of Nostr such as nostr.7';
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

COMMENT ON FUNCTION enqueue_history IS 'Requests the past of a collection, or of all collections under a prefix such as pub.layers.* or nostr.*. Returns the id of the job that begins it.';
