-- Every query of the storage. A section `-- name: NAME` is one statement; comments under it are its contract.

-- name: place
SELECT now, number FROM place;

-- name: keep_place
UPDATE place SET now = :now, number = :number;

-- name: queue
SELECT settings, work, gone, log_size, trimmed FROM queues WHERE queue = :queue;

-- name: keep_queue
INSERT INTO queues (queue, settings, work, gone, log_size, trimmed)
VALUES (:queue, :settings, :work, :gone, :log_size, :trimmed)
ON CONFLICT (queue) DO UPDATE SET
    settings = excluded.settings, work = excluded.work, gone = excluded.gone,
    log_size = excluded.log_size, trimmed = excluded.trimmed;

-- name: queues
SELECT queue, settings FROM queues ORDER BY queue;

-- name: slot
SELECT body FROM slots WHERE queue = :queue AND id = :id;

-- name: keep_slot
-- `changed` NULL leaves it as it was.
INSERT INTO slots (queue, id, state, priority, run_at, seq, lease, asked, blocked, ended, expires_at, changed, body)
VALUES (:queue, :id, :state, :priority, :run_at, :seq, :lease, :asked, :blocked, :ended, :expires_at,
        ifnull(:changed, 0), :body)
ON CONFLICT (queue, id) DO UPDATE SET
    state = excluded.state, priority = excluded.priority, run_at = excluded.run_at, seq = excluded.seq,
    lease = excluded.lease, asked = excluded.asked, blocked = excluded.blocked, ended = excluded.ended,
    expires_at = excluded.expires_at, changed = ifnull(:changed, changed), body = excluded.body;

-- name: remove_slot
DELETE FROM slots WHERE queue = :queue AND id = :id;

-- name: priorities
-- Those that waiting jobs have, highest first: one look into the index for each.
WITH RECURSIVE used (priority) AS (
    SELECT max(priority) FROM slots WHERE queue = :queue AND state = 'w'
    UNION ALL
    SELECT (SELECT max(priority) FROM slots WHERE queue = :queue AND state = 'w' AND priority < used.priority)
    FROM used WHERE used.priority IS NOT NULL
)
SELECT priority FROM used WHERE priority IS NOT NULL;

-- name: due
-- The first due jobs of one priority.
SELECT id, body FROM slots
WHERE queue = :queue AND state = 'w' AND priority = :priority AND run_at <= :now
ORDER BY run_at, seq LIMIT :limit;

-- name: next_due
SELECT min(run_at) FROM slots WHERE queue = :queue AND state = 'w' AND run_at > :now;

-- name: fell_due
-- Whether a job fell due after one time, up to another.
SELECT EXISTS (SELECT 1 FROM slots WHERE queue = :queue AND state = 'w' AND run_at > :after AND run_at <= :now);

-- name: active
SELECT count(*) FROM slots WHERE queue = :queue AND lease IS NOT NULL;

-- name: lease
SELECT holder, expires_at, dropped FROM leases WHERE queue = :queue AND lease = :lease;

-- name: keep_lease
INSERT INTO leases (queue, lease, holder, expires_at, dropped)
VALUES (:queue, :lease, :holder, :expires_at, :dropped)
ON CONFLICT (queue, lease) DO UPDATE SET expires_at = excluded.expires_at, dropped = excluded.dropped;

-- name: remove_lease
DELETE FROM leases WHERE queue = :queue AND lease = :lease;

-- name: expired_lease
SELECT lease, dropped FROM leases WHERE queue = :queue AND expires_at <= :now ORDER BY expires_at LIMIT 1;

-- name: held
SELECT id FROM slots WHERE queue = :queue AND lease = :lease LIMIT :limit;

-- name: left
SELECT count(*) FROM slots WHERE queue = :queue AND lease = :lease;

-- name: asked
SELECT id FROM slots WHERE queue = :queue AND lease = :lease AND asked = 1 ORDER BY id;

-- name: request_key
SELECT answer FROM request_keys WHERE queue = :queue AND key = :key AND expires_at > :now;

-- name: keep_request_key
INSERT OR REPLACE INTO request_keys (queue, key, answer, expires_at) VALUES (:queue, :key, :answer, :expires_at);

-- name: prune_request_keys
DELETE FROM request_keys WHERE queue = :queue AND key IN (
    SELECT key FROM request_keys WHERE queue = :queue AND expires_at <= :now ORDER BY expires_at LIMIT :limit
);

-- name: expired
SELECT id FROM slots WHERE queue = :queue AND expires_at <= :now ORDER BY expires_at LIMIT :limit;

-- name: counts
SELECT
    count(*) FILTER (WHERE state = 'w') AS waiting,
    count(*) FILTER (WHERE state = 'w' AND run_at > :now) AS scheduled,
    count(*) FILTER (WHERE state IN ('a', 'h')) AS active,
    count(*) FILTER (WHERE state = 'h') AS handed_off,
    count(*) FILTER (WHERE blocked) AS blocked,
    count(*) FILTER (WHERE ended = 'completed' AND ifnull(expires_at > :now, true)) AS completed,
    count(*) FILTER (WHERE ended = 'failed' AND ifnull(expires_at > :now, true)) AS failed,
    count(*) FILTER (WHERE ended = 'cancelled' AND ifnull(expires_at > :now, true)) AS cancelled
FROM slots WHERE queue = :queue;

-- name: list
-- A page of the ids in a state, in the order of their bytes; `state` NULL is every id there is to see, `until` NULL
-- the end. Any blob sorts behind all text.
SELECT id, body FROM slots
WHERE queue = :queue AND id > :after AND id <= ifnull(:until, x'') AND CASE :state
    WHEN 'waiting' THEN state = 'w'
    WHEN 'scheduled' THEN state = 'w' AND run_at > :now
    WHEN 'active' THEN state IN ('a', 'h')
    WHEN 'handed_off' THEN state = 'h'
    WHEN 'blocked' THEN blocked
    ELSE (:state IS NULL AND state IS NOT NULL)
        OR (ended IS NOT NULL AND ended = ifnull(:state, ended) AND ifnull(expires_at > :now, true))
END
ORDER BY id LIMIT :limit;

-- name: split
-- The last id of each part but the last, where the ids of a page without end fall into equal parts.
SELECT max(id) FROM (
    SELECT id, ntile(:parts) OVER (ORDER BY id) AS part FROM slots
    WHERE queue = :queue AND CASE :state
        WHEN 'waiting' THEN state = 'w'
        WHEN 'scheduled' THEN state = 'w' AND run_at > :now
        WHEN 'active' THEN state IN ('a', 'h')
        WHEN 'handed_off' THEN state = 'h'
        WHEN 'blocked' THEN blocked
        ELSE (:state IS NULL AND state IS NOT NULL)
            OR (ended IS NOT NULL AND ended = ifnull(:state, ended) AND ifnull(expires_at > :now, true))
    END
) WHERE part < :parts GROUP BY part ORDER BY part;

-- name: changed
SELECT changed FROM slots WHERE queue = :queue AND id = :id;

-- name: append
INSERT INTO events (queue, number, at, body) VALUES (:queue, :number, :at, :body);

-- name: page
SELECT number, body FROM events WHERE queue = :queue AND number > :after ORDER BY number LIMIT :limit;

-- name: last_event
SELECT max(number) FROM events WHERE queue = :queue;

-- name: oldest_events
SELECT number, at, length(body) FROM events WHERE queue = :queue ORDER BY number;

-- name: trim
DELETE FROM events WHERE queue = :queue AND number <= :through;
