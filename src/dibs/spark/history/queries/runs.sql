-- One row for each attempt that ended.
SELECT e.queue, e.offset, e.id, e.attempt, e.fence, e.kind AS end, e.enqueued_at,
    greatest(e.run_at, e.enqueued_at) AS due_at, e.claimed_at, e.finished_at,
    greatest(unix_millis(e.claimed_at) - unix_millis(greatest(e.run_at, e.enqueued_at)), 0) AS wait_ms,
    greatest(unix_millis(e.finished_at) - unix_millis(e.claimed_at), 0) AS run_ms,
    e.holder, e.error_type, e.error_message, e.error_traceback, e.first, e.revision, e.enqueues, e.key, e.flow,
    e.attributes
FROM events e
WHERE e.kind IN ('completed', 'failed', 'cancelled', 'retried', 'stalled', 'timed_out', 'released')
    AND e.finished_at IS NOT NULL AND e.claimed_at IS NOT NULL
