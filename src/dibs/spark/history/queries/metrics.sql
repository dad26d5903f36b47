-- One row for each queue and minute, from the start of the queue to the minute of the horizon, and the old
-- rows outside of the counted time. A minute is the time of its start in ms.
WITH
-- Changes before the start of a queue count as made at its start, without the counters.
changes AS (
    SELECT changes.queue, greatest(moment, start) AS moment,
        CASE WHEN moment < start THEN 0 ELSE arrivals END AS arrivals,
        CASE WHEN moment < start THEN 0 ELSE claims END AS claims,
        waiting, due, active
    FROM (FROM ended_changes('late_events') UNION ALL FROM live_changes('live', getvariable('horizon')))
        AS changes
    JOIN starts ON starts.queue = changes.queue
),
at_once AS (
    SELECT queue, moment - moment % 60000 AS minute, moment, sum(arrivals) AS arrivals, sum(claims) AS claims,
        sum(waiting) AS waiting, sum(due) AS due, sum(active) AS active
    FROM changes GROUP BY queue, minute, moment
),
risen AS (
    SELECT *, sum(active) OVER (PARTITION BY queue, minute ORDER BY moment) AS rise FROM at_once
),
-- `…_ms` is the amount that the changes add to the minute's sum of level x ms. `active_rise` is the highest
-- level of `active` above the opening level.
by_minute AS (
    SELECT queue, minute, sum(arrivals) AS arrivals, sum(claims) AS claims,
        sum(waiting) AS waiting, sum(due) AS due, sum(active) AS active,
        sum(waiting * (minute + 60000 - moment)) AS waiting_ms,
        sum(due * (minute + 60000 - moment)) AS due_ms,
        sum(active * (minute + 60000 - moment)) AS active_ms,
        max(rise) AS active_rise, min(moment) AS first_at
    FROM risen GROUP BY queue, minute
),
levels AS (
    SELECT *,
        sum(waiting) OVER in_order AS waiting_end,
        sum(due) OVER in_order AS due_end,
        sum(active) OVER in_order AS active_end,
        coalesce(
            lead(minute) OVER (PARTITION BY queue ORDER BY minute),
            getvariable('horizon') - getvariable('horizon') % 60000 + 60000
        ) AS next_minute
    FROM by_minute
    WINDOW in_order AS (PARTITION BY queue ORDER BY minute ROWS UNBOUNDED PRECEDING)
),
-- A minute without a change has a row if a gauge is above zero.
filled AS (
    SELECT *, unnest(range(minute, CASE
        WHEN greatest(waiting_end, due_end, active_end) > 0 AND next_minute > minute THEN next_minute
        ELSE minute + 60000 END, 60000)) AS at_minute
    FROM levels
),
gauges AS (
    SELECT queue, at_minute AS minute,
        CASE WHEN is_first THEN arrivals ELSE 0 END AS arrivals,
        CASE WHEN is_first THEN claims ELSE 0 END AS claims,
        waiting_end AS backlog,
        due_end AS backlog_due,
        CAST(CASE WHEN is_first THEN (waiting_end - waiting) * 60000 + waiting_ms
            ELSE waiting_end * 60000 END AS DOUBLE) / 60000 AS waiting,
        CAST(CASE WHEN is_first THEN (due_end - due) * 60000 + due_ms
            ELSE due_end * 60000 END AS DOUBLE) / 60000 AS due,
        CAST(CASE WHEN is_first THEN (active_end - active) * 60000 + active_ms
            ELSE active_end * 60000 END AS DOUBLE) / 60000 AS active,
        -- The opening level of a minute counts for its peak, unless the first change comes in its first ms.
        CASE WHEN NOT is_first THEN active_end
            WHEN first_at > at_minute THEN active_end - active + greatest(active_rise, 0)
            ELSE active_end - active + active_rise END AS active_peak
    FROM (SELECT *, at_minute = minute AS is_first FROM filled)
),
lists AS (
    SELECT queue, finished - finished % 60000 AS minute,
        count(*) FILTER (WHERE kind = 'completed') AS completed,
        count(*) FILTER (WHERE kind = 'failed') AS failed,
        count(*) FILTER (WHERE kind = 'cancelled') AS cancelled,
        count(*) FILTER (WHERE kind = 'retried') AS retried,
        count(*) FILTER (WHERE kind = 'stalled') AS stalled,
        count(*) FILTER (WHERE kind = 'timed_out') AS timed_out,
        count(*) FILTER (WHERE kind = 'released') AS released,
        count(claimed) AS attempts,
        sum(wait) AS wait_ms,
        sum(run) AS run_ms,
        count(DISTINCT holder) FILTER (WHERE claimed IS NOT NULL) AS holders,
        list_sort(list(wait) FILTER (WHERE wait IS NOT NULL)) AS waits,
        list_sort(list(run) FILTER (WHERE run IS NOT NULL)) AS runs
    FROM ended('late_events') GROUP BY queue, minute
),
accepted AS (
    SELECT queue, epoch_ms("at") - epoch_ms("at") % 60000 AS minute, count(*) AS enqueues
    FROM late_events WHERE kind IN ('queued', 'updated', 'blocked') GROUP BY queue, minute
),
counted AS (
    SELECT minute, arrivals, enqueues, claims,
        coalesce(completed, 0) AS completed, coalesce(failed, 0) AS failed,
        coalesce(cancelled, 0) AS cancelled, coalesce(retried, 0) AS retried,
        coalesce(stalled, 0) AS stalled, coalesce(timed_out, 0) AS timed_out,
        coalesce(released, 0) AS released, coalesce(attempts, 0) AS attempts,
        CAST(retried AS DOUBLE) / nullif(attempts, 0) AS retry_rate,
        CAST(stalled AS DOUBLE) / nullif(attempts, 0) AS stall_rate,
        CAST(timed_out AS DOUBLE) / nullif(attempts, 0) AS timeout_rate,
        coalesce(wait_ms, 0) AS wait_ms, coalesce(run_ms, 0) AS run_ms,
        nearest_rank(waits, 50) AS wait_p50_ms, nearest_rank(waits, 95) AS wait_p95_ms,
        nearest_rank(waits, 99) AS wait_p99_ms,
        nearest_rank(runs, 50) AS run_p50_ms, nearest_rank(runs, 95) AS run_p95_ms,
        nearest_rank(runs, 99) AS run_p99_ms,
        coalesce(holders, 0) AS holders, backlog, backlog_due, waiting, due, active, active_peak,
        active / nullif(active_peak, 0) AS utilisation,
        queue, utc_day(minute) AS date
    FROM gauges
    LEFT JOIN lists USING (queue, minute)
    LEFT JOIN accepted USING (queue, minute)
    WHERE minute < coalesce(getvariable('until'), minute + 1)
),
kept AS (
    SELECT old_metrics.* REPLACE (epoch_ms(minute) AS minute)
    FROM old_metrics JOIN starts ON starts.queue = old_metrics.queue
    WHERE epoch_ms(minute) < start OR epoch_ms(minute) >= getvariable('until')
)
FROM counted UNION ALL BY NAME FROM kept
