-- One row for each queue and minute, from the start of the queue to the minute of the horizon, and the old
-- rows of other queues and times. A minute is the time of its start in ms.
WITH
-- Changes before the start of a queue count as made at its start, without the counters. Events before it are not
-- counted at all.
timed AS (
    SELECT c.queue, greatest(c.moment, s.start) AS moment,
        greatest(c.moment, s.start) - greatest(c.moment, s.start) % 60000 AS minute,
        CASE WHEN c.moment < s.start THEN 0 ELSE c.arrivals END AS arrivals,
        CASE WHEN c.moment < s.start THEN 0 ELSE c.claims END AS claims,
        c.waiting, c.due, c.active
    FROM changes c JOIN starts s ON s.queue = c.queue
    WHERE coalesce(c.logged, s.start) >= s.start
),
at_once AS (
    SELECT queue, minute, moment, sum(arrivals) AS arrivals, sum(claims) AS claims,
        sum(waiting) AS waiting, sum(due) AS due, sum(active) AS active
    FROM timed GROUP BY queue, minute, moment
),
risen AS (
    SELECT a.*, sum(active) OVER (PARTITION BY queue, minute ORDER BY moment) AS rise FROM at_once a
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
    SELECT b.*,
        sum(waiting) OVER (PARTITION BY queue ORDER BY minute) AS waiting_end,
        sum(due) OVER (PARTITION BY queue ORDER BY minute) AS due_end,
        sum(active) OVER (PARTITION BY queue ORDER BY minute) AS active_end,
        lead(minute) OVER (PARTITION BY queue ORDER BY minute) AS next_minute
    FROM by_minute b
),
-- A minute without a change has a row if a gauge is above zero.
filled AS (
    SELECT l.*, explode(sequence(minute, CASE
        WHEN greatest(waiting_end, due_end, active_end) > 0
        THEN greatest(minute, coalesce(next_minute - 60000, bounds.horizon - bounds.horizon % 60000))
        ELSE minute END, CAST(60000 AS BIGINT))) AS at_minute
    FROM levels l CROSS JOIN bounds
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
    FROM (SELECT f.*, at_minute = minute AS is_first FROM filled f) AS marked
),
lists AS (
    SELECT queue, minute,
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
        count(DISTINCT CASE WHEN claimed IS NOT NULL THEN holder END) AS holders,
        sort_array(collect_list(wait)) AS waits,
        sort_array(collect_list(run)) AS runs
    FROM (
        SELECT e.*, finished - finished % 60000 AS minute
        FROM ended e JOIN starts s ON s.queue = e.queue WHERE logged >= s.start
    ) AS late
    GROUP BY queue, minute
),
-- The percentile by nearest rank: the smallest value that p of 100 values do not exceed.
ranked AS (
    SELECT l.*,
        CASE WHEN size(waits) > 0 THEN element_at(waits, CAST(floor((size(waits) * 50 + 99) / 100) AS INT)) END AS wait_p50,
        CASE WHEN size(waits) > 0 THEN element_at(waits, CAST(floor((size(waits) * 95 + 99) / 100) AS INT)) END AS wait_p95,
        CASE WHEN size(waits) > 0 THEN element_at(waits, CAST(floor((size(waits) * 99 + 99) / 100) AS INT)) END AS wait_p99,
        CASE WHEN size(runs) > 0 THEN element_at(runs, CAST(floor((size(runs) * 50 + 99) / 100) AS INT)) END AS run_p50,
        CASE WHEN size(runs) > 0 THEN element_at(runs, CAST(floor((size(runs) * 95 + 99) / 100) AS INT)) END AS run_p95,
        CASE WHEN size(runs) > 0 THEN element_at(runs, CAST(floor((size(runs) * 99 + 99) / 100) AS INT)) END AS run_p99
    FROM lists l
),
-- Only log level `all` records enqueues.
accepted AS (
    SELECT queue, minute, count(*) AS enqueues
    FROM (
        SELECT e.queue, unix_millis(e.at) - unix_millis(e.at) % 60000 AS minute
        FROM events e JOIN starts s ON s.queue = e.queue
        WHERE e.kind IN ('queued', 'updated', 'blocked') AND unix_millis(e.at) >= s.start
    ) AS late
    GROUP BY queue, minute
)
SELECT g.queue, timestamp_millis(g.minute) AS minute, g.arrivals, a.enqueues, g.claims,
    coalesce(r.completed, 0) AS completed, coalesce(r.failed, 0) AS failed,
    coalesce(r.cancelled, 0) AS cancelled, coalesce(r.retried, 0) AS retried,
    coalesce(r.stalled, 0) AS stalled, coalesce(r.timed_out, 0) AS timed_out,
    coalesce(r.released, 0) AS released, coalesce(r.attempts, 0) AS attempts,
    CAST(r.retried AS DOUBLE) / nullif(r.attempts, 0) AS retry_rate,
    CAST(r.stalled AS DOUBLE) / nullif(r.attempts, 0) AS stall_rate,
    CAST(r.timed_out AS DOUBLE) / nullif(r.attempts, 0) AS timeout_rate,
    coalesce(r.wait_ms, 0) AS wait_ms, coalesce(r.run_ms, 0) AS run_ms,
    r.wait_p50 AS wait_p50_ms, r.wait_p95 AS wait_p95_ms, r.wait_p99 AS wait_p99_ms,
    r.run_p50 AS run_p50_ms, r.run_p95 AS run_p95_ms, r.run_p99 AS run_p99_ms,
    coalesce(r.holders, 0) AS holders, g.backlog, g.backlog_due, g.waiting, g.due, g.active, g.active_peak,
    g.active / nullif(g.active_peak, 0) AS utilisation
FROM gauges g
LEFT JOIN ranked r ON r.queue = g.queue AND r.minute = g.minute
LEFT JOIN accepted a ON a.queue = g.queue AND a.minute = g.minute
CROSS JOIN bounds b
WHERE g.minute < coalesce(b.until, g.minute + 1)
UNION ALL
SELECT m.queue, m.minute, m.arrivals, m.enqueues, m.claims, m.completed, m.failed, m.cancelled, m.retried, m.stalled, m.timed_out,
    m.released, m.attempts, m.retry_rate, m.stall_rate, m.timeout_rate, m.wait_ms, m.run_ms,
    m.wait_p50_ms, m.wait_p95_ms, m.wait_p99_ms, m.run_p50_ms, m.run_p95_ms, m.run_p99_ms, m.holders, m.backlog,
    m.backlog_due, m.waiting, m.due, m.active, m.active_peak, m.utilisation
FROM old_metrics m LEFT JOIN starts s ON s.queue = m.queue CROSS JOIN bounds b
WHERE s.queue IS NULL OR unix_millis(m.minute) < s.start OR unix_millis(m.minute) >= b.until
