-- Queries that read jobs, pages of jobs, queues and the event log. They write only the time of a manual clock.

-- name: get
-- Returns a row for each id in the order of %(ids)s: the id, its current, successor and outcome, and its dropped
-- ranges.
WITH clock AS MATERIALIZED (SELECT {schema}.tick(%(now)s::bigint) AS now_ms)
SELECT a.id, {slot}
FROM clock, unnest(%(ids)b::text[]) WITH ORDINALITY AS a (id, place)
LEFT JOIN {schema}.queues k ON k.name = %(queue)s
LEFT JOIN {schema}.live j ON j.q = k.q AND j.id = a.id
LEFT JOIN {schema}.ended o ON o.q = k.q AND o.id = a.id
ORDER BY a.place

-- name: page
-- Returns up to %(limit)s ids above %(after)s in ascending order, each with its whole slot. The filters select a state
-- and an upper bound. An expired outcome is left out. The queue is a subquery, not a join, because only then does the
-- planner use the order of the index and stop after one page.
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
-- Splits the ids that pass the filters into %(parts)s equal parts, and returns the last id of each part except the
-- last, in ascending order. An id that is in both tables counts twice. Of a table with more than 50,000 rows, only a sample
-- of its pages with about so many rows is read: sorting all ids takes longer than reading all jobs.
WITH clock AS MATERIALIZED (SELECT {schema}.tick(%(now)s::bigint) AS now_ms),
     k AS MATERIALIZED (SELECT q FROM {schema}.queues WHERE name = %(queue)s),
     -- `reltuples` is -1 before the first vacuum, and then all rows are read.
     sample AS MATERIALIZED (
        SELECT c.relname AS name, least(100, 100 * 50000 / greatest(c.reltuples, 1)) AS percent
        FROM pg_class c WHERE c.oid IN ('{schema}.live'::regclass, '{schema}.ended'::regclass)),
     ids AS (
        SELECT l.id FROM {schema}.live l TABLESAMPLE SYSTEM ((SELECT percent FROM sample WHERE name = 'live'))
        WHERE l.q = (SELECT q FROM k) AND {live_filter}
        UNION ALL
        SELECT e.id FROM {schema}.ended e TABLESAMPLE SYSTEM ((SELECT percent FROM sample WHERE name = 'ended'))
        WHERE e.q = (SELECT q FROM k) AND {ended_filter}
          AND (e.expires_at IS NULL OR e.expires_at > (SELECT now_ms FROM clock))),
     cut AS (SELECT id, ntile(%(parts)s) OVER (ORDER BY id) AS part FROM ids)
SELECT DISTINCT max(id) AS id FROM cut WHERE part < %(parts)s GROUP BY part ORDER BY id

-- name: queues
SELECT {settings}
FROM {schema}.queues k ORDER BY k.name

-- name: settings_of
SELECT {settings}
FROM {schema}.queues k WHERE k.name = %(queue)s

-- name: read_key_set
-- Returns a row for each batch of a key set above a number: its number, its keys (NULL if they have expired) and the
-- statuses of its requests (NULL if each is `queued`).
WITH clock AS MATERIALIZED (SELECT {schema}.tick(%(now)s::bigint) AS now_ms)
SELECT s.n, CASE WHEN s.expires_at > clock.now_ms THEN s.members END,
       CASE WHEN s.expires_at > clock.now_ms THEN s.statuses END
FROM clock, {schema}.key_sets s
WHERE s.q = (SELECT q FROM {schema}.queues WHERE name = %(queue)s) AND s.name = %(name)s AND s.n > %(after)s
ORDER BY s.n LIMIT %(limit)s

-- name: events
-- Returns a row for each log entry from number %(since)s on, oldest first. If there are no entries, returns one row
-- with the number up to which the log was trimmed.
SELECT e.trimmed, e.n, e.count, e.packed
FROM {schema}.read_events(%(queue)s::text, %(since)s::bigint, %(limit)s::integer, %(now)s::bigint) e

-- name: output
-- Returns a row for the oldest report of the output of an id, without its chunks, and then one for each report from the
-- number %(since)s on.
SELECT o.n, o.removed, o.at, o.attempt, o.fence, o.first, o.revision, o.holder, o.chunks
FROM {schema}.read_output(
    %(queue)s::text, %(id)s::text, %(since)s::bigint, %(limit)s::integer, %(now)s::bigint) o
