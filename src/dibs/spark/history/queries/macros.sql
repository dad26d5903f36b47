-- Definitions that the statements share. `source` is the name of a view of events or of live jobs.

-- The ends of attempts, and the cancellations of jobs before their claim.
CREATE MACRO ended(source) AS TABLE
SELECT queue, id, kind, fence, holder, first, enqueues,
    epoch_ms(enqueued_at) AS enqueued,
    epoch_ms(claimed_at) AS claimed,
    epoch_ms(finished_at) AS finished,
    -- greatest ignores NULL.
    epoch_ms(greatest(run_at, enqueued_at)) AS due,
    kind IN ('completed', 'failed', 'cancelled') AS is_last,
    CASE WHEN claimed_at IS NOT NULL
        THEN greatest(epoch_ms(claimed_at) - epoch_ms(greatest(run_at, enqueued_at)), 0) END AS wait,
    CASE WHEN claimed_at IS NOT NULL
        THEN greatest(epoch_ms(finished_at) - epoch_ms(claimed_at), 0) END AS run
FROM query_table(source)
WHERE kind IN ('completed', 'failed', 'cancelled', 'retried', 'stalled', 'timed_out', 'released')
    AND finished_at IS NOT NULL;

-- The changes of counters and gauges that ends cause: plus one when a state begins, minus one when it
-- ends. They do not depend on other rows; spark_engine/metrics.py explains why increments may rely on them.
CREATE MACRO ended_changes(source) AS TABLE
WITH ended_rows AS (FROM ended(source))
SELECT queue, enqueued AS moment, 1 AS arrivals, 0 AS claims, 1 AS waiting, 0 AS due, 0 AS active
FROM ended_rows WHERE is_last
UNION ALL
SELECT queue, claimed, 0, 1, -1, 0, 1 FROM ended_rows WHERE claimed IS NOT NULL
UNION ALL
SELECT queue, finished, 0, 0, CASE WHEN is_last THEN 0 ELSE 1 END, 0, -1
FROM ended_rows WHERE claimed IS NOT NULL
UNION ALL
SELECT queue, finished, 0, 0, -1, 0, 0 FROM ended_rows WHERE claimed IS NULL
UNION ALL
SELECT queue, due, 0, 0, 0, 1, 0 FROM ended_rows WHERE due < coalesce(claimed, finished)
UNION ALL
SELECT queue, coalesce(claimed, finished), 0, 0, 0, -1, 0
FROM ended_rows WHERE due < coalesce(claimed, finished);

-- The changes that live jobs imply. A job that falls due after `horizon` (ms) is not due yet.
CREATE MACRO live_changes(source, horizon) AS TABLE
WITH live_rows AS (
    SELECT queue, epoch_ms(enqueued_at) AS enqueued, epoch_ms(due_at) AS due, epoch_ms(claimed_at) AS claimed
    FROM query_table(source)
)
SELECT queue, enqueued AS moment, 1 AS arrivals, 0 AS claims, 1 AS waiting, 0 AS due, 0 AS active
FROM live_rows WHERE enqueued IS NOT NULL
UNION ALL
SELECT queue, claimed, 0, 1, -1, 0, 1 FROM live_rows WHERE claimed IS NOT NULL
UNION ALL
SELECT queue, due, 0, 0, 0, 1, 0 FROM live_rows WHERE due < coalesce(claimed, horizon + 1)
UNION ALL
SELECT queue, claimed, 0, 0, 0, -1, 0 FROM live_rows WHERE claimed IS NOT NULL AND due < claimed;

-- The day in UTC of a time in ms.
CREATE MACRO utc_day(ms) AS DATE '1970-01-01' + CAST(floor(ms / 86400000) AS INTEGER);

-- The percentile by nearest rank of a sorted list: the smallest value that p of 100 values do not exceed.
CREATE MACRO nearest_rank(sorted, p) AS sorted[greatest((len(sorted) * p + 99) // 100, 1)];
