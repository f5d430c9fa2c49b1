-- Records: everything that is stored as its author wrote it, and what was deleted.

CREATE TABLE records (
    collection text COLLATE "C" NOT NULL,
    did        text COLLATE "C" NOT NULL,
    rkey       text COLLATE "C" NOT NULL,
    rev        text COLLATE "C" NOT NULL,
    cid        text             NOT NULL,
    created_at timestamptz      NOT NULL,
    indexed_at timestamptz      NOT NULL DEFAULT now(),
    record     jsonb            NOT NULL,
    PRIMARY KEY (collection, did, rkey)
) PARTITION BY LIST (collection);

COMMENT ON TABLE  records IS 'Every stored record of any collection, in its newest revision.';
COMMENT ON COLUMN records.rev IS 'The repository revision that wrote the record: a TID, which sorts by time. 2222222222222, the smallest TID, if a listing brought the record: listings do not name revisions.';
COMMENT ON COLUMN records.created_at IS 'When the author claims to have written it, but never later than the event that brought it. Nothing expires by it.';
COMMENT ON COLUMN records.indexed_at IS 'When Weir first stored it, by the database''s clock. Whatever is outside the partitions of posts expires by it.';

CREATE TABLE posts PARTITION OF records FOR VALUES IN ('app.bsky.feed.post') PARTITION BY RANGE (rkey);
CREATE TABLE posts_default PARTITION OF posts DEFAULT;
CREATE TABLE records_other PARTITION OF records DEFAULT;
CREATE INDEX posts_indexed_at ON posts (indexed_at);
CREATE INDEX records_other_indexed_at ON records_other (collection, indexed_at);

COMMENT ON TABLE posts IS 'The records of app.bsky.feed.post, partitioned by rkey: a TID, which sorts by time. The view post_partitions lists the partitions.';
COMMENT ON TABLE posts_default IS 'Posts whose rkey is not a TID, or is a TID of a time before the partitions. They expire by indexed_at.';
COMMENT ON TABLE records_other IS 'The records of all other collections. Each expires by indexed_at, under the retention that WEIR_COLLECTIONS gives it.';

CREATE TABLE tombstones (
    collection text COLLATE "C" NOT NULL,
    did        text COLLATE "C" NOT NULL,
    rkey       text COLLATE "C" NOT NULL,
    rev        text COLLATE "C" NOT NULL,
    deleted_at timestamptz      NOT NULL,
    PRIMARY KEY (collection, did, rkey)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX tombstones_deleted_at ON tombstones (deleted_at);

COMMENT ON TABLE tombstones IS 'The newest deletion of each record. A write at or before rev stays deleted.';

CREATE FUNCTION tid_floor(at timestamptz) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    n   bigint := (extract(epoch FROM at) * 1000000)::bigint << 10;
    tid text := '';
BEGIN
    FOR i IN 1..13 LOOP
        tid := substr('234567abcdefghijklmnopqrstuvwxyz', (n & 31)::int + 1, 1) || tid;
        n := n >> 5;
    END LOOP;
    RETURN tid;
END $$;

COMMENT ON FUNCTION tid_floor IS 'The first TID of a moment. The TIDs of later moments sort after it.';

CREATE FUNCTION tid_time(tid text) RETURNS timestamptz LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT 'epoch'::timestamptz + (sum((strpos('234567abcdefghijklmnopqrstuvwxyz', substr(rpad(tid, 13, '2'), i, 1)) - 1)::bigint << (5 * (13 - i)))::bigint >> 10) * interval '1 microsecond'
    FROM generate_series(1, 13) AS i
    WHERE tid ~ '^[2-7a-j][2-7a-z]{0,12}$'
$$;

COMMENT ON FUNCTION tid_time IS 'The moment of a TID, or of the first TID that begins with this text. NULL for anything else.';

-- Making a partition of posts neither waits for a reader nor scans a large table under a lock. Posts of the time after the last partition are
-- in posts_ahead, which is nearly empty. It becomes the next partition, and an empty one takes its place. So posts_default never holds rows of
-- that range; a check constraint, validated before the lock is taken, tells Postgres so.

CREATE VIEW post_partitions AS
SELECT c.relname::text AS part, tid_time(b.lower) AS begins, tid_time(b.upper) AS ends, b.lower, b.upper
FROM pg_inherits AS i
JOIN pg_class AS c ON c.oid = i.inhrelid
CROSS JOIN LATERAL pg_get_expr(c.relpartbound, 0) AS bound -- 0: with the table's oid it would wait for a lock on the table
CROSS JOIN LATERAL (
    SELECT substring(bound FROM $$FROM \('([^']*)'\)$$) COLLATE "C" AS lower, substring(bound FROM $$TO \('([^']*)'\)$$) COLLATE "C" AS upper
) AS b
WHERE i.inhparent = 'posts'::regclass AND b.lower IS NOT NULL AND b.upper IS NOT NULL;

COMMENT ON VIEW post_partitions IS 'The partitions of posts except posts_default, with the time and the range of rkeys that each holds. posts_ahead holds the time after the last one.';

CREATE FUNCTION prepare_posts_default() RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
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
    -- Rows of that range go to posts_ahead, so the constraint refuses nothing.
    SELECT p.lower INTO horizon FROM post_partitions AS p WHERE p.part = 'posts_ahead';
    EXECUTE format('ALTER TABLE posts_default ADD CONSTRAINT posts_default_ahead CHECK (rkey < %L OR rkey >= %L) NOT VALID', horizon, '4');
    RETURN true;
END $$;

COMMENT ON FUNCTION prepare_posts_default IS 'Makes and validates the constraint that saves ensure_post_partition a scan of posts_default. Repeat until it returns false. SQLSTATE 55P03 while posts_default is in use.';

CREATE FUNCTION ensure_post_partition(at timestamptz, span interval DEFAULT '6 hours') RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
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
    -- Writers queue behind these locks while they wait, so the wait is short.
    IF key >= horizon THEN
        LOCK TABLE ONLY posts IN ACCESS EXCLUSIVE MODE;
        LOCK TABLE posts_default, posts_ahead IN ACCESS EXCLUSIVE MODE NOWAIT;
    ELSE
        LOCK TABLE ONLY posts IN SHARE UPDATE EXCLUSIVE MODE;
        LOCK TABLE posts_default IN ACCESS EXCLUSIVE MODE;
    END IF;
    IF EXISTS (SELECT FROM post_partitions AS p WHERE key >= p.lower AND key < p.upper AND p.part <> 'posts_ahead') THEN
        RETURN false; -- another process made it during the wait
    END IF;
    SELECT p.lower INTO found_ FROM post_partitions AS p WHERE p.part = 'posts_ahead';
    IF found_ IS DISTINCT FROM horizon THEN
        RAISE EXCEPTION 'another partition of posts was made meanwhile: try again' USING ERRCODE = 'lock_not_available';
    END IF;

    IF key >= horizon THEN
        -- posts_ahead becomes the partition that begins where the last one ends. Only rows beyond its end move, which are few. After a pause,
        -- one partition holds the whole pause, and the next call makes the partition of the moment itself.
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
        -- Rows may arrive before their partition exists: they move in the same transaction. The first partition begins with the six hours
        -- around the moment; older rows stay in posts_default and expire one by one.
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
END $$;

COMMENT ON FUNCTION ensure_post_partition IS 'Makes the partition of posts for a moment. It begins where the partition before it ends, and ends where its span does. False if it exists. Repeat until it returns false. SQLSTATE 55P03 while posts is in use.';

CREATE FUNCTION drop_post_partition(part text) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
BEGIN
    -- Writers queue behind this lock while it waits, so the wait is short. Once it is held, the other locks are free, unless
    -- somebody holds them for long.
    LOCK TABLE ONLY posts IN ACCESS EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'posts'::regclass AND inhrelid = to_regclass(quote_ident(part)))
       OR part IN ('posts_default', 'posts_ahead') THEN
        RETURN false;
    END IF;
    LOCK TABLE posts_default IN ACCESS EXCLUSIVE MODE NOWAIT;
    EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE NOWAIT', part);
    EXECUTE format('DROP TABLE %I', part);
    RETURN true;
END $$;

COMMENT ON FUNCTION drop_post_partition IS 'Drops a partition of posts. False if none has that name. SQLSTATE 55P03 while it is in use.';

-- The role of the running processes does not own the tables (see deploy/roles.sql), and only an owner makes and drops partitions. So these
-- functions run with their owner's rights, look for nothing outside this schema, and are closed to the public.
DO $$
DECLARE
    f text;
BEGIN
    FOREACH f IN ARRAY ARRAY['ensure_post_partition(timestamptz, interval)', 'prepare_posts_default()', 'drop_post_partition(text)'] LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = %I, pg_temp', f, current_schema());
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f);
    END LOOP;
END $$;
