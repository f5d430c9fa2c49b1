-- Everything that the migrations make, as the catalog has it: Weir's tables and views, with their indexes and triggers, and functions; then
-- River's, with what Weir adds to them. Written by `go generate ./schema`.

-- Weir: tables

CREATE EXTENSION pg_trgm;

-- Accounts that are followed, that something is stored of, or that are not active. An account without a row is active.
CREATE TABLE accounts (
    did text COLLATE "C" NOT NULL,
    handle text, -- In lower case. NULL: unknown; empty: it has no valid one.
    handle_at timestamp with time zone, -- When the handle was set, by the network's clock. An older event changes nothing.
    handle_unverified boolean DEFAULT false NOT NULL, -- The account claims its handle, and nobody has verified it: others may claim it too. False: it is the only owner.
    handle_checked_at timestamp with time zone, -- When it was last tried to verify the handle. NULL: never since the account claimed it.
    display_name text,
    avatar text,
    status text DEFAULT 'active'::text NOT NULL, -- active, deactivated, suspended, takendown, deleted, or another word of the network; hidden: the network does not show the account, and the stream has not said why; blocked: it would be active, but blocks has it. Only active accounts count.
    status_at timestamp with time zone, -- When the status was set, by the network's clock. An older event changes nothing.
    hidden_at timestamp with time zone, -- When the listing began that found the account hidden. Being active hides it until the network says so at a later time; any other status replaces hidden, whatever its time. NULL: no listing did, or a later one had it.
    read_since timestamp with time zone, -- Everything that the account wrote since then is stored, as long as it is kept. NULL: its posts have not been read to the end yet.
    feed_newest timestamp with time zone, -- The newest post seen in a complete backfill. The next backfill needs to go back no further.
    feed_read_at timestamp with time zone, -- When the feed was last read to the end of a window.
    feed_problem text DEFAULT ''::text NOT NULL, -- Why the feed could not be read the last time. Empty: it could.
    reread_since timestamp with time zone, -- Posts since then may be missing, because the account could not be read. It is read again when it is active. NULL: nothing is missing.
    reread_count integer DEFAULT 0 NOT NULL, -- How many rereads were requested. A read that began before the latest request does not fulfil it.
    reread_at timestamp with time zone, -- When to try again, if the account is active and could not be read.
    purged_for timestamp with time zone, -- The status_at of the deletion after which the account was purged.
    purge_at timestamp with time zone, -- When the account is purged once more, of what a replay stored in the meantime.
    check_at timestamp with time zone DEFAULT now() + '1 day'::interval NOT NULL, -- When expiry next checks whether anything needs this row.
    erased_rev text COLLATE "C", -- Nothing of the account up to this revision may be stored: its author has demanded so. NULL: no such demand.
    not_recommended boolean DEFAULT false NOT NULL, -- It declares that nobody should recommend it, in a stored record app.bsky.actor.contentVisibilityDeclaration. It counts only while a watch follows it.
    CONSTRAINT accounts_pkey PRIMARY KEY (did)
);
CREATE INDEX accounts_check ON accounts USING btree (check_at);
CREATE INDEX accounts_handle ON accounts USING btree (handle);
CREATE INDEX accounts_handle_unverified ON accounts USING btree (handle_checked_at NULLS FIRST) WHERE handle_unverified;
CREATE INDEX accounts_hidden ON accounts USING btree (did) WHERE status <> 'active'::text OR not_recommended;
CREATE INDEX accounts_purge ON accounts USING btree (purge_at) WHERE purge_at IS NOT NULL;
CREATE INDEX accounts_reread ON accounts USING btree (reread_at) WHERE reread_since IS NOT NULL;
CREATE INDEX accounts_unpurged ON accounts USING btree (did) WHERE status = 'deleted'::text AND purged_for IS DISTINCT FROM COALESCE(status_at, '-infinity'::timestamp with time zone);
CREATE TRIGGER account_blocked BEFORE INSERT OR UPDATE OF status ON accounts FOR EACH ROW WHEN (new.status = 'active'::text) EXECUTE FUNCTION block_account();
CREATE TRIGGER account_deleted AFTER INSERT ON accounts FOR EACH ROW WHEN (new.status = 'deleted'::text) EXECUTE FUNCTION judge_account();
CREATE TRIGGER account_deleted_or_back AFTER UPDATE OF status ON accounts FOR EACH ROW WHEN ((old.status = 'deleted'::text) <> (new.status = 'deleted'::text)) EXECUTE FUNCTION judge_account();
CREATE TRIGGER account_hidden_or_shown AFTER UPDATE ON accounts FOR EACH ROW WHEN ((new.status = 'active'::text) <> (old.status = 'active'::text) OR new.not_recommended <> old.not_recommended OR new.did <> old.did) EXECUTE FUNCTION record_account_change();
CREATE TRIGGER account_reactivated BEFORE UPDATE OF status ON accounts FOR EACH ROW WHEN (new.status = 'active'::text AND (old.status <> 'active'::text OR new.status_at IS DISTINCT FROM old.status_at)) EXECUTE FUNCTION enqueue_reread();
CREATE TRIGGER accounts_truncated AFTER TRUNCATE ON accounts FOR EACH STATEMENT EXECUTE FUNCTION record_everything();
CREATE TRIGGER blocked_account_kept AFTER DELETE ON accounts FOR EACH ROW EXECUTE FUNCTION keep_blocked_account();
CREATE TRIGGER hidden_account_added AFTER INSERT ON accounts FOR EACH ROW WHEN (new.status <> 'active'::text OR new.not_recommended) EXECUTE FUNCTION record_account_change();
CREATE TRIGGER hidden_account_removed AFTER DELETE ON accounts FOR EACH ROW WHEN (old.status <> 'active'::text OR old.not_recommended) EXECUTE FUNCTION record_account_change();

-- One row per condition of /health that has ever held, with its latest times. Not compared: how it went, not what is stored.
CREATE TABLE alerts (
    name text NOT NULL,
    component text NOT NULL, -- The stream or queue that the alert is about. Empty: all of Weir.
    severity text NOT NULL,
    message text NOT NULL, -- What is wrong.
    hint text NOT NULL, -- What to look at first.
    since timestamp with time zone NOT NULL, -- When the condition began to hold.
    seen_at timestamp with time zone NOT NULL, -- When the condition was last seen to hold.
    fired_at timestamp with time zone, -- When the condition had held for long enough to notify somebody. NULL: not yet.
    resolved_at timestamp with time zone, -- When the condition had been gone for long enough. NULL: not yet.
    last_notified text DEFAULT ''::text NOT NULL, -- What the latest send_alert job is about. Empty: there was none, or there is no webhook.
    CONSTRAINT alerts_pkey PRIMARY KEY (name, component),
    CONSTRAINT alerts_last_notified_check CHECK (last_notified = ANY (ARRAY[''::text, 'fired'::text, 'resolved'::text]))
);

-- When the next call may start, over all processes. Always one row. Not compared: how it went, not what is stored.
CREATE TABLE api_schedule (
    one boolean DEFAULT true NOT NULL, -- Always true: the key that keeps this one row.
    next_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT api_schedule_pkey PRIMARY KEY (one),
    CONSTRAINT api_schedule_one_check CHECK (one)
);

-- How many calls may run at once over all processes: one row each. Not compared: how it went, not what is stored.
CREATE TABLE api_slots (
    slot integer NOT NULL,
    holder text, -- The process that has the slot. NULL: free.
    expires_at timestamp with time zone, -- When the slot becomes free even if its holder has not returned it, because it died.
    CONSTRAINT api_slots_pkey PRIMARY KEY (slot)
);

-- What has been heard and is in no segment of the store yet: a row per commit. It is deleted when the store has its segment. Not compared: of the archive and its known events.
CREATE TABLE archive_open (
    number bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    stream text NOT NULL,
    wire text NOT NULL, -- The format of the records.
    records integer NOT NULL,
    raw_bytes integer NOT NULL,
    arrived_at timestamp with time zone DEFAULT now() NOT NULL, -- When the commit was made.
    created_from timestamp with time zone, -- The earliest created_at of the records that the commit wrote, and created_to the latest. NULL: it wrote none.
    created_to timestamp with time zone,
    segment bigint, -- The segment that it is sealed in. NULL: none yet.
    blob bytea STORAGE e NOT NULL, -- The records, each after its length in four bytes, compressed by zstd.
    CONSTRAINT archive_open_pkey PRIMARY KEY (number),
    CONSTRAINT archive_open_segment_fkey FOREIGN KEY (segment) REFERENCES segments(number)
) WITH (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=500);
CREATE INDEX archive_open_segment ON archive_open USING btree (segment) WHERE segment IS NOT NULL;

-- The tables of which the archive keeps snapshots, because no event says what they hold. Not compared: of the archive and its known events.
CREATE TABLE archive_snapshots (
    name text NOT NULL, -- The name of the table.
    content text NOT NULL, -- A hash of its last snapshot. Nothing is archived until the table has another content.
    archived_at timestamp with time zone NOT NULL, -- When that was taken.
    CONSTRAINT archive_snapshots_pkey PRIMARY KEY (name)
);

-- The events that are archived, as long as a server may send them again, so that no event is archived twice. Not compared: of the archive and its known events.
CREATE TABLE archived_ids (
    id uuid NOT NULL, -- The first half of a SHA-256 of what identifies the event: account, collection, key, revision and operation.
    day integer NOT NULL, -- The day in the event's own revision, in days since 1970. It is the same however often the event comes.
    seen integer DEFAULT floor(EXTRACT(epoch FROM now()) / 86400::numeric)::integer NOT NULL, -- The day on which it was archived, in days since 1970.
    CONSTRAINT archived_ids_pkey PRIMARY KEY (id, day)
) PARTITION BY RANGE (day);

-- Events whose revision names a day that has no partition.
CREATE TABLE archived_ids_default PARTITION OF archived_ids DEFAULT;

-- The first thousand faults that an audit found, of each kind. Not compared: how it went, not what is stored.
CREATE TABLE audit_faults (
    audit_id bigint NOT NULL,
    did text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL, -- Empty, like rkey: the fault is of the whole account.
    rkey text COLLATE "C" NOT NULL,
    fault text NOT NULL, -- missing, extra, stale: as counted in audits; unread: the account could not be compared.
    detail text DEFAULT ''::text NOT NULL,
    CONSTRAINT audit_faults_pkey PRIMARY KEY (audit_id, did, collection, rkey),
    CONSTRAINT audit_faults_audit_id_fkey FOREIGN KEY (audit_id) REFERENCES audits(id) ON DELETE CASCADE,
    CONSTRAINT audit_faults_fault_check CHECK (fault = ANY (ARRAY['missing'::text, 'extra'::text, 'stale'::text, 'unread'::text]))
);
CREATE INDEX audit_faults_record ON audit_faults USING btree (did, collection, rkey);

-- Comparisons of the stored records with the accounts' own repositories. Not compared: how it went, not what is stored.
CREATE TABLE audits (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    started_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone NOT NULL,
    from_at timestamp with time zone, -- Records whose rkey is a TID are compared from this moment to to_at; of each account, from when its records are known to be stored. Of other collections than posts, other rkeys too, whatever their age. NULL: nothing was compared.
    to_at timestamp with time zone, -- See from_at.
    accounts integer NOT NULL, -- How many accounts were to be compared.
    failures integer NOT NULL, -- How many of these accounts could not be compared. Their records are not counted.
    pending integer DEFAULT 0 NOT NULL, -- How many followed accounts were left out, because their past has not been read to the end yet.
    records integer NOT NULL, -- How many records were compared: those in the repositories, and those stored that are not in them.
    missing integer NOT NULL, -- Records in a repository that are not stored.
    extra integer NOT NULL, -- Stored records that are not in the repository.
    stale integer NOT NULL, -- Records that are stored in another version than the repository's.
    score double precision, -- The fraction of the records that agree, from 0 to 1. NULL: no record was compared.
    repaired boolean NOT NULL, -- Whether the faults were repaired, or a repair was requested.
    CONSTRAINT audits_pkey PRIMARY KEY (id)
);
CREATE INDEX audits_ended ON audits USING btree (ended_at);

-- The links that blocks of links and domains concern, also links that have expired. Only the trigger of blocks writes here, and who adds a link. Not compared: counted from shares, which `weir recount --check` does.
CREATE TABLE blocked_links (
    link_id bigint NOT NULL,
    block_id bigint NOT NULL,
    CONSTRAINT blocked_links_pkey PRIMARY KEY (link_id, block_id)
);
CREATE INDEX blocked_links_block ON blocked_links USING btree (block_id);

-- What is in no ranking or page, and after five minutes in no feed. Add and delete rows freely: the counts change in the same transaction. What is blocked is stored all the same.
CREATE TABLE blocks (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    kind text COLLATE "C" NOT NULL, -- account; domain: every link to it or to a subdomain, future ones too; link.
    target text COLLATE "C" NOT NULL, -- A DID; a host in ASCII (xn--…), without www.; the identity of a link. The URL under which a link is shown becomes its identity.
    added_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT blocks_pkey PRIMARY KEY (id),
    CONSTRAINT blocks_target_kind_key UNIQUE (target, kind),
    CONSTRAINT blocks_check CHECK (
CASE kind
    WHEN 'account'::text THEN target ~~ 'did:_%'::text
    WHEN 'domain'::text THEN target ~ '^[!-~]+$'::text AND target !~ '[/:@]'::text
    WHEN 'link'::text THEN target <> ''::text
    ELSE false
END)
);
CREATE TRIGGER block_changed AFTER INSERT OR DELETE OR UPDATE ON blocks FOR EACH ROW EXECUTE FUNCTION apply_block();
CREATE TRIGGER block_named BEFORE INSERT OR UPDATE ON blocks FOR EACH ROW EXECUTE FUNCTION normalise_block();

-- The fetches of pages that were started in the last hour: at most 1,000, over all processes. Not compared: what servers said, who are asked again.
CREATE TABLE card_fetches (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    link_id bigint NOT NULL, -- The link. It may have expired.
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    ended_at timestamp with time zone, -- NULL: it is running, or its process died. After a minute nobody waits for it.
    CONSTRAINT card_fetches_pkey PRIMARY KEY (id)
);

-- When the next request to a host may start, over all processes. Hosts that nobody asks have no row. Not compared: what servers said, who are asked again.
CREATE TABLE card_hosts (
    host text COLLATE "C" NOT NULL,
    next_at timestamp with time zone NOT NULL,
    CONSTRAINT card_hosts_pkey PRIMARY KEY (host)
);

-- Links whose page is fetched, and what the page says about itself. The counter adds the row; the job fetch_card fetches the page. Not compared: what servers said, who are asked again.
CREATE TABLE cards (
    link_id bigint NOT NULL,
    sharers smallint NOT NULL, -- How many sharers have it fetched: 5, whatever titles they give; 2, if none gives a title or there are variants of the link; 1, if there are.
    fetch_at timestamp with time zone, -- When the page is fetched next. NULL: never again.
    tries integer DEFAULT 0 NOT NULL, -- How often a fetch was started: at most four times.
    fetched_at timestamp with time zone, -- When the last fetch ended. NULL: none has yet.
    status text DEFAULT ''::text NOT NULL, -- Why the title of the page does not count. Empty: it counts if same_site is true, or the link was merged because of the page.
    host text COLLATE "C" DEFAULT ''::text NOT NULL, -- The host that was asked, without "www.".
    address text COLLATE "C" DEFAULT ''::text NOT NULL, -- Where the redirects ended.
    ends_at text COLLATE "C" DEFAULT ''::text NOT NULL, -- The identity of that address. Empty: it is not known, or no link.
    canonical text COLLATE "C" DEFAULT ''::text NOT NULL, -- The identity of the address that the page calls its own, in its registrable domain. Empty: none.
    same_site boolean DEFAULT false NOT NULL, -- The redirects ended in the registrable domain in which they began.
    title text COLLATE "C" DEFAULT ''::text NOT NULL,
    description text COLLATE "C" DEFAULT ''::text NOT NULL,
    site_name text COLLATE "C" DEFAULT ''::text NOT NULL,
    words tsvector DEFAULT ''::tsvector NOT NULL, -- The words of the title and the description.
    title_group bigint, -- That of the title, as in claims.
    CONSTRAINT cards_pkey PRIMARY KEY (link_id),
    CONSTRAINT cards_link_id_fkey FOREIGN KEY (link_id) REFERENCES links(id) ON DELETE CASCADE,
    CONSTRAINT cards_canonical_check CHECK (octet_length(canonical) <= 2048),
    CONSTRAINT cards_ends_at_check CHECK (octet_length(ends_at) <= 2048),
    CONSTRAINT cards_sharers_check CHECK (sharers = ANY (ARRAY[1, 2, 5]))
) WITH (autovacuum_vacuum_scale_factor=0.1);
CREATE INDEX cards_canonical ON cards USING btree (canonical, host) WHERE canonical <> ''::text;
CREATE INDEX cards_due ON cards USING btree (sharers, fetch_at) WHERE fetch_at IS NOT NULL;
CREATE INDEX cards_ends_at ON cards USING btree (ends_at, host) WHERE ends_at <> ''::text;
CREATE INDEX cards_title_group ON cards USING btree (title_group) WHERE title_group IS NOT NULL;
CREATE INDEX cards_words ON cards USING gin (words) WITH (gin_pending_list_limit='1024');

-- The last commit of each followed account, if the chain of commits is verified: the next one must follow from it. It moves in the transaction of the stream's position. Not compared: how far streams, listings and repositories were read.
CREATE TABLE chains (
    did text COLLATE "C" NOT NULL,
    rev text COLLATE "C" NOT NULL,
    data bytea NOT NULL, -- The hash of the root of the repository's tree at that commit.
    CONSTRAINT chains_pkey PRIMARY KEY (did)
) WITH (fillfactor=50);

-- Subjects that were deleted or have other links than before. The job check_subjects projects their reposts and quotes again, and removes the row. Not compared: counted from shares, which `weir recount --check` does.
CREATE TABLE changed_subjects (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    did text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL,
    CONSTRAINT changed_subjects_pkey PRIMARY KEY (id)
) WITH (autovacuum_vacuum_scale_factor=0.05);

-- How many accounts of a link vote for each claim, as far as they are counted. Claims without votes have no row. Only the counter writes here. Not compared: counted from shares, which `weir recount --check` does.
CREATE TABLE claim_votes (
    claim_id bigint NOT NULL,
    link_id bigint NOT NULL,
    titles integer NOT NULL, -- Votes for the headline.
    title_at timestamp with time zone, -- The earliest title_at of these votes in sharers: it decides ties.
    title_from text COLLATE "C", -- The AT-URI of that post.
    urls integer NOT NULL, -- Votes for the spelling.
    url_at timestamp with time zone, -- The earliest url_at of these votes in sharers.
    url_from text COLLATE "C", -- The AT-URI of that post.
    title_group bigint, -- That of the claim.
    CONSTRAINT claim_votes_pkey PRIMARY KEY (link_id, claim_id),
    CONSTRAINT claim_votes_check CHECK ((titles + urls) > 0),
    CONSTRAINT claim_votes_titles_check CHECK (titles >= 0),
    CONSTRAINT claim_votes_urls_check CHECK (urls >= 0)
) WITH (autovacuum_vacuum_scale_factor=0.1, fillfactor=80);
CREATE INDEX claim_votes_title_group ON claim_votes USING btree (title_group) WHERE title_group IS NOT NULL;

-- What sharers say about a link: a spelling, and a card if their post has one. Those who say the same share one row. Not compared: counted from shares, which `weir recount --check` does.
CREATE TABLE claims (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    link_id bigint NOT NULL,
    hash bytea NOT NULL, -- Of the spelling, title, description and image. Texts may be too long for an index.
    url text COLLATE "C" NOT NULL,
    site text NOT NULL, -- The host of the spelling, as the page shows it.
    title text COLLATE "C" DEFAULT ''::text NOT NULL,
    description text COLLATE "C" DEFAULT ''::text NOT NULL,
    image text COLLATE "C" DEFAULT ''::text NOT NULL, -- The CID of the picture: the same for all accounts that uploaded it.
    words tsvector DEFAULT ''::tsvector NOT NULL, -- The words of the title, the description and the address. Workers make them: Postgres' parser depends on the locale.
    title_key text COLLATE "C" DEFAULT ''::text NOT NULL, -- The title in the form in which titles are compared: folded, with a line feed before what may be the name of the site, and … at the end if it was cut.
    title_group bigint, -- A hash of the site and the title: pages of a site with one title have the same. NULL: there is none to compare, or the address is the front page or that of a shortener.
    CONSTRAINT claims_pkey PRIMARY KEY (id),
    CONSTRAINT claims_link_id_hash_key UNIQUE (link_id, hash),
    CONSTRAINT claims_link_id_fkey FOREIGN KEY (link_id) REFERENCES links(id) ON DELETE CASCADE
) WITH (autovacuum_vacuum_scale_factor=0.1);
CREATE INDEX claims_title_group ON claims USING btree (title_group) WHERE title_group IS NOT NULL;
CREATE INDEX claims_words ON claims USING gin (words) WITH (gin_pending_list_limit='1024');

-- What `weir collection` and SQL have changed about WEIR_COLLECTIONS. Add, change and delete rows freely: every process follows within seconds. Not compared: chosen by the operator.
CREATE TABLE collections (
    collection text COLLATE "C" NOT NULL, -- A name, or a prefix such as pub.layers.*
    retention interval, -- How long its records are kept; 0: for ever. NULL: as long as WEIR_RETENTION says.
    stored boolean DEFAULT true NOT NULL, -- false: it is no longer stored, although WEIR_COLLECTIONS names it.
    CONSTRAINT collections_pkey PRIMARY KEY (collection),
    CONSTRAINT collections_collection_check CHECK (length(collection) <= 317 AND collection ~ '^[a-zA-Z][a-zA-Z0-9-]*(\.[a-zA-Z0-9][a-zA-Z0-9-]*)*\.([a-zA-Z][a-zA-Z0-9]*|[0-9]+|\*)$'::text),
    CONSTRAINT collections_retention_check CHECK (retention >= '00:00:00'::interval)
);

-- Records that share links and are copies of records of another network, made by a bridge. Whether the original is stored does not matter here. Not compared: made from records, which are compared.
CREATE TABLE copies (
    did text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL,
    of_did text COLLATE "C" NOT NULL,
    of_collection text COLLATE "C" NOT NULL,
    of_rkey text COLLATE "C" NOT NULL,
    checked_at timestamp with time zone DEFAULT now() NOT NULL, -- When it was last checked that the record has shares.
    CONSTRAINT copies_pkey PRIMARY KEY (did, collection, rkey)
) WITH (autovacuum_vacuum_scale_factor=0.05);
CREATE INDEX copies_checked_at ON copies USING btree (checked_at);
CREATE INDEX copies_of ON copies USING btree (of_did, of_rkey, of_collection);

-- The last comparison of the counts of some links with the shares. No row: none yet. Not compared: counted from shares, which `weir recount --check` does.
CREATE TABLE count_checks (
    one boolean DEFAULT true NOT NULL,
    checked_at timestamp with time zone NOT NULL,
    links integer NOT NULL,
    wrong integer NOT NULL, -- The counts that differed. Expect 0: weir recount --check prints them all.
    CONSTRAINT count_checks_pkey PRIMARY KEY (one),
    CONSTRAINT count_checks_one_check CHECK (one)
);

-- What sharers and link_counts hold. No row: nothing was counted yet. Not compared: counted from shares, which `weir recount --check` does.
CREATE TABLE count_state (
    one boolean DEFAULT true NOT NULL,
    as_of timestamp with time zone NOT NULL, -- The time at which the windows of link_counts end.
    kept_from timestamp with time zone NOT NULL, -- sharers has the accounts whose latest share is after this time.
    members_only boolean NOT NULL, -- Only accounts that a watch includes were counted.
    counted timestamp with time zone DEFAULT now() NOT NULL, -- When the counter last wrote.
    CONSTRAINT count_state_pkey PRIMARY KEY (one),
    CONSTRAINT count_state_one_check CHECK (one)
);

-- Events, records and jobs that could not be processed, with the cause. They are set aside so that the rest goes on. Not compared: how it went, not what is stored.
CREATE TABLE dead_letters (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    key bytea NOT NULL, -- sha256 over the stage, the input and its wire; of a job, over its kind and arguments. The same dead letter twice is one row.
    stage text NOT NULL, -- decode: the frame is not an event; verify: the event is not proven; commit: the event cannot be stored; process: the record cannot be projected; lexicon: it is invalid; rules: it breaks a hard rule; reference: a record that it requires cannot be had; job: the job ended without success.
    class text DEFAULT 'permanent'::text NOT NULL, -- permanent: a retry cannot help until something else changes; retryable: every retry of the job failed, or, of an event, it is retried by itself until it passes.
    state text DEFAULT 'open'::text NOT NULL, -- open; retrying: a retry was requested or is running; retried: the retry succeeded; dismissed: it stays dismissed even if it fails again.
    state_at timestamp with time zone,
    stream text,
    "position" bigint, -- Where the event is in its stream: the sequence number or, if the stream has none, the server's time in microseconds since 1970. NULL: unknown, or not an event of a stream.
    wire text DEFAULT ''::text NOT NULL, -- The format of raw: a retry needs the decoder of this name. Empty: the input came over no wire.
    collection text,
    did text,
    rkey text,
    kind text, -- Of a job: its kind.
    queue text, -- Of a job: its queue.
    projection text, -- Of a record that cannot be projected: the projection that fails. A retry goes through it.
    job bigint, -- The id of the failed job, or of the job that retries this dead letter. NULL while a retry is requested.
    cause text NOT NULL, -- Why it failed the first time, with path, expected and received if they are known.
    last_cause text DEFAULT ''::text NOT NULL, -- Why it failed the last time. Empty: it failed once.
    path text DEFAULT ''::text NOT NULL,
    expected text DEFAULT ''::text NOT NULL,
    received text DEFAULT ''::text NOT NULL,
    raw bytea NOT NULL, -- The input as it arrived, of a frame with many events an excerpt with one of them; of a job, its arguments. Only the beginning if raw_bytes is larger. Empty once the record or account is deleted.
    raw_bytes bigint NOT NULL,
    first_seen timestamp with time zone NOT NULL,
    last_seen timestamp with time zone NOT NULL,
    count bigint DEFAULT 1 NOT NULL, -- How often it failed.
    CONSTRAINT dead_letters_pkey PRIMARY KEY (id),
    CONSTRAINT dead_letters_key_key UNIQUE (key),
    CONSTRAINT dead_letters_class_check CHECK (class = ANY (ARRAY['permanent'::text, 'retryable'::text])),
    CONSTRAINT dead_letters_stage_check CHECK (stage = ANY (ARRAY['decode'::text, 'verify'::text, 'commit'::text, 'process'::text, 'lexicon'::text, 'rules'::text, 'reference'::text, 'job'::text])),
    CONSTRAINT dead_letters_state_check CHECK (state = ANY (ARRAY['open'::text, 'retrying'::text, 'retried'::text, 'dismissed'::text]))
);
CREATE INDEX dead_letters_job ON dead_letters USING btree (job) WHERE job IS NOT NULL;
CREATE INDEX dead_letters_large ON dead_letters USING btree (id) WHERE octet_length(raw) > 16384 AND class <> 'retryable'::text AND stage <> 'job'::text;
CREATE INDEX dead_letters_last_seen ON dead_letters USING btree (last_seen);
CREATE INDEX dead_letters_nameless ON dead_letters USING btree (id) WHERE did IS NULL AND stage <> 'job'::text;
CREATE INDEX dead_letters_projection ON dead_letters USING btree (projection) WHERE projection IS NOT NULL;
CREATE INDEX dead_letters_record ON dead_letters USING btree (did, collection, rkey) WHERE did IS NOT NULL;
CREATE INDEX dead_letters_retrying ON dead_letters USING btree (id) WHERE state = 'retrying'::text;
CREATE INDEX dead_letters_waiting ON dead_letters USING btree ((did ~~ 'did:plc:%'::text)) WHERE class = 'retryable'::text AND stage <> 'job'::text AND (state = ANY (ARRAY['open'::text, 'retrying'::text]));

-- Records that were deleted, until every segment of the archive has been compared with them. Tombstones expire sooner. Not compared: of the archive and its known events.
CREATE TABLE deleted_records (
    author bigint GENERATED ALWAYS AS (author_hash(did)) NOT NULL, -- See author_hash.
    did text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL,
    rev text COLLATE "C" NOT NULL, -- The record's text up to this revision must go.
    deleted_at timestamp with time zone NOT NULL, -- When the record was deleted, by the server's clock.
    at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT deleted_records_pkey PRIMARY KEY (author, did, collection, rkey)
);
CREATE INDEX deleted_records_at ON deleted_records USING btree (at);

-- Revisions of records that their authors let expire. The job delete_expired deletes those that are due, and the row. Not compared: what is left to do of expirations.
CREATE TABLE expirations (
    did text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL,
    rev text COLLATE "C" NOT NULL, -- The latest revision that expires. A newer revision without an expiration stays.
    expires_at timestamp with time zone NOT NULL, -- When it is deleted, by the author's word.
    CONSTRAINT expirations_pkey PRIMARY KEY (did, collection, rkey)
) WITH (autovacuum_vacuum_scale_factor=0.05);
CREATE INDEX expirations_expires_at ON expirations USING btree (expires_at);

-- The links that a feed has published: the newest 2,000. They keep their ids and dates whatever is deleted or merged afterwards. Not compared: what readers asked for.
CREATE TABLE feed_entries (
    feed_id bigint NOT NULL,
    link_id bigint NOT NULL, -- The link whose id readers have seen. It may be merged into another since, or have expired.
    reached_at timestamp with time zone NOT NULL, -- The date of the share with which the link reached the minimum.
    CONSTRAINT feed_entries_pkey PRIMARY KEY (feed_id, link_id),
    CONSTRAINT feed_entries_feed_id_fkey FOREIGN KEY (feed_id) REFERENCES feeds(id) ON DELETE CASCADE
);

-- Feeds that remember what they published: those whose shares are counted in the same way share a row. One that nobody asks for makes room for others. Not compared: what readers asked for.
CREATE TABLE feeds (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    hash bytea NOT NULL, -- Of the view, which may be too long for an index.
    view text NOT NULL, -- Whose shares count, of which kind, and how many a link needs.
    usual boolean NOT NULL, -- It differs from others by its watch only. There are as many of these as watches; the number of the others is limited.
    asked_at timestamp with time zone NOT NULL, -- When it was last computed.
    CONSTRAINT feeds_pkey PRIMARY KEY (id),
    CONSTRAINT feeds_hash_key UNIQUE (hash)
) WITH (fillfactor=50);

-- Every followed account, once.
CREATE VIEW follows AS
 SELECT w.did,
    COALESCE(a.handle, ''::text) AS handle,
    a.display_name,
    min(w.added_at) AS added_at,
    max(s.synced_at) AS last_seen_at,
    a.feed_read_at IS NOT NULL AS backfill_completed
   FROM watch_members w
     JOIN watches s ON s.id = w.watch_id
     LEFT JOIN accounts a ON a.did = w.did
  GROUP BY w.did, a.handle, a.display_name, a.feed_read_at;

-- Accounts that the archive must forget. Lists of them are in its store. Not compared: of the archive and its known events.
CREATE TABLE forgotten (
    did text COLLATE "C" NOT NULL,
    author bigint GENERATED ALWAYS AS (author_hash(did)) NOT NULL, -- See author_hash.
    until timestamp with time zone NOT NULL, -- What servers sent up to then is forgotten: when they sent the deletion. What came later belongs to an account that came back.
    reason text NOT NULL, -- deleted: the account was deleted. erased: its author demanded that everything vanishes.
    at timestamp with time zone DEFAULT now() NOT NULL,
    listed_at timestamp with time zone, -- When a list with it was read back from the store. NULL: not yet, and the account's purge is not finished.
    CONSTRAINT forgotten_pkey PRIMARY KEY (did)
);
CREATE INDEX forgotten_author ON forgotten USING btree (author);
CREATE INDEX forgotten_unlisted ON forgotten USING btree (at) WHERE listed_at IS NULL;

-- The accounts that must still be compared with their repositories before a gap closes. Not compared: how far streams, listings and repositories were read.
CREATE TABLE gap_backfills (
    gap_id bigint NOT NULL,
    did text COLLATE "C" NOT NULL,
    CONSTRAINT gap_backfills_pkey PRIMARY KEY (did, gap_id),
    CONSTRAINT gap_backfills_gap_id_fkey FOREIGN KEY (gap_id) REFERENCES gaps(id) ON DELETE CASCADE
);
CREATE INDEX gap_backfills_gap ON gap_backfills USING btree (gap_id);

-- Intervals that a stream may have missed, because a resume could not be shown to cover them. Not compared: how far streams, listings and repositories were read.
CREATE TABLE gaps (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    stream text NOT NULL,
    from_at timestamp with time zone NOT NULL,
    to_at timestamp with time zone NOT NULL,
    reason text NOT NULL, -- Why the interval may have been missed.
    opened_at timestamp with time zone NOT NULL,
    accounts integer DEFAULT 0 NOT NULL, -- How many accounts must be compared with their repositories before the gap closes. Those in checked and unchecked are done.
    checked integer DEFAULT 0 NOT NULL, -- How many of these accounts were compared.
    unchecked integer DEFAULT 0 NOT NULL, -- How many of these accounts could not be compared. They are read when that becomes possible.
    later integer DEFAULT 0 NOT NULL, -- How many other accounts were not active. They are read when they become active.
    problem text DEFAULT ''::text NOT NULL, -- Why the gap cannot be closed and stays open until somebody accepts it. Empty: it can be closed.
    closed_at timestamp with time zone,
    how_closed text, -- What closed the gap, in words.
    CONSTRAINT gaps_pkey PRIMARY KEY (id),
    CONSTRAINT gaps_stream_from_at_to_at_key UNIQUE (stream, from_at, to_at),
    CONSTRAINT gaps_check CHECK (to_at > from_at)
);
CREATE INDEX gaps_closed ON gaps USING btree (closed_at) WHERE closed_at IS NOT NULL;
CREATE INDEX gaps_open ON gaps USING btree (stream, from_at) WHERE closed_at IS NULL;
CREATE TRIGGER gap_opened AFTER INSERT ON gaps FOR EACH ROW WHEN (new.problem = ''::text) EXECUTE FUNCTION close_gap();

-- The collections whose past is read, or was: entries of WEIR_COLLECTIONS, or collections under one. Deleting a row has a collection that is kept for ever read again. Not compared: how far streams, listings and repositories were read.
CREATE TABLE histories (
    collection text COLLATE "C" NOT NULL,
    reason text NOT NULL, -- new: WEIR_COLLECTIONS names it, and keeps it for ever; requested: somebody asked for it.
    requested_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    run integer DEFAULT 1 NOT NULL, -- How often it was requested. Each run reads every account again.
    began_at timestamp with time zone, -- When this run began. NULL: no stream stores the collection yet.
    completed_at timestamp with time zone, -- When every account had been read, except those that cannot be. NULL: not yet.
    cancelled_at timestamp with time zone, -- When the run was cancelled. A request continues it.
    accounts bigint DEFAULT 0 NOT NULL, -- The accounts of this run so far. done of them are read to the end or to the limit, unread cannot be read for now, and the others wait.
    done bigint DEFAULT 0 NOT NULL,
    unread bigint DEFAULT 0 NOT NULL,
    limited bigint DEFAULT 0 NOT NULL, -- How many of done reached the limit of an account: older records of them are not stored.
    records bigint DEFAULT 0 NOT NULL, -- The records of the accounts in done, whether this run stored them or the stream had.
    bytes bigint DEFAULT 0 NOT NULL, -- The JSON of these records, in bytes.
    problem text DEFAULT ''::text NOT NULL, -- Why it does not advance. Empty: it does, or is complete.
    CONSTRAINT histories_pkey PRIMARY KEY (collection),
    CONSTRAINT histories_collection_check CHECK (collection <> ''::text),
    CONSTRAINT histories_reason_check CHECK (reason = ANY (ARRAY['new'::text, 'requested'::text]))
);

-- The accounts of each history, and how far each has been read. Not compared: how far streams, listings and repositories were read.
CREATE TABLE history_accounts (
    collection text COLLATE "C" NOT NULL,
    did text COLLATE "C" NOT NULL,
    run integer NOT NULL,
    state text DEFAULT 'waiting'::text NOT NULL, -- waiting; done: read to the end or to the limit; unread: it cannot be read for now, and problem says why.
    "position" jsonb, -- The position in the account's repository. NULL: nothing has been read in this run.
    records bigint DEFAULT 0 NOT NULL, -- The records read so far. An account that reaches the limit has only its newest ones.
    bytes bigint DEFAULT 0 NOT NULL, -- The JSON of these records, in bytes.
    limited boolean DEFAULT false NOT NULL, -- It reached WEIR_HISTORY_RECORDS or WEIR_HISTORY_BYTES: older records are not stored.
    tries integer DEFAULT 0 NOT NULL, -- How often it could not be read.
    retry_at timestamp with time zone, -- When an unread account is tried again, if it is active. NULL: not again in this run.
    read_at timestamp with time zone,
    problem text DEFAULT ''::text NOT NULL,
    CONSTRAINT history_accounts_pkey PRIMARY KEY (collection, did),
    CONSTRAINT history_accounts_collection_fkey FOREIGN KEY (collection) REFERENCES histories(collection) ON DELETE CASCADE,
    CONSTRAINT history_accounts_state_check CHECK (state = ANY (ARRAY['waiting'::text, 'done'::text, 'unread'::text]))
);
CREATE INDEX history_accounts_limited ON history_accounts USING btree (collection, did) WHERE limited;
CREATE INDEX history_accounts_retry ON history_accounts USING btree (retry_at) WHERE state = 'unread'::text AND retry_at IS NOT NULL;
CREATE INDEX history_accounts_waiting ON history_accounts USING btree (did) WHERE state = 'waiting'::text;

-- Where the whole network is followed: how far relays have named the accounts that have records in a collection. Not compared: how far streams, listings and repositories were read.
CREATE TABLE history_listings (
    collection text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL, -- The collection that relays are asked for. A prefix has a listing for each name under it that is known. Of kinds of Nostr: the stream of the relay that is asked for the events; the cursor is then the date, in seconds, at which the rest begins, and seen counts events.
    run integer NOT NULL, -- The run of the history that it belongs to.
    host text DEFAULT ''::text NOT NULL, -- The relay that gave the cursor. The cursor means nothing on another one.
    cursor text DEFAULT ''::text NOT NULL,
    pages bigint DEFAULT 0 NOT NULL,
    seen bigint DEFAULT 0 NOT NULL, -- How many accounts the pages have named so far. Many more than there are accounts: the relay repeats itself.
    tries integer DEFAULT 0 NOT NULL, -- Failed tries in a row. After some of them another relay is asked.
    retry_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    problem text DEFAULT ''::text NOT NULL,
    CONSTRAINT history_listings_pkey PRIMARY KEY (collection, name),
    CONSTRAINT history_listings_collection_fkey FOREIGN KEY (collection) REFERENCES histories(collection) ON DELETE CASCADE
);

-- A random key, made once. The ids in feeds are derived from it: with another key, every feed reader would show every link again. Not compared: of the program and its configuration.
CREATE TABLE instance_key (
    one boolean DEFAULT true NOT NULL,
    key bytea NOT NULL,
    made_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT instance_key_pkey PRIMARY KEY (one),
    CONSTRAINT instance_key_one_check CHECK (one)
);

-- The shares, and why each does not count, whatever the window and the other shares of its account are. NULL: it counts.
CREATE VIEW judged_shares AS
 SELECT s.did,
    s.collection,
    s.rkey,
    s.link_id,
    s.named_id,
    s.how,
    s.shared_at,
    s.stored_at,
    s.claim_id,
    s.subject_did,
    s.subject_rkey,
    s.gift,
    s.words,
    s.subject_collection,
    s.copied,
    COALESCE(
        CASE
            WHEN (s.link_id IN ( SELECT b.link_id
               FROM blocked_links b)) THEN 'blocked'::text
            ELSE NULL::text
        END, u.why,
        CASE
            WHEN ( SELECT b.status <> 'active'::text
               FROM accounts b
              WHERE b.did = s.subject_did) THEN 'subject_hidden'::text
            WHEN s.subject_did IS NOT NULL AND NOT (EXISTS ( SELECT
               FROM subjects u_1
              WHERE u_1.did = s.subject_did AND u_1.collection = s.subject_collection AND u_1.rkey = s.subject_rkey AND (s.named_id = ANY (u_1.links)))) THEN 'subject_gone'::text
            WHEN s.copied AND (EXISTS ( SELECT
               FROM copies c
                 CROSS JOIN LATERAL ( SELECT
                       FROM shares o_1
                      WHERE o_1.did = c.of_did AND o_1.collection = c.of_collection AND o_1.rkey = c.of_rkey AND o_1.link_id = s.link_id
                     OFFSET 0) o
              WHERE c.did = s.did AND c.collection = s.collection AND c.rkey = s.rkey)) THEN 'copy'::text
            ELSE NULL::text
        END) AS why
   FROM shares s
     CROSS JOIN LATERAL why_uncounted(s.did) u(why);

-- Links of a partition of shares that expiry is about to drop, if enough accounts share them to keep them. Once the partition is gone, they are marked in links. Not compared: counted from shares, which `weir recount --check` does.
CREATE TABLE leaving_links (
    part oid NOT NULL, -- The partition. Its name could be used again.
    link_id bigint NOT NULL,
    sharers integer NOT NULL,
    counted timestamp with time zone NOT NULL,
    CONSTRAINT leaving_links_pkey PRIMARY KEY (part, link_id)
);

-- The schemas that records are compared with. Every process uses exactly these, and notices a change with the next records that it judges. Not compared: what servers said, who are asked again.
CREATE TABLE lexicons (
    nsid text COLLATE "C" NOT NULL,
    document jsonb NOT NULL, -- The schema file.
    hash text NOT NULL, -- SHA-256 of the document. The verdicts name another hash, which covers the definitions in other documents too.
    source text NOT NULL, -- folder: from WEIR_LEXICONS; resolved: published by the authority of the name. A file in the folder wins.
    authority text COLLATE "C", -- The account that published a resolved schema.
    loaded_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL, -- When this document was stored.
    CONSTRAINT lexicons_pkey PRIMARY KEY (nsid),
    CONSTRAINT lexicons_source_check CHECK (source = ANY (ARRAY['folder'::text, 'resolved'::text]))
);
CREATE TRIGGER lexicon_changed AFTER INSERT OR DELETE OR UPDATE ON lexicons FOR EACH ROW EXECUTE FUNCTION lexicon_changed();

-- How many accounts share each link in each window, as of count_state.as_of. Links with one sharer have no row. Only the counter writes here. Not compared: counted from shares, which `weir recount --check` does.
CREATE TABLE link_counts (
    link_id bigint NOT NULL,
    last_at timestamp with time zone NOT NULL, -- The latest share of the link.
    sharers integer NOT NULL, -- The rows of the link in sharers.
    in_1h integer NOT NULL,
    in_3h integer NOT NULL,
    in_6h integer NOT NULL,
    in_12h integer NOT NULL,
    in_24h integer NOT NULL,
    in_7d integer NOT NULL,
    speed integer GENERATED ALWAYS AS (24 * in_1h + 8 * in_3h + 4 * in_6h + 2 * in_12h + in_24h) NOT NULL, -- Sharers per hour with decay, times 120: the mean of the hourly rates of the windows of 1, 3, 6, 12 and 24 h.
    level_1h smallint GENERATED ALWAYS AS (width_bucket(in_1h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}'::integer[])) NOT NULL, -- The order of magnitude of in_1h; 1 and more: at least 2 sharers. It is indexed instead of the number, which changes with every share: most updates then write no index.
    level_3h smallint GENERATED ALWAYS AS (width_bucket(in_3h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}'::integer[])) NOT NULL,
    level_6h smallint GENERATED ALWAYS AS (width_bucket(in_6h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}'::integer[])) NOT NULL,
    level_12h smallint GENERATED ALWAYS AS (width_bucket(in_12h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}'::integer[])) NOT NULL,
    level_24h smallint GENERATED ALWAYS AS (width_bucket(in_24h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}'::integer[])) NOT NULL,
    level_7d smallint GENERATED ALWAYS AS (width_bucket(in_7d, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}'::integer[])) NOT NULL,
    level_speed smallint GENERATED ALWAYS AS (
CASE
    WHEN in_24h >= 2 THEN width_bucket(24 * in_1h + 8 * in_3h + 4 * in_6h + 2 * in_12h + in_24h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}'::integer[])
    ELSE 0
END) NOT NULL, -- The order of magnitude of the speed; 0: fewer than 2 sharers in 24 h.
    CONSTRAINT link_counts_pkey PRIMARY KEY (link_id),
    CONSTRAINT link_counts_check CHECK (in_3h >= in_1h),
    CONSTRAINT link_counts_check1 CHECK (in_6h >= in_3h),
    CONSTRAINT link_counts_check2 CHECK (in_12h >= in_6h),
    CONSTRAINT link_counts_check3 CHECK (in_24h >= in_12h),
    CONSTRAINT link_counts_check4 CHECK (in_7d >= in_24h AND in_7d <= sharers),
    CONSTRAINT link_counts_in_1h_check CHECK (in_1h >= 0),
    CONSTRAINT link_counts_sharers_check CHECK (sharers >= 2)
) WITH (autovacuum_vacuum_scale_factor=0.1, fillfactor=70);
CREATE INDEX link_counts_12h ON link_counts USING btree (level_12h) WHERE level_12h >= 1;
CREATE INDEX link_counts_1h ON link_counts USING btree (level_1h) WHERE level_1h >= 1;
CREATE INDEX link_counts_24h ON link_counts USING btree (level_24h) WHERE level_24h >= 1;
CREATE INDEX link_counts_3h ON link_counts USING btree (level_3h) WHERE level_3h >= 1;
CREATE INDEX link_counts_6h ON link_counts USING btree (level_6h) WHERE level_6h >= 1;
CREATE INDEX link_counts_7d ON link_counts USING btree (level_7d) WHERE level_7d >= 1;
CREATE INDEX link_counts_speed ON link_counts USING btree (level_speed) WHERE level_speed >= 1;

-- Which links were merged into which, when and why. A link may be merged into one that is merged itself: links.merged_into is the last of them.
CREATE TABLE link_merges (
    link_id bigint NOT NULL,
    into_id bigint NOT NULL,
    why text NOT NULL, -- redirect: its redirects lead to the other; canonical: its page calls the other its own address; by hand: by weir link merge.
    merged_at timestamp with time zone NOT NULL,
    split_at timestamp with time zone, -- When the merge was undone: by weir link split, or because more than three links of a host ended there. Only a person merges the link again. NULL: it is in force.
    CONSTRAINT link_merges_pkey PRIMARY KEY (link_id),
    CONSTRAINT link_merges_into_id_fkey FOREIGN KEY (into_id) REFERENCES links(id) ON DELETE CASCADE,
    CONSTRAINT link_merges_link_id_fkey FOREIGN KEY (link_id) REFERENCES links(id) ON DELETE CASCADE,
    CONSTRAINT link_merges_check CHECK (into_id <> link_id),
    CONSTRAINT link_merges_why_check CHECK (why = ANY (ARRAY['redirect'::text, 'canonical'::text, 'by hand'::text]))
);
CREATE INDEX link_merges_into ON link_merges USING btree (into_id);

-- Every stored share, with its account and whether it counts in the ranking of seven days. Name a link: WHERE link_id = 17.
CREATE VIEW link_shares AS
 SELECT s.link_id,
    l.url,
    s.did,
        CASE
            WHEN a.status = 'active'::text AND NOT a.handle_unverified THEN NULLIF(a.handle, ''::text)
            ELSE NULL::text
        END AS handle,
        CASE
            WHEN COALESCE(a.status, 'active'::text) = 'active'::text THEN a.display_name
            ELSE NULL::text
        END AS display_name,
    s.how,
    s.shared_at,
    (((('at://'::text || s.did) || '/'::text) || s.collection) || '/'::text) || s.rkey AS uri,
    (((('at://'::text || s.subject_did) || '/'::text) || s.subject_collection) || '/'::text) || s.subject_rkey AS subject,
        CASE
            WHEN (y.why <> ALL (ARRAY['hidden'::text, 'subject_hidden'::text])) OR y.why IS NULL THEN ( SELECT COALESCE(r.record ->> 'text'::text, r.record ->> 'content'::text) AS "coalesce"
               FROM records r
              WHERE r.collection =
                    CASE s.how
                        WHEN 'repost'::text THEN s.subject_collection
                        ELSE s.collection
                    END AND r.did =
                    CASE s.how
                        WHEN 'repost'::text THEN s.subject_did
                        ELSE s.did
                    END AND r.rkey =
                    CASE s.how
                        WHEN 'repost'::text THEN s.subject_rkey
                        ELSE s.rkey
                    END)
            ELSE NULL::text
        END AS text,
    y.why IS NULL AS counts,
    y.why,
    n.url AS named
   FROM judged_shares s
     JOIN links l ON l.id = s.link_id
     JOIN links n ON n.id = s.named_id
     LEFT JOIN accounts a ON a.did = s.did
     CROSS JOIN LATERAL ( SELECT COALESCE(s.why,
                CASE
                    WHEN s.shared_at <= (now() - '7 days'::interval) THEN 'outside_window'::text
                    WHEN (EXISTS ( SELECT
                       FROM judged_shares n_1
                      WHERE n_1.did = s.did AND n_1.link_id = s.link_id AND n_1.why IS NULL AND ((ROW(n_1.shared_at, n_1.collection, n_1.rkey, n_1.named_id) > ROW(s.shared_at, s.collection, s.rkey, s.named_id))))) THEN 'same_person'::text
                    ELSE NULL::text
                END) AS why) y;
COMMENT ON COLUMN link_shares.handle IS 'Of an active account, if it is verified.';
COMMENT ON COLUMN link_shares.named IS 'The URL of the link that the record names: not that of the link if the two are merged.';
COMMENT ON COLUMN link_shares.subject IS 'The AT-URI of the record that is quoted or reposted.';
COMMENT ON COLUMN link_shares.text IS 'The text of the post, or of the one that is reposted, while it is stored.';
COMMENT ON COLUMN link_shares.uri IS 'The AT-URI of the record.';
COMMENT ON COLUMN link_shares.why IS 'Why the share does not count; NULL: it counts. blocked: the link is; not_recommended: the account does not want to be recommended, and nobody follows it; hidden: the account is not active; not_followed: no watch includes it; subject_hidden: the author of the subject is not active; subject_gone: the subject no longer contains the link; copy: the record is a copy of one that shares the link too; outside_window: older than seven days; same_person: the account shared the link again later.';

-- Every shared article, under its identity, with the spelling and the card that most sharers give. Workers add the row; the counter writes the spelling and the card.
CREATE TABLE links (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    identity text COLLATE "C" NOT NULL, -- The same for all spellings of one article. It is no URL.
    url text COLLATE "C" NOT NULL, -- The spelling that is shown: a normalised URL.
    site text NOT NULL, -- The host of that URL, as the page shows it.
    title text DEFAULT ''::text NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    image text DEFAULT ''::text NOT NULL, -- blob:<did>/<cid>, the picture that a poster uploaded with the card.
    card_from text DEFAULT ''::text NOT NULL, -- Where the title is from: the AT-URI of a post, or the address of the page itself. Empty: there is no card.
    first_seen timestamp with time zone NOT NULL,
    kept_sharers integer, -- The largest number of accounts that shared it when some of its shares expired, if they were enough to keep the link. NULL: they never were.
    kept_at timestamp with time zone, -- When that last happened. The link stays for the retention of links since then, also without shares.
    merged_into bigint, -- The link that counts in place of this one, as link_merges says. It is merged into none itself. NULL: this link counts itself.
    counts_as bigint GENERATED ALWAYS AS (COALESCE(merged_into, id)) NOT NULL, -- The link under which the shares of this one count: merged_into, or the link itself.
    CONSTRAINT links_pkey PRIMARY KEY (id),
    CONSTRAINT links_id_counts_as_key UNIQUE (id, counts_as),
    CONSTRAINT links_identity_key UNIQUE (identity),
    CONSTRAINT links_merged_into_fkey FOREIGN KEY (merged_into) REFERENCES links(id) ON DELETE CASCADE,
    CONSTRAINT links_check CHECK (merged_into <> id),
    CONSTRAINT links_check1 CHECK ((kept_sharers IS NULL) = (kept_at IS NULL)),
    CONSTRAINT links_identity_check CHECK (octet_length(identity) <= 2048),
    CONSTRAINT links_kept_sharers_check CHECK (kept_sharers > 0),
    CONSTRAINT links_url_check CHECK (octet_length(url) <= 2048)
) WITH (autovacuum_vacuum_scale_factor=0.1, fillfactor=60);
CREATE INDEX links_address ON links USING gin (identity gin_trgm_ops) WITH (gin_pending_list_limit='1024');
CREATE INDEX links_merged ON links USING btree (id) INCLUDE (counts_as) WHERE counts_as <> id;
CREATE INDEX links_merged_into ON links USING btree (merged_into) WHERE merged_into IS NOT NULL;
CREATE INDEX links_page ON links USING btree ("substring"(split_part(identity, '?'::text, 1), '[^/]*$'::text), site) WHERE "substring"(split_part(identity, '?'::text, 1), '[^/]*$'::text) ~ '[0-9]{5}|[^-]-[^-]+-[^-]+-[^-]'::text;
CREATE INDEX links_site ON links USING btree (site);

-- The accounts that a sync_follows job has read so far. Nobody is followed or unfollowed before the listing ends. Not compared: how far streams, listings and repositories were read.
CREATE TABLE listing_members (
    job_id bigint NOT NULL,
    degree integer NOT NULL, -- 1: accounts in the watch's own listing; 2: accounts that those follow; 0: members that are in neither, and were looked up.
    did text COLLATE "C" NOT NULL,
    handle text NOT NULL,
    display_name text NOT NULL,
    avatar text NOT NULL,
    withheld boolean DEFAULT false NOT NULL,
    times integer DEFAULT 1 NOT NULL, -- Of degree 2: how many accounts of degree 1 follow it. Of degree 0: 1 if the network shows the account, so that it is no longer a member; 0 if it is hidden.
    last_by text COLLATE "C" NOT NULL, -- Of degree 2: the follower that was counted last, so that nobody is counted twice.
    CONSTRAINT listing_members_pkey PRIMARY KEY (job_id, degree, did),
    CONSTRAINT listing_members_degree_check CHECK (degree >= 0 AND degree <= 2)
);

-- Intervals that are read from the archive of a Jetstream server, for a gap or on request. Not compared: how far streams, listings and repositories were read.
CREATE TABLE network_backfills (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    gap_id bigint, -- The gap that is closed when the interval has been read. NULL: somebody requested the interval.
    from_at timestamp with time zone NOT NULL, -- The interval is of the times at which the server saw the events.
    to_at timestamp with time zone NOT NULL,
    collections text[] DEFAULT '{}'::text[] NOT NULL, -- The collections to read: names and prefixes. Empty: all that are stored.
    requested_at timestamp with time zone DEFAULT now() NOT NULL,
    read_to timestamp with time zone, -- All events before this time are stored. NULL: nothing has been read.
    host text DEFAULT ''::text NOT NULL,
    events bigint DEFAULT 0 NOT NULL, -- How many events have been read. A repeated job counts some of them twice.
    records bigint DEFAULT 0 NOT NULL, -- How many records they changed.
    problem text DEFAULT ''::text NOT NULL, -- Why nothing is read for now. Of a completed one, why it is not complete.
    unread_since timestamp with time zone, -- Since when the archive could not be read: the next attempt comes after as long again. NULL: it could be read.
    completed_at timestamp with time zone,
    cancelled_at timestamp with time zone,
    CONSTRAINT network_backfills_pkey PRIMARY KEY (id),
    CONSTRAINT network_backfills_gap_id_key UNIQUE (gap_id),
    CONSTRAINT network_backfills_gap_id_fkey FOREIGN KEY (gap_id) REFERENCES gaps(id) ON DELETE CASCADE,
    CONSTRAINT network_backfills_check CHECK (to_at > from_at)
);
CREATE INDEX network_backfills_open ON network_backfills USING btree (id) WHERE completed_at IS NULL AND cancelled_at IS NULL;

-- Accounts of Nostr that are watched, or whose follows are. Relays bring the same lists in any order and age: only a newer revision changes anything. Not compared: what servers said, who are asked again.
CREATE TABLE nostr_authors (
    did text COLLATE "C" NOT NULL,
    follows_rev text COLLATE "C" DEFAULT ''::text NOT NULL, -- The revision of the follow list (kind 3) that was read last. An older one never changes the members of a watch.
    profile_rev text COLLATE "C" DEFAULT ''::text NOT NULL, -- The revision of the profile (kind 0) whose name and picture accounts has.
    name text DEFAULT ''::text NOT NULL, -- The name by NIP-05 that the profile claims: name@domain. It is the handle in accounts once the domain has confirmed it.
    name_at timestamp with time zone, -- When the domain was last asked. NULL: never.
    relays_rev text COLLATE "C" DEFAULT ''::text NOT NULL,
    relays text[] DEFAULT '{}'::text[] NOT NULL, -- The relays that the account writes to (kind 10002, NIP-65) or, before it was read, those that the watch names.
    read_at timestamp with time zone, -- When profile and relays were last asked for. NULL: never.
    CONSTRAINT nostr_authors_pkey PRIMARY KEY (did)
);
CREATE INDEX nostr_authors_read_at ON nostr_authors USING btree (read_at NULLS FIRST);

-- What link_counts is, of the accounts of Nostr alone. A link that one of them shares has no row. Only the counter writes here. Not compared: counted from shares, which `weir recount --check` does.
CREATE TABLE nostr_counts (
    link_id bigint NOT NULL,
    last_at timestamp with time zone NOT NULL, -- The latest share of the link.
    sharers integer NOT NULL, -- The rows of the link in sharers.
    in_1h integer NOT NULL,
    in_3h integer NOT NULL,
    in_6h integer NOT NULL,
    in_12h integer NOT NULL,
    in_24h integer NOT NULL,
    in_7d integer NOT NULL,
    speed integer GENERATED ALWAYS AS (24 * in_1h + 8 * in_3h + 4 * in_6h + 2 * in_12h + in_24h) NOT NULL, -- Sharers per hour with decay, times 120: the mean of the hourly rates of the windows of 1, 3, 6, 12 and 24 h.
    level_1h smallint GENERATED ALWAYS AS (width_bucket(in_1h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}'::integer[])) NOT NULL, -- The order of magnitude of in_1h; 1 and more: at least 2 sharers. It is indexed instead of the number, which changes with every share: most updates then write no index.
    level_3h smallint GENERATED ALWAYS AS (width_bucket(in_3h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}'::integer[])) NOT NULL,
    level_6h smallint GENERATED ALWAYS AS (width_bucket(in_6h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}'::integer[])) NOT NULL,
    level_12h smallint GENERATED ALWAYS AS (width_bucket(in_12h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}'::integer[])) NOT NULL,
    level_24h smallint GENERATED ALWAYS AS (width_bucket(in_24h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}'::integer[])) NOT NULL,
    level_7d smallint GENERATED ALWAYS AS (width_bucket(in_7d, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}'::integer[])) NOT NULL,
    level_speed smallint GENERATED ALWAYS AS (
CASE
    WHEN in_24h >= 2 THEN width_bucket(24 * in_1h + 8 * in_3h + 4 * in_6h + 2 * in_12h + in_24h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}'::integer[])
    ELSE 0
END) NOT NULL, -- The order of magnitude of the speed; 0: fewer than 2 sharers in 24 h.
    CONSTRAINT nostr_counts_pkey PRIMARY KEY (link_id),
    CONSTRAINT link_counts_check CHECK (in_3h >= in_1h),
    CONSTRAINT link_counts_check1 CHECK (in_6h >= in_3h),
    CONSTRAINT link_counts_check2 CHECK (in_12h >= in_6h),
    CONSTRAINT link_counts_check3 CHECK (in_24h >= in_12h),
    CONSTRAINT link_counts_check4 CHECK (in_7d >= in_24h AND in_7d <= sharers),
    CONSTRAINT link_counts_in_1h_check CHECK (in_1h >= 0),
    CONSTRAINT link_counts_sharers_check CHECK (sharers >= 2)
) WITH (autovacuum_vacuum_scale_factor=0.1, fillfactor=70);
CREATE INDEX nostr_counts_level_12h_idx ON nostr_counts USING btree (level_12h) WHERE level_12h >= 1;
CREATE INDEX nostr_counts_level_1h_idx ON nostr_counts USING btree (level_1h) WHERE level_1h >= 1;
CREATE INDEX nostr_counts_level_24h_idx ON nostr_counts USING btree (level_24h) WHERE level_24h >= 1;
CREATE INDEX nostr_counts_level_3h_idx ON nostr_counts USING btree (level_3h) WHERE level_3h >= 1;
CREATE INDEX nostr_counts_level_6h_idx ON nostr_counts USING btree (level_6h) WHERE level_6h >= 1;
CREATE INDEX nostr_counts_level_7d_idx ON nostr_counts USING btree (level_7d) WHERE level_7d >= 1;
CREATE INDEX nostr_counts_level_speed_idx ON nostr_counts USING btree (level_speed) WHERE level_speed >= 1;

-- Relays that followed accounts name, and WEIR_NOSTR does not: they are asked now and then. Not compared: what servers said, who are asked again.
CREATE TABLE nostr_relays (
    url text COLLATE "C" NOT NULL,
    read_to timestamp with time zone, -- What the accounts that name the relay wrote until then was read, by the database's clock. NULL: it was never read.
    next_at timestamp with time zone NOT NULL, -- When the relay is asked next. A relay that fails is asked less often.
    failures integer DEFAULT 0 NOT NULL, -- How often in a row it could not be read.
    problem text DEFAULT ''::text NOT NULL, -- Why it could not be read the last time. Empty: it could.
    chosen boolean DEFAULT true NOT NULL, -- Whether the relay is among those that are asked. Others keep what is known of them as long as a followed account names them.
    CONSTRAINT nostr_relays_pkey PRIMARY KEY (url)
);

-- Records that require a record which is not stored. Nothing is derived from them until it comes, however late. Not compared: made from records, which are compared.
CREATE TABLE parked (
    collection text COLLATE "C" NOT NULL,
    did text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL,
    to_collection text COLLATE "C" NOT NULL, -- The record that it waits for, with to_did and to_rkey.
    to_did text COLLATE "C" NOT NULL,
    to_rkey text COLLATE "C" NOT NULL,
    since timestamp with time zone DEFAULT now() NOT NULL, -- When the record began to wait for it.
    attempts integer DEFAULT 0 NOT NULL, -- How often the target was looked for since.
    retry_at timestamp with time zone, -- When it is looked for next. NULL: never; its arrival releases the record.
    state text DEFAULT 'waiting'::text NOT NULL, -- waiting: it may come any moment; asking: the server of its account is asked for it; missing: the server has none, or gave no answer, and the record is a dead letter.
    problem text DEFAULT ''::text NOT NULL, -- What the server said.
    CONSTRAINT parked_pkey PRIMARY KEY (did, collection, rkey, to_did, to_collection, to_rkey),
    CONSTRAINT parked_state_check CHECK (state = ANY (ARRAY['waiting'::text, 'asking'::text, 'missing'::text]))
) WITH (autovacuum_vacuum_scale_factor=0.05);
CREATE INDEX parked_due ON parked USING btree (retry_at) WHERE state = 'waiting'::text;
CREATE INDEX parked_for ON parked USING btree (to_did, to_collection, to_rkey, did, collection, rkey);

-- The partitions of posts and shares, with the time and the range of rkeys that each holds. ahead: it holds the time after the last one. The default partitions are left out.
CREATE VIEW partitions AS
 SELECT p.relname::text AS parent,
    c.relname::text AS part,
    tid_time(b.lower) AS begins,
    tid_time(b.upper) AS ends,
    b.lower,
    b.upper,
    c.relname = (p.relname::text || '_ahead'::text) AS ahead
   FROM pg_partitioned_table t
     JOIN pg_class p ON p.oid = t.partrelid
     JOIN pg_inherits i ON i.inhparent = p.oid
     JOIN pg_class c ON c.oid = i.inhrelid
     CROSS JOIN LATERAL pg_get_expr(c.relpartbound, 0::oid) bound(bound)
     CROSS JOIN LATERAL ( SELECT "substring"(bound.bound, 'FROM \(''([^'']*)''\)'::text) COLLATE "C" AS lower,
            "substring"(bound.bound, 'TO \(''([^'']*)''\)'::text) COLLATE "C" AS upper) b
  WHERE t.partstrat = 'r'::"char" AND pg_table_is_visible(p.oid) AND b.lower IS NOT NULL AND b.upper IS NOT NULL;

-- Until when a shortener wants to be left alone. New links of it wait as long; those that were due have been put off. Not compared: what servers said, who are asked again.
CREATE TABLE paused_shorteners (
    site text NOT NULL,
    until timestamp with time zone NOT NULL,
    CONSTRAINT paused_shorteners_pkey PRIMARY KEY (site)
);

-- What has changed in shares, or decides who counts, since it was last counted. Only appended to; the counter deletes what it has counted. Not compared: counted from shares, which `weir recount --check` does.
CREATE TABLE pending_counts (
    link_id bigint, -- The link of the share that changed. NULL: every link that the account shares.
    did text COLLATE "C", -- The account of the share that changed. NULL: everyone who shares the link. All columns NULL: count everything again.
    subject_did text COLLATE "C", -- The author of a record, named with subject_rkey, that others repost, quote or copy: what they share through it, and the shares of its copies, may count again, or no longer.
    subject_rkey text COLLATE "C"
) WITH (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_insert_scale_factor=0);

-- Which accounts are not shown to strangers: their names, handles, pictures and texts are left out, and their shares count. An account without a row is shown. Not compared: what servers said, who are asked again.
CREATE TABLE profiles (
    did text COLLATE "C" NOT NULL,
    read_at timestamp with time zone, -- When the profile was last read. NULL: not yet.
    withheld boolean DEFAULT true NOT NULL, -- The account has put the label !no-unauthenticated on its profile, or its profile could not be read yet.
    named_at timestamp with time zone, -- When the names of the account were last read, for a page that shows it. NULL: never.
    CONSTRAINT profiles_pkey PRIMARY KEY (did)
);
CREATE INDEX profiles_read_at ON profiles USING btree (read_at NULLS FIRST);

-- Subjects whose links are those of their own shares: their posts are stored, or have expired. The others are fetched from the AppView and may never have been stored, so audits do not compare them.
CREATE VIEW projected_subjects AS
 SELECT did,
    collection,
    rkey,
    links
   FROM subjects
  WHERE fetched_at IS NULL AND fetch_at IS NULL;

-- The projections of this database, as the last process started registered them. A process whose binary lacks one refuses to start. Not compared: of the program and its configuration.
CREATE TABLE projections (
    name text COLLATE "C" NOT NULL,
    collections text[] NOT NULL, -- The collections whose records it reads: names, and prefixes such as pub.layers.*
    kind text NOT NULL, -- The kind of its jobs: a commit adds one for the records it wrote.
    queue text NOT NULL, -- The queue of its jobs, but for the collections that have one of their own.
    tables text[] NOT NULL, -- Its tables with the columns collection, did and rkey: their rows are deleted in the transaction that deletes the record.
    registered_at timestamp with time zone DEFAULT now() NOT NULL, -- When it was registered, or last changed.
    queues text[] DEFAULT '{}'::text[] NOT NULL, -- The queues of collections that have one of their own, as in WEIR_QUEUES.
    CONSTRAINT projections_pkey PRIMARY KEY (name),
    CONSTRAINT projections_kind_key UNIQUE (kind),
    CONSTRAINT projections_collections_check CHECK (cardinality(collections) > 0),
    CONSTRAINT projections_name_check CHECK (name ~ '^[a-z][a-z0-9_]{0,62}$'::text)
);
CREATE TRIGGER projection_removed BEFORE DELETE ON projections FOR EACH ROW EXECUTE FUNCTION keep_projection();

-- Accounts that a watch has lost. They are purged after a grace period, unless another watch has them. Not compared: how it went, not what is stored.
CREATE TABLE purge_queue (
    did text COLLATE "C" NOT NULL,
    queued_at timestamp with time zone NOT NULL,
    CONSTRAINT purge_queue_pkey PRIMARY KEY (did)
);
CREATE INDEX purge_queue_queued_at ON purge_queue USING btree (queued_at);

-- Every reference in the projected records. References to deleted records stay. Not compared: made from records, which are compared.
CREATE TABLE record_refs (
    collection text COLLATE "C" NOT NULL,
    did text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL,
    path text NOT NULL, -- Where it is in the record: a JSON pointer.
    kind text NOT NULL, -- at-uri; strong-ref: an at-uri with the CID of the version that is meant; did; blob; cid-link.
    target text NOT NULL, -- The at-uri, the DID or the CID, as it is in the record.
    to_collection text COLLATE "C", -- The record that it names, with to_did and to_rkey. NULL: it names none, or has a handle in place of a DID.
    to_did text COLLATE "C",
    to_rkey text COLLATE "C",
    cid text, -- Of a strong reference, the version that is meant.
    declared boolean NOT NULL, -- Whether the schema says that this is a reference. False: it is in a field without a schema.
    read boolean DEFAULT false NOT NULL, -- A rule reads the target, so that this record is judged again when the target changes.
    dangling boolean DEFAULT false NOT NULL, -- The target was deleted, or its account was, and it is of a judged collection. False says nothing about targets of other collections.
    CONSTRAINT record_refs_kind_check CHECK (kind = ANY (ARRAY['at-uri'::text, 'strong-ref'::text, 'did'::text, 'blob'::text, 'cid-link'::text]))
) WITH (autovacuum_vacuum_scale_factor=0.05);
CREATE INDEX record_refs_ends ON record_refs USING btree (did, collection, rkey, path) WHERE path ~ '^(/[A-Za-z]{1,40}/[0-9]{1,9})?/(source|target)/recordRef$'::text;
CREATE INDEX record_refs_record ON record_refs USING btree (did, collection, rkey);
CREATE INDEX record_refs_target ON record_refs USING btree (to_did, to_collection, to_rkey, did, collection, rkey) WHERE to_rkey IS NOT NULL;

-- What people wrote in the projected records and look for: the fields that the rules of the namespace name, or else all strings that the schema declares without a format and without a list of values. A record without any has no row. Not compared: made from records, which are compared.
CREATE TABLE record_texts (
    collection text COLLATE "C" NOT NULL,
    did text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL,
    text text NOT NULL, -- The texts, a line each: what the record is called, and then the rest, both in the order of the record. The first 64 KiB.
    words tsvector NOT NULL, -- The words of the text; those that say what the record is called have the weight A. A language or a media type that the record declares is a word that begins with =. Workers make them: Postgres' parser depends on the locale.
    CONSTRAINT record_texts_pkey PRIMARY KEY (did, collection, rkey)
) WITH (autovacuum_vacuum_scale_factor=0.05);
CREATE INDEX record_texts_words ON record_texts USING gin (words) WITH (gin_pending_list_limit='1024');

-- The views of records: one for each collection that has a schema, such as layers.expression for pub.layers.expression.expression. A job makes them again when a schema changes. Not compared: made from records, which are compared.
CREATE TABLE record_views (
    collection text COLLATE "C" NOT NULL,
    schema_name text COLLATE "C" NOT NULL, -- The schema of the view. Weir makes it and uses no other one.
    view_name text COLLATE "C" NOT NULL,
    columns jsonb NOT NULL, -- The columns behind uri, did, rkey, cid, rev, indexed_at, verdict and record: an array of objects with the column's name, the field that it shows, and the field's type.
    made_at timestamp with time zone DEFAULT now() NOT NULL, -- When the view was made, or changed last.
    CONSTRAINT record_views_pkey PRIMARY KEY (collection),
    CONSTRAINT record_views_schema_name_view_name_key UNIQUE (schema_name, view_name)
);

-- Every stored record of any collection, in its newest revision.
CREATE TABLE records (
    collection text COLLATE "C" NOT NULL,
    did text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL,
    rev text COLLATE "C" NOT NULL, -- The repository revision that wrote the record: a TID, which sorts by time. 2222222222222, the smallest TID, if a listing brought the record: listings do not name revisions.
    cid text NOT NULL,
    created_at timestamp with time zone NOT NULL, -- When the author claims to have written it, but never later than the event that brought it. Nothing expires by it.
    indexed_at timestamp with time zone DEFAULT now() NOT NULL, -- When Weir first stored it, by the database's clock. Whatever is outside the partitions of posts expires by it.
    record jsonb NOT NULL,
    CONSTRAINT records_pkey PRIMARY KEY (collection, did, rkey)
) PARTITION BY LIST (collection);

-- The records of app.bsky.feed.post, partitioned by rkey: a TID, which sorts by time. The view partitions lists the partitions.
CREATE TABLE posts PARTITION OF records FOR VALUES IN ('app.bsky.feed.post') PARTITION BY RANGE (rkey);
CREATE INDEX posts_indexed_at ON ONLY posts USING btree (indexed_at);

-- The records of all other collections. Each expires by indexed_at, under the retention that WEIR_COLLECTIONS gives it.
CREATE TABLE records_other PARTITION OF records DEFAULT;
CREATE INDEX records_other_dated ON records_other USING btree (collection, "left"(rev, 16)) WHERE collection >= 'nostr.'::text AND collection < 'nostr/'::text;
CREATE INDEX records_other_ids ON records_other USING btree ("left"(rkey, 16)) WHERE collection >= 'nostr.'::text AND collection < 'nostr/'::text;
CREATE INDEX records_other_indexed_at ON records_other USING btree (collection, indexed_at);
CREATE TRIGGER profile_labelled AFTER INSERT OR UPDATE ON records_other FOR EACH ROW WHEN (new.collection = 'app.bsky.actor.profile'::text AND new.rkey = 'self'::text) EXECUTE FUNCTION label_profile();
CREATE TRIGGER visibility_declared AFTER INSERT OR UPDATE ON records_other FOR EACH ROW WHEN (new.collection = 'app.bsky.actor.contentVisibilityDeclaration'::text AND new.rkey = 'self'::text) EXECUTE FUNCTION declare_visibility();
CREATE TRIGGER visibility_not_declared AFTER DELETE ON records_other FOR EACH ROW WHEN (old.collection = 'app.bsky.actor.contentVisibilityDeclaration'::text AND old.rkey = 'self'::text) EXECUTE FUNCTION declare_visibility();

-- Posts whose rkey is not a TID, or is a TID of a time before the partitions. They expire by indexed_at.
CREATE TABLE posts_default PARTITION OF posts DEFAULT;

-- What a relay of Nostr had of a day, by the authors' dates in UTC, compared with what was stored. Rows stay for a month. Not compared: how it went, not what is stored.
CREATE TABLE relay_audits (
    stream text COLLATE "C" NOT NULL,
    day date NOT NULL,
    method text NOT NULL, -- negentropy: sets of ids were compared (NIP-77). pages: all events were read.
    events integer NOT NULL, -- Events of that day that were stored before.
    missing integer NOT NULL, -- Events that the relay named, and that had never been stored. The sum of all tries.
    stored integer NOT NULL, -- Records that changed because of them. Forged, deleted and replaced events change none. The sum of all tries.
    problem text DEFAULT ''::text NOT NULL, -- Why the day was not compared completely. Empty: it was.
    tries integer DEFAULT 1 NOT NULL,
    retry_at timestamp with time zone, -- When it is tried again. NULL: never.
    ended_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT relay_audits_pkey PRIMARY KEY (stream, day)
);

-- Accounts whose stored records may differ from their repositories, because a commit of them could not be verified, or was announced without its contents. Those that were compared since stay for as long as deletions are known. Not compared: how far streams, listings and repositories were read.
CREATE TABLE resyncs (
    did text COLLATE "C" NOT NULL,
    desynchronized_at timestamp with time zone, -- Since when its records may differ. NULL: they were compared with the repository.
    cause text NOT NULL, -- Why they may differ.
    wanted text COLLATE "C" NOT NULL, -- The highest revision that could not be verified since the last resync began. Empty: none; zzzzzzzzzzzzz: it is unknown.
    sought text COLLATE "C" DEFAULT ''::text NOT NULL, -- The highest revision that resyncs which have begun, and have not ended, look for, in the form of wanted. A mirror's copy must have it.
    requested_at timestamp with time zone NOT NULL, -- When a job was last added for it.
    due_at timestamp with time zone NOT NULL, -- The next resync does not begin earlier. Resyncs that find nothing make it later, up to a day: whoever sends forgeries cannot have the repository fetched as often as he likes.
    begun_at timestamp with time zone, -- When the last resync began.
    rev text COLLATE "C" DEFAULT ''::text NOT NULL, -- The revision of the repository that was last compared. What is refused up to it needs no other resync.
    synchronized_at timestamp with time zone,
    unchanged integer DEFAULT 0 NOT NULL, -- How many resyncs in a row found no difference.
    problem text DEFAULT ''::text NOT NULL, -- Why the repository could not be compared the last time. Empty: it could.
    CONSTRAINT resyncs_pkey PRIMARY KEY (did)
);
CREATE INDEX resyncs_begun ON resyncs USING btree (begun_at);
CREATE INDEX resyncs_open ON resyncs USING btree (desynchronized_at) WHERE desynchronized_at IS NOT NULL;
CREATE INDEX resyncs_synchronized ON resyncs USING btree (synchronized_at) WHERE desynchronized_at IS NULL;

-- The first 16 bytes of the ids of events that were stored, for networks whose servers bring the same events. They stay, because an event may come again at any time. Not compared: of the archive and its known events.
CREATE TABLE seen (
    id uuid NOT NULL,
    CONSTRAINT seen_pkey PRIMARY KEY (id)
);

-- The sealed segments of the archive. A copy of each row is stored beside its segment. Not compared: of the archive and its known events.
CREATE TABLE segments (
    number bigint GENERATED BY DEFAULT AS IDENTITY NOT NULL, -- Of one sequence over all streams. Some numbers may be missing.
    stream text NOT NULL,
    wire text NOT NULL, -- The format of the records.
    name text NOT NULL, -- The name in the store: stream, day on which the first event arrived, number, and the beginning of sha256.
    format integer NOT NULL, -- The version of the format of segments.
    records bigint NOT NULL,
    raw_bytes bigint NOT NULL, -- The size of the records with their lengths, decompressed.
    stored_bytes bigint NOT NULL,
    sha256 text NOT NULL, -- The hash of the file.
    content text NOT NULL, -- XXH64 of the decompressed bytes.
    first_at timestamp with time zone NOT NULL, -- When the first commit of the records was made, and last_at the last.
    last_at timestamp with time zone NOT NULL,
    created_from timestamp with time zone, -- The earliest created_at of the records that these commits wrote, and created_to the latest. NULL: they wrote none.
    created_to timestamp with time zone,
    "position" jsonb, -- The position of the stream: everything up to it is in this segment or an earlier one. NULL: later events were waiting when this one was sealed.
    sealed_at timestamp with time zone NOT NULL,
    synced_at timestamp with time zone, -- When the copy in the store was read back and compared. NULL: not yet, and the rows in archive_open stay.
    store text DEFAULT ''::text NOT NULL, -- Where that copy is. Empty: there is none yet.
    rewritten integer DEFAULT 0 NOT NULL, -- How often the segment was written again without what must be forgotten.
    origin text DEFAULT ''::text NOT NULL, -- The content of the first version. Empty: this is it.
    forgotten_at timestamp with time zone, -- When it was compared with what must be forgotten the last time. NULL: never.
    forget_failing_since timestamp with time zone, -- When the comparison with what must be forgotten failed first. NULL: the last one succeeded.
    forget_failed_at timestamp with time zone, -- When it failed last. NULL: the last one succeeded.
    missed_until timestamp with time zone, -- The segment could not be compared for so long that deletions up to then were dropped without it. NULL: it missed none.
    forget_again boolean DEFAULT false NOT NULL, -- An operator wants it to be compared at once.
    index_attempt integer DEFAULT 0 NOT NULL, -- How many attempts to insert it into ClickHouse were begun.
    index_begun_at timestamp with time zone, -- When the last of them was begun. Until it is settled, it may still insert rows.
    indexed_at timestamp with time zone, -- When ClickHouse was seen to have all its events. NULL: not yet, or WEIR_CLICKHOUSE is not set.
    index_generation integer DEFAULT 0 NOT NULL, -- How often weir archive index began again. It is part of the tokens by which ClickHouse drops a block that comes twice.
    CONSTRAINT segments_pkey PRIMARY KEY (number),
    CONSTRAINT segments_name_key UNIQUE (name)
);
CREATE INDEX segments_unindexed ON segments USING btree (number) WHERE indexed_at IS NULL;
CREATE INDEX segments_unsynced ON segments USING btree (number) WHERE synced_at IS NULL;
CREATE TRIGGER index_rewritten BEFORE UPDATE OF rewritten ON segments FOR EACH ROW EXECUTE FUNCTION index_rewritten();

-- Every account that counts as a sharer of a link, once, as far as shares are counted. Only the counter writes here. Not compared: counted from shares, which `weir recount --check` does.
CREATE TABLE sharers (
    link_id bigint NOT NULL,
    at timestamp with time zone NOT NULL, -- The latest share of the link by the account: it counts in the windows that begin before this time.
    post_at timestamp with time zone, -- The latest share in a post of its own. NULL: none.
    quote_at timestamp with time zone, -- The latest share by quoting a post. NULL: none.
    repost_at timestamp with time zone, -- The latest share by reposting a post. NULL: none.
    title_claim bigint, -- The account's vote for the headline: the claim of its latest post with a title. NULL: it has none.
    title_at timestamp with time zone, -- Since when: the date of its earliest post with that title.
    url_claim bigint, -- The account's vote for the spelling: the claim of its latest post. NULL: it only reposts and quotes, or names other links that are merged into this one.
    url_at timestamp with time zone, -- Since when: the date of its earliest post with that spelling.
    voted_at timestamp with time zone GENERATED ALWAYS AS (LEAST(title_at, url_at)), -- When this time leaves the longest window, the votes are read again.
    did text COLLATE "C" NOT NULL,
    title_key text COLLATE "C", -- The collection and rkey of that post.
    url_key text COLLATE "C", -- The collection and rkey of that post.
    CONSTRAINT sharers_pkey PRIMARY KEY (did, link_id) INCLUDE (at)
) WITH (autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_insert_scale_factor=0, autovacuum_vacuum_insert_threshold=20000);
CREATE INDEX sharers_at ON sharers USING btree (at);
CREATE INDEX sharers_link ON sharers USING btree (link_id, at);
CREATE INDEX sharers_nostr_at ON sharers USING btree (at) WHERE did ~~ 'did:nostr:%'::text;
CREATE INDEX sharers_nostr_link ON sharers USING btree (link_id, at) WHERE did ~~ 'did:nostr:%'::text;
CREATE INDEX sharers_title ON sharers USING btree (title_claim, title_at) WHERE title_claim IS NOT NULL;
CREATE INDEX sharers_url ON sharers USING btree (url_claim, url_at) WHERE url_claim IS NOT NULL;
CREATE INDEX sharers_voted_at ON sharers USING btree (voted_at) WHERE voted_at < at;

-- Who shared which link by which record: a post that contains it, or a repost or quote of such a post. A share outlives its record's retention, and goes only when the author takes it back or the link expires. A share through a subject counts only while subjects names the link and the subject's author is active.
CREATE TABLE shares (
    did text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL,
    link_id bigint NOT NULL, -- The link for which the share counts.
    named_id bigint NOT NULL, -- The link that the record names. Another one than link_id if it is merged into that: the foreign key keeps both in step.
    how text NOT NULL, -- post: the record itself contains the link; quote: it quotes a post that contains it; repost: it reposts one.
    shared_at timestamp with time zone NOT NULL, -- The created_at of the record.
    stored_at timestamp with time zone DEFAULT now() NOT NULL, -- When the record was first stored, by the database's clock.
    claim_id bigint, -- What the record says about the link. NULL: nothing, because the record only reposts or quotes a post that contains the link.
    subject_did text COLLATE "C", -- The author of the post that is quoted or reposted. NULL: the record itself contains the link.
    subject_rkey text COLLATE "C", -- The rkey of that record in subject_collection.
    gift text COLLATE "C", -- The URL with which the post opens the article for readers who have not paid. NULL: it gives none.
    words tsvector, -- The words of the post that the sharer wrote. NULL: none, or a repost. They are searched while the post is stored.
    subject_collection text COLLATE "C" DEFAULT 'app.bsky.feed.post'::text, -- The collection of the record that is quoted or reposted. Without subject_did it says nothing.
    copied boolean DEFAULT false NOT NULL, -- The record is a copy of another one, which the table copies names: it does not count while that one shares the link too.
    CONSTRAINT shares_pkey PRIMARY KEY (did, collection, rkey, named_id),
    CONSTRAINT shares_named_id_link_id_fkey FOREIGN KEY (named_id, link_id) REFERENCES links(id, counts_as) ON UPDATE CASCADE,
    CONSTRAINT shares_gift_check CHECK (octet_length(gift) <= 2048),
    CONSTRAINT shares_how_check CHECK (how = ANY (ARRAY['post'::text, 'quote'::text, 'repost'::text]))
) PARTITION BY RANGE (rkey);
CREATE INDEX shares_gift ON ONLY shares USING btree (link_id, shared_at) WHERE gift IS NOT NULL;
CREATE INDEX shares_link ON ONLY shares USING btree (link_id, shared_at);
CREATE INDEX shares_nostr ON ONLY shares USING btree (link_id, shared_at) WHERE did ~~ 'did:nostr:%'::text;
CREATE INDEX shares_sharer ON ONLY shares USING btree (link_id, did);
CREATE INDEX shares_subject ON ONLY shares USING btree (subject_did, subject_rkey, did, collection, rkey) WHERE subject_did IS NOT NULL;
CREATE INDEX shares_window ON ONLY shares USING btree (shared_at, link_id);
CREATE INDEX shares_words ON ONLY shares USING gin (words) WITH (gin_pending_list_limit='1024') WHERE words IS NOT NULL;
CREATE TRIGGER shares_added AFTER INSERT ON shares REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION record_share_changes();
CREATE TRIGGER shares_changed AFTER UPDATE ON shares REFERENCING OLD TABLE AS removed NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION record_share_changes();
CREATE TRIGGER shares_removed AFTER DELETE ON shares REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION record_share_changes();
CREATE TRIGGER shares_truncated AFTER TRUNCATE ON shares FOR EACH STATEMENT EXECUTE FUNCTION record_everything();

-- Shares whose rkey is not a TID, or is a TID of a time before the partitions. They expire by stored_at.
CREATE TABLE shares_default PARTITION OF shares DEFAULT WITH (autovacuum_vacuum_scale_factor=0.05);
CREATE INDEX shares_default_stored_at ON shares_default USING btree (stored_at);

-- Links of shorteners, and those that look like one. The job resolve_links asks where they lead. Not compared: what servers said, who are asked again.
CREATE TABLE short_links (
    link_id bigint NOT NULL,
    resolve_at timestamp with time zone, -- When the shortener is asked next. NULL: never again, because it has answered or did not several times.
    tries integer DEFAULT 0 NOT NULL, -- How often it was asked in vain.
    outcome text DEFAULT ''::text NOT NULL, -- Where the link leads, or why that is not known.
    guess boolean DEFAULT false NOT NULL, -- The link looks like a short one, but its site is not known as a shortener.
    CONSTRAINT short_links_pkey PRIMARY KEY (link_id),
    CONSTRAINT short_links_link_id_fkey FOREIGN KEY (link_id) REFERENCES links(id) ON DELETE CASCADE
) WITH (autovacuum_vacuum_scale_factor=0.1);
CREATE INDEX short_links_resolve_at ON short_links USING btree (resolve_at) WHERE resolve_at IS NOT NULL;

-- Sites whose links look like short ones, and no rule says so. Of each, a few links are asked. Not compared: what servers said, who are asked again.
CREATE TABLE shorteners (
    site text NOT NULL,
    asked integer NOT NULL, -- How many links were asked; from a few on, no more of them for a month.
    asked_at timestamp with time zone NOT NULL,
    targets text[] NOT NULL, -- The identities of the links of other sites to which they lead, each once.
    shortener_since timestamp with time zone, -- Since when the site counts as a shortener: three links led to three links of other sites. NULL: it does not.
    CONSTRAINT shorteners_pkey PRIMARY KEY (site)
);

-- The entries of WEIR_COLLECTIONS by which the stream is read: names, and prefixes such as pub.layers.*. The consumer that takes the lease writes them. Not compared: of the program and its configuration.
CREATE TABLE stored_collections (
    collection text COLLATE "C" NOT NULL,
    since timestamp with time zone DEFAULT clock_timestamp() NOT NULL, -- When a consumer first had this entry: what was written earlier is in no stream.
    CONSTRAINT stored_collections_pkey PRIMARY KEY (collection)
);

-- One row per stream: how far it has been committed, and who may commit to it. Not compared: how far streams, listings and repositories were read.
CREATE TABLE streams (
    name text NOT NULL,
    wire text NOT NULL, -- The protocol that the stream is read with.
    host text DEFAULT ''::text NOT NULL, -- The host that the cursor belongs to. A sequence number means nothing on another host.
    cursor_kind text DEFAULT ''::text NOT NULL, -- seq: a sequence number of host; time: microseconds since 1970; empty: nothing has been read yet.
    cursor bigint DEFAULT 0 NOT NULL,
    anchor jsonb, -- The identity of the last committed frame that has one. A resume must deliver that frame again.
    anchors bigint[], -- Hashes of the last events of eight different accounts, the latest first. A resume that delivers one of them has missed nothing since. NULL: none is known.
    anchor_seqs bigint[], -- The sequence numbers of anchors, in their order, for a source whose servers may omit one of them. 0: unknown. NULL: the source needs none.
    filter_hash text DEFAULT ''::text NOT NULL, -- A hash of the filter that the stream was read with; empty: it has changed meanwhile. A resume with another filter proves nothing.
    last_event_at timestamp with time zone, -- When the last committed event happened, by the server's clock.
    written_at timestamp with time zone, -- When the last committed event was written, by the authors' clocks: last_event_at minus the median delay between an event's rev and its date, over the last hundred events.
    caught_up_at timestamp with time zone, -- The latest moment at which the stream was known to have nothing unread. A quiet stream moves this, not the cursor.
    advanced_at timestamp with time zone, -- When a batch was last committed, by the database's clock. A connected stream that does not move has stalled.
    state text DEFAULT 'stopped'::text NOT NULL, -- What the consumer is doing, as the page shows it.
    state_detail text DEFAULT ''::text NOT NULL,
    state_since timestamp with time zone DEFAULT now() NOT NULL,
    failed_tries integer DEFAULT 0 NOT NULL, -- Failed tries to connect since the last event.
    lease_owner text, -- The process that took the lease last. NULL: the lease was returned.
    lease_renewed_at timestamp with time zone, -- When the lease was renewed, by the database's clock. If this is in the future, the clock has been set back since, and the lease is free.
    lease_expires_at timestamp with time zone,
    epoch bigint DEFAULT 0 NOT NULL, -- Each new lease holder raises it. A commit that carries an older epoch is refused.
    CONSTRAINT streams_pkey PRIMARY KEY (name),
    CONSTRAINT streams_cursor_kind_check CHECK (cursor_kind = ANY (ARRAY[''::text, 'seq'::text, 'time'::text]))
) WITH (fillfactor=50);

-- The collections whose records are compared strictly with their schemas: names, and prefixes that end in a dot and an asterisk. From WEIR_STRICT_LEXICONS of the worker that was started last. Not compared: of the program and its configuration.
CREATE TABLE strict_lexicons (
    pattern text COLLATE "C" NOT NULL,
    CONSTRAINT strict_lexicons_pkey PRIMARY KEY (pattern)
);

-- Posts that are reposted or quoted, with the links they share. A deletion removes the row in the transaction that brings it: then no share through the post counts. Not compared: what servers said, who are asked again.
CREATE TABLE subjects (
    did text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL,
    links bigint[] DEFAULT '{}'::bigint[] NOT NULL, -- The ids of the links that the post itself contains. Empty: none, the post is not shown, or it has not been fetched yet.
    shown boolean DEFAULT true NOT NULL, -- False: the AppView did not show the post when it was last fetched.
    fetched_at timestamp with time zone, -- When the post was last fetched from the AppView. NULL: never, because it is stored or not fetched yet.
    fetch_at timestamp with time zone, -- When the post is fetched next. NULL: not until somebody shares it again; a stored post is never fetched.
    tries integer DEFAULT 0 NOT NULL, -- How often in a row the AppView did not show the post.
    checked_at timestamp with time zone DEFAULT now() NOT NULL, -- When it was last checked that a share needs the row, or a record waits for it.
    CONSTRAINT subjects_pkey PRIMARY KEY (did, collection, rkey)
) WITH (autovacuum_vacuum_scale_factor=0.05);
CREATE INDEX subjects_checked_at ON subjects USING btree (checked_at);
CREATE INDEX subjects_fetch_at ON subjects USING btree (fetch_at) WHERE fetch_at IS NOT NULL;
CREATE TRIGGER subjects_deleted AFTER DELETE ON subjects REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION record_changed_subjects();
CREATE TRIGGER subjects_inserted AFTER INSERT ON subjects REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION record_changed_subjects();
CREATE TRIGGER subjects_updated AFTER UPDATE ON subjects REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION record_changed_subjects();

-- The newest deletion of each record. A write at or before rev stays deleted.
CREATE TABLE tombstones (
    collection text COLLATE "C" NOT NULL,
    did text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL,
    rev text COLLATE "C" NOT NULL,
    deleted_at timestamp with time zone, -- When the record was deleted: the tombstone expires by it. NULL: it stays, because a server may bring the record at any time.
    CONSTRAINT tombstones_pkey PRIMARY KEY (collection, did, rkey)
) WITH (autovacuum_vacuum_scale_factor=0.05);
CREATE INDEX tombstones_deleted_at ON tombstones USING btree (deleted_at);

-- The 50 links with the most sharers of each window, as last announced. Whoever enters is announced on the channel weir_links. Only the counter writes here. Not compared: counted from shares, which `weir recount --check` does.
CREATE TABLE top_links (
    span text NOT NULL, -- The window, such as 24h.
    link_id bigint NOT NULL,
    CONSTRAINT top_links_pkey PRIMARY KEY (span, link_id)
);

-- When top_links was last compared with the ranking. No row: never. Not compared: counted from shares, which `weir recount --check` does.
CREATE TABLE top_links_state (
    one boolean DEFAULT true NOT NULL,
    announced_at timestamp with time zone NOT NULL,
    CONSTRAINT top_links_state_pkey PRIMARY KEY (one),
    CONSTRAINT top_links_state_one_check CHECK (one)
);

-- Lists of forgotten accounts in the archive's store that could not be read when sweep_archive last tried. Not compared: of the archive and its known events.
CREATE TABLE unreadable_lists (
    name text COLLATE "C" NOT NULL,
    since timestamp with time zone DEFAULT now() NOT NULL, -- When that was found first.
    error text NOT NULL,
    CONSTRAINT unreadable_lists_pkey PRIMARY KEY (name)
);

-- Links without a share since expiry noticed it. They are deleted after a day of grace, unless somebody shares them again. Not compared: counted from shares, which `weir recount --check` does.
CREATE TABLE unshared_links (
    link_id bigint NOT NULL,
    since timestamp with time zone NOT NULL,
    CONSTRAINT unshared_links_pkey PRIMARY KEY (link_id)
) WITH (autovacuum_vacuum_scale_factor=0.1);
CREATE INDEX unshared_links_since ON unshared_links USING btree (since);

-- What each stored record of a judged collection was found to be, in its newest version. A record that is stored and has no row has not been judged yet. Not compared: made from records, which are compared.
CREATE TABLE verdicts (
    collection text COLLATE "C" NOT NULL,
    did text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL,
    cid text NOT NULL, -- The version of the record that was judged.
    schema_hash text NOT NULL, -- The schema that it was compared with, and every definition that the schema uses. Empty: there was none.
    verdict text NOT NULL, -- valid, invalid, or unknown: there is no schema, or a part of it is missing; what could be checked is right.
    state text NOT NULL, -- projected: its references and texts are stored; parked: it waits for a record that it requires; missing: it waited in vain, which is a dead letter; refused: it is invalid or breaks a hard rule, which is a dead letter. Only a projected record has rows in record_refs and record_texts.
    dangling boolean DEFAULT false NOT NULL, -- A record that it requires was deleted.
    problems jsonb DEFAULT '[]'::jsonb NOT NULL, -- Why it is invalid or refused: an array of objects with rule, path, expected and received. path is a JSON pointer.
    warnings jsonb DEFAULT '[]'::jsonb NOT NULL, -- The soft rules that it breaks, as in problems.
    judged_at timestamp with time zone DEFAULT now() NOT NULL, -- When this was found. Judging it again with the same result changes nothing.
    CONSTRAINT verdicts_pkey PRIMARY KEY (did, collection, rkey),
    CONSTRAINT verdicts_state_check CHECK (state = ANY (ARRAY['projected'::text, 'parked'::text, 'missing'::text, 'refused'::text])),
    CONSTRAINT verdicts_verdict_check CHECK (verdict = ANY (ARRAY['valid'::text, 'invalid'::text, 'unknown'::text]))
) WITH (autovacuum_vacuum_scale_factor=0.05);
CREATE INDEX verdicts_schema ON verdicts USING btree (collection, schema_hash, did, rkey);

-- Records that a projection cannot use before another record is known, such as reposts of a post that is not stored or shares no link. A row whose record was deleted goes when its turn comes. Not compared: how it went, not what is stored.
CREATE TABLE waiting (
    projection text COLLATE "C" NOT NULL, -- The projection that waits.
    collection text COLLATE "C" NOT NULL,
    did text COLLATE "C" NOT NULL,
    rkey text COLLATE "C" NOT NULL,
    for_collection text COLLATE "C" NOT NULL, -- The collection of the record that it waits for.
    for_did text COLLATE "C" NOT NULL,
    for_rkey text COLLATE "C" NOT NULL,
    since timestamp with time zone DEFAULT now() NOT NULL, -- When the record began to wait. It waits as long as its collection is kept, and at most for a week; if too many wait, the oldest go.
    CONSTRAINT waiting_pkey PRIMARY KEY (did, collection, rkey, projection, for_did, for_collection, for_rkey)
) WITH (autovacuum_vacuum_scale_factor=0.05);
CREATE INDEX waiting_for ON waiting USING btree (for_did, for_collection, for_rkey, projection, did, collection, rkey);
CREATE INDEX waiting_since ON waiting USING btree (collection, since);

-- Titles for which accounts vote on three pages of one site, or on more: such a title tells no page apart, and is that of a wall. No link has it. Only the counter writes here. Not compared: counted from shares, which `weir recount --check` does.
CREATE TABLE walls (
    title_group bigint NOT NULL,
    CONSTRAINT walls_pkey PRIMARY KEY (title_group)
);

-- The members of each watch: the accounts that it makes Weir follow.
CREATE TABLE watch_members (
    watch_id bigint NOT NULL,
    did text COLLATE "C" NOT NULL,
    added_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT watch_members_pkey PRIMARY KEY (did, watch_id),
    CONSTRAINT watch_members_watch_id_fkey FOREIGN KEY (watch_id) REFERENCES watches(id) ON DELETE CASCADE
);
CREATE INDEX watch_members_watch ON watch_members USING btree (watch_id);
CREATE TRIGGER watch_member_removed AFTER DELETE ON watch_members REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION record_unwatched_accounts();
CREATE TRIGGER watch_members_changed AFTER INSERT OR DELETE OR TRUNCATE ON watch_members FOR EACH STATEMENT EXECUTE FUNCTION follows_changed();
CREATE TRIGGER watch_members_counted AFTER INSERT ON watch_members REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION record_member_changes();
CREATE TRIGGER watch_members_recounted AFTER UPDATE ON watch_members REFERENCING OLD TABLE AS removed NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION record_member_changes();
CREATE TRIGGER watch_members_truncated AFTER TRUNCATE ON watch_members FOR EACH STATEMENT EXECUTE FUNCTION record_everything();
CREATE TRIGGER watch_members_uncounted AFTER DELETE ON watch_members REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION record_member_changes();

-- Why accounts are followed. Without a row here, Weir follows the whole network. Add, change and delete rows freely: the followed accounts change with them.
CREATE TABLE watches (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    target text NOT NULL, -- A handle, a DID, the at:// or bsky.app address of a list or starter pack, or the npub of an account of Nostr.
    kind text DEFAULT 'follows'::text NOT NULL, -- follows: the accounts that the target follows; account: the target alone; list, starterpack: its members; second-degree: accounts followed by at_least of the target's follows.
    at_least integer DEFAULT 5 NOT NULL,
    added_at timestamp with time zone DEFAULT now() NOT NULL,
    synced_at timestamp with time zone, -- When the members were last read completely.
    problem text DEFAULT ''::text NOT NULL, -- Why the members could not be read the last time. Empty: they could.
    CONSTRAINT watches_pkey PRIMARY KEY (id),
    CONSTRAINT watches_target_kind_key UNIQUE (target, kind),
    CONSTRAINT watches_at_least_check CHECK (at_least > 0),
    CONSTRAINT watches_kind_check CHECK (kind = ANY (ARRAY['follows'::text, 'account'::text, 'list'::text, 'starterpack'::text, 'second-degree'::text])),
    CONSTRAINT watches_target_check CHECK (target <> ''::text)
);
CREATE TRIGGER watch_added AFTER INSERT ON watches FOR EACH ROW EXECUTE FUNCTION sync_watch();
CREATE TRIGGER watch_removed AFTER DELETE ON watches FOR EACH ROW EXECUTE FUNCTION dismiss_watch_dead_letters();
CREATE TRIGGER watch_target_public BEFORE INSERT OR UPDATE OF target ON watches FOR EACH ROW WHEN (new.target ~* 'nsec1[0-9a-z]{20}'::text) EXECUTE FUNCTION refuse_secret_target();
CREATE TRIGGER watch_turned BEFORE UPDATE OF target, kind ON watches FOR EACH ROW WHEN (old.target <> new.target OR old.kind <> new.kind) EXECUTE FUNCTION reset_watch();
CREATE TRIGGER watch_updated AFTER UPDATE OF target, kind, at_least ON watches FOR EACH ROW WHEN (old.target <> new.target OR old.kind <> new.kind OR old.at_least <> new.at_least) EXECUTE FUNCTION sync_watch();
CREATE TRIGGER watches_changed AFTER INSERT OR DELETE OR TRUNCATE ON watches FOR EACH STATEMENT EXECUTE FUNCTION follows_changed();

-- The migrations of Weir that this database has. `weir migrate` makes this table before the first of them. Not compared: of the program and its configuration.
CREATE TABLE weir_migration (
    part text NOT NULL,
    version integer NOT NULL,
    name text NOT NULL,
    sha256 text NOT NULL, -- Of its file. A file of a release never changes: a binary that has another one under this name does not start.
    applied_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT weir_migration_pkey PRIMARY KEY (part, version)
);

-- The processes that process jobs. Each stores a heartbeat every two seconds. Others remove one without a heartbeat, and start its running jobs again. Not compared: how it went, not what is stored.
CREATE TABLE workers (
    name text NOT NULL, -- As in river_job.attempted_by.
    seen_at timestamp with time zone NOT NULL, -- The last heartbeat, by the database's clock.
    alive_since timestamp with time zone NOT NULL, -- Since when heartbeats have come without a pause. A process that has just had one does not judge others: the database may have been away for all.
    CONSTRAINT workers_pkey PRIMARY KEY (name)
) WITH (fillfactor=50);

-- Weir: functions

-- Moves a stream's position and renews its lease. Only for the holder of the epoch; anybody else gets SQLSTATE WR001.
CREATE OR REPLACE FUNCTION public.advance_stream(p_name text, p_epoch bigint, p_lease interval, p_host text, p_cursor_kind text, p_cursor bigint, p_anchor jsonb, p_last_event_at timestamp with time zone, p_caught_up_at timestamp with time zone, p_filter_hash text, p_anchors bigint[], p_written_at timestamp with time zone, p_anchor_seqs bigint[])
 RETURNS void
 LANGUAGE plpgsql
AS $function$
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
END $function$;

-- Takes out of the counts what a new block concerns, and puts back what a removed one concerned.
CREATE OR REPLACE FUNCTION public.apply_block()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO pending_counts (link_id) SELECT b.link_id FROM blocked_links AS b WHERE b.block_id = OLD.id;
        DELETE FROM blocked_links AS b WHERE b.block_id = OLD.id;
        UPDATE accounts AS a SET status = 'active' WHERE OLD.kind = 'account' AND a.did = OLD.target AND a.status = 'blocked';
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.kind = 'account' THEN
        INSERT INTO accounts AS a (did) VALUES (NEW.target) ON CONFLICT (did) DO UPDATE SET status = 'active' WHERE a.status = 'active';
    ELSIF TG_OP <> 'DELETE' THEN
        LOCK TABLE links IN SHARE MODE; -- links that are being added see the block, or are seen here
        INSERT INTO blocked_links (link_id, block_id) SELECT l.id, NEW.id FROM links AS l WHERE blocks_link(NEW, l.identity, l.url);
        INSERT INTO pending_counts (link_id) SELECT b.link_id FROM blocked_links AS b WHERE b.block_id = NEW.id;
    END IF;
    RETURN NULL;
END $function$;

-- The first 40 bits of the SHA-256 of a DID: indexes of authors in the archive have the same.
CREATE OR REPLACE FUNCTION public.author_hash(p_did text)
 RETURNS bigint
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE STRICT
AS $function$
    SELECT ('x' || encode(substring(sha256(convert_to(p_did, 'UTF8')) FROM 1 FOR 5), 'hex'))::bit(40)::bigint
$function$;

-- A blocked account is never active. Other statuses stay: they say more.
CREATE OR REPLACE FUNCTION public.block_account()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF EXISTS (SELECT FROM blocks AS b WHERE b.target = NEW.did AND b.kind = 'account') THEN
        NEW.status := 'blocked';
    END IF;
    RETURN NEW;
END $function$;

-- Whether a block concerns a link.
CREATE OR REPLACE FUNCTION public.blocks_link(b blocks, identity text, url text)
 RETURNS boolean
 LANGUAGE sql
 IMMUTABLE
AS $function$
    SELECT CASE b.kind WHEN 'link' THEN blocks_link.identity = b.target
                       WHEN 'domain' THEN right('.' || substring(blocks_link.url FROM '^[a-z]+://([^/:?#]+)'), length(b.target) + 1) = '.' || b.target
                       ELSE false END
$function$;

-- Refuses a stage or class that does not exist and would match nothing. NULL matches all.
CREATE OR REPLACE FUNCTION public.check_dead_letter_filter(stage text, class text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF stage NOT IN ('decode', 'verify', 'commit', 'process', 'lexicon', 'rules', 'reference', 'job') THEN
        RAISE EXCEPTION '% is not a stage', quote_literal(left(stage, 100)) USING ERRCODE = '22023', HINT = 'A stage is decode, verify, commit, process, lexicon, rules, reference or job.';
    END IF;
    IF class NOT IN ('permanent', 'retryable') THEN
        RAISE EXCEPTION '% is not a class', quote_literal(left(class, 100)) USING ERRCODE = '22023', HINT = 'A class is permanent or retryable.';
    END IF;
END $function$;

-- Adds the job that closes a new gap, in the transaction that opens it, unless the gap is known not to be closable.
CREATE OR REPLACE FUNCTION public.close_gap()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM enqueue_job('close_gap', 'network', jsonb_build_object('gap', NEW.id), ARRAY[tag('stream-' || NEW.stream)]);
    RETURN NULL;
END $function$;

-- How many jobs of a queue are in a state. Stops counting at a limit, and costs no more than that.
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
          ORDER BY priority DESC, scheduled_at DESC, id DESC -- processed jobs were at the other end, and may not be vacuumed yet
          LIMIT p_most) AS j
$function$;

-- Has a stored declaration of visibility decide whether its account counts where nobody follows it.
CREATE OR REPLACE FUNCTION public.declare_visibility()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP <> 'DELETE' AND NEW.record -> 'hideFromAlgorithmicRecommendations' = 'true' THEN
        INSERT INTO accounts AS a (did, not_recommended) VALUES (NEW.did, true) ON CONFLICT (did) DO UPDATE SET not_recommended = true WHERE NOT a.not_recommended;
    ELSE
        UPDATE accounts AS a SET not_recommended = false WHERE a.did = coalesce(NEW.did, OLD.did) AND a.not_recommended;
    END IF;
    RETURN NULL;
END $function$;

-- Marks a dead letter as needing no action. It is kept, but no longer listed or retried with the others.
CREATE OR REPLACE FUNCTION public.dismiss_dead_letter(dead_letter bigint)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
BEGIN
    UPDATE dead_letters AS d SET state = 'dismissed', state_at = now() WHERE d.id = dead_letter;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no dead letter %', coalesce(dead_letter::text, 'NULL') USING ERRCODE = '22023';
    END IF;
END $function$;

-- Dismisses all open dead letters, or those of a stage or class. Returns how many.
CREATE OR REPLACE FUNCTION public.dismiss_dead_letters(stage text DEFAULT NULL::text, class text DEFAULT NULL::text)
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
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
END $function$;

-- Dismisses the dead letter of a watch that is removed.
CREATE OR REPLACE FUNCTION public.dismiss_watch_dead_letters()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    UPDATE dead_letters SET state = 'dismissed', state_at = now()
    WHERE key = sha256(convert_to(E'job\nsync_follows\n' || jsonb_build_object('watch', OLD.id)::text, 'UTF8')) AND state IN ('open', 'retrying');
    RETURN NULL;
END $function$;

-- Drops the events of archived_ids that were archived before a day, in days since 1970. Returns how many partitions it dropped. SQLSTATE 55P03 while the table is in use.
CREATE OR REPLACE FUNCTION public.drop_archived_days(p_before integer)
 RETURNS integer
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET lock_timeout TO '50ms'
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    part    text;
    dropped int := 0;
BEGIN
    -- What was archived later than its day stays until it is as old by that.
    FOR part IN SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
                WHERE i.inhparent = 'archived_ids'::regclass AND c.relname ~ '^archived_ids_[0-9]+$' AND substr(c.relname, 14)::int < p_before
                ORDER BY c.relname LOOP
        LOCK TABLE archived_ids IN ACCESS EXCLUSIVE MODE;
        EXECUTE format('ALTER TABLE archived_ids DETACH PARTITION %I', part);
        EXECUTE format('INSERT INTO archived_ids SELECT * FROM %I WHERE seen >= %s', part, p_before);
        EXECUTE format('DROP TABLE %I', part);
        dropped := dropped + 1;
    END LOOP;
    DELETE FROM archived_ids_default WHERE seen < p_before;
    RETURN dropped;
END $function$;
REVOKE EXECUTE ON FUNCTION drop_archived_days(integer) FROM PUBLIC;

-- Drops a partition. False and SQLSTATE 55P03 as for lock_partition.
CREATE OR REPLACE FUNCTION public.drop_partition(p_part text)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    IF NOT lock_partition(p_part) THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE %I', p_part);
    RETURN true;
END $function$;
REVOKE EXECUTE ON FUNCTION drop_partition(text) FROM PUBLIC;

-- Drops the view of a collection's records, and its schema after the last view. An error if something else depends on the view.
CREATE OR REPLACE FUNCTION public.drop_record_view(p_collection text)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET lock_timeout TO '2s'
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    old record_views;
BEGIN
    DELETE FROM record_views AS v WHERE v.collection = p_collection RETURNING v.* INTO old;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    EXECUTE format('DROP VIEW IF EXISTS %I.%I', old.schema_name, old.view_name);
    IF NOT EXISTS (SELECT FROM record_views AS v WHERE v.schema_name = old.schema_name) THEN
        BEGIN
            EXECUTE format('DROP SCHEMA IF EXISTS %I', old.schema_name);
        EXCEPTION WHEN dependent_objects_still_exist THEN NULL; -- somebody made something in it
        END;
    END IF;
END $function$;
REVOKE EXECUTE ON FUNCTION drop_record_view(text) FROM PUBLIC;

-- Requests a backfill of one account, by handle or DID: its records in every stored collection, as far back as given. Returns the id of the job.
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
        RAISE EXCEPTION 'a backfill goes back more than 0 and at most 10 years, not %', back USING ERRCODE = '22023';
    END IF;
    IF priority IS NULL OR priority NOT BETWEEN 1 AND 4 THEN
        RAISE EXCEPTION 'a priority is 1 (first) to 4, not %', priority USING ERRCODE = '22023';
    END IF;
    RETURN enqueue_request(jsonb_build_object('account', ltrim(account, '@'), 'since', now() - back, 'priority', priority));
END $function$;

-- Requests a backfill of every followed account: its records in every stored collection, as far back as given. Returns the id of the job.
CREATE OR REPLACE FUNCTION public.enqueue_backfill_all(back interval DEFAULT '24:00:00'::interval, priority integer DEFAULT 4)
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF back IS NULL OR back <= interval '0' OR back > interval '10 years' THEN
        RAISE EXCEPTION 'a backfill goes back more than 0 and at most 10 years, not %', back USING ERRCODE = '22023';
    END IF;
    IF priority IS NULL OR priority NOT BETWEEN 1 AND 4 THEN
        RAISE EXCEPTION 'a priority is 1 (first) to 4, not %', priority USING ERRCODE = '22023';
    END IF;
    RETURN enqueue_request(jsonb_build_object('all', true, 'since', now() - back, 'priority', priority));
END $function$;

-- Requests the past of a collection, or of all collections under a prefix such as pub.layers.* or nostr.*. Returns the id of the job that begins it.
CREATE OR REPLACE FUNCTION public.enqueue_history(collection text)
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
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

-- Requests what the archive of a Jetstream server has of the stored accounts and collections, or of some of these collections, as far back as given. Returns the id of the job.
CREATE OR REPLACE FUNCTION public.enqueue_network_backfill(back interval DEFAULT '24:00:00'::interval, collections text[] DEFAULT '{}'::text[])
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
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
END $function$;

-- Adds a job that requests backfills, and wakes a worker.
CREATE OR REPLACE FUNCTION public.enqueue_request(p_args jsonb)
 RETURNS bigint
 LANGUAGE sql
AS $function$
    SELECT enqueue_job('request_backfill', 'network', p_args,
                       ARRAY[(ARRAY['gap', 'manual', 'new-follow', 'cold-start'])[(p_args ->> 'priority')::int],
                             CASE WHEN p_args ? 'all' THEN 'every-account' ELSE 'one-account' END])
$function$;

-- Requests a backfill of an account that is active again, if posts of it may be missing.
CREATE OR REPLACE FUNCTION public.enqueue_reread()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
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
END $function$;

-- Requests that an account is compared with its repository, by DID: at once, however often that was done. Returns the id of the job.
CREATE OR REPLACE FUNCTION public.enqueue_resync(account text)
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF account IS NULL OR length(account) > 2048 OR account !~ '^did:[a-z]+:[a-zA-Z0-9._:%-]*[a-zA-Z0-9._-]$' THEN
        RAISE EXCEPTION '% is not a DID', coalesce(quote_literal(left(account, 100)), 'NULL') USING ERRCODE = '22023';
    END IF;
    INSERT INTO resyncs AS r (did, desynchronized_at, cause, wanted, requested_at, due_at)
    VALUES (account, now(), 'requested', 'zzzzzzzzzzzzz', now(), now())
    ON CONFLICT (did) DO UPDATE
    SET desynchronized_at = coalesce(r.desynchronized_at, now()), cause = excluded.cause, wanted = excluded.wanted, requested_at = now(), due_at = now();
    RETURN enqueue_job('resync_repo', 'resync', jsonb_build_object('did', account), ARRAY['resync']); -- a second job finds nothing to do
END $function$;

-- Adds a job that retries every dead letter in the state retrying, and wakes a worker.
CREATE OR REPLACE FUNCTION public.enqueue_retries()
 RETURNS bigint
 LANGUAGE sql
AS $function$
    SELECT enqueue_job('retry_dead_letters', 'network', '{}', ARRAY['manual'])
$function$;

-- Makes the partition of archived_ids for a day. False if there is one. SQLSTATE 55P03 while the table is in use.
CREATE OR REPLACE FUNCTION public.ensure_archived_day(p_day integer)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET lock_timeout TO '50ms'
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    part CONSTANT text := format('archived_ids_%s', p_day);
BEGIN
    IF to_regclass(part) IS NOT NULL THEN
        RETURN false;
    END IF;
    LOCK TABLE archived_ids IN SHARE UPDATE EXCLUSIVE MODE;
    LOCK TABLE archived_ids_default IN ACCESS EXCLUSIVE MODE;
    IF to_regclass(part) IS NOT NULL THEN
        RETURN false; -- another process made it during the wait
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE archived_ids INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part);
    EXECUTE format('WITH moved AS (DELETE FROM archived_ids_default WHERE day = %s RETURNING *) INSERT INTO %I SELECT * FROM moved', p_day, part);
    EXECUTE format('ALTER TABLE archived_ids ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', part, p_day, p_day + 1);
    RETURN true;
END $function$;
REVOKE EXECUTE ON FUNCTION ensure_archived_day(integer) FROM PUBLIC;

-- Makes the partition of a table for a moment. It begins where the partition before it ends, and ends where its span does. False if it exists. Repeat until it returns false. SQLSTATE 55P03 while the table is in use.
CREATE OR REPLACE FUNCTION public.ensure_partition(p_parent text, at timestamp with time zone, span interval)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET lock_timeout TO '50ms'
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    ahead_  CONSTANT text := quote_ident(p_parent || '_ahead');
    rest    CONSTANT text := quote_ident(p_parent || '_default');
    make    CONSTANT text := format('(LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', p_parent);
    key     text COLLATE "C" := tid_floor(at);
    begins  timestamptz := date_bin(span, at, '2001-01-01 00:00:00+00'); -- a Monday
    lower_  text COLLATE "C" := tid_floor(begins);
    upper_  text COLLATE "C" := tid_floor(begins + span);
    beyond  CONSTANT text COLLATE "C" := '4'; -- no TID before the year 2041 reaches it
    horizon text COLLATE "C";
    found_  text COLLATE "C";
    new_    text;
    renamed text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_partitioned_table WHERE partrelid = to_regclass(quote_ident(p_parent)) AND partstrat = 'r' AND partdefid = to_regclass(rest)) THEN
        RAISE EXCEPTION '% is not partitioned by range of rkey', p_parent;
    END IF;
    IF EXISTS (SELECT FROM partitions AS p WHERE p.parent = p_parent AND key >= p.lower AND key < p.upper AND NOT p.ahead) THEN
        RETURN false;
    END IF;
    SELECT p.lower INTO horizon FROM partitions AS p WHERE p.parent = p_parent AND p.ahead;
    IF key >= horizon THEN
        PERFORM lock_partitioned(p_parent, 'ACCESS EXCLUSIVE');
        EXECUTE format('LOCK TABLE %s, %s IN ACCESS EXCLUSIVE MODE NOWAIT', rest, ahead_);
    ELSE
        PERFORM lock_partitioned(p_parent, 'SHARE UPDATE EXCLUSIVE');
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', rest);
    END IF;
    IF EXISTS (SELECT FROM partitions AS p WHERE p.parent = p_parent AND key >= p.lower AND key < p.upper AND NOT p.ahead) THEN
        RETURN false; -- another process made it during the wait
    END IF;
    SELECT p.lower INTO found_ FROM partitions AS p WHERE p.parent = p_parent AND p.ahead;
    IF found_ IS DISTINCT FROM horizon THEN
        RAISE EXCEPTION 'another partition of % was made meanwhile: try again', p_parent USING ERRCODE = 'lock_not_available';
    END IF;

    IF key >= horizon THEN
        -- _ahead becomes the partition that begins where the last one ends. Only rows beyond its end move, which are few. After a pause,
        -- one partition holds the whole pause, and the next call makes the partition of the moment itself.
        upper_ := CASE WHEN horizon < lower_ THEN lower_ ELSE upper_ END;
        new_ := p_parent || to_char(tid_time(horizon) AT TIME ZONE 'UTC', '_YYYYMMDD_HH24');
        EXECUTE format('ALTER TABLE %I DETACH PARTITION %s', p_parent, ahead_);
        EXECUTE format('ALTER TABLE %s RENAME TO %I', ahead_, new_);
        FOR renamed IN SELECT c.relname FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid WHERE i.indrelid = to_regclass(quote_ident(new_)) LOOP
            EXECUTE format('ALTER INDEX %I RENAME TO %I', renamed, replace(renamed, p_parent || '_ahead', new_));
        END LOOP;
        EXECUTE format('COMMENT ON TABLE %I IS NULL', new_);
        EXECUTE format('CREATE TABLE %s %s', ahead_, make);
        EXECUTE format('WITH moved AS (DELETE FROM %I WHERE rkey >= %L RETURNING *) INSERT INTO %s SELECT * FROM moved', new_, upper_, ahead_);
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', p_parent, new_, horizon, upper_);
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', p_parent, ahead_, upper_, beyond);
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I', rest, p_parent || '_default_ahead');
    ELSE
        -- Rows may arrive before their partition exists: they move in the same transaction. The first partition begins with the six hours
        -- around the moment; older rows stay in the default partition and expire one by one.
        SELECT CASE WHEN count(*) = 0 THEN tid_floor(date_bin('6 hours', at, '2001-01-01 00:00:00+00')) ELSE greatest(lower_, max(p.upper) FILTER (WHERE p.upper <= key)) END,
               least(upper_, min(p.lower) FILTER (WHERE p.lower > key))
        INTO lower_, upper_ FROM partitions AS p WHERE p.parent = p_parent;
        new_ := p_parent || to_char(tid_time(lower_) AT TIME ZONE 'UTC', '_YYYYMMDD_HH24');
        EXECUTE format('CREATE TABLE %I %s', new_, make);
        EXECUTE format('WITH moved AS (DELETE FROM %s WHERE rkey >= %L AND rkey < %L RETURNING *) INSERT INTO %I SELECT * FROM moved', rest, lower_, upper_, new_);
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', p_parent, new_, lower_, upper_);
        IF horizon IS NULL THEN
            SELECT max(p.upper) INTO horizon FROM partitions AS p WHERE p.parent = p_parent;
            EXECUTE format('CREATE TABLE %s %s', ahead_, make);
            EXECUTE format('WITH moved AS (DELETE FROM %s WHERE rkey >= %L AND rkey < %L RETURNING *) INSERT INTO %s SELECT * FROM moved', rest, horizon, beyond, ahead_);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', p_parent, ahead_, horizon, beyond);
        END IF;
    END IF;
    EXECUTE format('COMMENT ON TABLE %s IS %L', ahead_, format('Rows of %s whose rkey names a time after its last partition. It becomes the next one.', p_parent));
    RETURN true;
END $function$;
REVOKE EXECUTE ON FUNCTION ensure_partition(text,timestamp with time zone,interval) FROM PUBLIC;

-- Tells the consumers that the followed accounts have changed.
CREATE OR REPLACE FUNCTION public.follows_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM pg_notify('weir_follows', '');
    RETURN NULL;
END $function$;

-- Has ClickHouse get a later version of a segment. Running attempts then count as superseded, and nothing is inserted until they are settled.
CREATE OR REPLACE FUNCTION public.index_rewritten()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    NEW.index_attempt := OLD.index_attempt + 1;
    NEW.index_begun_at := clock_timestamp();
    NEW.indexed_at := NULL;
    RETURN NEW;
END $function$;

-- Has the records judged again that depend on the records of an account which was deleted or came back, whoever says so.
CREATE OR REPLACE FUNCTION public.judge_account()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    -- A judgment under way looks at its targets once more after its commit. So either it sees this change, or the job sees its rows.
    -- Without the projection no worker knows the job.
    IF EXISTS (SELECT FROM projections AS l WHERE l.name = 'lexicon') THEN
        PERFORM enqueue_job('judge_account', 'process', jsonb_build_object('did', NEW.did), ARRAY['lexicon']);
    END IF;
    RETURN NULL;
END $function$;

-- A blocked account has a row, or it would count when it returns.
CREATE OR REPLACE FUNCTION public.keep_blocked_account()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO accounts (did) SELECT b.target FROM blocks AS b WHERE b.target = OLD.did AND b.kind = 'account' ON CONFLICT DO NOTHING;
    RETURN NULL;
END $function$;

-- Refuses to delete a projection that has unfinished jobs; dismisses its dead letters.
CREATE OR REPLACE FUNCTION public.keep_projection()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF EXISTS (SELECT FROM river_job WHERE kind = OLD.kind AND state IN ('available', 'pending', 'retryable', 'running', 'scheduled')) THEN
        RAISE EXCEPTION 'projection % has unfinished % jobs', OLD.name, OLD.kind
            USING ERRCODE = '55006', HINT = 'Run the program that has the projection until they are finished, or delete them first, as in River UI.';
    END IF;
    UPDATE dead_letters SET state = 'dismissed', state_at = now() WHERE projection = OLD.name AND state IN ('open', 'retrying');
    RETURN OLD;
END $function$;

-- Returns a network, and refuses one that does not exist. NULL means both.
CREATE OR REPLACE FUNCTION public.known_network(p_network text)
 RETURNS text
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    IF p_network NOT IN ('bluesky', 'nostr') THEN
        RAISE EXCEPTION 'the network is %: expected bluesky, nostr, or NULL for both', quote_literal(p_network) USING ERRCODE = '22023';
    END IF;
    RETURN p_network;
END $function$;

-- Has a stored profile decide whether its account is shown to strangers.
CREATE OR REPLACE FUNCTION public.label_profile()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF jsonb_path_exists(NEW.record, 'lax $.labels.values[*].val ? (@ == "!no-unauthenticated")') THEN
        INSERT INTO profiles AS p (did, read_at) VALUES (NEW.did, now()) ON CONFLICT (did) DO UPDATE SET read_at = now(), withheld = true;
    ELSE
        UPDATE profiles AS p SET read_at = now(), withheld = false WHERE p.did = NEW.did;
    END IF;
    RETURN NULL;
END $function$;

-- Has the views of records made again after a schema changed.
CREATE OR REPLACE FUNCTION public.lexicon_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM FROM river_job WHERE kind = 'make_record_views' AND state = 'available' LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM enqueue_job('make_record_views', 'maintenance', '{}', ARRAY['lexicon']);
    END IF;
    RETURN NULL;
END $function$;

-- Locks a partition that the view partitions lists, and its table. False if none has that name, or if it holds the time after the last one. SQLSTATE 55P03 while the table is in use.
CREATE OR REPLACE FUNCTION public.lock_partition(p_part text)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET lock_timeout TO '50ms'
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    from_ text;
BEGIN
    SELECT p.parent INTO from_ FROM partitions AS p WHERE p.part = p_part AND NOT p.ahead;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Others queue behind this lock while it waits, so the wait is short. Once it is held, the other locks are free, unless somebody holds
    -- them for long.
    EXECUTE format('LOCK TABLE ONLY %I IN ACCESS EXCLUSIVE MODE', from_);
    IF NOT EXISTS (SELECT FROM partitions AS p WHERE p.part = p_part) THEN
        RETURN false; -- another process dropped it during the wait
    END IF;
    EXECUTE format('LOCK TABLE %I, %I IN ACCESS EXCLUSIVE MODE NOWAIT', from_ || '_default', p_part);
    RETURN true;
END $function$;
REVOKE EXECUTE ON FUNCTION lock_partition(text) FROM PUBLIC;

-- Locks a partitioned table against everybody. Before it, locks the tables that its foreign keys refer to: in ACCESS EXCLUSIVE mode if p_mode says so, else in SHARE ROW EXCLUSIVE mode.
CREATE OR REPLACE FUNCTION public.lock_partitioned(p_parent text, p_mode text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
DECLARE
    other regclass;
BEGIN
    -- Others queue behind these locks while they wait, so the waits are short: 50 ms in all. Writers use the tables that foreign keys
    -- refer to first. Taking a partition away and back changes the triggers of those tables.
    FOR other IN SELECT c.confrelid::regclass FROM pg_constraint AS c WHERE c.conrelid = to_regclass(quote_ident(p_parent)) AND c.contype = 'f' AND c.conparentid = 0 LOOP
        PERFORM set_config('lock_timeout', '25ms', true);
        EXECUTE format('LOCK TABLE %s IN %s MODE', other, CASE p_mode WHEN 'ACCESS EXCLUSIVE' THEN p_mode ELSE 'SHARE ROW EXCLUSIVE' END);
    END LOOP;
    -- A query plans for the partitions that it sees under its lock on the table. It then sees the rows of the moment at which it runs.
    EXECUTE format('LOCK TABLE ONLY %I IN ACCESS EXCLUSIVE MODE', p_parent);
END $function$;
REVOKE EXECUTE ON FUNCTION lock_partitioned(text,text) FROM PUBLIC;

-- Makes the view of a collection's records, or changes it. False: it is so already. An error if the schema exists and Weir did not make it, or if something else depends on a column that goes.
CREATE OR REPLACE FUNCTION public.make_record_view(p_collection text, p_schema text, p_view text, p_columns jsonb)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET lock_timeout TO '2s'
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    named  CONSTANT text := '^[a-z][a-z0-9_]{0,62}$';
    old    record_views;
    fields text;
    query  text;
    reader text;
BEGIN
    SELECT v.* INTO old FROM record_views AS v WHERE v.collection = p_collection FOR UPDATE;
    IF old.schema_name = p_schema AND old.view_name = p_view AND old.columns = p_columns AND to_regclass(format('%I.%I', p_schema, p_view)) IS NOT NULL THEN
        RETURN false;
    ELSIF p_schema !~ named OR p_view !~ named OR jsonb_typeof(p_columns) <> 'array' OR jsonb_array_length(p_columns) > 1000 THEN
        RAISE EXCEPTION 'no view of records can be %.% with these columns', quote_ident(left(p_schema, 100)), quote_ident(left(p_view, 100)) USING ERRCODE = '22023';
    ELSIF (old.schema_name, old.view_name) <> (p_schema, p_view) THEN
        PERFORM drop_record_view(p_collection);
    END IF;
    IF to_regnamespace(p_schema) IS NULL THEN
        EXECUTE format('CREATE SCHEMA %I', p_schema);
        EXECUTE format('COMMENT ON SCHEMA %I IS %L', p_schema, 'Views of records, made by Weir: the table record_views lists them.');
    ELSIF NOT EXISTS (SELECT FROM record_views AS v WHERE v.schema_name = p_schema) THEN
        RAISE EXCEPTION 'the schema % is not one of records', p_schema USING ERRCODE = '42939';
    END IF;
    SELECT string_agg(format(', %s AS %I', CASE c.value ->> 'type'
               WHEN 'boolean'  THEN format('CASE jsonb_typeof(r.record -> %1$L) WHEN ''boolean'' THEN (r.record -> %1$L)::boolean END', c.value ->> 'field')
               WHEN 'integer'  THEN format('record_integer(r.record -> %L)', c.value ->> 'field')
               WHEN 'string'   THEN format('r.record ->> %L', c.value ->> 'field')
               WHEN 'datetime' THEN format('record_time(r.record ->> %L)', c.value ->> 'field')
               WHEN 'cid-link' THEN format('r.record -> %L ->> ''$link''', c.value ->> 'field')
               ELSE format('r.record -> %L', c.value ->> 'field')
           END, c.value ->> 'column'), '' ORDER BY c.n)
    INTO fields
    FROM jsonb_array_elements(p_columns) WITH ORDINALITY AS c (value, n);
    query := format('SELECT ''at://'' || r.did || ''/'' || r.collection || ''/'' || r.rkey AS uri, r.did, r.rkey, r.cid, r.rev, r.indexed_at, v.verdict, r.record%s
        FROM records AS r LEFT JOIN verdicts AS v ON v.did = r.did AND v.collection = r.collection AND v.rkey = r.rkey AND v.cid = r.cid
        WHERE r.collection = %L', fields, p_collection);
    BEGIN
        EXECUTE format('CREATE OR REPLACE VIEW %I.%I AS %s', p_schema, p_view, query);
    EXCEPTION WHEN invalid_table_definition THEN -- a column is gone, or has another place or type
        EXECUTE format('DROP VIEW %I.%I', p_schema, p_view);
        EXECUTE format('CREATE VIEW %I.%I AS %s', p_schema, p_view, query);
    END;
    EXECUTE format('COMMENT ON VIEW %I.%I IS %L', p_schema, p_view, 'The stored records of ' || p_collection || ', whatever their verdict. verdict is NULL for a record that has not been judged.');
    -- Whoever may read the records may read them here.
    FOR reader IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_class AS c CROSS JOIN LATERAL aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) AS a
        WHERE c.oid = 'records'::regclass AND a.privilege_type = 'SELECT'
    LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %s', p_schema, reader);
        EXECUTE format('GRANT SELECT ON %I.%I TO %s', p_schema, p_view, reader);
    END LOOP;
    INSERT INTO record_views AS v (collection, schema_name, view_name, columns) VALUES (p_collection, p_schema, p_view, p_columns)
    ON CONFLICT (collection) DO UPDATE SET schema_name = excluded.schema_name, view_name = excluded.view_name, columns = excluded.columns, made_at = now();
    RETURN true;
END $function$;
REVOKE EXECUTE ON FUNCTION make_record_view(text,text,text,jsonb) FROM PUBLIC;

-- Gives the target of a block the form in which it is compared.
CREATE OR REPLACE FUNCTION public.normalise_block()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    NEW.target := CASE NEW.kind WHEN 'domain' THEN regexp_replace(lower(NEW.target), '^www\.', '')
                                WHEN 'link' THEN coalesce((SELECT i.identity FROM links AS l JOIN links AS i ON i.id = l.counts_as
                                                           WHERE l.identity = NEW.target OR l.url = NEW.target ORDER BY l.identity = NEW.target DESC LIMIT 1), NEW.target)
                                ELSE NEW.target END;
    RETURN NEW;
END $function$;

-- When the longest-waiting job of a queue became available. NULL if none is.
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

-- Makes and validates the constraint that saves ensure_partition a scan of the default partition. Repeat until it returns false. SQLSTATE 55P03 while that is in use.
CREATE OR REPLACE FUNCTION public.prepare_default_partition(p_parent text)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET lock_timeout TO '50ms'
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    rest    CONSTANT text := quote_ident(p_parent || '_default');
    named   CONSTANT text := p_parent || '_default_ahead';
    horizon text;
    valid   boolean;
BEGIN
    SELECT c.convalidated INTO valid FROM pg_constraint AS c WHERE c.conrelid = to_regclass(rest) AND c.conname = named;
    IF valid OR NOT EXISTS (SELECT FROM partitions AS p WHERE p.parent = p_parent AND p.ahead) THEN
        RETURN false;
    ELSIF NOT valid THEN
        BEGIN
            EXECUTE format('ALTER TABLE %s VALIDATE CONSTRAINT %I', rest, named); -- scans, and blocks neither readers nor writers
        EXCEPTION WHEN undefined_object THEN NULL; -- another process made a partition meanwhile, and dropped it
        END;
        RETURN true;
    END IF;
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', rest);
    IF EXISTS (SELECT FROM pg_constraint AS c WHERE c.conrelid = to_regclass(rest) AND c.conname = named) THEN
        RETURN true; -- another process made it during the wait
    END IF;
    -- Rows of that range go to _ahead, so the constraint refuses nothing.
    SELECT p.lower INTO horizon FROM partitions AS p WHERE p.parent = p_parent AND p.ahead;
    EXECUTE format('ALTER TABLE %s ADD CONSTRAINT %I CHECK (rkey < %L OR rkey >= %L) NOT VALID', rest, named, horizon, '4');
    RETURN true;
END $function$;
REVOKE EXECUTE ON FUNCTION prepare_default_partition(text) FROM PUBLIC;

-- Has the counter look again at all that an account shares, because it is hidden or shown.
CREATE OR REPLACE FUNCTION public.record_account_change()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO pending_counts (did) VALUES (OLD.did);
    END IF;
    IF TG_OP = 'INSERT' OR TG_OP = 'UPDATE' AND NEW.did <> OLD.did THEN
        INSERT INTO pending_counts (did) VALUES (NEW.did);
    END IF;
    RETURN NULL;
END $function$;

-- Has the shares through a subject counted again, and projected again.
CREATE OR REPLACE FUNCTION public.record_changed_subjects()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO changed_subjects (did, collection, rkey) SELECT o.did, o.collection, o.rkey FROM old_rows AS o WHERE o.links <> '{}';
        INSERT INTO pending_counts (subject_did, subject_rkey) SELECT o.did, o.rkey FROM old_rows AS o WHERE o.links <> '{}';
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO changed_subjects (did, collection, rkey)
        SELECT n.did, n.collection, n.rkey FROM new_rows AS n JOIN old_rows AS o USING (did, collection, rkey) WHERE o.links <> n.links AND o.links <> '{}';
        INSERT INTO pending_counts (subject_did, subject_rkey)
        SELECT n.did, n.rkey FROM new_rows AS n JOIN old_rows AS o USING (did, collection, rkey) WHERE o.links <> n.links;
    ELSE -- shares through a subject that was deleted and stored again count again
        INSERT INTO pending_counts (subject_did, subject_rkey)
        SELECT n.did, n.rkey FROM new_rows AS n
        WHERE n.links <> '{}' AND (SELECT true FROM shares AS s WHERE s.subject_did = n.did AND s.subject_rkey = n.rkey LIMIT 1); -- EXISTS may read all shares: the plan is made when there are few
    END IF;
    RETURN NULL;
END $function$;

-- Stores a dead letter for a job that is discarded or cancels itself, whoever ends it, except for a periodic job that is out of tries. Settles the dead letter of a job that succeeds at last, or of a periodic job whose next run succeeds.
CREATE OR REPLACE FUNCTION public.record_ended_job()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
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
END $function$;

-- Has the counter count everything again.
CREATE OR REPLACE FUNCTION public.record_everything()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO pending_counts DEFAULT VALUES;
    RETURN NULL;
END $function$;

-- An integer in a record. NULL for anything else.
CREATE OR REPLACE FUNCTION public.record_integer(p_value jsonb)
 RETURNS bigint
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
    SELECT CASE WHEN jsonb_typeof(p_value) = 'number'
        THEN CASE WHEN p_value::numeric BETWEEN -9223372036854775808 AND 9223372036854775807 AND p_value::numeric = trunc(p_value::numeric) THEN p_value::numeric::bigint END
    END
$function$;

-- Has the counter look again at all that the new and the former members of a watch share.
CREATE OR REPLACE FUNCTION public.record_member_changes()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO pending_counts (did) SELECT DISTINCT a.did FROM added AS a;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO pending_counts (did) SELECT DISTINCT r.did FROM removed AS r;
    END IF;
    RETURN NULL;
END $function$;

-- Has the counter look again at the accounts and links of changed shares, and at their copies.
CREATE OR REPLACE FUNCTION public.record_share_changes()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    -- A scalar subquery with LIMIT, as EXISTS may read all copies: the plan is made when there are few.
    IF TG_OP = 'INSERT' THEN
        INSERT INTO pending_counts (link_id, did) SELECT DISTINCT a.link_id, a.did FROM added AS a;
        INSERT INTO pending_counts (subject_did, subject_rkey)
        SELECT DISTINCT a.did, a.rkey FROM added AS a
        WHERE (SELECT true FROM copies AS c WHERE c.of_did = a.did AND c.of_rkey = a.rkey AND c.of_collection = a.collection LIMIT 1);
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO pending_counts (link_id, did) SELECT DISTINCT r.link_id, r.did FROM removed AS r;
        INSERT INTO pending_counts (subject_did, subject_rkey)
        SELECT DISTINCT r.did, r.rkey FROM removed AS r
        WHERE (SELECT true FROM copies AS c WHERE c.of_did = r.did AND c.of_rkey = r.rkey AND c.of_collection = r.collection LIMIT 1);
    ELSE
        INSERT INTO pending_counts (link_id, did)
        SELECT a.link_id, a.did FROM added AS a UNION SELECT r.link_id, r.did FROM removed AS r;
        INSERT INTO pending_counts (subject_did, subject_rkey)
        SELECT DISTINCT a.did, a.rkey
        FROM (SELECT did, collection, rkey FROM added UNION SELECT did, collection, rkey FROM removed) AS a
        WHERE (SELECT true FROM copies AS c WHERE c.of_did = a.did AND c.of_rkey = a.rkey AND c.of_collection = a.collection LIMIT 1);
    END IF;
    RETURN NULL;
END $function$;

-- The time that a datetime in a record says. NULL if it is no datetime of the network: records are stored as strangers wrote them.
CREATE OR REPLACE FUNCTION public.record_time(p_text text)
 RETURNS timestamp with time zone
 LANGUAGE sql
 STABLE PARALLEL SAFE
AS $function$
    -- The shape alone would let 30 February through, and the cast would end the query.
    SELECT CASE WHEN p_text ~ '^(?!0000)\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,20})?(Z|[+-](0\d|1[0-4]):[0-5]\d)$'
        THEN CASE WHEN substr(p_text, 9, 2)::int <= extract(day FROM make_date(substr(p_text, 1, 4)::int, substr(p_text, 6, 2)::int, 1) + interval '1 month - 1 day')
            THEN p_text::timestamptz END
    END
$function$;

-- Has expiry check the accounts that a watch lost.
CREATE OR REPLACE FUNCTION public.record_unwatched_accounts()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO purge_queue (did, queued_at) SELECT DISTINCT g.did, now() FROM gone AS g ORDER BY g.did
    ON CONFLICT (did) DO UPDATE SET queued_at = excluded.queued_at;
    RETURN NULL;
END $function$;

-- Refuses a watch whose target contains a secret key of Nostr.
CREATE OR REPLACE FUNCTION public.refuse_secret_target()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    RAISE EXCEPTION 'this is a secret key (nsec), which Weir never needs: name the public key (npub), and consider this one stolen if others may have seen it' USING ERRCODE = '22023';
END $function$;

-- Returns a slot, if the holder still has it.
CREATE OR REPLACE FUNCTION public.release_api_slot(p_holder text, p_slot integer)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE api_slots SET holder = NULL, expires_at = NULL WHERE slot = p_slot AND holder = p_holder;
END $function$;

-- Removes the members of a watch that gets another target or kind: it starts like a new one.
CREATE OR REPLACE FUNCTION public.reset_watch()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    DELETE FROM watch_members WHERE watch_id = NEW.id;
    NEW.synced_at := NULL;
    NEW.problem := '';
    RETURN NEW;
END $function$;

-- Requests a retry of a dead letter, whatever its state. Returns the id of the job.
CREATE OR REPLACE FUNCTION public.retry_dead_letter(dead_letter bigint)
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
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
END $function$;

-- Requests a retry of all open dead letters, or of those of a stage or class. Returns how many.
CREATE OR REPLACE FUNCTION public.retry_dead_letters(stage text DEFAULT NULL::text, class text DEFAULT NULL::text)
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
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
END $function$;

-- Adds a job that projects all stored records of a projection's collections again. Returns the id of the job.
CREATE OR REPLACE FUNCTION public.run_projection(name text)
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM FROM projections AS p WHERE p.name = run_projection.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no projection %', coalesce(quote_literal(left(name, 100)), 'NULL') USING ERRCODE = '22023', HINT = 'SELECT name FROM projections';
    END IF;
    RETURN enqueue_job('run_projection', 'maintenance', jsonb_build_object('name', name), ARRAY[tag(name)]);
END $function$;

-- Adds a job that reads the members of a new or changed watch.
CREATE OR REPLACE FUNCTION public.sync_watch()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM enqueue_job('sync_follows', 'network', jsonb_build_object('watch', NEW.id), ARRAY[NEW.kind]);
    RETURN NULL;
END $function$;

-- Turns a text into a tag that River accepts. NULL if that is impossible.
CREATE OR REPLACE FUNCTION public.tag(p_text text)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE
AS $function$
    SELECT substring(left(regexp_replace(p_text, '[^A-Za-z0-9_-]+', '-', 'g'), 255) FROM '^-*([A-Za-z0-9_][A-Za-z0-9_-]+[A-Za-z0-9_])-*$')
$function$;

-- Reserves the start of a call: wait for `wait`, then call. If slot is NULL, all slots are taken: wait for `wait`, then try again. Both waits begin at now_at.
CREATE OR REPLACE FUNCTION public.take_api_slot(p_holder text, p_slots integer, p_spacing interval, p_ttl interval, OUT slot integer, OUT wait interval, OUT now_at timestamp with time zone)
 RETURNS record
 LANGUAGE plpgsql
AS $function$
DECLARE
    at   timestamptz;
    -- The furthest that calls can be reserved ahead: each has a slot, or had one and gave up.
    far CONSTANT interval := p_slots * (p_spacing + interval '100 milliseconds') + interval '1 second';
BEGIN
    -- A server that crashes may lose the last reservations. Then calls may be too close or too many for a second. Waiting
    -- for the disk would delay every call.
    PERFORM set_config('synchronous_commit', 'off', true);
    IF NOT EXISTS (SELECT FROM api_slots AS s WHERE s.slot = p_slots) THEN
        INSERT INTO api_slots (slot) SELECT n FROM generate_series(1, p_slots) AS n ON CONFLICT DO NOTHING;
    END IF;
    SELECT s.slot INTO slot
    FROM api_slots AS s
    WHERE s.slot <= p_slots AND (s.holder IS NULL OR s.expires_at < clock_timestamp())
    ORDER BY s.slot
    LIMIT 1
    FOR UPDATE SKIP LOCKED;
    IF slot IS NULL THEN
        -- If the clock was set back, some slots expire too late: shorten them.
        UPDATE api_slots AS s SET expires_at = clock_timestamp() + p_ttl
        WHERE s.slot IN (SELECT o.slot FROM api_slots AS o WHERE o.expires_at > clock_timestamp() + p_ttl + 2 * far FOR UPDATE SKIP LOCKED);
        wait := interval '20 milliseconds';
        now_at := clock_timestamp();
        RETURN;
    END IF;
    SELECT next_at INTO at FROM api_schedule FOR UPDATE;
    IF at > clock_timestamp() + 2 * far THEN
        at := clock_timestamp() + far; -- the clock was set back; earlier reservations are used up by then
    END IF;
    at := greatest(at, clock_timestamp());
    UPDATE api_schedule SET next_at = at + p_spacing;
    UPDATE api_slots AS s SET holder = p_holder, expires_at = at + p_ttl WHERE s.slot = take_api_slot.slot;
    now_at := clock_timestamp();
    wait := at - now_at;
END $function$;

-- The first TID of a moment. The TIDs of later moments sort after it.
CREATE OR REPLACE FUNCTION public.tid_floor(at timestamp with time zone)
 RETURNS text
 LANGUAGE plpgsql
 IMMUTABLE STRICT
AS $function$
DECLARE
    n   bigint := (extract(epoch FROM at) * 1000000)::bigint << 10;
    tid text := '';
BEGIN
    FOR i IN 1..13 LOOP
        tid := substr('234567abcdefghijklmnopqrstuvwxyz', (n & 31)::int + 1, 1) || tid;
        n := n >> 5;
    END LOOP;
    RETURN tid;
END $function$;

-- The moment of a TID, or of the first TID that begins with this text. NULL for anything else.
CREATE OR REPLACE FUNCTION public.tid_time(tid text)
 RETURNS timestamp with time zone
 LANGUAGE sql
 IMMUTABLE STRICT
AS $function$
    SELECT 'epoch'::timestamptz + (sum((strpos('234567abcdefghijklmnopqrstuvwxyz', substr(rpad(tid, 13, '2'), i, 1)) - 1)::bigint << (5 * (13 - i)))::bigint >> 10) * interval '1 microsecond'
    FROM generate_series(1, 13) AS i
    WHERE tid ~ '^[2-7a-j][2-7a-z]{0,12}$'
$function$;

-- The links shared within a span of time such as '24h', the most sharers first; for everyone, or for the accounts that the watches of a target include, and of one network or both. Counted from the shares, as exactly as the API: with millions of them that takes seconds. Titles and spellings are as last counted, a second or two ago.
CREATE OR REPLACE FUNCTION public.trending(span interval DEFAULT '06:00:00'::interval, watch text DEFAULT NULL::text, network text DEFAULT NULL::text)
 RETURNS TABLE(link_id bigint, url text, site text, title text, sharers bigint, shares bigint, first_shared timestamp with time zone, last_shared timestamp with time zone)
 LANGUAGE sql
 STABLE
AS $function$
    WITH asked AS MATERIALIZED (
        SELECT known_network(trending.network) AS network
    ), counted AS (
        SELECT s.link_id, s.did, count(*) AS shares, min(s.shared_at) AS first_shared, max(s.shared_at) AS last_shared
        FROM asked AS k
        JOIN judged_shares AS s ON k.network IS NULL OR k.network = CASE WHEN s.did LIKE 'did:nostr:%' THEN 'nostr' ELSE 'bluesky' END
        WHERE s.shared_at > now() - span AND s.why IS NULL
          AND (trending.watch IS NULL OR EXISTS (SELECT FROM watch_members AS m JOIN watches AS w ON w.id = m.watch_id WHERE m.did = s.did AND w.target = trending.watch))
        GROUP BY s.link_id, s.did
    )
    SELECT l.id, l.url, l.site, l.title, count(*), sum(c.shares)::bigint, min(c.first_shared), max(c.last_shared)
    FROM counted AS c
    JOIN links AS l ON l.id = c.link_id
    GROUP BY l.id
    ORDER BY count(*) DESC, max(c.last_shared) DESC, l.id DESC
$function$;

-- Why an account counts nowhere: hidden, not_recommended or not_followed; NULL: it counts.
CREATE OR REPLACE FUNCTION public.why_uncounted(account text)
 RETURNS TABLE(why text)
 LANGUAGE sql
 STABLE ROWS 1
AS $function$
    -- Scalar subqueries: the planner cannot turn them into a scan of all hidden accounts.
    SELECT coalesce(
        (SELECT CASE WHEN a.status <> 'active' THEN 'hidden' WHEN a.not_recommended AND NOT EXISTS (SELECT FROM watches) THEN 'not_recommended' END
         FROM accounts AS a WHERE a.did = account),
        CASE WHEN EXISTS (SELECT FROM watches) AND (SELECT true FROM watch_members AS w WHERE w.did = account LIMIT 1) IS NULL THEN 'not_followed' END)
$function$;

-- River: tables

CREATE TYPE river_job_state AS ENUM ('available', 'cancelled', 'completed', 'discarded', 'pending', 'retryable', 'running', 'scheduled');

CREATE TABLE river_job (
    id bigint DEFAULT nextval('river_job_id_seq'::regclass) NOT NULL,
    state river_job_state DEFAULT 'available'::river_job_state NOT NULL,
    attempt smallint DEFAULT 0 NOT NULL,
    max_attempts smallint DEFAULT 25 NOT NULL,
    attempted_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    finalized_at timestamp with time zone,
    scheduled_at timestamp with time zone DEFAULT now() NOT NULL,
    priority smallint DEFAULT 1 NOT NULL,
    args jsonb NOT NULL,
    attempted_by text[],
    errors jsonb[],
    kind text NOT NULL,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    queue text DEFAULT 'default'::text NOT NULL,
    tags character varying(255)[] DEFAULT '{}'::character varying[] NOT NULL,
    unique_key bytea,
    unique_states bit(8),
    CONSTRAINT river_job_pkey PRIMARY KEY (id),
    CONSTRAINT finalized_or_finalized_at_null CHECK (finalized_at IS NULL AND (state <> ALL (ARRAY['cancelled'::river_job_state, 'completed'::river_job_state, 'discarded'::river_job_state])) OR finalized_at IS NOT NULL AND (state = ANY (ARRAY['cancelled'::river_job_state, 'completed'::river_job_state, 'discarded'::river_job_state]))),
    CONSTRAINT kind_length CHECK (char_length(kind) > 0 AND char_length(kind) < 128),
    CONSTRAINT max_attempts_is_positive CHECK (max_attempts > 0),
    CONSTRAINT priority_in_range CHECK (priority >= 1 AND priority <= 4),
    CONSTRAINT queue_length CHECK (char_length(queue) > 0 AND char_length(queue) < 128)
) WITH (autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0);
CREATE INDEX river_job_kind ON river_job USING btree (kind);
CREATE INDEX river_job_prioritized_fetching_index ON river_job USING btree (state, queue, priority, scheduled_at, id);
CREATE INDEX river_job_state_and_finalized_at_index ON river_job USING btree (state, finalized_at) WHERE finalized_at IS NOT NULL;
CREATE UNIQUE INDEX river_job_unique_idx ON river_job USING btree (unique_key) WHERE unique_key IS NOT NULL AND unique_states IS NOT NULL AND river_job_state_in_bitmask(unique_states, state);
CREATE TRIGGER job_ended AFTER UPDATE ON river_job FOR EACH ROW WHEN (old.state <> new.state AND ((new.state = ANY (ARRAY['discarded'::river_job_state, 'cancelled'::river_job_state])) OR new.state = 'completed'::river_job_state AND (cardinality(new.errors) > 0 OR new.tags && '{dead-letter,periodic}'::character varying[]))) EXECUTE FUNCTION record_ended_job();

CREATE UNLOGGED TABLE river_leader (
    elected_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    leader_id text NOT NULL,
    name text DEFAULT 'default'::text NOT NULL,
    CONSTRAINT river_leader_pkey PRIMARY KEY (name),
    CONSTRAINT leader_id_length CHECK (char_length(leader_id) > 0 AND char_length(leader_id) < 128),
    CONSTRAINT name_length CHECK (name = 'default'::text)
);

CREATE TABLE river_migration (
    line text NOT NULL,
    version bigint NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT river_migration_pkey1 PRIMARY KEY (line, version),
    CONSTRAINT line_length CHECK (char_length(line) > 0 AND char_length(line) < 128),
    CONSTRAINT version_gte_1 CHECK (version >= 1)
);

CREATE TABLE river_notification (
    id bigint DEFAULT nextval('river_notification_id_seq'::regclass) NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    payload text NOT NULL,
    topic text NOT NULL,
    CONSTRAINT river_notification_pkey PRIMARY KEY (id),
    CONSTRAINT topic_length CHECK (length(topic) > 0 AND length(topic) < 128)
);
CREATE INDEX river_notification_created_at_idx ON river_notification USING btree (created_at);
CREATE INDEX river_notification_topic_id_idx ON river_notification USING btree (topic, id);

CREATE TABLE river_queue (
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    paused_at timestamp with time zone,
    updated_at timestamp with time zone DEFAULT CURRENT_TIMESTAMP NOT NULL,
    CONSTRAINT river_queue_pkey PRIMARY KEY (name)
);

-- River: functions

CREATE OR REPLACE FUNCTION public.river_job_state_in_bitmask(bitmask bit, state river_job_state)
 RETURNS boolean
 LANGUAGE sql
 IMMUTABLE
AS $function$
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
$function$;
