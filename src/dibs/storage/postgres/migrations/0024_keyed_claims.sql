-- The steps of a claim under limits by key. Each runs under the claim's lock on the row of the queue.

-- rooms(queue, now, keys) -> for each key the number of runs that may start now, 0 or less for a closed key. `is_full`
-- is true if per_key closes the key. One of per_key and key_rate is set.
CREATE FUNCTION rooms(qu queues, now_ms bigint, keys text[])
RETURNS TABLE (key text, room bigint, is_full boolean) LANGUAGE sql STABLE AS $$
    SELECT k.key, least(qu.per_key - k.runs, starts_left(c.clock, qu.key_rate, now_ms)),
           coalesce(k.runs >= qu.per_key, false)
    FROM (
        SELECT DISTINCT u.key, CASE WHEN qu.per_key IS NOT NULL THEN (
            SELECT count(*) FROM (
                SELECT 1 FROM live r WHERE r.q + 0 = qu.q AND r.key = u.key AND r.lease IS NOT NULL LIMIT qu.per_key) x
            ) END AS runs
        FROM unnest(keys) AS u (key)) k
    LEFT JOIN clocks c ON c.q = qu.q AND c.key = k.key
$$;

-- bring_heads(queue, keys): bring the first filed job of each key back into the line. A job that another call has
-- locked stays filed. If a key has no other job, the key is left for the next claim.
CREATE FUNCTION bring_heads(qu queues, keys text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    picked tid[];
    brought text[];
BEGIN
    SELECT coalesce(array_agg(h.spot), '{}'), coalesce(array_agg(k.key), '{}') INTO picked, brought
    FROM unnest(keys) AS k (key), LATERAL (
        SELECT ctid AS spot FROM live WHERE q + 0 = qu.q AND state = 'k' AND key = k.key
        ORDER BY priority DESC, run_at, seq LIMIT 1 FOR UPDATE SKIP LOCKED) h;
    UPDATE live SET state = 'w' WHERE ctid = ANY (picked);
    IF cardinality(brought) < cardinality(keys) THEN
        INSERT INTO freed SELECT qu.q, k.key FROM unnest(keys) AS k (key)
        WHERE k.key <> ALL (brought) AND EXISTS (
            SELECT 1 FROM live f WHERE f.q + 0 = qu.q AND f.state = 'k' AND f.key = k.key OFFSET 0);
    END IF;
END $$;

-- reopen(queue, now, keys): bring back the first filed job of each key that is open, and note which clocks the filed
-- jobs of the others wait for. A full key is looked at again when a run of it leaves its lease.
CREATE FUNCTION reopen(qu queues, now_ms bigint, keys text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    open_keys text[];
    resting text[];
BEGIN
    SELECT array_agg(r.key) FILTER (WHERE r.room > 0),
           coalesce(array_agg(r.key) FILTER (WHERE r.room <= 0 AND NOT r.is_full), '{}')
    INTO open_keys, resting FROM rooms(qu, now_ms, keys) r;
    IF open_keys IS NOT NULL THEN
        PERFORM bring_heads(qu, open_keys);
    END IF;
    IF qu.key_rate IS NOT NULL THEN
        UPDATE clocks c SET waits = s.waits
        FROM (
            SELECT k.key, k.key = ANY (resting) AND EXISTS (
                SELECT 1 FROM live f WHERE f.q + 0 = qu.q AND f.state = 'k' AND f.key = k.key OFFSET 0) AS waits
            FROM (SELECT DISTINCT u.key FROM unnest(keys) AS u (key)) k) s
        WHERE c.q = qu.q AND c.key = s.key AND c.waits <> s.waits;
    END IF;
END $$;

-- reopen_freed(queue, now): reopen the keys in `freed`, and those whose clock allows a start since the last claim. A
-- settle that commits after the DELETE leaves its key for the next claim.
CREATE FUNCTION reopen_freed(qu queues, now_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    keys text[];
BEGIN
    WITH gone AS (DELETE FROM freed WHERE q = qu.q RETURNING key) SELECT array_agg(DISTINCT key) INTO keys FROM gone;
    IF qu.key_rate IS NOT NULL THEN
        keys := keys || ARRAY(SELECT key FROM clocks WHERE q + 0 = qu.q AND waits AND opens <= now_ms);
    END IF;
    IF qu.has_filed AND cardinality(keys) > 0 THEN
        PERFORM reopen(qu, now_ms, keys);
    END IF;
END $$;

-- pick_admitted(queue, now, priority, at, after, room, most, shut) -> the jobs to claim and to file, among the next
-- `most` due jobs of a priority in the line behind the place (at, after), and the place of the last of them. `shut` has
-- keys to leave out. For each open key, the filed jobs up to that place are in turn, too. `picked` and `keys` have at
-- most `room` admitted jobs and their keys, in order. `passed` has the jobs of closed keys before the last of them.
CREATE FUNCTION pick_admitted(
    qu queues, now_ms bigint, level smallint, room bigint, most integer, shut text[],
    INOUT at bigint, INOUT after bigint, OUT seen bigint, OUT picked tid[], OUT keys text[], OUT passed tid[],
    OUT passed_keys text[]
) LANGUAGE plpgsql SET enable_hashjoin = on AS $$
BEGIN
    WITH line AS MATERIALIZED (
        SELECT ctid AS spot, l.key, l.run_at, l.seq FROM live l
        WHERE l.q = qu.q AND l.state = 'w' AND l.priority = level AND l.run_at <= now_ms
          AND (l.run_at, l.seq) > (at, after) AND (l.key IS NULL OR l.key <> ALL (shut))
        ORDER BY l.run_at, l.seq LIMIT most
    ), edge AS MATERIALIZED (
        SELECT run_at, seq, count(*) OVER () AS seen FROM line ORDER BY run_at DESC, seq DESC LIMIT 1
    ), open AS MATERIALIZED (
        SELECT r.key, r.room FROM rooms(qu, now_ms, ARRAY(SELECT DISTINCT key FROM line WHERE key IS NOT NULL)) r
    ), turn AS (
        SELECT spot, key, run_at, seq, false AS filed FROM line
        UNION ALL
        SELECT f.spot, o.key, f.run_at, f.seq, true
        FROM edge e, open o, LATERAL (
            SELECT ctid AS spot, l.run_at, l.seq FROM live l
            WHERE l.q + 0 = qu.q AND l.state = 'k' AND l.key = o.key AND l.priority = level AND l.run_at <= now_ms
              AND (e.seen < most OR (l.run_at, l.seq) < (e.run_at, e.seq))
            ORDER BY l.run_at, l.seq LIMIT least(o.room, pick_admitted.room)) f
        WHERE qu.has_filed AND o.room > 0
    ), judged AS (
        SELECT t.*, t.key IS NULL OR o.room >= row_number() OVER (PARTITION BY t.key ORDER BY t.run_at, t.seq) AS taken
        FROM turn t LEFT JOIN open o ON o.key = t.key
    ), placed AS (
        SELECT j.*, count(*) FILTER (WHERE j.taken) OVER (ORDER BY j.run_at, j.seq) AS place FROM judged j
    )
    SELECT coalesce(array_agg(p.spot ORDER BY p.run_at, p.seq) FILTER (WHERE p.taken), '{}'),
           coalesce(array_agg(p.key ORDER BY p.run_at, p.seq) FILTER (WHERE p.taken), '{}'),
           coalesce(array_agg(p.spot) FILTER (WHERE NOT p.taken AND NOT p.filed), '{}'),
           coalesce(array_agg(DISTINCT p.key) FILTER (WHERE NOT p.taken AND NOT p.filed), '{}'),
           (SELECT e.seen FROM edge e), (SELECT e.run_at FROM edge e), (SELECT e.seq FROM edge e)
    INTO picked, keys, passed, passed_keys, seen, at, after
    FROM placed p WHERE p.place <= pick_admitted.room;
END $$;

-- lock_unchanged(picked, keys) -> those of the jobs that no other call has locked or changed, and their keys. A job that
-- was changed since it was read has another ctid.
CREATE FUNCTION lock_unchanged(INOUT picked tid[], INOUT keys text[]) LANGUAGE plpgsql AS $$
BEGIN
    SELECT coalesce(array_agg(x.spot), '{}'), coalesce(array_agg(x.key), '{}') INTO picked, keys
    FROM (
        SELECT l.spot, l.key
        FROM (SELECT ctid AS spot, live.key FROM live WHERE ctid = ANY (picked) FOR UPDATE SKIP LOCKED) l
        INTERSECT SELECT * FROM unnest(picked, keys)) x;
END $$;

-- file_jobs(queue, passed) -> the number of jobs that it filed. A job that another call has locked stays in the line.
CREATE FUNCTION file_jobs(qu queues, passed tid[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    filed integer;
BEGIN
    passed := ARRAY(
        SELECT spot FROM (SELECT ctid AS spot FROM live WHERE ctid = ANY (passed) FOR UPDATE SKIP LOCKED) l
        INTERSECT SELECT unnest(passed));
    UPDATE live SET state = 'k' WHERE ctid = ANY (passed);
    GET DIAGNOSTICS filed = ROW_COUNT;
    IF filed > 0 THEN
        UPDATE queues SET has_filed = true WHERE q = qu.q AND NOT has_filed;
    END IF;
    RETURN filed;
END $$;

-- bring_all(queue, most): bring the first `most` filed jobs of a queue without limits by key back into the line.
CREATE FUNCTION bring_all(qu queues, most bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    picked tid[];
BEGIN
    picked := ARRAY(
        SELECT ctid FROM live WHERE q = qu.q AND state = 'k'
        ORDER BY priority DESC, run_at, seq LIMIT most FOR UPDATE SKIP LOCKED);
    UPDATE live SET state = 'w' WHERE ctid = ANY (picked);
    IF cardinality(picked) < most AND NOT EXISTS (SELECT 1 FROM live WHERE q + 0 = qu.q AND state = 'k') THEN
        UPDATE queues SET has_filed = false WHERE q = qu.q;
    END IF;
END $$;

-- limits_changed(before, after): called by configure(), which has locked the row of the queue. The clocks of a changed
-- rate begin again. After a change of a limit by key, the first filed job of each key returns to the line, where the
-- next claim meets it; this costs the number of keys.
CREATE OR REPLACE FUNCTION limits_changed(before queues, after queues) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    keys text[];
BEGIN
    IF after.rate IS DISTINCT FROM before.rate THEN
        DELETE FROM clocks WHERE q = after.q AND key = '';
    END IF;
    IF after.key_rate IS DISTINCT FROM before.key_rate THEN
        DELETE FROM clocks WHERE q = after.q AND key <> '';
    ELSIF after.per_key IS NOT DISTINCT FROM before.per_key THEN
        RETURN;
    END IF;
    DELETE FROM freed WHERE q = after.q;
    IF after.has_filed THEN
        WITH RECURSIVE filed AS (
            (SELECT key FROM live WHERE q + 0 = after.q AND state = 'k' ORDER BY key LIMIT 1)
            UNION ALL
            SELECT (SELECT l.key FROM live l WHERE l.q + 0 = after.q AND l.state = 'k' AND l.key > f.key
                    ORDER BY l.key LIMIT 1)
            FROM filed f WHERE f.key IS NOT NULL)
        SELECT array_agg(key) INTO keys FROM filed WHERE key IS NOT NULL;
        PERFORM bring_heads(after, keys);
    END IF;
END $$;
