-- Counts: how many accounts share each link in each window, kept in order. docs/decisions/counts.md explains them.

-- A share is found by its account and link too, and a link by its site.
CREATE INDEX shares_sharer ON shares (did, link_id);
CREATE INDEX links_site ON links (site);

CREATE TABLE pending_counts (
    link_id      bigint,
    did          text COLLATE "C",
    subject_did  text COLLATE "C",
    subject_rkey text COLLATE "C"
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_insert_scale_factor = 0);

COMMENT ON TABLE  pending_counts IS 'What has changed in the ledger, or decides who counts, since it was last counted. Only appended to; the counter deletes what it has counted.';
COMMENT ON COLUMN pending_counts.link_id IS 'The link of the share that changed. NULL: every link that the account shares.';
COMMENT ON COLUMN pending_counts.subject_did IS 'The author of a post, named with subject_rkey, that others repost or quote: what they share through it may count again, or no longer.';
COMMENT ON COLUMN pending_counts.did IS 'The account of the share that changed. NULL: everyone who shares the link. All columns NULL: count everything again.';

CREATE TABLE sharers (
    did       text COLLATE "C" NOT NULL,
    link_id   bigint           NOT NULL,
    at        timestamptz      NOT NULL,
    post_at   timestamptz,
    quote_at  timestamptz,
    repost_at timestamptz,
    PRIMARY KEY (did, link_id) INCLUDE (at)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 20000);
CREATE INDEX sharers_link ON sharers (link_id, at);
CREATE INDEX sharers_at ON sharers (at);

COMMENT ON TABLE  sharers IS 'Every account that counts as a sharer of a link, once, as far as the ledger is counted. Only the counter writes here.';
COMMENT ON COLUMN sharers.at IS 'The latest share of the link by the account: it counts in the windows that begin before this time.';
COMMENT ON COLUMN sharers.post_at IS 'The latest share in a post of its own. NULL: none.';
COMMENT ON COLUMN sharers.quote_at IS 'The latest share by quoting a post. NULL: none.';
COMMENT ON COLUMN sharers.repost_at IS 'The latest share by reposting a post. NULL: none.';

CREATE TABLE link_counts (
    link_id     bigint PRIMARY KEY,
    last_at     timestamptz NOT NULL,
    sharers     int         NOT NULL CHECK (sharers >= 2),
    in_1h       int         NOT NULL CHECK (in_1h >= 0),
    in_3h       int         NOT NULL CHECK (in_3h >= in_1h),
    in_6h       int         NOT NULL CHECK (in_6h >= in_3h),
    in_12h      int         NOT NULL CHECK (in_12h >= in_6h),
    in_24h      int         NOT NULL CHECK (in_24h >= in_12h),
    in_7d       int         NOT NULL CHECK (in_7d >= in_24h AND in_7d <= sharers),
    speed       int         NOT NULL GENERATED ALWAYS AS (24 * in_1h + 8 * in_3h + 4 * in_6h + 2 * in_12h + in_24h) STORED,
    level_1h    smallint    NOT NULL GENERATED ALWAYS AS (width_bucket(in_1h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}')) STORED,
    level_3h    smallint    NOT NULL GENERATED ALWAYS AS (width_bucket(in_3h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}')) STORED,
    level_6h    smallint    NOT NULL GENERATED ALWAYS AS (width_bucket(in_6h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}')) STORED,
    level_12h   smallint    NOT NULL GENERATED ALWAYS AS (width_bucket(in_12h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}')) STORED,
    level_24h   smallint    NOT NULL GENERATED ALWAYS AS (width_bucket(in_24h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}')) STORED,
    level_7d    smallint    NOT NULL GENERATED ALWAYS AS (width_bucket(in_7d, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}')) STORED,
    level_speed smallint    NOT NULL GENERATED ALWAYS AS (
        CASE WHEN in_24h >= 2 THEN width_bucket(24 * in_1h + 8 * in_3h + 4 * in_6h + 2 * in_12h + in_24h, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}') ELSE 0 END) STORED
) WITH (autovacuum_vacuum_scale_factor = 0.1, fillfactor = 70);
CREATE INDEX link_counts_1h ON link_counts (level_1h) WHERE level_1h >= 1;
CREATE INDEX link_counts_3h ON link_counts (level_3h) WHERE level_3h >= 1;
CREATE INDEX link_counts_6h ON link_counts (level_6h) WHERE level_6h >= 1;
CREATE INDEX link_counts_12h ON link_counts (level_12h) WHERE level_12h >= 1;
CREATE INDEX link_counts_24h ON link_counts (level_24h) WHERE level_24h >= 1;
CREATE INDEX link_counts_7d ON link_counts (level_7d) WHERE level_7d >= 1;
CREATE INDEX link_counts_speed ON link_counts (level_speed) WHERE level_speed >= 1;

COMMENT ON TABLE  link_counts IS 'How many accounts share each link in each window, as of count_state.as_of. Links with one sharer have no row. Only the counter writes here.';
COMMENT ON COLUMN link_counts.sharers IS 'The rows of the link in sharers.';
COMMENT ON COLUMN link_counts.speed IS 'Sharers per hour with decay, times 120: the mean of the hourly rates of the windows of 1, 3, 6, 12 and 24 h.';
COMMENT ON COLUMN link_counts.level_1h IS 'The order of magnitude of in_1h; 1 and more: at least 2 sharers. It is indexed instead of the number, which changes with every share: most updates then write no index.';
COMMENT ON COLUMN link_counts.level_speed IS 'The order of magnitude of the speed; 0: fewer than 2 sharers in 24 h.';
COMMENT ON COLUMN link_counts.last_at IS 'The latest share of the link.';

CREATE TABLE count_state (
    one       boolean     PRIMARY KEY DEFAULT true CHECK (one),
    as_of     timestamptz NOT NULL,
    kept_from timestamptz NOT NULL,
    watched   boolean     NOT NULL,
    counted   timestamptz NOT NULL DEFAULT now()
);

COMMENT ON TABLE  count_state IS 'What sharers and link_counts hold. No row: nothing was counted yet.';
COMMENT ON COLUMN count_state.as_of IS 'The time at which the windows of link_counts end.';
COMMENT ON COLUMN count_state.kept_from IS 'sharers has the accounts whose latest share is after this time.';
COMMENT ON COLUMN count_state.watched IS 'Only accounts that a watch includes were counted.';
COMMENT ON COLUMN count_state.counted IS 'When the counter last wrote.';

CREATE TABLE count_checks (
    one        boolean     PRIMARY KEY DEFAULT true CHECK (one),
    checked_at timestamptz NOT NULL,
    links      int         NOT NULL,
    wrong      int         NOT NULL
);

COMMENT ON TABLE  count_checks IS 'The last comparison of the counts of some links with the ledger. No row: none yet.';
COMMENT ON COLUMN count_checks.wrong IS 'The counts that differed. Expect 0: weir recount --check prints them all.';

-- Whoever changes a share, or what makes an account count, says so in the same transaction.

CREATE FUNCTION record_share_changes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO pending_counts (link_id, did) SELECT DISTINCT a.link_id, a.did FROM added AS a;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO pending_counts (link_id, did) SELECT DISTINCT r.link_id, r.did FROM removed AS r;
    ELSE
        INSERT INTO pending_counts (link_id, did)
        SELECT a.link_id, a.did FROM added AS a UNION SELECT r.link_id, r.did FROM removed AS r;
    END IF;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION record_share_changes IS 'Has the counter look again at the accounts and links of changed shares.';

CREATE FUNCTION record_account_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO pending_counts (did) VALUES (OLD.did);
    END IF;
    IF TG_OP = 'INSERT' OR TG_OP = 'UPDATE' AND NEW.did <> OLD.did THEN
        INSERT INTO pending_counts (did) VALUES (NEW.did);
    END IF;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION record_account_change IS 'Has the counter look again at all that an account shares, because it is hidden or shown.';

CREATE FUNCTION record_member_changes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO pending_counts (did) SELECT DISTINCT a.did FROM added AS a;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO pending_counts (did) SELECT DISTINCT r.did FROM removed AS r;
    END IF;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION record_member_changes IS 'Has the counter look again at all that the new and the former members of a watch share.';

CREATE FUNCTION record_everything() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pending_counts DEFAULT VALUES;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION record_everything IS 'Has the counter count everything again.';

CREATE TRIGGER shares_added AFTER INSERT ON shares REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION record_share_changes();
CREATE TRIGGER shares_removed AFTER DELETE ON shares REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION record_share_changes();
CREATE TRIGGER shares_changed AFTER UPDATE ON shares REFERENCING OLD TABLE AS removed NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION record_share_changes();
CREATE TRIGGER shares_truncated AFTER TRUNCATE ON shares FOR EACH STATEMENT EXECUTE FUNCTION record_everything();

-- Most changes of an account hide and show nothing: the condition is checked without calling the function.
CREATE TRIGGER account_hidden_or_shown AFTER UPDATE ON accounts FOR EACH ROW
    WHEN ((NEW.status = 'active') <> (OLD.status = 'active') OR NEW.did <> OLD.did) EXECUTE FUNCTION record_account_change();
CREATE TRIGGER hidden_account_added AFTER INSERT ON accounts FOR EACH ROW WHEN (NEW.status <> 'active') EXECUTE FUNCTION record_account_change();
CREATE TRIGGER hidden_account_removed AFTER DELETE ON accounts FOR EACH ROW WHEN (OLD.status <> 'active') EXECUTE FUNCTION record_account_change();
CREATE TRIGGER accounts_truncated AFTER TRUNCATE ON accounts FOR EACH STATEMENT EXECUTE FUNCTION record_everything();

CREATE TRIGGER watch_members_counted AFTER INSERT ON watch_members REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION record_member_changes();
CREATE TRIGGER watch_members_uncounted AFTER DELETE ON watch_members REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION record_member_changes();
CREATE TRIGGER watch_members_recounted AFTER UPDATE ON watch_members REFERENCING OLD TABLE AS removed NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION record_member_changes();
CREATE TRIGGER watch_members_truncated AFTER TRUNCATE ON watch_members FOR EACH STATEMENT EXECUTE FUNCTION record_everything();
