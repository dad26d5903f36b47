-- Queue and the first time (ms) at which its metrics have changed.
SELECT queue, min(moment) AS start
FROM (
    SELECT queue, moment FROM changes GROUP BY queue, moment
    HAVING sum(arrivals) <> 0 OR sum(claims) <> 0 OR sum(waiting) <> 0 OR sum(due) <> 0 OR sum(active) <> 0
    UNION ALL
    SELECT e.queue, unix_millis(e.at) FROM events e
    UNION ALL
    -- A job that was live at the old horizon was live in all minutes since.
    SELECT l.queue, bounds.before FROM old_live l CROSS JOIN bounds WHERE bounds.horizon > bounds.before
) AS starts
GROUP BY queue
