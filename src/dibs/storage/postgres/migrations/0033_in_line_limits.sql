-- Limits, waits and counts know the active jobs that stay in the line, see 0032_in_line.sql.

-- claim_limited(queue number, lease, most, now): as in 0028_claim.sql. The jobs of earlier claims without limits leave the
-- line first, because the indexes by lease and key are faster to count.
CREATE FUNCTION claim_limited(wanted integer, under uuid, most integer, manual bigint)
RETURNS TABLE (
    lost boolean, now_ms bigint, next_due bigint, holder text, filed bigint, priority smallint, fences bigint[],
    spots text[], ids text[], payloads bytea[], starts bigint[], enqueues bigint[], seqs bigint[], tries integer[],
    memos bytea[], rests text[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    qu queues;
    keyed boolean;
    room bigint;
    started integer := 0;
    put_away bigint := 0;
    i integer;
    level smallint;
    -- The place of the last job that was read, and the number of jobs to read next.
    at bigint := -1;
    after bigint := -1;
    size integer;
    step record;
    picked tid[];
    keys text[];
    shut text[] := '{}';
    names text[];
BEGIN
    SELECT * INTO qu FROM queues WHERE q = wanted FOR NO KEY UPDATE;
    now_ms := tick(manual);
    SELECT l.holder INTO holder FROM leases l WHERE lease = under AND q = qu.q AND expires_at > now_ms;
    lost := NOT FOUND;
    IF lost OR qu.paused THEN
        RETURN NEXT;
        RETURN;
    END IF;
    IF qu.log_level = 'all' THEN
        PERFORM begin_telling();
    END IF;
    PERFORM leave_line(qu, NULL, 0, false);
    room := least(most, claim_room(qu, now_ms));
    keyed := qu.per_key IS NOT NULL OR (qu.key_rate).starts IS NOT NULL;
    IF keyed THEN
        PERFORM reopen_freed(qu, now_ms);
    ELSIF qu.has_filed THEN
        PERFORM bring_all(qu, most + 1000);
    END IF;
    size := least(2000, room + 20);
    SELECT priority INTO level FROM live WHERE q = qu.q AND state = 'w' ORDER BY priority DESC LIMIT 1;
    WHILE level IS NOT NULL AND room > 0 LOOP
        IF keyed THEN
            step := pick_admitted(qu, now_ms, level, room, size, shut, at, after);
            SELECT l.picked, l.keys INTO picked, keys FROM lock_unchanged(step.picked, step.keys) l;
        ELSE
            picked := ARRAY(
                SELECT ctid FROM live
                WHERE q = qu.q AND state = 'w' AND priority = level AND run_at <= now_ms AND fence IS NULL
                ORDER BY run_at, seq LIMIT room FOR UPDATE SKIP LOCKED);
        END IF;
        IF cardinality(picked) > 0 THEN
            -- A run that ended since the claim read the time may have made the room. The new run begins after its end.
            now_ms := tick(manual);
            IF qu.log_level = 'all' THEN
                names := ARRAY(SELECT id FROM live WHERE ctid = ANY (picked) ORDER BY run_at, seq);
            END IF;
            IF keyed AND cardinality(picked) > 100 THEN
                picked := ARRAY(SELECT ctid FROM live WHERE ctid = ANY (picked) ORDER BY run_at, seq);
            END IF;
            FOR i IN 1 .. cardinality(picked) BY 100 LOOP
                RETURN QUERY SELECT NULL::boolean, claim_limited.now_ms, NULL::bigint, NULL::text, NULL::bigint, level, r.*
                FROM start_runs(picked[i:i + 99], under, claim_limited.holder, claim_limited.now_ms, false) r;
            END LOOP;
            room := room - cardinality(picked);
            started := started + cardinality(picked);
            IF qu.log_level = 'all' THEN
                PERFORM tell(qu, now_ms, notes_of(qu, 'claimed', names, now_ms));
            END IF;
        END IF;
        IF keyed THEN
            IF (qu.key_rate).starts IS NOT NULL THEN
                PERFORM charge(qu.q, qu.key_rate, now_ms, keys);
            END IF;
            -- If an admitted job was locked, its key is not closed, so none is filed.
            IF put_away < 10000 AND cardinality(picked) = cardinality(step.picked) THEN
                put_away := put_away + file_jobs(qu, step.passed);
            ELSE
                shut := (shut || step.passed_keys)[:100];
            END IF;
            PERFORM reopen(qu, now_ms, array_remove(keys || step.passed_keys, NULL));
            at := step.at;
            after := step.after;
            IF step.seen = size THEN
                size := least(2000, size * 4);
                CONTINUE;
            END IF;
            at := -1;
            after := -1;
        END IF;
        SELECT priority INTO level FROM live
        WHERE q = qu.q AND state = 'w' AND priority < level ORDER BY priority DESC LIMIT 1;
    END LOOP;
    IF started > 0 AND (qu.rate).starts IS NOT NULL THEN
        PERFORM charge(qu.q, qu.rate, now_ms, array_fill(''::text, ARRAY[started]));
    END IF;
    next_due := (limited_ahead(qu, now_ms, false)).next_due;
    filed := put_away;
    RETURN NEXT;
END $$;

-- claim_room(queue, now): as in 0025_claim.sql.
CREATE OR REPLACE FUNCTION claim_room(qu queues, now_ms bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT least(
        CASE WHEN qu.max_active IS NOT NULL THEN greatest(0, qu.max_active - (
            SELECT count(*) FROM live WHERE q = qu.q AND lease IS NOT NULL)
            - (SELECT count(*) FROM line_jobs(qu.q, NULL))) END,
        CASE WHEN (qu.rate).starts IS NOT NULL THEN starts_left(
            (SELECT clock FROM clocks WHERE q = qu.q AND key = ''), qu.rate, now_ms) END)
$$;

-- rooms(queue, now, keys): as in 0024_keyed_claims.sql.
CREATE OR REPLACE FUNCTION rooms(qu queues, now_ms bigint, keys text[])
RETURNS TABLE (key text, room bigint, is_full boolean) LANGUAGE sql STABLE AS $$
    SELECT k.key, least(qu.per_key - k.runs, starts_left(c.clock, qu.key_rate, now_ms)),
           coalesce(k.runs >= qu.per_key, false)
    FROM (
        SELECT DISTINCT u.key, CASE WHEN qu.per_key IS NOT NULL THEN (
            SELECT count(*) FROM (
                SELECT 1 FROM live r WHERE r.q + 0 = qu.q AND r.key = u.key AND r.lease IS NOT NULL LIMIT qu.per_key) x
            ) + (SELECT count(*) FROM line_jobs(qu.q, NULL) a WHERE a.key = u.key) END AS runs
        FROM unnest(keys) AS u (key)) k
    LEFT JOIN clocks c ON c.q = qu.q AND c.key = k.key
$$;

-- pick_admitted(...): as in 0024_keyed_claims.sql.
CREATE OR REPLACE FUNCTION pick_admitted(
    qu queues, now_ms bigint, level smallint, room bigint, most integer, shut text[],
    INOUT at bigint, INOUT after bigint, OUT seen bigint, OUT picked tid[], OUT keys text[], OUT passed tid[],
    OUT passed_keys text[]
) LANGUAGE plpgsql SET enable_hashjoin = on AS $$
BEGIN
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

-- line_ahead(queue, now): as in 0025_claim.sql.
CREATE OR REPLACE FUNCTION line_ahead(qu queues, now_ms bigint, OUT due boolean, OUT next_due bigint)
LANGUAGE plpgsql AS $$
DECLARE
    level smallint;
BEGIN
    due := false;
    SELECT priority INTO level FROM live WHERE q = qu.q AND state = 'w' ORDER BY priority DESC LIMIT 1;
    WHILE level IS NOT NULL LOOP
        due := due OR EXISTS (
            SELECT 1 FROM live
            WHERE q = qu.q AND state = 'w' AND priority = level AND run_at <= now_ms AND fence IS NULL);
        next_due := least(next_due, (
            SELECT run_at FROM live
            WHERE q = qu.q AND state = 'w' AND priority = level AND run_at > now_ms
            ORDER BY run_at LIMIT 1));
        SELECT priority INTO level FROM live
        WHERE q = qu.q AND state = 'w' AND priority < level ORDER BY priority DESC LIMIT 1;
    END LOOP;
END $$;

-- admits_in_line(queue, now): as in 0025_claim.sql.
CREATE OR REPLACE FUNCTION admits_in_line(qu queues, now_ms bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    level smallint;
    front text[];
BEGIN
    SELECT priority INTO level FROM live WHERE q = qu.q AND state = 'w' ORDER BY priority DESC LIMIT 1;
    WHILE level IS NOT NULL LOOP
        front := ARRAY(
            SELECT key FROM live
            WHERE q = qu.q AND state = 'w' AND priority = level AND run_at <= now_ms AND fence IS NULL
            ORDER BY run_at, seq LIMIT 101);
        IF cardinality(front) > 100 OR array_position(front, NULL) IS NOT NULL
           OR EXISTS (SELECT 1 FROM rooms(qu, now_ms, front) r WHERE r.room > 0) THEN
            RETURN true;
        END IF;
        SELECT priority INTO level FROM live
        WHERE q = qu.q AND state = 'w' AND priority < level ORDER BY priority DESC LIMIT 1;
    END LOOP;
    RETURN false;
END $$;

-- count_all(queues, now, most): as in 0026_limits_kept.sql.
CREATE OR REPLACE FUNCTION count_all(names text[], now_ms bigint, most bigint)
RETURNS TABLE (
    q integer, name text, waiting bigint, scheduled bigint, active bigint, handed_off bigint, blocked bigint,
    completed bigint, failed bigint, cancelled bigint
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    qu queues;
    any_in_line boolean := EXISTS (SELECT 1 FROM line_claims);
    in_line bigint := 0;
BEGIN
    FOR qu IN SELECT * FROM queues k WHERE k.name = ANY (names) ORDER BY k.q LOOP
        q := qu.q;
        name := qu.name;
        IF any_in_line THEN
            in_line := (SELECT count(*) FROM line_jobs(qu.q, NULL));
        END IF;
        waiting := (SELECT count(*) FROM (
            SELECT 1 FROM live l WHERE l.q = qu.q AND l.state = 'w' LIMIT most + in_line) x) - in_line;
        IF qu.has_filed THEN
            waiting := least(most, waiting + (SELECT count(*) FROM (
                SELECT 1 FROM live l WHERE l.q + 0 = qu.q AND l.state = 'k' LIMIT most) x));
        END IF;
        scheduled := count_scheduled(qu, now_ms, most);
        handed_off := (SELECT count(*) FROM (
            SELECT 1 FROM live l WHERE l.q = qu.q AND l.state = 'h' LIMIT most) x);
        active := handed_off + in_line + (SELECT count(*) FROM (
            SELECT 1 FROM live l WHERE l.q = qu.q AND l.lease IS NOT NULL LIMIT most) x);
        blocked := (SELECT count(*) FROM (
            SELECT 1 FROM live l WHERE l.q = qu.q AND (l.next).seq IS NOT NULL LIMIT most) x);
        completed := count_ended(qu, 'completed', now_ms, most);
        failed := count_ended(qu, 'failed', now_ms, most);
        cancelled := count_ended(qu, 'cancelled', now_ms, most);
        RETURN NEXT;
    END LOOP;
END $$;

-- watch(queues, kind, now): as in 0019_columns.sql.
CREATE OR REPLACE FUNCTION watch(names text[], kind text, manual bigint)
RETURNS TABLE (
    name text, q integer, now_ms bigint, due boolean, next_due bigint, ends_at bigint, hidden boolean,
    unheard boolean
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    ahead record;
    heard timestamptz;
    shown bigint;
    until timestamptz := clock_timestamp() + interval '1 minute';
BEGIN
    now_ms := tick(manual);
    IF kind = 'events' THEN
        shown := shown_until();
    END IF;
    FOR qu IN SELECT * FROM queues k WHERE k.name = ANY (names) ORDER BY k.q LOOP
        heard := CASE kind WHEN 'work' THEN qu.work_until WHEN 'events' THEN qu.events_until
                 WHEN 'ids' THEN qu.ids_until ELSE least(qu.progress_until, qu.ids_until) END;
        unheard := heard < clock_timestamp();
        IF heard < clock_timestamp() + interval '30 seconds' THEN
            UPDATE queues k SET
                work_until = CASE kind WHEN 'work' THEN until ELSE work_until END,
                events_until = CASE kind WHEN 'events' THEN until ELSE events_until END,
                ids_until = CASE WHEN kind IN ('ids', 'progress') THEN until ELSE ids_until END,
                progress_until = CASE kind WHEN 'progress' THEN until ELSE progress_until END
            WHERE k.q = qu.q;
        END IF;
        name := qu.name;
        q := qu.q;
        due := false;
        next_due := NULL;
        IF kind = 'work' AND NOT qu.paused THEN
            ahead := look_ahead(qu, now_ms);
            due := ahead.due AND (qu.max_active IS NULL OR qu.max_active > (
                SELECT count(*) FROM live l WHERE l.q = qu.q AND l.lease IS NOT NULL)
                + (SELECT count(*) FROM line_jobs(qu.q, NULL)));
            next_due := ahead.next_due;
        ELSIF kind = 'events' THEN
            ends_at := (SELECT max(e.n) FROM events e WHERE e.q = qu.q AND e.n <= shown);
            hidden := EXISTS (SELECT 1 FROM events e WHERE e.q = qu.q AND e.n > shown);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
