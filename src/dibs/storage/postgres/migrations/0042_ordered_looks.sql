-- Looks that state the order of the index that they need. The functions of the verbs sort nothing (enable_sort is off, see
-- Queries), so no other index can serve such a look, whatever the statistics say.

-- rooms(queue, now, keys): as in 0024_keyed_claims.sql. Without an order, and with statistics of a table without active
-- jobs, the planner reads all active jobs by `live_held` for each key. A key that equals a constant would be in any order.
CREATE OR REPLACE FUNCTION rooms(qu queues, now_ms bigint, keys text[])
RETURNS TABLE (key text, room bigint, is_full boolean) LANGUAGE sql STABLE AS $$
    SELECT k.key, least(qu.per_key - k.runs, starts_left(c.clock, qu.key_rate, now_ms)),
           coalesce(k.runs >= qu.per_key, false)
    FROM (
        SELECT DISTINCT u.key, CASE WHEN qu.per_key IS NOT NULL THEN (
            SELECT count(*) FROM (
                SELECT 1 FROM live r WHERE r.q + 0 = qu.q AND r.key BETWEEN u.key AND u.key AND r.lease IS NOT NULL
                ORDER BY r.key LIMIT qu.per_key) x
            ) + (SELECT count(*) FROM line_jobs(qu.q, NULL) a WHERE a.key = u.key) END AS runs
        FROM unnest(keys) AS u (key)) k
    LEFT JOIN clocks c ON c.q = qu.q AND c.key = k.key
$$;
