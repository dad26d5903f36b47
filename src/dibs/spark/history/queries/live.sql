-- The live jobs that were read, and those of the queues that were not read, as they were read last; without the
-- jobs that ended by the events read later. If an id was read twice, its last page counts. An active job whose
-- attempt ended without ending the job waits again.
SELECT latest.queue, latest.id,
    CASE WHEN back.fence IS NULL THEN latest.state ELSE 'waiting' END AS state,
    latest.first,
    CASE WHEN back.fence IS NULL THEN latest.fence END AS fence,
    latest.enqueued_at,
    latest.due_at,
    CASE WHEN back.fence IS NULL THEN latest.claimed_at END AS claimed_at,
    latest.key,
    latest.flow,
    latest.memo_bytes
FROM (
    SELECT r.*, max(r.seen) OVER (PARTITION BY r.queue, r.id) AS newest
    FROM (
        SELECT queue, id, state, first, fence, enqueued_at, due_at, claimed_at, key, flow, memo_bytes, seen
        FROM live_read
        UNION ALL
        SELECT l.queue, l.id, l.state, l.first, l.fence, l.enqueued_at, l.due_at, l.claimed_at, l.key, l.flow,
            l.memo_bytes, 0 AS seen
        FROM last_live l JOIN unread_queues u ON u.queue = l.queue
    ) AS r
) AS latest
LEFT JOIN (SELECT DISTINCT queue, id, fence FROM ended WHERE fence IS NOT NULL) AS back
    ON back.queue = latest.queue AND back.id = latest.id AND back.fence = latest.fence
LEFT JOIN (SELECT DISTINCT queue, id, first_revision FROM ended WHERE is_last) AS over_jobs
    ON over_jobs.queue = latest.queue AND over_jobs.id = latest.id AND over_jobs.first_revision = latest.first
WHERE latest.seen = latest.newest AND over_jobs.id IS NULL
