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
-- A request to delete an event of Nostr names its id, which is the record's key, and not its kind.
CREATE INDEX records_other_ids ON records_other (left(rkey, 16)) WHERE collection >= 'nostr.' AND collection < 'nostr/';
-- Comparing a day with a relay of Nostr reads the events of that day, by the authors' dates.
CREATE INDEX records_other_dated ON records_other (collection, left(rev, 16)) WHERE collection >= 'nostr.' AND collection < 'nostr/';

COMMENT ON TABLE posts IS 'The records of app.bsky.feed.post, partitioned by rkey: a TID, which sorts by time. The view partitions lists the partitions.';
COMMENT ON TABLE posts_default IS 'Posts whose rkey is not a TID, or is a TID of a time before the partitions. They expire by indexed_at.';
COMMENT ON TABLE records_other IS 'The records of all other collections. Each expires by indexed_at, under the retention that WEIR_COLLECTIONS gives it.';

CREATE TABLE tombstones (
    collection text COLLATE "C" NOT NULL,
    did        text COLLATE "C" NOT NULL,
    rkey       text COLLATE "C" NOT NULL,
    rev        text COLLATE "C" NOT NULL,
    deleted_at timestamptz,
    PRIMARY KEY (collection, did, rkey)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX tombstones_deleted_at ON tombstones (deleted_at);

COMMENT ON TABLE tombstones IS 'The newest deletion of each record. A write at or before rev stays deleted.';
COMMENT ON COLUMN tombstones.deleted_at IS 'When the record was deleted: the tombstone expires by it. NULL: it stays, because a server may bring the record at any time.';

CREATE TABLE expirations (
    did        text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    rkey       text COLLATE "C" NOT NULL,
    rev        text COLLATE "C" NOT NULL,
    expires_at timestamptz      NOT NULL,
    PRIMARY KEY (did, collection, rkey)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX expirations_expires_at ON expirations (expires_at);

COMMENT ON TABLE  expirations IS 'Revisions of records that their authors let expire. The job delete_expired deletes those that are due, and the row. Not compared: what is left to do of expirations.';
COMMENT ON COLUMN expirations.rev IS 'The latest revision that expires. A newer revision without an expiration stays.';
COMMENT ON COLUMN expirations.expires_at IS 'When it is deleted, by the author''s word.';

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

-- A table that is partitioned by range of rkey, such as posts, has a partition for each span of time, a default partition, and one that ends
-- in _ahead. Making a partition neither waits for a reader nor scans a large table under a lock. Rows of the time after the last partition
-- are in _ahead, which is nearly empty. It becomes the next partition, and an empty one takes its place. So the default partition never holds
-- rows of that range; a check constraint, validated before the lock is taken, tells Postgres so.

CREATE VIEW partitions AS
SELECT p.relname::text AS parent, c.relname::text AS part, tid_time(b.lower) AS begins, tid_time(b.upper) AS ends, b.lower, b.upper,
       c.relname = p.relname || '_ahead' AS ahead
FROM pg_partitioned_table AS t
JOIN pg_class AS p ON p.oid = t.partrelid
JOIN pg_inherits AS i ON i.inhparent = p.oid
JOIN pg_class AS c ON c.oid = i.inhrelid
CROSS JOIN LATERAL pg_get_expr(c.relpartbound, 0) AS bound -- 0: with the table's oid it would wait for a lock on the table
CROSS JOIN LATERAL (
    SELECT substring(bound FROM $$FROM \('([^']*)'\)$$) COLLATE "C" AS lower, substring(bound FROM $$TO \('([^']*)'\)$$) COLLATE "C" AS upper
) AS b
WHERE t.partstrat = 'r' AND pg_table_is_visible(p.oid) AND b.lower IS NOT NULL AND b.upper IS NOT NULL;

COMMENT ON VIEW partitions IS 'The partitions of posts and shares, with the time and the range of rkeys that each holds. ahead: it holds the time after the last one. The default partitions are left out.';

CREATE FUNCTION prepare_default_partition(p_parent text) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
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
END $$;

COMMENT ON FUNCTION prepare_default_partition IS 'Makes and validates the constraint that saves ensure_partition a scan of the default partition. Repeat until it returns false. SQLSTATE 55P03 while that is in use.';

-- A query that began before a partition was made, and waits for the default partition, would look for the rows that move only there. So it
-- waits for the table itself, and then finds the partition.
CREATE FUNCTION lock_partitioned(p_parent text, p_mode text) RETURNS void LANGUAGE plpgsql AS $$
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
END $$;

COMMENT ON FUNCTION lock_partitioned IS 'Locks a partitioned table against everybody. Before it, locks the tables that its foreign keys refer to: in ACCESS EXCLUSIVE mode if p_mode says so, else in SHARE ROW EXCLUSIVE mode.';

CREATE FUNCTION ensure_partition(p_parent text, at timestamptz, span interval) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
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
END $$;

COMMENT ON FUNCTION ensure_partition IS 'Makes the partition of a table for a moment. It begins where the partition before it ends, and ends where its span does. False if it exists. Repeat until it returns false. SQLSTATE 55P03 while the table is in use.';

CREATE FUNCTION lock_partition(p_part text) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
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
END $$;

COMMENT ON FUNCTION lock_partition IS 'Locks a partition that the view partitions lists, and its table. False if none has that name, or if it holds the time after the last one. SQLSTATE 55P03 while the table is in use.';

CREATE FUNCTION drop_partition(p_part text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT lock_partition(p_part) THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE %I', p_part);
    RETURN true;
END $$;

COMMENT ON FUNCTION drop_partition IS 'Drops a partition. False and SQLSTATE 55P03 as for lock_partition.';

-- The role of the running processes does not own the tables (see deploy/roles.sql), and only an owner makes and drops partitions. So these
-- functions run with their owner's rights, look for nothing outside this schema, and are closed to the public.
DO $$
DECLARE
    f text;
BEGIN
    FOREACH f IN ARRAY ARRAY['ensure_partition(text, timestamptz, interval)', 'prepare_default_partition(text)', 'lock_partition(text)', 'drop_partition(text)'] LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = %I, pg_temp', f, current_schema());
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f);
    END LOOP;
    REVOKE EXECUTE ON FUNCTION lock_partitioned FROM PUBLIC;
END $$;
