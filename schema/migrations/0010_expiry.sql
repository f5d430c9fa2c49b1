-- Expiry looks at a link once where it looked twice, and reads its shares once where it read them seven times. Posts go by
-- six hours instead of by days.

DROP FUNCTION expire_links(timestamptz, interval, interval, int, int);

CREATE FUNCTION expire_links(p_now timestamptz, p_window interval, p_grace interval, p_keep int, p_limit int,
                             OUT looked_at int, OUT links_gone int, OUT shares_gone int)
LANGUAGE plpgsql
SET lock_timeout = '50ms'
SET "weir.expiring" = 'on'
SET jit = off -- compiling takes longer than any batch
SET enable_seqscan = off -- a plan made while lost_shares is empty is used when it is long
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
END $$;

COMMENT ON FUNCTION expire_links IS 'Deletes links, and their shares, that left the window and are shared by fewer than p_keep accounts. Repeat until looked_at is 0.';

DROP FUNCTION ensure_post_partition(date);

CREATE FUNCTION ensure_post_partition(at timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    begins timestamptz := date_bin('6 hours', at, '2000-01-01 00:00:00+00');
    part   text := to_char(begins AT TIME ZONE 'UTC', '"posts_"YYYYMMDD_HH24');
    whole  text := to_char(begins AT TIME ZONE 'UTC', '"posts_"YYYYMMDD'); -- as partitions were made before
    lower  text := tid_floor(begins);
    upper  text := tid_floor(begins + interval '6 hours');
BEGIN
    IF to_regclass(part) IS NOT NULL OR to_regclass(whole) IS NOT NULL THEN
        RETURN false;
    END IF;
    LOCK TABLE posts_default IN ACCESS EXCLUSIVE MODE;
    IF to_regclass(part) IS NOT NULL THEN
        RETURN false; -- made while this one waited
    END IF;
    -- Rows of that time may have come before their partition: they move in the same transaction.
    EXECUTE format('CREATE TABLE %I (LIKE posts INCLUDING DEFAULTS)', part);
    EXECUTE format('WITH moved AS (DELETE FROM posts_default WHERE rkey >= %L AND rkey < %L RETURNING *) INSERT INTO %I SELECT * FROM moved',
                   lower, upper, part);
    EXECUTE format('ALTER TABLE posts ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, lower, upper);
    RETURN true;
END $$;

COMMENT ON FUNCTION ensure_post_partition IS 'Makes the partition of posts for the six hours, from 0, 6, 12 or 18 UTC, around a moment; false where it exists.';

DROP FUNCTION drop_post_partition(date);

CREATE FUNCTION drop_post_partition(part text) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
BEGIN
    -- Writers queue behind this lock while it waits: hence so short a wait. The others are free once it is held, or
    -- somebody else uses them for long.
    LOCK TABLE ONLY posts IN ACCESS EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'posts'::regclass AND inhrelid = to_regclass(quote_ident(part))) THEN
        RETURN false;
    END IF;
    LOCK TABLE posts_default IN ACCESS EXCLUSIVE MODE NOWAIT;
    EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE NOWAIT', part);
    EXECUTE format('DROP TABLE %I', part);
    RETURN true;
END $$;

COMMENT ON FUNCTION drop_post_partition IS 'Drops a partition of posts; false where there is none of that name; SQLSTATE 55P03 while it is in use.';

COMMENT ON TABLE posts IS 'The records of app.bsky.feed.post, a partition every six hours of rkey: a TID sorts by time.';
COMMENT ON TABLE posts_default IS 'Posts whose rkey is no TID, or names a time that has no partition.';
