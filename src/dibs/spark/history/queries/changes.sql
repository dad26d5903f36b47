-- The changes of counters and gauges: plus one when a state begins, minus one when it ends. A change does not depend
-- on other rows, so an attempt need not be matched with the one before it: a retried attempt puts its job back into
-- waiting, and only the last attempt of a job, whose event has the time of the enqueue, counts its arrival.
-- Increments rely on this law: the metrics from a minute on follow from the attempts that finish in or after that
-- minute, and from the jobs that are live. An attempt that finished earlier also began earlier. If its job came back,
-- the arrival is counted by the attempt that ends the job. So a late event causes a recount from its own minute on,
-- never of the whole history.
SELECT spans.queue, spans.logged,
    CASE step.number WHEN 1 THEN enqueued WHEN 2 THEN claimed WHEN 3 THEN finished WHEN 4 THEN due
        ELSE coalesce(claimed, finished) END AS moment,
    CASE WHEN step.number = 1 THEN amount ELSE 0 END AS arrivals,
    CASE WHEN step.number = 2 THEN amount ELSE 0 END AS claims,
    CASE WHEN step.number = 1 THEN amount
        WHEN step.number = 2 OR (step.number = 3 AND claimed IS NULL) THEN -amount
        WHEN step.number = 3 AND NOT is_last THEN amount ELSE 0 END AS waiting,
    CASE step.number WHEN 4 THEN amount WHEN 5 THEN -amount ELSE 0 END AS due,
    CASE WHEN step.number = 2 THEN amount WHEN step.number = 3 AND claimed IS NOT NULL THEN -amount ELSE 0 END
        AS active
FROM (
    SELECT e.queue, e.logged, e.enqueued, e.due, e.claimed, e.finished, e.is_last, 1 AS amount,
        coalesce(e.claimed, e.finished) AS due_until
    FROM ended e
    UNION ALL
    -- A live job has no end. One that falls due after the horizon is not due yet.
    SELECT l.queue, NULL, unix_millis(l.enqueued_at), unix_millis(l.due_at), unix_millis(l.claimed_at), NULL, TRUE, 1,
        coalesce(unix_millis(l.claimed_at), bounds.horizon + 1)
    FROM live l CROSS JOIN bounds
    UNION ALL
    -- The changes of the jobs that were live at the horizon before are undone.
    SELECT l.queue, NULL, unix_millis(l.enqueued_at), unix_millis(l.due_at), unix_millis(l.claimed_at), NULL, TRUE, -1,
        coalesce(unix_millis(l.claimed_at), bounds.before + 1)
    FROM old_live l CROSS JOIN bounds
) AS spans
CROSS JOIN (VALUES (1), (2), (3), (4), (5)) AS step(number)
WHERE (step.number = 1 AND is_last AND enqueued IS NOT NULL)
    OR (step.number = 2 AND claimed IS NOT NULL)
    OR (step.number = 3 AND finished IS NOT NULL)
    OR (step.number = 4 AND due < due_until)
    OR (step.number = 5 AND due < due_until AND coalesce(claimed, finished) IS NOT NULL)
