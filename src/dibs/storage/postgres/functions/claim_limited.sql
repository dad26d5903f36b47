-- The verb claim in a queue with max_active, or with limits by key or rate.
--
-- A claim of a queue with a limit reads the line as any claim. A due job of a closed key, which has no room under
-- per_key or no start under key_rate, is held back: its state becomes k, so it leaves the index live_line. Only claims
-- and configure() bring such jobs back into the line, always the first of a key. A key is reopened
--
-- - after a run of the key left its lease. free_key() appends the key to `freed`, and the next claim reads it;
-- - when its clock allows the next start, see `clocks`;
-- - after one of its jobs was claimed, while the key is still open;
-- - after its first job in the line was cancelled or moved, which appends the key to `freed`, too.
--
-- So the first job that an open key holds back has another job of that key before it in the line, or the key is in
-- `freed`.
--
-- A settle must not bring back jobs itself. It may run at the same time as a claim: the claim still counts its run, and
-- holds back jobs that the settle does not see.

-- claim_limited(queue, lease, most, now) -> the rows of claim() for a queue that is paused, has max_active, limits by
-- key or rate, turns of keys, or jobs that such limits hold back. One such claim runs at a time. A concurrent settle can
-- only lower the counts of runs. The time is read again under the lock, so that the starts of two claims have the order
-- of their times. `now_ms` is the time by which jobs are due.
CREATE OR REPLACE FUNCTION claim_limited(queue text, under uuid, most integer, manual bigint) RETURNS TABLE (
    lost boolean, now_ms bigint, next_due bigint, holder text, held_back bigint, priority smallint, fences bigint[],
    spots text[], ids text[], payloads bytea[], starts bigint[], enqueues bigint[], seqs bigint[], tries integer[],
    memos bytea[], rests text[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    qu queues;
    room bigint;
    ends bigint;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue FOR NO KEY UPDATE;
    now_ms := tick(manual);
    SELECT b.named, b.ends, b.room INTO holder, ends, room FROM begin_limited(qu, under, now_ms, most) b;
    lost := ends IS NULL;
    IF lost OR qu.paused THEN
        RETURN NEXT;
    ELSIF qu.fair THEN
        RETURN QUERY SELECT * FROM claim_turns(qu, under, holder, now_ms, ends, room, manual);
    ELSE
        RETURN QUERY SELECT * FROM claim_line(qu, under, holder, now_ms, ends, room, manual);
    END IF;
END $$;

-- claim_line(queue, lease, named, looked, ends, room, manual) -> the rows of claim_limited(), with up to `room` jobs in the
-- order of the line. `looked` is the time by which jobs are due, `moment` the time of runs, as in claim(), and `ends`
-- the time at which the lease expires. `size` is the number of jobs to read next. The last row has the number of jobs
-- that the claim held back, at most 10,000 a call.
CREATE OR REPLACE FUNCTION claim_line(
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
    w record := next_line(qu.q, 32767);
    size integer := least(2000, room + 20);
    step record;
    shut text[] := '{}';
BEGIN
    held_back := 0;
    WHILE w.priority IS NOT NULL AND room > 0 LOOP
        step := pick_admitted(qu, looked, w.priority, room, size, shut, w.run_at, w.seq - 1);
        IF cardinality(step.picked) > 0 THEN
            -- A run that ended since `looked` may have made the room; then the lease may have expired, too.
            moment := tick(manual);
            EXIT WHEN moment >= ends;
            RETURN QUERY
            SELECT NULL::boolean, moment, NULL::bigint, NULL::text, NULL::bigint, s.*
            FROM start_limited(qu, under, named, moment, w.priority, step.picked) s;
            room := room - cardinality(step.picked);
            started := true;
        END IF;
        IF limits_keys(qu) THEN
            SELECT p.held_back, p.shut INTO held_back, shut
            FROM pass_over(qu, looked, moment, step.keys, step.passed, step.passed_keys, step.all_locked, held_back, shut) p;
            IF step.seen = size THEN
                size := least(2000, size * 4);
                w.run_at := step.at;
                w.seq := step.after + 1;
                CONTINUE;
            END IF;
        END IF;
        w := next_line(qu.q, w.priority);
    END LOOP;
    SELECT e.* INTO lost, now_ms, next_due, holder
    FROM end_limited(qu, named, looked, CASE WHEN NOT started AND moment >= ends THEN moment END) e;
    RETURN NEXT;
END $$;

-- end_limited(queue, named, looked, expired) -> the first columns of the last row of a claim. `expired` is the time at
-- which the claim found that its lease has expired, before it started a run; NULL if it found no such thing.
CREATE OR REPLACE FUNCTION end_limited(
    qu queues, named text, looked bigint, expired bigint,
    OUT lost boolean, OUT now_ms bigint, OUT next_due bigint, OUT holder text
) LANGUAGE plpgsql AS $$
BEGIN
    lost := expired IS NOT NULL;
    now_ms := coalesce(expired, looked);
    holder := CASE WHEN NOT lost THEN named END;
    next_due := (limited_ahead(qu, now_ms, false)).next_due;
END $$;

-- begin_limited(queue, lease, now, most) -> the holder of the lease and the time at which it expires, NULL for a lost
-- lease, and the number of jobs that a claim of `most` jobs may start by max_active and the rate of the queue. First
-- charges the costs of settlements, and brings back jobs of keys that have opened. Does nothing for a paused queue.
CREATE OR REPLACE FUNCTION begin_limited(
    qu queues, under uuid, now_ms bigint, most integer, OUT named text, OUT ends bigint, OUT room bigint
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT l.holder, l.expires_at INTO named, ends FROM leases l
    WHERE l.lease = under AND l.q = qu.q AND l.expires_at > now_ms AND NOT l.dropped FOR KEY SHARE;
    IF NOT FOUND OR qu.paused THEN
        RETURN;
    END IF;
    IF qu.log_level = 'all' THEN
        PERFORM begin_log_step();
    END IF;
    IF qu.max_active IS NOT NULL THEN
        PERFORM prune_claims(qu.q, NULL);
    END IF;
    IF (qu.rate).starts IS NOT NULL OR (qu.key_rate).starts IS NOT NULL THEN
        PERFORM charge_costs(qu);
    END IF;
    IF qu.fair THEN
        PERFORM read_turns(qu, now_ms);
    ELSIF limits_keys(qu) THEN
        PERFORM reopen_freed(qu, now_ms);
    ELSIF qu.has_held_back THEN
        PERFORM bring_all(qu, most + 1000);
    END IF;
    room := least(most, claim_room(qu, now_ms));
END $$;

-- start_limited(queue, lease, holder, now, priority, rows) -> rows of the arrays of claim() with the jobs in these
-- locked rows, whose runs begin now. Charges the rate of the queue.
CREATE OR REPLACE FUNCTION start_limited(
    qu queues, under uuid, named text, moment bigint, level smallint, picked tid[]
) RETURNS TABLE (
    priority smallint, fences bigint[], spots text[], ids text[], payloads bytea[], starts bigint[], enqueues bigint[],
    seqs bigint[], tries integer[], memos bytea[], rests text[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    names text[];
    i integer;
BEGIN
    INSERT INTO claims
    SELECT qu.q, under, nextval('numbers'), level, min(run_at), min(seq), max(run_at), max(seq)
    FROM live WHERE ctid = ANY (picked);
    IF limits_keys(qu) AND cardinality(picked) > 100 AND NOT qu.fair THEN
        picked := ARRAY(SELECT ctid FROM live WHERE ctid = ANY (picked) ORDER BY run_at, seq);
    END IF;
    IF qu.log_level = 'all' THEN
        names := CASE WHEN qu.fair THEN ARRAY(
            SELECT l.id FROM live l JOIN unnest(picked) WITH ORDINALITY AS p (spot, place) ON l.ctid = p.spot ORDER BY p.place)
            ELSE (logged_runs(picked)).ids END;
    END IF;
    FOR i IN 1 .. cardinality(picked) BY 100 LOOP
        RETURN QUERY
        WITH taken AS (
            UPDATE live l SET
                state = 'w', lease = under, fence = nextval('numbers'), holder = named, claimed_at = moment,
                attempts = attempts + 1, busy_key = key
            FROM unnest(picked[i:i + 99]) WITH ORDINALITY AS p (spot, place)
            WHERE l.ctid = p.spot
            RETURNING {started}, CASE WHEN qu.fair THEN p.place END AS turn
        )
        SELECT {arrays} FROM (SELECT * FROM taken ORDER BY taken.turn, taken.run_at, taken.seq) t GROUP BY t.priority;
    END LOOP;
    IF qu.log_level = 'all' THEN
        PERFORM append_log(qu.q, moment, notes_of(qu.q, 'claimed', names, moment));
    END IF;
    IF (qu.rate).starts IS NOT NULL THEN
        PERFORM charge(qu.q, qu.rate, moment, array_fill(''::text, ARRAY[cardinality(picked)]));
    END IF;
END $$;

-- pass_over(queue, looked, moment, answer of pick_admitted(), held_back, shut): charge the keys of the started jobs,
-- hold back the jobs that were passed over, and bring back the first job of each key that is still open. `held_back`
-- counts the jobs that this claim has held back, and `shut` has the closed keys whose jobs stay in the line.
CREATE OR REPLACE FUNCTION pass_over(
    qu queues, looked bigint, moment bigint, keys text[], passed tid[], passed_keys text[], all_locked boolean,
    INOUT held_back bigint, INOUT shut text[]
) LANGUAGE plpgsql AS $$
BEGIN
    IF (qu.key_rate).starts IS NOT NULL THEN
        PERFORM charge(qu.q, qu.key_rate, moment, keys);
    END IF;
    -- If an admitted job was locked, its key is not closed, so none is held back.
    IF held_back < 10000 AND all_locked THEN
        held_back := held_back + hold_back(qu, passed);
    ELSE
        shut := (shut || passed_keys)[:100];
    END IF;
    PERFORM reopen(qu, looked, array_remove(keys || passed_keys, NULL));
END $$;

-- claim_room(queue, now) -> the number of runs that max_active and the rate of the queue allow now; NULL for any
-- number.
CREATE OR REPLACE FUNCTION claim_room(qu queues, now_ms bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN least(
        CASE WHEN qu.max_active IS NOT NULL THEN greatest(0, qu.max_active - (
            SELECT count(*) FROM active_runs(qu.q, NULL))) END,
        CASE WHEN (qu.rate).starts IS NOT NULL THEN starts_left(
            (SELECT clock FROM clocks WHERE q = qu.q AND key = ''), qu.rate, now_ms) END);
END $$;

-- rooms(queue, now, keys) -> for each key the number of runs that may start now, 0 or less for a closed key. `is_full`
-- is true if per_key or a share of 0 closes the key; otherwise its clock allows the next start at `opens`. The key ''
-- stands for the jobs without a key, which no limit by key holds back. The language is PL/pgSQL, because
-- Postgres plans a function in SQL anew in each claim, which takes 0.5 ms.
CREATE OR REPLACE FUNCTION rooms(qu queues, now_ms bigint, keys text[])
RETURNS TABLE (key text, room bigint, is_full boolean, opens bigint) LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT k.key, CASE WHEN k.key = '' THEN 2147483647 WHEN qu.shares ->> k.key = '0' THEN 0
                  ELSE coalesce(least(qu.per_key - k.runs, starts_left(c.clock, qu.key_rate, now_ms)), 2147483647) END::bigint,
           k.key <> '' AND coalesce(k.runs >= qu.per_key OR qu.shares ->> k.key = '0', false), c.opens
    FROM (
        SELECT DISTINCT u.key, CASE WHEN qu.per_key IS NOT NULL THEN (
            SELECT count(*) FROM (
                SELECT 1 FROM live r WHERE r.q + 0 = qu.q AND r.busy_key = u.key LIMIT qu.per_key) x
            ) END AS runs
        FROM unnest(keys) AS u (key)) k
    LEFT JOIN clocks c ON c.q = qu.q AND c.key = k.key;
END $$;

-- pick_admitted(queue, now, priority, room, most, shut, at, after) -> the jobs to claim and to hold back, among the
-- next `most` due jobs of a priority in the line behind the place (at, after), and the place of the last of them.
-- `shut` has keys to leave out. For each open key, the jobs held back up to that place are in turn, too. `picked` and
-- `keys` have at most `room` admitted jobs and their keys, in order, and locked. `passed` has the jobs of closed keys
-- before the last of them. `all_locked` is false if another call has locked or changed an admitted job. Without limits
-- by key, it returns `picked` alone.
CREATE OR REPLACE FUNCTION pick_admitted(
    qu queues, now_ms bigint, level smallint, room bigint, most integer, shut text[],
    INOUT at bigint, INOUT after bigint, OUT seen bigint, OUT picked tid[], OUT keys text[], OUT passed tid[],
    OUT passed_keys text[], OUT all_locked boolean
) LANGUAGE plpgsql SET enable_hashjoin = on AS $$
BEGIN
    IF NOT limits_keys(qu) THEN
        picked := ARRAY(
            SELECT ctid FROM live l
            WHERE l.q = qu.q AND l.state = 'w' AND l.priority = level AND l.run_at <= now_ms
              AND (l.run_at, l.seq) > (at, after) AND l.fence IS NULL
            ORDER BY l.run_at, l.seq LIMIT room FOR UPDATE SKIP LOCKED);
        RETURN;
    END IF;
    WITH line AS MATERIALIZED (
        SELECT ctid AS spot, l.key, l.run_at, l.seq FROM live l
        WHERE l.q = qu.q AND l.state = 'w' AND l.priority = level AND l.run_at <= now_ms AND l.fence IS NULL
          AND (l.run_at, l.seq) > (at, after) AND (l.key IS NULL OR l.key <> ALL (shut))
        ORDER BY l.run_at, l.seq LIMIT most
    ), edge AS MATERIALIZED (
        SELECT run_at, seq, count(*) OVER () AS seen FROM line ORDER BY run_at DESC, seq DESC LIMIT 1
    ), open AS MATERIALIZED (
        SELECT r.key, r.room FROM rooms(qu, now_ms, ARRAY(SELECT DISTINCT key FROM line WHERE key IS NOT NULL)) r
    ), turn AS (
        SELECT spot, key, run_at, seq, false AS held_back FROM line
        UNION ALL
        SELECT f.spot, o.key, f.run_at, f.seq, true
        FROM edge e, open o, LATERAL (
            SELECT ctid AS spot, l.run_at, l.seq FROM live l
            WHERE l.q + 0 = qu.q AND l.state = 'k' AND coalesce(l.key, '') = o.key AND l.priority = level AND l.run_at <= now_ms
              AND (e.seen < most OR (l.run_at, l.seq) < (e.run_at, e.seq))
            ORDER BY l.run_at, l.seq LIMIT least(o.room, pick_admitted.room)) f
        WHERE qu.has_held_back AND o.room > 0
    ), judged AS (
        SELECT t.*, t.key IS NULL OR o.room >= row_number() OVER (PARTITION BY t.key ORDER BY t.run_at, t.seq) AS taken
        FROM turn t LEFT JOIN open o ON o.key = t.key
    ), placed AS (
        SELECT j.*, count(*) FILTER (WHERE j.taken) OVER (ORDER BY j.run_at, j.seq) AS place FROM judged j
    )
    SELECT coalesce(array_agg(p.spot ORDER BY p.run_at, p.seq) FILTER (WHERE p.taken), '{}'),
           coalesce(array_agg(p.key ORDER BY p.run_at, p.seq) FILTER (WHERE p.taken), '{}'),
           coalesce(array_agg(p.spot) FILTER (WHERE NOT p.taken AND NOT p.held_back), '{}'),
           coalesce(array_agg(DISTINCT p.key) FILTER (WHERE NOT p.taken AND NOT p.held_back), '{}'),
           (SELECT e.seen FROM edge e), (SELECT e.run_at FROM edge e), (SELECT e.seq FROM edge e)
    INTO picked, keys, passed, passed_keys, seen, at, after
    FROM placed p WHERE p.place <= pick_admitted.room;
    most := cardinality(picked);
    SELECT l.picked, l.keys INTO picked, keys FROM lock_unchanged(picked, keys) l;
    all_locked := most = cardinality(picked);
END $$;

-- lock_unchanged(picked, keys) -> those of the jobs that no other call has locked or changed, and their keys. A job
-- that was changed since it was read has another ctid.
CREATE OR REPLACE FUNCTION lock_unchanged(INOUT picked tid[], INOUT keys text[]) LANGUAGE plpgsql AS $$
BEGIN
    SELECT coalesce(array_agg(x.spot), '{}'), coalesce(array_agg(x.key), '{}') INTO picked, keys
    FROM (
        SELECT l.spot, l.key
        FROM (SELECT ctid AS spot, live.key FROM live WHERE ctid = ANY (picked) FOR UPDATE SKIP LOCKED) l
        INTERSECT SELECT * FROM unnest(picked, keys)) x;
END $$;

-- hold_back(queue, passed) -> the number of jobs that it held_back. A job that another call has locked stays in the
-- line.
CREATE OR REPLACE FUNCTION hold_back(qu queues, passed tid[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    held_back integer;
BEGIN
    passed := ARRAY(
        SELECT spot FROM (SELECT ctid AS spot FROM live WHERE ctid = ANY (passed) FOR UPDATE SKIP LOCKED) l
        INTERSECT SELECT unnest(passed));
    UPDATE live SET state = 'k' WHERE ctid = ANY (passed);
    GET DIAGNOSTICS held_back = ROW_COUNT;
    IF held_back > 0 THEN
        UPDATE queues SET has_held_back = true WHERE q = qu.q AND NOT has_held_back;
    END IF;
    RETURN held_back;
END $$;

-- admits_in_line(queue, now) -> true if one of the first 100 due jobs of a priority in the line is admitted, or if
-- there are more than 100. Then a claim has not held back all of them yet.
CREATE OR REPLACE FUNCTION admits_in_line(qu queues, now_ms bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    w record;
    front text[];
BEGIN
    FOR w IN SELECT * FROM lines_of(qu.q) LOOP
        front := ARRAY(
            SELECT key FROM live
            WHERE q = qu.q AND state = 'w' AND priority = w.priority AND run_at <= now_ms
              AND (run_at, seq) >= (w.run_at, w.seq) AND fence IS NULL
            ORDER BY run_at, seq LIMIT 101);
        IF cardinality(front) > 100 OR array_position(front, NULL) IS NOT NULL
           OR EXISTS (SELECT 1 FROM rooms(qu, now_ms, front) r WHERE r.room > 0) THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END $$;

-- admits_held_back(queue, now) -> true if the next claim would bring back a job held back.
CREATE OR REPLACE FUNCTION admits_held_back(qu queues, now_ms bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT qu.has_held_back AND EXISTS (
        SELECT 1 FROM rooms(qu, now_ms, ARRAY(
            SELECT key FROM freed WHERE q = qu.q
            UNION SELECT key FROM clocks WHERE q + 0 = qu.q AND waits AND opens <= now_ms)) r
        WHERE r.room > 0 AND EXISTS (SELECT 1 FROM live f WHERE f.q + 0 = qu.q AND f.state = 'k' AND coalesce(f.key, '') = r.key OFFSET 0))
$$;

-- limited_ahead(queue, now, exact) -> look_ahead() for a queue with limits. Without `exact`, `due` may be true because
-- of jobs that are not admitted. `next_due` may be too early, but not too late: a claim that ended early has not noted
-- which clocks the jobs behind its last one wait for, so while a job in the line is due, all clocks count.
CREATE OR REPLACE FUNCTION limited_ahead(qu queues, now_ms bigint, exact boolean, OUT due boolean, OUT next_due bigint)
LANGUAGE plpgsql AS $$
DECLARE
    keyed boolean := limits_keys(qu);
    queue_opens bigint;
BEGIN
    SELECT l.due, l.next_due INTO due, next_due FROM line_ahead(qu, now_ms) l;
    IF qu.fair THEN
        SELECT t.due OR limited_ahead.due, least(t.next_due, limited_ahead.next_due) INTO due, next_due
        FROM turns_ahead(qu, now_ms, exact) t;
    END IF;
    -- The next claim may find a clock that such a cost moves back.
    IF exact AND (due OR qu.has_held_back) AND EXISTS (SELECT 1 FROM costs WHERE q = qu.q AND cost < 1000) THEN
        due := true;
        RETURN;
    END IF;
    IF (qu.key_rate).starts IS NOT NULL AND NOT qu.fair THEN
        next_due := least(
            next_due,
            (SELECT opens FROM clocks WHERE q + 0 = qu.q AND waits AND opens > now_ms ORDER BY opens LIMIT 1),
            CASE WHEN due THEN (SELECT min(opens) FROM (
                SELECT opens FROM clocks WHERE q + 0 = qu.q AND NOT waits AND opens > now_ms AND key <> ''
                ORDER BY opens LIMIT 1) x) END);
    END IF;
    IF qu.fair THEN
        -- turns_ahead() knows the keys without room.
    ELSIF keyed AND exact THEN
        due := due AND admits_in_line(qu, now_ms) OR admits_held_back(qu, now_ms);
    ELSIF qu.has_held_back AND NOT keyed THEN
        due := due OR EXISTS (SELECT 1 FROM live WHERE q + 0 = qu.q AND state = 'k');
    END IF;
    IF (qu.rate).starts IS NOT NULL THEN
        SELECT opens INTO queue_opens FROM clocks WHERE q = qu.q AND key = '' AND opens > now_ms;
        IF FOUND THEN
            next_due := CASE WHEN due THEN queue_opens
                             WHEN next_due IS NOT NULL THEN greatest(queue_opens, next_due) END;
            due := false;
        END IF;
    END IF;
END $$;
