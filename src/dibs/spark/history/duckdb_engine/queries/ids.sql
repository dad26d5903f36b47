-- One row for each id that ended at least once: the rows in `ids`, and the ends by new events. `merged`
-- counts the enqueues that updated or joined a pending job instead of adding one.
WITH fresh AS (
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
        min(finished) AS first_end_at, max(finished) AS last_end_at
    FROM ended('events') GROUP BY queue, id
),
old AS (
    SELECT * EXCLUDE (date) REPLACE (epoch_ms(first_end_at) AS first_end_at, epoch_ms(last_end_at) AS last_end_at)
    FROM ids
)
SELECT queue, id,
    sum(attempts) AS attempts, sum(completed) AS completed, sum(failed) AS failed,
    sum(cancelled) AS cancelled, sum(retried) AS retried, sum(stalled) AS stalled,
    sum(timed_out) AS timed_out, sum(released) AS released, sum(merged) AS merged,
    sum(wait_ms) AS wait_ms, max(longest_wait_ms) AS longest_wait_ms,
    sum(run_ms) AS run_ms, max(longest_run_ms) AS longest_run_ms,
    min(first_end_at) AS first_end_at, max(last_end_at) AS last_end_at,
    utc_day(max(last_end_at)) AS date
FROM (FROM fresh UNION ALL BY NAME FROM old) GROUP BY queue, id
