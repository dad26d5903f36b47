-- The rows of `ids` in several files, with one row for each id and day. A row is in the partition of the day of its
-- latest end, so the rows of one partition stay there.
SELECT queue, id,
    sum(attempts) AS attempts, sum(completed) AS completed, sum(failed) AS failed,
    sum(cancelled) AS cancelled, sum(retried) AS retried, sum(stalled) AS stalled,
    sum(timed_out) AS timed_out, sum(released) AS released, sum(merged) AS merged,
    sum(wait_ms) AS wait_ms, max(longest_wait_ms) AS longest_wait_ms,
    sum(run_ms) AS run_ms, max(longest_run_ms) AS longest_run_ms,
    min(first_end_at) AS first_end_at, max(last_end_at) AS last_end_at,
    date_from_unix_date(CAST(floor(unix_millis(max(last_end_at)) / 86400000) AS INT)) AS date
FROM merged m
GROUP BY m.queue, m.id, m.date
