-- Links: what the posts share, and when it expires.

CREATE TABLE links (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    url         text COLLATE "C" NOT NULL UNIQUE CHECK (octet_length(url) <= 2048),
    site        text        NOT NULL,
    title       text        NOT NULL DEFAULT '',
    description text        NOT NULL DEFAULT '',
    image       text        NOT NULL DEFAULT '',
    card_from   text        NOT NULL DEFAULT '',
    card_at     timestamptz,
    first_seen  timestamptz NOT NULL,
    fell_at     timestamptz,
    check_at    timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0.1);
CREATE INDEX links_unchecked ON links (first_seen) WHERE check_at IS NULL;
CREATE INDEX links_check ON links (check_at) WHERE check_at < 'infinity';

COMMENT ON TABLE  links IS 'Every shared page, under its normalised URL, with the card that describes it.';
COMMENT ON COLUMN links.site IS 'The host of the URL, as the page shows it.';
COMMENT ON COLUMN links.image IS 'blob:<did>/<cid>, the picture that a poster uploaded with the card.';
COMMENT ON COLUMN links.card_from IS 'The AT-URI of the post that the card came from. Empty: there is no card.';
COMMENT ON COLUMN links.card_at IS 'When that post was first stored. The earliest card stays.';
COMMENT ON COLUMN links.fell_at IS 'When expiry noticed that too few accounts share the link to keep it. NULL: it never had enough.';
COMMENT ON COLUMN links.check_at IS 'When expiry next checks the link. infinity: kept until a share is lost; NULL: not checked yet.';

CREATE TABLE shares (
    did        text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    rkey       text COLLATE "C" NOT NULL,
    link_id    bigint      NOT NULL REFERENCES links (id) ON DELETE CASCADE,
    how        text        NOT NULL CHECK (how IN ('post', 'quote', 'repost')),
    shared_at  timestamptz NOT NULL,
    PRIMARY KEY (did, collection, rkey, link_id)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX shares_window ON shares (shared_at, link_id, did);
CREATE INDEX shares_link ON shares (link_id, shared_at);

COMMENT ON TABLE  shares IS 'Who shared which link in which record. A share outlives its post''s retention, and goes only when the author takes it back or the link expires.';
COMMENT ON COLUMN shares.how IS 'post: in a post of its own; quote: in a post that quotes another.';
COMMENT ON COLUMN shares.shared_at IS 'The created_at of the record.';

CREATE TABLE lost_shares (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    link_id bigint           NOT NULL,
    did     text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX lost_shares_link ON lost_shares (link_id);

COMMENT ON TABLE lost_shares IS 'Shares deleted since the last expiry. Too few accounts may share their links now.';

CREATE FUNCTION note_lost_share() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO lost_shares (link_id, did) VALUES (OLD.link_id, OLD.did);
    RETURN NULL;
END $$;

COMMENT ON FUNCTION note_lost_share IS 'Makes expiry check the link of a share that was deleted, or that has an earlier date than before.';

-- Links that expiry itself deletes need no second check.
CREATE TRIGGER share_deleted AFTER DELETE ON shares FOR EACH ROW
    WHEN (current_setting('weir.expiring', true) IS DISTINCT FROM 'on') EXECUTE FUNCTION note_lost_share();
CREATE TRIGGER share_moved AFTER UPDATE ON shares FOR EACH ROW
    WHEN (NEW.shared_at < OLD.shared_at OR NEW.link_id <> OLD.link_id OR NEW.did <> OLD.did) EXECUTE FUNCTION note_lost_share();

CREATE FUNCTION expire_links(p_now timestamptz, p_window interval, p_grace interval, p_keep int, p_limit int,
                             OUT looked_at int, OUT links_gone int, OUT shares_gone int)
LANGUAGE plpgsql
SET lock_timeout = '50ms'
SET jit = off -- compiling takes longer than any batch
SET enable_seqscan = off -- a plan made while lost_shares is empty is still used when it is long
AS $$
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

    PERFORM set_config('weir.expiring', 'on', true); -- only a superuser may declare this as a SET of the function
    -- A worker finds a link in one statement and inserts its share in a later one. The insert holds the table at least in
    -- ROW SHARE mode until it commits. So under this lock no worker is between the two, and the next statement sees every
    -- share.
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
        -- The first rows of a link that many share already show it. Only the others are counted to the end.
        SELECT t.id, t.first_seen, t.fell_at, t.last,
               CASE WHEN t.n < many OR cardinality(t.dids) >= p_keep THEN t.dids
                    ELSE ARRAY(SELECT DISTINCT s.did FROM shares AS s WHERE s.link_id = t.id) END AS dids
        FROM latest AS t
    ), taken AS (
        DELETE FROM lost_shares AS s WHERE s.link_id = ANY (due) RETURNING s.link_id, s.did
    ), lost AS MATERIALIZED (
        SELECT n.link_id AS id, array_agg(DISTINCT n.did) AS dids FROM taken AS n GROUP BY n.link_id
    ), fallen AS MATERIALIZED (
        SELECT f.id, f.first_seen, f.last, cardinality(f.dids) >= p_keep AS held,
               CASE WHEN cardinality(f.dids) >= p_keep THEN NULL
                    WHEN cardinality(ARRAY(SELECT unnest(f.dids) UNION SELECT unnest(s.dids))) >= p_keep THEN p_now
                    ELSE f.fell_at END AS fell_at
        FROM found AS f
        LEFT JOIN lost AS s ON s.id = f.id
    ), decided AS MATERIALIZED (
        SELECT f.id, f.fell_at,
               CASE WHEN f.held THEN 'infinity'
                    ELSE greatest(f.last + p_window, f.fell_at + p_grace, f.first_seen + p_window) END AS check_at
        FROM fallen AS f
    ), kept AS (
        UPDATE links AS l SET check_at = j.check_at, fell_at = j.fell_at
        FROM decided AS j
        WHERE l.id = j.id AND j.check_at > p_now
    ), unshared AS (
        DELETE FROM shares AS s USING decided AS j WHERE s.link_id = j.id AND j.check_at <= p_now
        RETURNING 1
    ), gone AS (
        DELETE FROM links AS l USING decided AS j WHERE l.id = j.id AND j.check_at <= p_now
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM unshared)
    INTO links_gone, shares_gone;
    PERFORM set_config('weir.expiring', '', true);
END $$;

COMMENT ON FUNCTION expire_links IS 'Deletes the links that left the window and are shared by fewer than p_keep accounts, with their shares. Repeat until looked_at is 0.';
