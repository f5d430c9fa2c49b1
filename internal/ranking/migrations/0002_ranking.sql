-- The ranking: how many accounts share each link in each window, which headline they vote for, and what people read.

-- Counts: how many accounts share each link in each window, kept in order. docs/decisions/ranking.md explains them.

CREATE TABLE pending_counts (
    link_id      bigint,
    did          text COLLATE "C",
    subject_did  text COLLATE "C",
    subject_rkey text COLLATE "C"
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_insert_scale_factor = 0);

COMMENT ON TABLE  pending_counts IS 'What has changed in shares, or decides who counts, since it was last counted. Only appended to; the counter deletes what it has counted. Not compared: counted from shares, which `weir recount --check` does.';
COMMENT ON COLUMN pending_counts.link_id IS 'The link of the share that changed. NULL: every link that the account shares.';
COMMENT ON COLUMN pending_counts.did IS 'The account of the share that changed. NULL: everyone who shares the link. All columns NULL: count everything again.';
COMMENT ON COLUMN pending_counts.subject_did IS 'The author of a record, named with subject_rkey, that others repost, quote or copy: what they share through it, and the shares of its copies, may count again, or no longer.';

-- Columns of one width come first: then no row has bytes between them.
CREATE TABLE sharers (
    link_id     bigint           NOT NULL,
    at          timestamptz      NOT NULL,
    post_at     timestamptz,
    quote_at    timestamptz,
    repost_at   timestamptz,
    title_claim bigint,
    title_at    timestamptz,
    url_claim   bigint,
    url_at      timestamptz,
    voted_at    timestamptz GENERATED ALWAYS AS (least(title_at, url_at)) STORED,
    did         text COLLATE "C" NOT NULL,
    title_key   text COLLATE "C",
    url_key     text COLLATE "C",
    PRIMARY KEY (did, link_id) INCLUDE (at)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 20000);
CREATE INDEX sharers_link ON sharers (link_id, at);
CREATE INDEX sharers_at ON sharers (at);
CREATE INDEX sharers_title ON sharers (title_claim, title_at) WHERE title_claim IS NOT NULL;
CREATE INDEX sharers_url ON sharers (url_claim, url_at) WHERE url_claim IS NOT NULL;
CREATE INDEX sharers_voted_at ON sharers (voted_at) WHERE voted_at < at; -- the others leave with their votes
CREATE INDEX sharers_nostr_link ON sharers (link_id, at) WHERE did LIKE 'did:nostr:%';
CREATE INDEX sharers_nostr_at ON sharers (at) WHERE did LIKE 'did:nostr:%';

COMMENT ON TABLE  sharers IS 'Every account that counts as a sharer of a link, once, as far as shares are counted. Only the counter writes here. Not compared: counted from shares, which `weir recount --check` does.';
COMMENT ON COLUMN sharers.at IS 'The latest share of the link by the account: it counts in the windows that begin before this time.';
COMMENT ON COLUMN sharers.post_at IS 'The latest share in a post of its own. NULL: none.';
COMMENT ON COLUMN sharers.quote_at IS 'The latest share by quoting a post. NULL: none.';
COMMENT ON COLUMN sharers.repost_at IS 'The latest share by reposting a post. NULL: none.';
COMMENT ON COLUMN sharers.title_claim IS 'The account''s vote for the headline: the claim of its latest post with a title. NULL: it has none.';
COMMENT ON COLUMN sharers.title_at IS 'Since when: the date of its earliest post with that title.';
COMMENT ON COLUMN sharers.title_key IS 'The collection and rkey of that post.';
COMMENT ON COLUMN sharers.url_claim IS 'The account''s vote for the spelling: the claim of its latest post. NULL: it only reposts and quotes, or names other links that are merged into this one.';
COMMENT ON COLUMN sharers.url_at IS 'Since when: the date of its earliest post with that spelling.';
COMMENT ON COLUMN sharers.url_key IS 'The collection and rkey of that post.';
COMMENT ON COLUMN sharers.voted_at IS 'When this time leaves the longest window, the votes are read again.';

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

COMMENT ON TABLE  link_counts IS 'How many accounts share each link in each window, as of count_state.as_of. Links with one sharer have no row. Only the counter writes here. Not compared: counted from shares, which `weir recount --check` does.';
COMMENT ON COLUMN link_counts.sharers IS 'The rows of the link in sharers.';
COMMENT ON COLUMN link_counts.speed IS 'Sharers per hour with decay, times 120: the mean of the hourly rates of the windows of 1, 3, 6, 12 and 24 h.';
COMMENT ON COLUMN link_counts.level_1h IS 'The order of magnitude of in_1h; 1 and more: at least 2 sharers. It is indexed instead of the number, which changes with every share: most updates then write no index.';
COMMENT ON COLUMN link_counts.level_speed IS 'The order of magnitude of the speed; 0: fewer than 2 sharers in 24 h.';
COMMENT ON COLUMN link_counts.last_at IS 'The latest share of the link.';

-- The counts of the accounts of Nostr, kept beside those of all accounts. docs/decisions/ranking.md explains them.

CREATE TABLE nostr_counts (LIKE link_counts INCLUDING ALL) WITH (autovacuum_vacuum_scale_factor = 0.1, fillfactor = 70);

COMMENT ON TABLE  nostr_counts IS 'What link_counts is, of the accounts of Nostr alone. A link that one of them shares has no row. Only the counter writes here. Not compared: counted from shares, which `weir recount --check` does.';

CREATE TABLE count_state (
    one          boolean     PRIMARY KEY DEFAULT true CHECK (one),
    as_of        timestamptz NOT NULL,
    kept_from    timestamptz NOT NULL,
    members_only boolean     NOT NULL,
    counted      timestamptz NOT NULL DEFAULT now()
);

COMMENT ON TABLE  count_state IS 'What sharers and link_counts hold. No row: nothing was counted yet. Not compared: counted from shares, which `weir recount --check` does.';
COMMENT ON COLUMN count_state.as_of IS 'The time at which the windows of link_counts end.';
COMMENT ON COLUMN count_state.kept_from IS 'sharers has the accounts whose latest share is after this time.';
COMMENT ON COLUMN count_state.members_only IS 'Only accounts that a watch includes were counted.';
COMMENT ON COLUMN count_state.counted IS 'When the counter last wrote.';

CREATE TABLE count_checks (
    one        boolean     PRIMARY KEY DEFAULT true CHECK (one),
    checked_at timestamptz NOT NULL,
    links      int         NOT NULL,
    wrong      int         NOT NULL
);

COMMENT ON TABLE  count_checks IS 'The last comparison of the counts of some links with the shares. No row: none yet. Not compared: counted from shares, which `weir recount --check` does.';
COMMENT ON COLUMN count_checks.wrong IS 'The counts that differed. Expect 0: weir recount --check prints them all.';

-- Votes: every account that counts for a link votes for a title and a spelling. docs/decisions/links.md explains them.

CREATE TABLE claim_votes (
    claim_id   bigint NOT NULL,
    link_id    bigint NOT NULL,
    titles     int    NOT NULL CHECK (titles >= 0),
    title_at   timestamptz,
    title_from text COLLATE "C",
    urls       int    NOT NULL CHECK (urls >= 0),
    url_at     timestamptz,
    url_from   text COLLATE "C",
    title_group bigint,
    PRIMARY KEY (link_id, claim_id),
    CHECK (titles + urls > 0)
) WITH (autovacuum_vacuum_scale_factor = 0.1, fillfactor = 80);
CREATE INDEX claim_votes_title_group ON claim_votes (title_group) WHERE title_group IS NOT NULL;

COMMENT ON TABLE  claim_votes IS 'How many accounts of a link vote for each claim, as far as they are counted. Claims without votes have no row. Only the counter writes here. Not compared: counted from shares, which `weir recount --check` does.';
COMMENT ON COLUMN claim_votes.titles IS 'Votes for the headline.';
COMMENT ON COLUMN claim_votes.title_at IS 'The earliest title_at of these votes in sharers: it decides ties.';
COMMENT ON COLUMN claim_votes.title_from IS 'The AT-URI of that post.';
COMMENT ON COLUMN claim_votes.urls IS 'Votes for the spelling.';
COMMENT ON COLUMN claim_votes.url_at IS 'The earliest url_at of these votes in sharers.';
COMMENT ON COLUMN claim_votes.url_from IS 'The AT-URI of that post.';
COMMENT ON COLUMN claim_votes.title_group IS 'That of the claim.';

CREATE TABLE walls (
    title_group bigint PRIMARY KEY
);

COMMENT ON TABLE walls IS 'Titles for which accounts vote on three pages of one site, or on more: such a title tells no page apart, and is that of a wall. No link has it. Only the counter writes here. Not compared: counted from shares, which `weir recount --check` does.';

-- Whoever changes a share, or what makes an account count, says so in the same transaction.

-- A copy counts again when its original no longer shares the link. Few records have copies: a lookup for each changed share finds them. A
-- share of an original writes one row for the counter, however many records say that they are copies of it.
CREATE FUNCTION record_share_changes() RETURNS trigger LANGUAGE plpgsql AS $$
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
END $$;

COMMENT ON FUNCTION record_share_changes IS 'Has the counter look again at the accounts and links of changed shares, and at their copies.';

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
    WHEN ((NEW.status = 'active') <> (OLD.status = 'active') OR NEW.not_recommended <> OLD.not_recommended OR NEW.did <> OLD.did) EXECUTE FUNCTION record_account_change();
CREATE TRIGGER hidden_account_added AFTER INSERT ON accounts FOR EACH ROW WHEN (NEW.status <> 'active' OR NEW.not_recommended) EXECUTE FUNCTION record_account_change();
CREATE TRIGGER hidden_account_removed AFTER DELETE ON accounts FOR EACH ROW WHEN (OLD.status <> 'active' OR OLD.not_recommended) EXECUTE FUNCTION record_account_change();
CREATE TRIGGER accounts_truncated AFTER TRUNCATE ON accounts FOR EACH STATEMENT EXECUTE FUNCTION record_everything();

CREATE TRIGGER watch_members_counted AFTER INSERT ON watch_members REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION record_member_changes();
CREATE TRIGGER watch_members_uncounted AFTER DELETE ON watch_members REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION record_member_changes();
CREATE TRIGGER watch_members_recounted AFTER UPDATE ON watch_members REFERENCING OLD TABLE AS removed NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION record_member_changes();
CREATE TRIGGER watch_members_truncated AFTER TRUNCATE ON watch_members FOR EACH STATEMENT EXECUTE FUNCTION record_everything();

-- Blocks: what the operator takes out of every ranking, feed and page.

CREATE TABLE blocks (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind     text COLLATE "C" NOT NULL,
    target   text COLLATE "C" NOT NULL,
    added_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (target, kind),
    CHECK (CASE kind WHEN 'account' THEN target LIKE 'did:_%' WHEN 'domain' THEN target ~ '^[!-~]+$' AND target !~ '[/:@]' WHEN 'link' THEN target <> '' ELSE false END)
);

COMMENT ON TABLE  blocks IS 'What is in no ranking or page, and after five minutes in no feed. Add and delete rows freely: the counts change in the same transaction. What is blocked is stored all the same.';
COMMENT ON COLUMN blocks.kind IS 'account; domain: every link to it or to a subdomain, future ones too; link.';
COMMENT ON COLUMN blocks.target IS 'A DID; a host in ASCII (xn--…), without www.; the identity of a link. The URL under which a link is shown becomes its identity.';

CREATE TABLE blocked_links (
    link_id  bigint NOT NULL,
    block_id bigint NOT NULL,
    PRIMARY KEY (link_id, block_id)
);
CREATE INDEX blocked_links_block ON blocked_links (block_id);

COMMENT ON TABLE blocked_links IS 'The links that blocks of links and domains concern, also links that have expired. Only the trigger of blocks writes here, and who adds a link. Not compared: counted from shares, which `weir recount --check` does.';

CREATE FUNCTION blocks_link(b blocks, identity text, url text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE b.kind WHEN 'link' THEN blocks_link.identity = b.target
                       WHEN 'domain' THEN right('.' || substring(blocks_link.url FROM '^[a-z]+://([^/:?#]+)'), length(b.target) + 1) = '.' || b.target
                       ELSE false END
$$;

COMMENT ON FUNCTION blocks_link IS 'Whether a block concerns a link.';

CREATE FUNCTION normalise_block() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.target := CASE NEW.kind WHEN 'domain' THEN regexp_replace(lower(NEW.target), '^www\.', '')
                                WHEN 'link' THEN coalesce((SELECT i.identity FROM links AS l JOIN links AS i ON i.id = l.counts_as
                                                           WHERE l.identity = NEW.target OR l.url = NEW.target ORDER BY l.identity = NEW.target DESC LIMIT 1), NEW.target)
                                ELSE NEW.target END;
    RETURN NEW;
END $$;

COMMENT ON FUNCTION normalise_block IS 'Gives the target of a block the form in which it is compared.';

CREATE TRIGGER block_named BEFORE INSERT OR UPDATE ON blocks FOR EACH ROW EXECUTE FUNCTION normalise_block();

CREATE FUNCTION apply_block() RETURNS trigger LANGUAGE plpgsql AS $$
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
END $$;

COMMENT ON FUNCTION apply_block IS 'Takes out of the counts what a new block concerns, and puts back what a removed one concerned.';

CREATE TRIGGER block_changed AFTER INSERT OR UPDATE OR DELETE ON blocks FOR EACH ROW EXECUTE FUNCTION apply_block();

CREATE FUNCTION block_account() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM blocks AS b WHERE b.target = NEW.did AND b.kind = 'account') THEN
        NEW.status := 'blocked';
    END IF;
    RETURN NEW;
END $$;

COMMENT ON FUNCTION block_account IS 'A blocked account is never active. Other statuses stay: they say more.';

CREATE TRIGGER account_blocked BEFORE INSERT OR UPDATE OF status ON accounts FOR EACH ROW WHEN (NEW.status = 'active') EXECUTE FUNCTION block_account();

CREATE FUNCTION keep_blocked_account() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO accounts (did) SELECT b.target FROM blocks AS b WHERE b.target = OLD.did AND b.kind = 'account' ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION keep_blocked_account IS 'A blocked account has a row, or it would count when it returns.';

CREATE TRIGGER blocked_account_kept AFTER DELETE ON accounts FOR EACH ROW EXECUTE FUNCTION keep_blocked_account();

-- Consent: who does not want to be recommended, or to be shown to strangers.

CREATE FUNCTION declare_visibility() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'DELETE' AND NEW.record -> 'hideFromAlgorithmicRecommendations' = 'true' THEN
        INSERT INTO accounts AS a (did, not_recommended) VALUES (NEW.did, true) ON CONFLICT (did) DO UPDATE SET not_recommended = true WHERE NOT a.not_recommended;
    ELSE
        UPDATE accounts AS a SET not_recommended = false WHERE a.did = coalesce(NEW.did, OLD.did) AND a.not_recommended;
    END IF;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION declare_visibility IS 'Has a stored declaration of visibility decide whether its account counts where nobody follows it.';

CREATE TRIGGER visibility_declared AFTER INSERT OR UPDATE ON records_other FOR EACH ROW
    WHEN (NEW.collection = 'app.bsky.actor.contentVisibilityDeclaration' AND NEW.rkey = 'self') EXECUTE FUNCTION declare_visibility();
CREATE TRIGGER visibility_not_declared AFTER DELETE ON records_other FOR EACH ROW
    WHEN (OLD.collection = 'app.bsky.actor.contentVisibilityDeclaration' AND OLD.rkey = 'self') EXECUTE FUNCTION declare_visibility();

-- An expired or deleted profile changes nothing: the next reading does.
CREATE FUNCTION label_profile() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_path_exists(NEW.record, 'lax $.labels.values[*].val ? (@ == "!no-unauthenticated")') THEN
        INSERT INTO profiles AS p (did, read_at) VALUES (NEW.did, now()) ON CONFLICT (did) DO UPDATE SET read_at = now(), withheld = true;
    ELSE
        UPDATE profiles AS p SET read_at = now(), withheld = false WHERE p.did = NEW.did;
    END IF;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION label_profile IS 'Has a stored profile decide whether its account is shown to strangers.';

CREATE TRIGGER profile_labelled AFTER INSERT OR UPDATE ON records_other FOR EACH ROW
    WHEN (NEW.collection = 'app.bsky.actor.profile' AND NEW.rkey = 'self') EXECUTE FUNCTION label_profile();

-- Output: what people read in psql, and which links were announced.

-- What counts is said here once; the ranking reads it too. Postgres puts both into the queries that use them.

CREATE FUNCTION why_uncounted(account text) RETURNS TABLE (why text) LANGUAGE sql STABLE ROWS 1 AS $$
    -- Scalar subqueries: the planner cannot turn them into a scan of all hidden accounts.
    SELECT coalesce(
        (SELECT CASE WHEN a.status <> 'active' THEN 'hidden' WHEN a.not_recommended AND NOT EXISTS (SELECT FROM watches) THEN 'not_recommended' END
         FROM accounts AS a WHERE a.did = account),
        CASE WHEN EXISTS (SELECT FROM watches) AND (SELECT true FROM watch_members AS w WHERE w.did = account LIMIT 1) IS NULL THEN 'not_followed' END)
$$;

COMMENT ON FUNCTION why_uncounted IS 'Why an account counts nowhere: hidden, not_recommended or not_followed; NULL: it counts.';

-- OFFSET 0 forces a lookup of the original by its key: without statistics, the planner would read all shares of the link for each copy.
CREATE VIEW judged_shares AS
SELECT s.*,
       coalesce(CASE WHEN s.link_id IN (SELECT b.link_id FROM blocked_links AS b) THEN 'blocked' END,
                u.why,
                CASE WHEN (SELECT b.status <> 'active' FROM accounts AS b WHERE b.did = s.subject_did) THEN 'subject_hidden'
                     WHEN s.subject_did IS NOT NULL
                          AND NOT EXISTS (SELECT FROM subjects AS u
                                          WHERE u.did = s.subject_did AND u.collection = s.subject_collection AND u.rkey = s.subject_rkey AND s.named_id = ANY (u.links))
                     THEN 'subject_gone'
                     WHEN s.copied
                          AND EXISTS (SELECT FROM copies AS c
                                      CROSS JOIN LATERAL (SELECT FROM shares AS o
                                                          WHERE o.did = c.of_did AND o.collection = c.of_collection AND o.rkey = c.of_rkey AND o.link_id = s.link_id OFFSET 0) AS o
                                      WHERE c.did = s.did AND c.collection = s.collection AND c.rkey = s.rkey)
                     THEN 'copy' END) AS why
FROM shares AS s
CROSS JOIN LATERAL why_uncounted(s.did) AS u;

COMMENT ON VIEW judged_shares IS 'The shares, and why each does not count, whatever the window and the other shares of its account are. NULL: it counts.';

-- trending() counts the sharers of one network, as the API does.
CREATE FUNCTION known_network(p_network text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF p_network NOT IN ('bluesky', 'nostr') THEN
        RAISE EXCEPTION 'the network is %: expected bluesky, nostr, or NULL for both', quote_literal(p_network) USING ERRCODE = '22023';
    END IF;
    RETURN p_network;
END $$;

COMMENT ON FUNCTION known_network IS 'Returns a network, and refuses one that does not exist. NULL means both.';

CREATE FUNCTION trending(span interval DEFAULT '6 hours', watch text DEFAULT NULL, network text DEFAULT NULL)
RETURNS TABLE (link_id bigint, url text, site text, title text, sharers bigint, shares bigint, first_shared timestamptz, last_shared timestamptz)
LANGUAGE sql STABLE ROWS 1000 AS $$
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
$$;

COMMENT ON FUNCTION trending IS 'The links shared within a span of time such as ''24h'', the most sharers first; for everyone, or for the accounts that the watches of a target include, and of one network or both. Counted from the shares, as exactly as the API: with millions of them that takes seconds. Titles and spellings are as last counted, a second or two ago.';

CREATE VIEW link_shares AS
SELECT s.link_id                                                                        AS link_id,
       l.url                                                                            AS url,
       s.did                                                                            AS did,
       CASE WHEN a.status = 'active' AND NOT a.handle_unverified THEN nullif(a.handle, '') END AS handle,
       CASE WHEN coalesce(a.status, 'active') = 'active' THEN a.display_name END        AS display_name,
       s.how                                                                            AS how,
       s.shared_at                                                                      AS shared_at,
       'at://' || s.did || '/' || s.collection || '/' || s.rkey                         AS uri,
       'at://' || s.subject_did || '/' || s.subject_collection || '/' || s.subject_rkey AS subject,
       CASE WHEN y.why NOT IN ('hidden', 'subject_hidden') OR y.why IS NULL THEN (
           SELECT coalesce(r.record ->> 'text', r.record ->> 'content') FROM records AS r
           WHERE r.collection = CASE s.how WHEN 'repost' THEN s.subject_collection ELSE s.collection END
             AND r.did = CASE s.how WHEN 'repost' THEN s.subject_did ELSE s.did END
             AND r.rkey = CASE s.how WHEN 'repost' THEN s.subject_rkey ELSE s.rkey END
       ) END                                                                            AS text,
       y.why IS NULL                                                                    AS counts,
       y.why                                                                            AS why,
       n.url                                                                            AS named
FROM judged_shares AS s
JOIN links AS l ON l.id = s.link_id
JOIN links AS n ON n.id = s.named_id
LEFT JOIN accounts AS a ON a.did = s.did
CROSS JOIN LATERAL (
    SELECT coalesce(s.why, CASE
        WHEN s.shared_at <= now() - interval '7 days' THEN 'outside_window'
        WHEN EXISTS (SELECT FROM judged_shares AS n
                     WHERE n.did = s.did AND n.link_id = s.link_id AND n.why IS NULL
                       AND (n.shared_at, n.collection, n.rkey, n.named_id) > (s.shared_at, s.collection, s.rkey, s.named_id)) THEN 'same_person'
    END) AS why
) AS y;

COMMENT ON VIEW link_shares IS 'Every stored share, with its account and whether it counts in the ranking of seven days. Name a link: WHERE link_id = 17.';
COMMENT ON COLUMN link_shares.handle IS 'Of an active account, if it is verified.';
COMMENT ON COLUMN link_shares.uri IS 'The AT-URI of the record.';
COMMENT ON COLUMN link_shares.subject IS 'The AT-URI of the record that is quoted or reposted.';
COMMENT ON COLUMN link_shares.named IS 'The URL of the link that the record names: not that of the link if the two are merged.';
COMMENT ON COLUMN link_shares.text IS 'The text of the post, or of the one that is reposted, while it is stored.';
COMMENT ON COLUMN link_shares.why IS 'Why the share does not count; NULL: it counts. blocked: the link is; not_recommended: the account does not want to be recommended, and nobody follows it; hidden: the account is not active; not_followed: no watch includes it; subject_hidden: the author of the subject is not active; subject_gone: the subject no longer contains the link; copy: the record is a copy of one that shares the link too; outside_window: older than seven days; same_person: the account shared the link again later.';

CREATE TABLE top_links (
    span    text   NOT NULL,
    link_id bigint NOT NULL,
    PRIMARY KEY (span, link_id)
);

COMMENT ON TABLE  top_links IS 'The 50 links with the most sharers of each window, as last announced. Whoever enters is announced on the channel weir_links. Only the counter writes here. Not compared: counted from shares, which `weir recount --check` does.';
COMMENT ON COLUMN top_links.span IS 'The window, such as 24h.';

CREATE TABLE top_links_state (
    one          boolean     PRIMARY KEY DEFAULT true CHECK (one),
    announced_at timestamptz NOT NULL
);

COMMENT ON TABLE top_links_state IS 'When top_links was last compared with the ranking. No row: never. Not compared: counted from shares, which `weir recount --check` does.';
