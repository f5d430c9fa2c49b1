-- River's open-source code never reads the GIN index on args, and the one on metadata serves only list filters; together they
-- triple the WAL of an insert. The queue's rows live for minutes: vacuum them often.

DROP INDEX IF EXISTS river_job_args_index;
DROP INDEX IF EXISTS river_job_metadata_index;
ALTER TABLE river_job SET (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold    = 1000,
    autovacuum_vacuum_cost_delay   = 0
);
