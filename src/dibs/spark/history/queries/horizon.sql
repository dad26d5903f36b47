-- The newest time (ms) of the events and of the live jobs.
SELECT max(moment) AS horizon
FROM (
    SELECT unix_millis(e.at) AS moment FROM events e
    UNION ALL
    SELECT greatest(unix_millis(l.enqueued_at), unix_millis(l.claimed_at)) FROM live l
) AS moments
