-- One row for each id that ended. `merged` counts the enqueues that updated or joined a pending
-- job instead of adding one.
SELECT queue, id, count(claimed) AS attempts,
    count(*) FILTER (WHERE kind = 'completed') AS completed,
    count(*) FILTER (WHERE kind = 'failed') AS failed,
    count(*) FILTER (WHERE kind = 'cancelled') AS cancelled,
    count(*) FILTER (WHERE kind = 'retried') AS retried,
    count(*) FILTER (WHERE kind = 'stalled') AS stalled,
    count(*) FILTER (WHERE kind = 'timed_out') AS timed_out,
    count(*) FILTER (WHERE kind = 'released') AS released,
    sum(CASE WHEN is_last THEN CAST(enqueues AS BIGINT) - 1 ELSE 0 END) AS merged,
    coalesce(sum(wait), 0) AS wait_ms, coalesce(max(wait), 0) AS longest_wait_ms,
    coalesce(sum(run), 0) AS run_ms, coalesce(max(run), 0) AS longest_run_ms,
    min(finished_at) AS first_end_at, max(finished_at) AS last_end_at
FROM ended
GROUP BY queue, id
