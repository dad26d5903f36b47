-- Queue and the first time (ms) at which its metrics have changed.
WITH changes AS (
    FROM ended_changes('events')
    UNION ALL
    FROM live_changes('live', getvariable('horizon'))
    UNION ALL
    SELECT queue, moment, -arrivals, -claims, -waiting, -due, -active
    FROM live_changes('old_live', getvariable('before'))
),
summed AS (
    SELECT queue, moment FROM changes GROUP BY queue, moment
    HAVING sum(arrivals) <> 0 OR sum(claims) <> 0 OR sum(waiting) <> 0 OR sum(due) <> 0 OR sum(active) <> 0
),
starts AS (
    FROM summed
    UNION ALL
    SELECT queue, epoch_ms("at") FROM events
    UNION ALL
    -- A job that was live at the old horizon was live in all minutes since.
    SELECT queue, getvariable('before') FROM old_live WHERE getvariable('horizon') > getvariable('before')
)
SELECT queue, min(moment) AS start FROM starts GROUP BY queue
