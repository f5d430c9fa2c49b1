-- How full a queue is, for a price that does not grow with it. A LIMIT alone bounds nothing where the planner reads the table, or a
-- bitmap of the whole backlog, to find few jobs: these functions leave it one way, along river_job_prioritized_fetching_index.

CREATE FUNCTION count_jobs(p_queue text, p_state river_job_state, p_most int) RETURNS bigint LANGUAGE sql STABLE
    SET enable_seqscan TO off
    SET enable_bitmapscan TO off
    SET enable_indexonlyscan TO on
    SET max_parallel_workers_per_gather TO 0
AS $$
    SELECT count(*)
    FROM (SELECT FROM river_job
          WHERE state = p_state AND queue = p_queue
          ORDER BY priority DESC, scheduled_at DESC, id DESC -- those that have been worked were at the other end, and may not have been vacuumed
          LIMIT p_most) AS j
$$;

COMMENT ON FUNCTION count_jobs IS 'How many jobs of a queue are in a state. It stops counting at a number, and costs no more than that.';

CREATE FUNCTION oldest_job(p_queue text) RETURNS timestamptz LANGUAGE sql STABLE
    SET enable_seqscan TO off
    SET enable_bitmapscan TO off
    SET enable_indexonlyscan TO on
    SET max_parallel_workers_per_gather TO 0
AS $$
    SELECT min(first.scheduled_at)
    FROM generate_series(1, 4) AS p (priority)
    CROSS JOIN LATERAL (
        SELECT scheduled_at FROM river_job
        WHERE state = 'available' AND queue = p_queue AND priority = p.priority
        ORDER BY scheduled_at, id LIMIT 1
    ) AS first
$$;

COMMENT ON FUNCTION oldest_job IS 'Since when the job that waits longest in a queue could be worked; NULL with none.';
