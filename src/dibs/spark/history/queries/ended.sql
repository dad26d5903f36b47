-- The ends of attempts, and the cancellations of jobs before their claim. All times are in ms.
SELECT queue, id, kind, fence, holder, enqueues, finished_at, first_revision, logged, enqueued, claimed, finished, due,
    kind IN ('completed', 'failed', 'cancelled') AS is_last,
    CASE WHEN claimed IS NOT NULL THEN greatest(claimed - due, 0) END AS wait,
    CASE WHEN claimed IS NOT NULL THEN greatest(finished - claimed, 0) END AS run
FROM (
    SELECT e.queue, e.id, e.kind, e.fence, e.holder, e.enqueues, e.finished_at, e.first AS first_revision,
        unix_millis(e.at) AS logged,
        unix_millis(e.enqueued_at) AS enqueued,
        unix_millis(e.claimed_at) AS claimed,
        unix_millis(e.finished_at) AS finished,
        -- greatest ignores NULL.
        unix_millis(greatest(e.run_at, e.enqueued_at)) AS due
    FROM events e
    WHERE e.kind IN ('completed', 'failed', 'cancelled', 'retried', 'stalled', 'timed_out', 'released')
        AND e.finished_at IS NOT NULL
) AS ends
