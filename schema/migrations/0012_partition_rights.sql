-- The role that works with the tables need not own them: see deploy/roles.sql. Only an owner may make and drop partitions, so the
-- two functions that do it run with their owner's rights, look for nothing outside this schema, and are not for everybody.

DO $$
DECLARE
    f text;
BEGIN
    FOREACH f IN ARRAY ARRAY['ensure_post_partition(timestamptz)', 'drop_post_partition(text)'] LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = %I, pg_temp', f, current_schema());
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f);
    END LOOP;
END $$;
