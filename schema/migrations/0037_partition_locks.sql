-- A query that began before a partition was made, and waited for the default partition, looked for the rows that had just moved only there.
-- Now it waits for the table itself, and then finds the partition.

CREATE OR REPLACE FUNCTION lock_partitioned(p_parent text, p_mode text) RETURNS void LANGUAGE plpgsql AS $$
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
