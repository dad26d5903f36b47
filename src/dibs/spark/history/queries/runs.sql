-- One row for each attempt that ended, by the day it finished.
SELECT "offset", id, attempt, fence, kind AS "end", enqueued_at,
    greatest(run_at, enqueued_at) AS due_at, claimed_at, finished_at,
    greatest(epoch_ms(claimed_at) - epoch_ms(greatest(run_at, enqueued_at)), 0) AS wait_ms,
    greatest(epoch_ms(finished_at) - epoch_ms(claimed_at), 0) AS run_ms,
    holder, error_type, error_message, error_traceback, first, revision, enqueues, key, flow, queue,
    utc_day(epoch_ms(finished_at)) AS date
FROM events
WHERE kind IN ('completed', 'failed', 'cancelled', 'retried', 'stalled', 'timed_out', 'released')
    AND finished_at IS NOT NULL AND claimed_at IS NOT NULL
