-- The live jobs that were read, except jobs that ended by the events read later. If an id was read twice,
-- its last page counts.
WITH latest AS (
    SELECT * FROM live_read QUALIFY seen = max(seen) OVER (PARTITION BY queue, id)
),
over AS (SELECT DISTINCT queue, id, first FROM ended('events') WHERE is_last),
-- Attempts that ended without the job. Their jobs wait again.
back AS (SELECT DISTINCT queue, id, fence FROM ended('events') WHERE fence IS NOT NULL)
SELECT
    latest.id,
    CASE WHEN back.fence IS NULL THEN latest.state ELSE 'waiting' END AS state,
    latest.first,
    CASE WHEN back.fence IS NULL THEN latest.fence END AS fence,
    latest.enqueued_at,
    latest.due_at,
    CASE WHEN back.fence IS NULL THEN latest.claimed_at END AS claimed_at,
    latest.key,
    latest.flow,
    latest.memo_bytes,
    latest.queue,
    latest.date
FROM latest
LEFT JOIN back ON back.queue = latest.queue AND back.id = latest.id AND back.fence = latest.fence
WHERE NOT EXISTS (
    FROM over WHERE over.queue = latest.queue AND over.id = latest.id AND over.first = latest.first
)
