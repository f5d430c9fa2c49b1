-- What retention needs to know, so that it costs what expires and not what is stored.

ALTER TABLE links
    ADD COLUMN fell_at  timestamptz,
    ADD COLUMN check_at timestamptz;
CREATE INDEX links_unchecked ON links (first_seen) WHERE check_at IS NULL;
CREATE INDEX links_check ON links (check_at) WHERE check_at < 'infinity';

COMMENT ON COLUMN links.fell_at IS 'When expiry noticed that too few accounts share it still to keep it; null while it has not had as many.';
COMMENT ON COLUMN links.check_at IS 'When expiry looks at it next; infinity: kept until a share of it is lost; null: not looked at yet.';

CREATE TABLE lost_shares (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    link_id bigint           NOT NULL,
    did     text COLLATE "C" NOT NULL
);
CREATE INDEX lost_shares_link ON lost_shares (link_id);

COMMENT ON TABLE lost_shares IS 'The shares deleted since the last expiry: their links may be shared by too few accounts now.';

CREATE FUNCTION note_lost_share() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO lost_shares (link_id, did) VALUES (OLD.link_id, OLD.did);
    RETURN NULL;
END $$;

COMMENT ON FUNCTION note_lost_share IS 'Has expiry look at the link of a share that is gone, or happened earlier than it was said to.';

-- What expiry deletes itself needs no second look.
CREATE TRIGGER share_deleted AFTER DELETE ON shares FOR EACH ROW
    WHEN (current_setting('weir.expiring', true) IS DISTINCT FROM 'on') EXECUTE FUNCTION note_lost_share();
CREATE TRIGGER share_moved AFTER UPDATE ON shares FOR EACH ROW
    WHEN (NEW.shared_at < OLD.shared_at OR NEW.link_id <> OLD.link_id OR NEW.did <> OLD.did) EXECUTE FUNCTION note_lost_share();

CREATE FUNCTION expire_links(p_now timestamptz, p_window interval, p_grace interval, p_keep int, p_limit int,
                             OUT looked_at int, OUT links_gone int, OUT shares_gone int)
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
    due bigint[];
    own bigint[];
BEGIN
    looked_at := 0; links_gone := 0; shares_gone := 0;
    SELECT array_agg(DISTINCT c.id) INTO due FROM (
        (SELECT l.id FROM links AS l WHERE l.check_at IS NULL AND l.first_seen <= p_now - p_grace ORDER BY l.first_seen LIMIT p_limit)
        UNION ALL
        (SELECT l.id FROM links AS l WHERE l.check_at <= p_now AND l.check_at < 'infinity' ORDER BY l.check_at LIMIT p_limit)
        UNION ALL
        (SELECT s.link_id FROM lost_shares AS s ORDER BY s.id LIMIT p_limit)
        LIMIT p_limit
    ) AS c;
    IF due IS NULL THEN
        RETURN;
    END IF;

    PERFORM set_config('weir.expiring', 'on', true);
    -- A worker finds a link in one statement and inserts its share in a later one. Its look holds the table in ROW
    -- EXCLUSIVE mode until it commits: so here nobody stands between the two, and whoever comes next sees what is gone.
    LOCK TABLE links IN SHARE ROW EXCLUSIVE MODE;
    -- Whoever inserts a share without having looked holds the row. Only a statement after this one sees that share.
    own := ARRAY(SELECT l.id FROM links AS l WHERE l.id = ANY (due) ORDER BY l.id FOR UPDATE SKIP LOCKED);

    WITH found AS MATERIALIZED (
        SELECT l.id, l.first_seen, l.fell_at, n.held, n.dids, s.last
        FROM unnest(own) AS o (id)
        CROSS JOIN LATERAL (SELECT l.id, l.first_seen, l.fell_at FROM links AS l WHERE l.id = o.id LIMIT 1) AS l
        CROSS JOIN LATERAL (SELECT max(s.shared_at) AS last FROM shares AS s WHERE s.link_id = l.id) AS s
        -- A link that many share shows it within a few rows: only the others are counted to the end.
        CROSS JOIN LATERAL (SELECT ARRAY(SELECT DISTINCT s.did FROM (SELECT s.did FROM shares AS s WHERE s.link_id = l.id LIMIT 200) AS s) AS dids) AS few
        CROSS JOIN LATERAL (SELECT CASE WHEN cardinality(few.dids) >= p_keep THEN few.dids
                                   ELSE ARRAY(SELECT DISTINCT s.did FROM shares AS s WHERE s.link_id = l.id) END AS dids) AS every
        CROSS JOIN LATERAL (SELECT every.dids, cardinality(every.dids) >= p_keep AS held) AS n
    ), fallen AS MATERIALIZED (
        SELECT f.id, f.first_seen, f.held, f.last,
               CASE WHEN f.held THEN NULL
                    WHEN cardinality(f.dids) + lost.sharers >= p_keep THEN p_now
                    ELSE f.fell_at END AS fell_at
        FROM found AS f
        CROSS JOIN LATERAL (SELECT count(DISTINCT s.did) AS sharers FROM lost_shares AS s WHERE s.link_id = f.id AND s.did <> ALL (f.dids)) AS lost
    ), judged AS MATERIALIZED (
        SELECT f.id, f.fell_at,
               CASE WHEN f.held THEN 'infinity'
                    ELSE greatest(f.last + p_window, f.fell_at + p_grace, f.first_seen + p_grace) END AS check_at
        FROM fallen AS f
    ), noted AS (
        DELETE FROM lost_shares AS s
        WHERE s.link_id = ANY (due)
          AND (s.link_id = ANY (own) OR NOT EXISTS (SELECT FROM links AS l WHERE l.id = s.link_id))
        RETURNING s.link_id
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
    SELECT (SELECT count(*) FROM (SELECT id FROM judged UNION SELECT link_id FROM noted) AS l),
           (SELECT count(*) FROM gone), (SELECT count(*) FROM unshared)
    INTO looked_at, links_gone, shares_gone;
    PERFORM set_config('weir.expiring', '', true);
END $$;

COMMENT ON FUNCTION expire_links IS 'Deletes links, and their shares, that left the window and are shared by fewer than p_keep accounts. Repeat until looked_at is 0.';

CREATE FUNCTION drop_post_partition(day date) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
    part text := 'posts_' || to_char(day, 'YYYYMMDD');
BEGIN
    -- Writers queue behind this lock while it waits: hence so short a wait. The others are free once it is held, or
    -- somebody else uses them for long.
    LOCK TABLE ONLY posts IN ACCESS EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'posts'::regclass AND inhrelid = to_regclass(part)) THEN
        RETURN false;
    END IF;
    LOCK TABLE posts_default IN ACCESS EXCLUSIVE MODE NOWAIT;
    EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE NOWAIT', part);
    EXECUTE format('DROP TABLE %I', part);
    RETURN true;
END $$;

COMMENT ON FUNCTION drop_post_partition IS 'Drops the partition of posts of one UTC day; false where there is none; SQLSTATE 55P03 while it is in use.';

ALTER TABLE accounts
    ADD COLUMN purged_for timestamptz,
    ADD COLUMN purge_at   timestamptz;
CREATE INDEX accounts_unpurged ON accounts (did) WHERE status = 'deleted' AND purged_for IS DISTINCT FROM coalesce(status_at, '-infinity');
CREATE INDEX accounts_purge ON accounts (purge_at) WHERE purge_at IS NOT NULL;

COMMENT ON COLUMN accounts.purged_for IS 'The status_at of the deletion after which what it had written was purged.';
COMMENT ON COLUMN accounts.purge_at IS 'When it is purged once more, of what a replay brought back in the meantime.';

CREATE TABLE unwatched (
    did          text COLLATE "C" PRIMARY KEY,
    unwatched_at timestamptz NOT NULL
);
CREATE INDEX unwatched_at ON unwatched (unwatched_at);

COMMENT ON TABLE unwatched IS 'Accounts that a watch has lost: purged after a grace, unless another watch brings them.';

CREATE FUNCTION note_unwatched() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO unwatched (did, unwatched_at) SELECT DISTINCT g.did, now() FROM gone AS g ORDER BY g.did
    ON CONFLICT (did) DO UPDATE SET unwatched_at = excluded.unwatched_at;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION note_unwatched IS 'Has expiry look at the accounts that a watch lost.';

CREATE TRIGGER watched_lost AFTER DELETE ON watched REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION note_unwatched();

CREATE INDEX tombstones_deleted_at ON tombstones (deleted_at);
CREATE INDEX gaps_closed ON gaps (closed_at) WHERE closed_at IS NOT NULL;

-- A tenth of these is replaced every few hours.
ALTER TABLE links SET (autovacuum_vacuum_scale_factor = 0.1);
ALTER TABLE shares SET (autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE tombstones SET (autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE lost_shares SET (autovacuum_vacuum_scale_factor = 0.05);
