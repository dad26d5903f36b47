-- Reading: jobs, pages of them, queues, the log. Nothing here writes, but that a manual clock moves on.

-- name: get
-- A row for each id in list order: its place, its current, successor and outcome, and its dropped ranges.
WITH clock AS MATERIALIZED (SELECT {schema}.tick(%(now)s::bigint) AS now_ms)
SELECT a.id, {slot}
FROM clock, unnest(%(ids)b::text[]) WITH ORDINALITY AS a (id, place)
LEFT JOIN {schema}.queues k ON k.name = %(queue)s
LEFT JOIN {schema}.live j ON j.q = k.q AND j.id = a.id
LEFT JOIN {schema}.ended o ON o.q = k.q AND o.id = a.id
ORDER BY a.place

-- name: page
-- Up to `limit` ids after one, with all there is of each, in the order of the ids. The filters say which, and
-- up to which; an id whose outcome has expired counts as without. The queue is a subquery, not a join: only so
-- does the planner see that the index has the ids in order, and reads a page of it and not all that follows.
WITH clock AS MATERIALIZED (SELECT {schema}.tick(%(now)s::bigint) AS now_ms),
     k AS MATERIALIZED (SELECT q FROM {schema}.queues WHERE name = %(queue)s),
     ids AS MATERIALIZED (
        (SELECT l.id FROM {schema}.live l
         WHERE l.q = (SELECT q FROM k) AND l.id > %(after)s {live_end} AND {live_filter}
         ORDER BY l.id LIMIT %(limit)s)
        UNION
        (SELECT e.id FROM {schema}.ended e
         WHERE e.q = (SELECT q FROM k) AND e.id > %(after)s {ended_end} AND {ended_filter}
           AND (e.expires_at IS NULL OR e.expires_at > (SELECT now_ms FROM clock))
         ORDER BY e.id LIMIT %(limit)s)
        ORDER BY 1 LIMIT %(limit)s)
SELECT ids.id, {slot}
FROM clock, k, ids
LEFT JOIN LATERAL (SELECT * FROM {schema}.live l WHERE l.q = k.q AND l.id = ids.id) j ON true
LEFT JOIN LATERAL (SELECT * FROM {schema}.ended e WHERE e.q = k.q AND e.id = ids.id) o ON true
ORDER BY ids.id

-- name: split
-- The last id of each part but the last, in order, where the ids that the filters let pass fall into `parts` equal
-- parts. An id that is in both tables weighs twice.
WITH clock AS MATERIALIZED (SELECT {schema}.tick(%(now)s::bigint) AS now_ms),
     k AS MATERIALIZED (SELECT q FROM {schema}.queues WHERE name = %(queue)s),
     ids AS (
        SELECT l.id FROM {schema}.live l WHERE l.q = (SELECT q FROM k) AND {live_filter}
        UNION ALL
        SELECT e.id FROM {schema}.ended e
        WHERE e.q = (SELECT q FROM k) AND {ended_filter}
          AND (e.expires_at IS NULL OR e.expires_at > (SELECT now_ms FROM clock))),
     cut AS (SELECT id, ntile(%(parts)s) OVER (ORDER BY id) AS part FROM ids)
SELECT DISTINCT max(id) AS id FROM cut WHERE part < %(parts)s GROUP BY part ORDER BY id

-- name: queues
SELECT k.name, k.paused, k.max_active, k.retention::text, k.log_level, k.log_age, k.log_bytes, k.request_key_age
FROM {schema}.queues k ORDER BY k.name

-- name: settings
SELECT k.name, k.paused, k.max_active, k.retention::text, k.log_level, k.log_age, k.log_bytes, k.request_key_age
FROM {schema}.queues k WHERE k.name = %(queue)s

-- name: events
-- A row for each entry from a number on, oldest first; without any, one row with the mark of the log.
SELECT e.trimmed, e.n, e.count, e.packed
FROM {schema}.read_events(%(queue)s::text, %(since)s::bigint, %(limit)s::integer, %(now)s::bigint) e
