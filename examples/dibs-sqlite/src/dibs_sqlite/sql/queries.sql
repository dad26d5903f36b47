-- Every query of the storage. A section `-- name: NAME` is one statement; comments below the name explain it.

-- name: storage
SELECT now, number, lead, inode, ahead FROM storage;

-- name: save_storage
UPDATE storage SET now = :now, number = :number, lead = :lead, inode = :inode, ahead = :ahead;

-- name: queue
SELECT settings, work, removal, log_bytes, trimmed, reported FROM queues WHERE queue = :queue;

-- name: save_queue
INSERT INTO queues (queue, settings, work, removal, log_bytes, trimmed, reported)
VALUES (:queue, :settings, :work, :removal, :log_bytes, :trimmed, :reported)
ON CONFLICT (queue) DO UPDATE SET
    settings = excluded.settings, work = excluded.work, removal = excluded.removal,
    log_bytes = excluded.log_bytes, trimmed = excluded.trimmed, reported = excluded.reported;

-- name: queues
SELECT queue, settings FROM queues ORDER BY queue;

-- name: slot
SELECT body FROM slots WHERE queue = :queue AND id = :id;

-- name: save_slot
-- With `ending` NULL, the column keeps its value. Without turns, a job that changes is no longer filed.
INSERT INTO slots (queue, id, state, priority, run_at, seq, lease, cancel_requested, blocked, outcome, expires_at,
                   ending, body, key, filed, retrying)
VALUES (:queue, :id, :state, :priority, :run_at, :seq, :lease, :cancel_requested, :blocked, :outcome, :expires_at,
        ifnull(:ending, 0), :body, :key, :filed, :retrying)
ON CONFLICT (queue, id) DO UPDATE SET
    state = excluded.state, priority = excluded.priority, run_at = excluded.run_at, seq = excluded.seq,
    lease = excluded.lease, cancel_requested = excluded.cancel_requested, blocked = excluded.blocked,
    outcome = excluded.outcome, expires_at = excluded.expires_at, ending = ifnull(:ending, ending),
    body = excluded.body, key = excluded.key, filed = excluded.filed, retrying = excluded.retrying;

-- name: delete_slot
DELETE FROM slots WHERE queue = :queue AND id = :id;

-- name: output
SELECT body FROM outputs WHERE queue = :queue AND id = :id;

-- name: save_output
INSERT OR REPLACE INTO outputs (queue, id, body) VALUES (:queue, :id, :body);

-- name: delete_output
DELETE FROM outputs WHERE queue = :queue AND id = :id;

-- name: priorities
-- The priorities of waiting jobs, highest first. The recursion does one index lookup for each priority.
WITH RECURSIVE used (priority) AS (
    SELECT max(priority) FROM slots WHERE queue = :queue AND state = 'w' AND filed = :filed
    UNION ALL
    SELECT (SELECT max(priority) FROM slots WHERE queue = :queue AND state = 'w' AND filed = :filed AND priority < used.priority)
    FROM used WHERE used.priority IS NOT NULL
)
SELECT priority FROM used WHERE priority IS NOT NULL;

-- name: due
-- The first due jobs of one priority, in the order of claims.
SELECT id, body FROM slots
WHERE queue = :queue AND state = 'w' AND filed = 0 AND priority = :priority AND run_at <= :now
ORDER BY run_at, seq LIMIT :limit;

-- name: next_turn
-- The first due job of one priority of the key whose turn comes first, among the keys that are not closed.
SELECT id, body FROM slots WHERE queue = :queue AND id = (
    SELECT id FROM (
        SELECT t.place, (
            SELECT s.id FROM slots s
            WHERE s.queue = :queue AND s.filed = 1 AND s.key IS nullif(t.key, '') AND s.priority = :priority AND s.run_at <= :now
            ORDER BY s.run_at, s.seq LIMIT 1) AS id
        FROM turns t
        WHERE t.queue = :queue AND NOT EXISTS (SELECT 1 FROM closed_keys c WHERE c.queue = :queue AND c.key = t.key)
    ) WHERE id IS NOT NULL ORDER BY place LIMIT 1
);

-- name: turn
SELECT place, starts FROM turns WHERE queue = :queue AND key = :key;

-- name: save_turn
INSERT OR REPLACE INTO turns (queue, key, place, starts) VALUES (:queue, :key, :place, :starts);

-- name: delete_turn
DELETE FROM turns WHERE queue = :queue AND key = :key;

-- name: delete_turns
DELETE FROM turns WHERE queue = :queue;

-- name: begin_turn
-- A key whose share was changed begins a new turn in its place.
UPDATE turns SET starts = 0 WHERE queue = :queue AND key = :key;

-- name: waits_under_key
SELECT EXISTS (SELECT 1 FROM slots WHERE queue = :queue AND filed = 1 AND key IS nullif(:key, ''));

-- name: file_all
UPDATE slots SET filed = :filed WHERE queue = :queue AND state = 'w';

-- name: keys_in_order
-- The keys with waiting jobs in the order of their first jobs.
SELECT ifnull(key, '') FROM (
    SELECT key, priority, run_at, seq, row_number() OVER (PARTITION BY key ORDER BY priority DESC, run_at, seq) AS place
    FROM slots WHERE queue = :queue AND filed = 1
) WHERE place = 1 ORDER BY priority DESC, run_at, seq;

-- name: next_due
-- The time at which the next scheduled job becomes due.
SELECT min(run_at) FROM slots WHERE queue = :queue AND state = 'w' AND run_at > :now;

-- name: became_due
-- 1 if a waiting job became due after the time :after and until :now, else 0.
SELECT EXISTS (SELECT 1 FROM slots WHERE queue = :queue AND state = 'w' AND run_at > :after AND run_at <= :now);

-- name: count_active
SELECT count(*) FROM slots WHERE queue = :queue AND lease IS NOT NULL;

-- name: count_waiting
-- The number of waiting jobs; from :limit on it may be too low.
SELECT count(*) FROM (SELECT 1 FROM slots WHERE queue = :queue AND state = 'w' LIMIT :limit);

-- name: lease
SELECT holder, expires_at, dropped FROM leases WHERE queue = :queue AND lease = :lease;

-- name: save_lease
INSERT INTO leases (queue, lease, holder, expires_at, dropped)
VALUES (:queue, :lease, :holder, :expires_at, :dropped)
ON CONFLICT (queue, lease) DO UPDATE SET expires_at = excluded.expires_at, dropped = excluded.dropped;

-- name: delete_lease
DELETE FROM leases WHERE queue = :queue AND lease = :lease;

-- name: expired_lease
SELECT lease, dropped FROM leases WHERE queue = :queue AND expires_at <= :now ORDER BY expires_at LIMIT 1;

-- name: held_ids
-- Ids of the jobs that are active under a lease.
SELECT id FROM slots WHERE queue = :queue AND lease = :lease LIMIT :limit;

-- name: count_held
SELECT count(*) FROM slots WHERE queue = :queue AND lease = :lease;

-- name: cancel_requested_ids
SELECT id FROM slots WHERE queue = :queue AND lease = :lease AND cancel_requested = 1;

-- name: request_key
SELECT result FROM request_keys WHERE queue = :queue AND key = :key AND expires_at > :now;

-- name: save_request_key
INSERT OR REPLACE INTO request_keys (queue, key, result, expires_at) VALUES (:queue, :key, :result, :expires_at);

-- name: prune_request_keys
DELETE FROM request_keys WHERE queue = :queue AND key IN (
    SELECT key FROM request_keys WHERE queue = :queue AND expires_at <= :now ORDER BY expires_at LIMIT :limit
);

-- name: expired_ids
-- Ids whose outcome has expired, the oldest first.
SELECT id FROM slots WHERE queue = :queue AND expires_at <= :now ORDER BY expires_at LIMIT :limit;

-- name: counts
SELECT
    count(*) FILTER (WHERE state = 'w') AS waiting,
    count(*) FILTER (WHERE state = 'w' AND run_at > :now) AS scheduled,
    count(*) FILTER (WHERE retrying) AS retrying,
    count(*) FILTER (WHERE state IN ('a', 'h')) AS active,
    count(*) FILTER (WHERE state = 'h') AS handed_off,
    count(*) FILTER (WHERE blocked) AS blocked,
    count(*) FILTER (WHERE outcome = 'completed' AND ifnull(expires_at > :now, true)) AS completed,
    count(*) FILTER (WHERE outcome = 'failed' AND ifnull(expires_at > :now, true)) AS failed,
    count(*) FILTER (WHERE outcome = 'cancelled' AND ifnull(expires_at > :now, true)) AS cancelled
FROM slots WHERE queue = :queue;

-- name: list
-- A page of the ids in a state, in the order of their bytes. :state NULL stands for every id except those with only an
-- expired outcome. :until NULL stands for no end: it becomes the empty blob, which SQLite sorts behind all text.
SELECT id, body FROM slots
WHERE queue = :queue AND id > :after AND id <= ifnull(:until, x'') AND CASE :state
    WHEN 'waiting' THEN state = 'w'
    WHEN 'scheduled' THEN state = 'w' AND run_at > :now
    WHEN 'active' THEN state IN ('a', 'h')
    WHEN 'handed_off' THEN state = 'h'
    WHEN 'blocked' THEN blocked
    ELSE (:state IS NULL AND state IS NOT NULL)
        OR (outcome IS NOT NULL AND outcome = ifnull(:state, outcome) AND ifnull(expires_at > :now, true))
END
ORDER BY id LIMIT :limit;

-- name: split
-- The last id of each part but the last, when the ids in a state are divided into :parts parts of equal size.
SELECT max(id) FROM (
    SELECT id, ntile(:parts) OVER (ORDER BY id) AS part FROM slots
    WHERE queue = :queue AND CASE :state
        WHEN 'waiting' THEN state = 'w'
        WHEN 'scheduled' THEN state = 'w' AND run_at > :now
        WHEN 'active' THEN state IN ('a', 'h')
        WHEN 'handed_off' THEN state = 'h'
        WHEN 'blocked' THEN blocked
        ELSE (:state IS NULL AND state IS NOT NULL)
            OR (outcome IS NOT NULL AND outcome = ifnull(:state, outcome) AND ifnull(expires_at > :now, true))
    END
) WHERE part < :parts GROUP BY part ORDER BY part;

-- name: ending
SELECT ending FROM slots WHERE queue = :queue AND id = :id;

-- name: reported
SELECT reported FROM slots WHERE queue = :queue AND id = :id;

-- name: save_reported
UPDATE slots SET reported = :number WHERE queue = :queue AND id = :id;

-- name: file_job
UPDATE slots SET filed = 1 WHERE queue = :queue AND id = :id;

-- name: bring_back
-- Put the first filed job of a key back into the order of claims.
UPDATE slots SET filed = 0 WHERE queue = :queue AND id = (
    SELECT id FROM slots WHERE queue = :queue AND key = :key AND filed = 1 ORDER BY priority DESC, run_at, seq LIMIT 1
);

-- name: any_filed
SELECT EXISTS (SELECT 1 FROM slots WHERE queue = :queue AND filed = 1);

-- name: count_runs_of_key
SELECT count(*) FROM slots WHERE queue = :queue AND key = :key AND key IS NOT NULL AND lease IS NOT NULL;

-- name: clock
SELECT clock FROM clocks WHERE queue = :queue AND key = :key;

-- name: save_clock
INSERT OR REPLACE INTO clocks (queue, key, clock) VALUES (:queue, :key, :clock);

-- name: delete_queue_clock
DELETE FROM clocks WHERE queue = :queue AND key = '';

-- name: delete_key_clocks
DELETE FROM clocks WHERE queue = :queue AND key <> '';

-- name: prune_clocks
DELETE FROM clocks WHERE queue = :queue AND clock <= :now * 1000;

-- name: close_key
INSERT OR REPLACE INTO closed_keys (queue, key, opens_at) VALUES (:queue, :key, :opens_at);

-- name: open_key
DELETE FROM closed_keys WHERE queue = :queue AND key = :key;

-- name: is_closed
SELECT EXISTS (SELECT 1 FROM closed_keys WHERE queue = :queue AND key = :key);

-- name: is_full
SELECT EXISTS (SELECT 1 FROM closed_keys WHERE queue = :queue AND key = :key AND opens_at IS NULL);

-- name: open_keys
DELETE FROM closed_keys WHERE queue = :queue;

-- name: closed_keys
SELECT key FROM closed_keys WHERE queue = :queue;

-- name: opened_keys
SELECT key FROM closed_keys WHERE queue = :queue AND opens_at <= :now;

-- name: next_opening
SELECT min(opens_at) FROM closed_keys WHERE queue = :queue AND opens_at > :now;

-- name: has_opened
-- 1 if a key has opened after the time :after and until :now, else 0.
SELECT EXISTS (SELECT 1 FROM closed_keys WHERE queue = :queue AND opens_at > :after AND opens_at <= :now);

-- name: append_event
INSERT INTO events (queue, number, at, body) VALUES (:queue, :number, :at, :body);

-- name: events_after
SELECT number, body FROM events WHERE queue = :queue AND number > :after ORDER BY number LIMIT :limit;

-- name: last_event
SELECT max(number) FROM events WHERE queue = :queue;

-- name: oldest_events
SELECT number, at, length(body) FROM events WHERE queue = :queue ORDER BY number;

-- name: trim_events
DELETE FROM events WHERE queue = :queue AND number <= :through;
