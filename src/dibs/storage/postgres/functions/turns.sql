-- The turns of keys in queues with `fair` (docs/explanation/contract.md, Turns of keys). The key '' stands for the jobs without
-- a key.
--
-- All waiting jobs of such a queue have the state k, so that the index live_held_back finds them by key. A step that
-- makes a job wait, or ends its wait, appends the change to `turn_changes`. A claim reads the changes in their order
-- under the lock of the queue's row. So it sees a key that left and joined again, although the rows of the jobs only show
-- the state after it, and no step waits for the row of a key.
--
-- A step reads `fair` again under a lock of the queue's row (FOR KEY SHARE) before it writes the state k. configure()
-- waits for these locks, so no job gets the state k after `fair` was removed. A step that read the settings before `fair`
-- was set writes the state w and no change. A claim finds its job in the line, and does both. If such a step ends the
-- wait of a job with the state k, the number in `turns` is too high until the last job of the key has started.

-- begin_fair_step(queue) -> true if the queue is still `fair`, which it then is until the end of this transaction. A
-- transaction with a snapshot could fail at this lock, so it leaves its waiting jobs to the next claim.
CREATE OR REPLACE FUNCTION begin_fair_step(qu queues) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF has_snapshot() THEN
        RETURN false;
    END IF;
    PERFORM 1 FROM queues k WHERE k.q = qu.q AND k.fair FOR KEY SHARE;
    RETURN FOUND;
END $$;

-- move_turn(queue, job, id): note for the turns of keys that an id has changed. `job` is the job as it was before, NULL
-- for a new one. Called at the end of a step in a queue with `fair`.
CREATE OR REPLACE FUNCTION move_turn(qu queues, j live, wanted text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    left_key text := CASE WHEN j.state = 'k' THEN coalesce(j.key, '') END;
    entered text;
    state_now "char";
BEGIN
    SELECT l.state, coalesce(l.key, '') INTO state_now, entered FROM live l
    WHERE l.q = qu.q AND l.id = wanted AND l.state IN ('w', 'k') AND l.fence IS NULL;
    IF state_now = 'w' THEN
        IF begin_fair_step(qu) THEN
            UPDATE live SET state = 'k' WHERE q = qu.q AND id = wanted;
        ELSE
            entered := NULL;
        END IF;
    END IF;
    IF entered = left_key AND state_now = 'w' THEN
        -- The job has moved, so its key is looked at.
        INSERT INTO turn_changes VALUES (qu.q, nextval('numbers'), entered, 0);
    ELSIF entered IS DISTINCT FROM left_key THEN
        INSERT INTO turn_changes
        SELECT qu.q, nextval('numbers'), x.key, x.change
        FROM (VALUES (entered, 1), (left_key, -1)) AS x (key, change) WHERE x.key IS NOT NULL;
    END IF;
END $$;

-- join_turns(queue, numbers, keys): note new jobs with the state k, in the order of their numbers.
CREATE OR REPLACE FUNCTION join_turns(qu queues, drawn bigint[], keys text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO turn_changes
    SELECT qu.q, min(u.n), coalesce(u.key, ''), count(*) FROM unnest(drawn, keys) AS u (n, key) GROUP BY 3;
END $$;

-- file_line(queue, most): give up to `most` waiting jobs in the line the state k, from its start, and note them.
CREATE OR REPLACE FUNCTION file_line(qu queues, most bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    picked tid[] := ARRAY(
        SELECT x.spot FROM lines_of(qu.q) w, LATERAL (
            SELECT l.ctid AS spot FROM live l
            WHERE l.q = qu.q AND l.state = 'w' AND l.priority = w.priority AND (l.run_at, l.seq) >= (w.run_at, w.seq)
              AND l.fence IS NULL
            ORDER BY l.run_at, l.seq LIMIT most FOR UPDATE SKIP LOCKED) x LIMIT most);
BEGIN
    IF cardinality(picked) = 0 THEN
        RETURN;
    END IF;
    WITH filed AS (
        UPDATE live SET state = 'k' WHERE ctid = ANY (picked) RETURNING key, priority, run_at, seq
    )
    INSERT INTO turn_changes
    SELECT qu.q, nextval('numbers'), x.key, x.jobs FROM (
        SELECT coalesce(f.key, '') AS key, count(*) AS jobs FROM filed f GROUP BY 1
        ORDER BY min(ARRAY[-f.priority, f.run_at, f.seq])) x;
END $$;

-- begin_turns(queue): give all waiting jobs of a queue that becomes `fair` the state k, and their keys places in the
-- order of their first jobs.
CREATE OR REPLACE FUNCTION begin_turns(qu queues) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE queues SET has_held_back = true WHERE q = qu.q AND NOT has_held_back;
    PERFORM file_line(qu, 9223372036854775807);
    DELETE FROM turn_changes WHERE q = qu.q;
    INSERT INTO turn_changes
    SELECT qu.q, nextval('numbers'), x.key, x.jobs FROM (
        SELECT coalesce(l.key, '') AS key, count(*) AS jobs FROM live l WHERE l.q + 0 = qu.q AND l.state = 'k' GROUP BY 1
        ORDER BY min(ARRAY[-l.priority, l.run_at, l.seq])) x;
END $$;

-- end_turns(queue): return all waiting jobs of a queue that is no longer `fair` to the line. Those that another call has
-- locked are left to the next claims.
CREATE OR REPLACE FUNCTION end_turns(qu queues) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM turns WHERE q = qu.q;
    DELETE FROM turn_changes WHERE q = qu.q;
    PERFORM return_to_line(qu, ARRAY(
        SELECT ctid FROM live WHERE q + 0 = qu.q AND state = 'k' FOR UPDATE SKIP LOCKED));
    INSERT INTO freed SELECT DISTINCT qu.q, coalesce(l.key, '') FROM live l WHERE l.q + 0 = qu.q AND l.state = 'k';
END $$;

-- read_turns(queue, now): bring `turns` up to date: read the changes, and look at the keys that changed, at those whose
-- runs left their leases, and at those whose time has come. It reads 20,000 changes, which takes 0.1 to 0.2 s. A claim that
-- has room left reads more. So a claim behind an enqueue of a million keys ends in time, and the order of the keys that it
-- knows is exact.
CREATE OR REPLACE FUNCTION read_turns(qu queues, now_ms bigint) RETURNS void
LANGUAGE plpgsql SET enable_hashjoin = on SET enable_sort = on AS $$
DECLARE
    keys text[];
    freed_keys text[];
BEGIN
    PERFORM file_line(qu, 10000);
    WITH gone AS (
        DELETE FROM turn_changes WHERE ctid = ANY (ARRAY(
            SELECT c.ctid FROM turn_changes c WHERE c.q = qu.q ORDER BY c.n LIMIT 20000))
        RETURNING n, key, change
    ), sums AS (
        SELECT g.*, t.place, t.starts, coalesce(t.waiting, 0) + sum(g.change) OVER (PARTITION BY g.key ORDER BY g.n) AS waiting
        FROM gone g LEFT JOIN LATERAL (SELECT * FROM turns o WHERE o.q = qu.q AND o.key = g.key OFFSET 0) t ON true
    ), steps AS (
        SELECT s.*, max(s.n) FILTER (WHERE s.waiting <= 0) OVER (PARTITION BY s.key) AS left_at FROM sums s
    ), changed AS (
        -- A key keeps its place if it had a waiting job all the time. Else it gets one when it joined again.
        INSERT INTO turns AS old (q, key, place, starts, waiting)
        SELECT qu.q, s.key,
               coalesce(min(s.place) FILTER (WHERE s.left_at IS NULL),
                        min(s.n) FILTER (WHERE s.change > 0 AND s.n > coalesce(s.left_at, -1))),
               coalesce(min(s.starts) FILTER (WHERE s.left_at IS NULL AND s.place IS NOT NULL), 0),
               greatest(0, (array_agg(s.waiting ORDER BY s.n DESC))[1])
        FROM steps s GROUP BY s.key
        ON CONFLICT (q, key) DO UPDATE SET
            place = excluded.place, starts = excluded.starts, waiting = excluded.waiting
        RETURNING old.key
    )
    SELECT array_agg(c.key) INTO keys FROM changed c;
    WITH gone AS (DELETE FROM freed WHERE q = qu.q RETURNING key) SELECT array_agg(DISTINCT key) INTO freed_keys FROM gone;
    IF limits_keys(qu) THEN
        keys := keys || ARRAY(SELECT t.key FROM turns t WHERE t.q = qu.q AND t.key = ANY (freed_keys));
    END IF;
    keys := keys || ARRAY(SELECT key FROM turns WHERE q + 0 = qu.q AND wakes_at <= now_ms);
    IF cardinality(keys) > 0 THEN
        PERFORM look_at_keys(qu, now_ms, ARRAY(SELECT DISTINCT u.key FROM unnest(keys) AS u (key)));
    END IF;
END $$;

-- look_at_keys(queue, now, keys): set `top` and `wakes_at` of keys, and remove those without waiting jobs.
CREATE OR REPLACE FUNCTION look_at_keys(qu queues, now_ms bigint, keys text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH seen AS MATERIALIZED (
        SELECT f.*, (SELECT t.ctid FROM turns t WHERE t.q = qu.q AND t.key = f.key) AS spot
        FROM first_of_keys(qu, now_ms, keys) f
    ), gone AS (
        DELETE FROM turns WHERE ctid = ANY (ARRAY(SELECT s.spot FROM seen s WHERE NOT s.waits))
    )
    INSERT INTO turns AS old (q, key, place, starts, waiting, top, wakes_at)
    SELECT qu.q, s.key, nextval('numbers'), 0, 1, s.top, s.wakes_at FROM seen s WHERE s.waits
    ON CONFLICT (q, key) DO UPDATE SET
        top = excluded.top, wakes_at = excluded.wakes_at, place = coalesce(old.place, excluded.place);
END $$;

-- first_of_keys(queue, now, keys) -> for each key whether a job of it waits, and its `top` and `wakes_at`.
CREATE OR REPLACE FUNCTION first_of_keys(
    qu queues, now_ms bigint, keys text[]
) RETURNS TABLE (key text, waits boolean, top smallint, wakes_at bigint) LANGUAGE plpgsql STABLE AS $$
DECLARE
    r record;
    level smallint;
    at bigint;
BEGIN
    FOR r IN SELECT * FROM rooms(qu, now_ms, keys) LOOP
        key := r.key;
        waits := false;
        top := NULL;
        wakes_at := NULL;
        level := 32767;
        LOOP
            SELECT l.priority, l.run_at INTO level, at FROM live l
            WHERE l.q + 0 = qu.q AND l.state = 'k' AND coalesce(l.key, '') = r.key AND l.priority < level
            ORDER BY l.priority DESC, l.run_at, l.seq LIMIT 1;
            EXIT WHEN NOT FOUND;
            waits := true;
            IF at <= now_ms THEN
                top := level;
                EXIT;
            END IF;
            wakes_at := least(wakes_at, at);
        END LOOP;
        IF r.is_full THEN
            top := NULL;
            wakes_at := NULL;
        ELSIF r.room <= 0 AND top IS NOT NULL THEN
            top := NULL;
            wakes_at := r.opens;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- claim_turns(queue, lease, named, looked, ends, room, manual) -> the rows of claim_limited(), with up to `room` jobs in the
-- order of turns. The arguments are those of claim_line(). A job that another call has locked or changed since it was
-- found is passed over (`busy`).
CREATE OR REPLACE FUNCTION claim_turns(
    qu queues, under uuid, named text, looked bigint, ends bigint, room bigint, manual bigint
) RETURNS TABLE (
    lost boolean, now_ms bigint, next_due bigint, holder text, held_back bigint, priority smallint, fences bigint[],
    spots text[], ids text[], payloads bytea[], starts bigint[], enqueues bigint[], seqs bigint[], tries integer[],
    memos bytea[], rests text[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    started boolean := false;
    moment bigint;
    level smallint := 32767;
    busy tid[] := '{}';
    step record;
BEGIN
    WHILE room > 0 LOOP
        -- A turn of a key may leave it with jobs of this priority, of a lower one, or none.
        level := (
            SELECT t.top FROM turns t WHERE t.q = qu.q AND t.top IS NOT NULL AND t.top <= level
            ORDER BY t.q, t.top DESC LIMIT 1);
        IF level IS NULL THEN
            EXIT WHEN NOT EXISTS (SELECT 1 FROM turn_changes WHERE q = qu.q);
            PERFORM read_turns(qu, looked);
            level := 32767;
            CONTINUE;
        END IF;
        step := pick_turns(qu, looked, level, room, busy);
        IF step.busy <> busy THEN
            -- Find all jobs anew: another job may have the turn of the one that is busy.
            busy := step.busy;
        ELSIF step.picked = '{}' THEN
            -- A step that read the settings before `fair` was set has ended the waits of these jobs without a note.
            PERFORM look_at_keys(qu, looked, ARRAY(
                SELECT t.key FROM turns t WHERE t.q = qu.q AND t.top = level ORDER BY t.top DESC, t.place LIMIT room));
            level := level - 1;
        ELSE
            moment := tick(manual);
            EXIT WHEN moment >= ends;
            RETURN QUERY
            SELECT NULL::boolean, moment, NULL::bigint, NULL::text, NULL::bigint, s.*
            FROM start_limited(qu, under, named, moment, level, step.picked) s;
            IF (qu.key_rate).starts IS NOT NULL THEN
                PERFORM charge(qu.q, qu.key_rate, moment, array_replace(step.keys, '', NULL));
            END IF;
            PERFORM count_turns(qu, looked, step.keys, step.spent);
            room := room - cardinality(step.picked);
            started := true;
        END IF;
    END LOOP;
    held_back := 0;
    SELECT e.* INTO lost, now_ms, next_due, holder
    FROM end_limited(qu, named, looked, CASE WHEN NOT started AND moment >= ends THEN moment END) e;
    RETURN NEXT;
END $$;

-- pick_turns(queue, now, priority, room, busy) -> the next jobs of a priority in the order of turns, at most `room`, locked,
-- and their keys. `busy` has the jobs to leave out; those that another call has locked or changed are added. `spent` has the
-- keys that have no other job to claim. The keys with the lowest places come first: one turn of each fills the room if
-- there are as many. Else `rounds` more turns of each are read, as many as the room divided by the keys.
CREATE OR REPLACE FUNCTION pick_turns(
    qu queues, now_ms bigint, level smallint, room bigint, INOUT busy tid[], OUT picked tid[], OUT keys text[],
    OUT spent text[]
) LANGUAGE plpgsql SET enable_hashjoin = on SET enable_sort = on AS $$
#variable_conflict use_variable
DECLARE
    found_jobs tid[];
    -- The number of runs that each key may start; NULL without limits by key.
    free jsonb;
BEGIN
    IF limits_keys(qu) THEN
        SELECT jsonb_object_agg(o.key, o.room) INTO free FROM rooms(qu, now_ms, ARRAY(
            SELECT t.key FROM turns t WHERE t.q = qu.q AND t.top = level ORDER BY t.top DESC, t.place LIMIT room)) o;
    END IF;
    WITH ring AS MATERIALIZED (
        SELECT t.key, t.place, t.starts, coalesce((qu.shares ->> t.key)::integer, 1) AS share
        FROM turns t WHERE t.q = qu.q AND t.top = level ORDER BY t.top DESC, t.place LIMIT room
    ), counted AS MATERIALIZED (
        SELECT r.*, greatest(1, r.share - r.starts) AS rest, coalesce((free ->> r.key)::bigint, 2147483647) AS free,
               room / count(*) OVER () - (count(*) OVER () = room)::integer AS rounds
        FROM ring r
    ), jobs AS (
        SELECT c.key, c.place, f.spot, f.i, f.i = f.last AS is_last, c.rounds,
               CASE WHEN f.i <= c.rest THEN 0 ELSE 1 + (f.i - c.rest - 1) / c.share END AS round
        FROM counted c, LATERAL (
            SELECT x.spot, row_number() OVER () AS i, count(*) OVER () AS last FROM (
                SELECT l.ctid AS spot FROM live l
                WHERE l.q + 0 = qu.q AND l.state = 'k' AND coalesce(l.key, '') = c.key AND l.priority = level
                  AND l.run_at <= now_ms AND l.ctid <> ALL (busy)
                ORDER BY l.run_at, l.seq LIMIT least(c.free, room, c.rest + c.share * c.rounds) + 1) x) f
        WHERE f.i <= c.free
    ), chosen AS (
        SELECT * FROM jobs j WHERE j.round <= j.rounds ORDER BY j.round, j.place, j.i LIMIT room
    )
    SELECT coalesce(array_agg(c.spot ORDER BY c.round, c.place, c.i), '{}'),
           coalesce(array_agg(c.key ORDER BY c.round, c.place, c.i), '{}'),
           coalesce(array_agg(c.key) FILTER (WHERE c.is_last OR free IS NOT NULL), '{}')
    INTO found_jobs, keys, spent FROM chosen c;
    picked := ARRAY(
        SELECT l.spot FROM (SELECT ctid AS spot FROM live WHERE ctid = ANY (found_jobs) FOR UPDATE SKIP LOCKED) l
        INTERSECT SELECT unnest(found_jobs));
    SELECT coalesce(array_agg(u.spot ORDER BY u.place) FILTER (WHERE u.is_mine), '{}'),
           coalesce(array_agg(u.key ORDER BY u.place) FILTER (WHERE u.is_mine), '{}'),
           busy || coalesce(array_agg(u.spot) FILTER (WHERE NOT u.is_mine), '{}')
    INTO picked, keys, busy
    FROM (SELECT a.*, a.spot = ANY (picked) AS is_mine
          FROM unnest(found_jobs, keys) WITH ORDINALITY AS a (spot, key, place)) u;
END $$;

-- count_turns(queue, now, keys, spent): count the starts of a claim in the turns of their keys, which are named once for
-- each start. A key whose turn is over goes to the back, in the order of the last ends of turns. Then look at the keys that
-- may have no other job to claim.
CREATE OR REPLACE FUNCTION count_turns(qu queues, now_ms bigint, keys text[], spent text[]) RETURNS void
LANGUAGE plpgsql SET enable_hashjoin = on SET enable_sort = on AS $$
BEGIN
    WITH started AS MATERIALIZED (
        SELECT u.key, count(*)::integer AS jobs FROM unnest(keys) AS u (key) GROUP BY u.key
    ), turned AS MATERIALIZED (
        SELECT t.spot, t.place, s.jobs, (t.starts + s.jobs) % x.share AS starts, (t.starts + s.jobs) / x.share AS turns
        FROM started s,
            LATERAL (SELECT o.ctid AS spot, o.place, o.starts FROM turns o WHERE o.q = qu.q AND o.key = s.key OFFSET 0) t,
            LATERAL (SELECT greatest(1, coalesce((qu.shares ->> s.key)::integer, 1)) AS share) x
    ), moved AS MATERIALIZED (
        SELECT m.*, CASE WHEN m.turns > 0 THEN nextval('numbers') ELSE m.place END AS new_place
        FROM (SELECT * FROM turned ORDER BY turned.turns, turned.place) m
    )
    UPDATE turns t SET place = m.new_place, starts = m.starts, waiting = greatest(0, t.waiting - m.jobs)
    FROM moved m WHERE t.ctid = m.spot;
    IF cardinality(spent) > 0 THEN
        PERFORM look_at_keys(qu, now_ms, ARRAY(SELECT DISTINCT u.key FROM unnest(spent) AS u (key)));
    END IF;
END $$;

-- filed_priorities(queue) -> the priorities of the jobs with the state k.
CREATE OR REPLACE FUNCTION filed_priorities(qu queues) RETURNS SETOF smallint LANGUAGE plpgsql STABLE AS $$
DECLARE
    level smallint := 32767;
BEGIN
    LOOP
        level := (
            SELECT l.priority FROM live l WHERE l.q = qu.q AND l.state = 'k' AND l.priority < level
            ORDER BY l.priority DESC LIMIT 1);
        EXIT WHEN level IS NULL;
        RETURN NEXT level;
    END LOOP;
END $$;

-- turns_ahead(queue, now, exact) -> true if a claim would take a job, and the next time at which it may take more.
-- `exact` reads the changes that no claim has read yet. With more than 1,000 of them, it says that a job is due.
CREATE OR REPLACE FUNCTION turns_ahead(qu queues, now_ms bigint, exact boolean, OUT due boolean, OUT next_due bigint)
LANGUAGE plpgsql AS $$
DECLARE
    keys text[] := '{}';
BEGIN
    IF exact THEN
        keys := ARRAY(
            (SELECT c.key FROM turn_changes c WHERE c.q = qu.q ORDER BY c.n LIMIT 1000)
            UNION SELECT f.key FROM freed f WHERE f.q = qu.q AND limits_keys(qu)
            UNION SELECT t.key FROM turns t WHERE t.q + 0 = qu.q AND t.wakes_at <= now_ms);
    END IF;
    due := EXISTS (SELECT 1 FROM turns t WHERE t.q = qu.q AND t.top IS NOT NULL AND t.key <> ALL (keys))
        OR exact AND EXISTS (SELECT 1 FROM turn_changes c WHERE c.q = qu.q OFFSET 1000);
    next_due := least(
        (SELECT t.wakes_at FROM turns t WHERE t.q + 0 = qu.q AND t.wakes_at > now_ms ORDER BY t.wakes_at LIMIT 1),
        (SELECT min((SELECT l.run_at FROM live l
                     WHERE l.q = qu.q AND l.state = 'k' AND l.priority = f.priority AND l.run_at > now_ms
                     ORDER BY l.run_at LIMIT 1)) FROM filed_priorities(qu) f (priority)));
    IF cardinality(keys) > 0 THEN
        SELECT turns_ahead.due OR coalesce(bool_or(s.top IS NOT NULL), false), least(turns_ahead.next_due, min(s.wakes_at))
        INTO due, next_due FROM first_of_keys(qu, now_ms, keys) s;
    END IF;
END $$;
