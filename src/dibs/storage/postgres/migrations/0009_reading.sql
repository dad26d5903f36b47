-- The event log, counts, and the state that a wait reads. Jobs and pages are read by plain SQL in sql/.

-- read_events(queue, from, most, now) -> up to `most` log entries from a number on, oldest first, each with the number
-- up to which the log was trimmed. Without entries it returns one row with that number. `since` NULL selects only the
-- last entry.
CREATE FUNCTION read_events(queue text, since bigint, most integer, manual bigint)
RETURNS TABLE (trimmed bigint, n bigint, count integer, packed text)
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    shown bigint;
BEGIN
    PERFORM tick(manual);
    shown := shown_until();
    SELECT * INTO qu FROM queues WHERE name = queue;
    IF since IS NULL THEN
        RETURN QUERY SELECT qu.trimmed, e.n, e.count, e.packed FROM events e
        WHERE e.q = qu.q AND e.n <= shown ORDER BY e.n DESC LIMIT 1;
    ELSE
        RETURN QUERY SELECT qu.trimmed, e.n, e.count, e.packed FROM events e
        WHERE e.q = qu.q AND e.n >= since AND e.n <= shown ORDER BY e.n LIMIT most;
    END IF;
    IF NOT FOUND THEN
        trimmed := qu.trimmed;
        RETURN NEXT;
    END IF;
END $$;

-- look_ahead(queue, now) -> true if a job is due, and the earliest run_at after now. Costs two index lookups for each
-- priority in use.
CREATE FUNCTION look_ahead(qu queues, now_ms bigint, OUT due boolean, OUT next_due bigint)
LANGUAGE plpgsql AS $$
DECLARE
    level smallint;
BEGIN
    due := false;
    SELECT priority INTO level FROM live WHERE q = qu.q AND state = 'w' ORDER BY priority DESC LIMIT 1;
    WHILE level IS NOT NULL LOOP
        due := due OR EXISTS (
            SELECT 1 FROM live
            WHERE q = qu.q AND state = 'w' AND priority = level AND run_at <= now_ms);
        next_due := least(next_due, (
            SELECT run_at FROM live
            WHERE q = qu.q AND state = 'w' AND priority = level AND run_at > now_ms
            ORDER BY run_at LIMIT 1));
        SELECT priority INTO level FROM live
        WHERE q = qu.q AND state = 'w' AND priority < level ORDER BY priority DESC LIMIT 1;
    END LOOP;
END $$;

-- watch(queues, for, now) -> a row for each existing queue, for a client that waits. Afterwards, changes of these
-- queues send notifications for at least 30 s, at most a minute. `due` is true if a claim would find a job. `unheard`
-- is true if no client was known to listen before, so that a change may have happened without a notification.
CREATE FUNCTION watch(names text[], kind text, manual bigint)
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
                 ELSE qu.ids_until END;
        unheard := heard < clock_timestamp();
        IF heard < clock_timestamp() + interval '30 seconds' THEN
            UPDATE queues k SET
                work_until = CASE kind WHEN 'work' THEN until ELSE work_until END,
                events_until = CASE kind WHEN 'events' THEN until ELSE events_until END,
                ids_until = CASE kind WHEN 'ids' THEN until ELSE ids_until END
            WHERE k.q = qu.q;
        END IF;
        name := qu.name;
        q := qu.q;
        due := false;
        next_due := NULL;
        IF kind = 'work' AND NOT qu.paused THEN
            ahead := look_ahead(qu, now_ms);
            due := ahead.due AND (qu.max_active IS NULL OR qu.max_active > (
                SELECT count(*) FROM live l WHERE l.q = qu.q AND l.lease IS NOT NULL));
            next_due := ahead.next_due;
        ELSIF kind = 'events' THEN
            ends_at := (SELECT max(e.n) FROM events e WHERE e.q = qu.q AND e.n <= shown);
            hidden := EXISTS (SELECT 1 FROM events e WHERE e.q = qu.q AND e.n > shown);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- counts(queues, now) -> a row for each existing queue. Counts up to 100,000 ids per state exactly, all in one
-- snapshot. Above that it returns the planner's estimate and sets `approximate`.
CREATE FUNCTION counts(names text[], manual bigint)
RETURNS TABLE (
    name text, waiting bigint, scheduled bigint, active bigint, handed_off bigint, blocked bigint,
    completed bigint, failed bigint, cancelled bigint, approximate boolean
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    now_ms bigint := tick(manual);
    beyond bigint := 100001;
    q integer;
BEGIN
    FOR q, name, waiting, scheduled, active, handed_off, blocked, completed, failed, cancelled IN
        SELECT * FROM count_all(names, now_ms, beyond)
    LOOP
        approximate := beyond <= greatest(waiting, active, blocked, completed, failed, cancelled);
        IF waiting = beyond THEN
            waiting := greatest(beyond, guess(format('SELECT 1 FROM live WHERE q = %s AND state = ''w''', q)));
        END IF;
        IF scheduled = beyond THEN
            scheduled := least(waiting, greatest(beyond, guess(format(
                'SELECT 1 FROM live WHERE q = %s AND state = ''w'' AND run_at > %s', q, now_ms))));
        END IF;
        IF completed = beyond THEN
            completed := greatest(beyond, guess(format(
                'SELECT 1 FROM ended WHERE q + 0 = %s AND kind = ''completed'' AND expires_at > %s', q, now_ms)));
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- count_all(queues, now, most) -> the columns of counts(), each counted up to `most`. STABLE functions see the snapshot
-- of the calling statement, so a job that changes its state during the call is counted once.
CREATE FUNCTION count_all(names text[], now_ms bigint, most bigint)
RETURNS TABLE (
    q integer, name text, waiting bigint, scheduled bigint, active bigint, handed_off bigint, blocked bigint,
    completed bigint, failed bigint, cancelled bigint
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    qu queues;
BEGIN
    FOR qu IN SELECT * FROM queues k WHERE k.name = ANY (names) ORDER BY k.q LOOP
        q := qu.q;
        name := qu.name;
        waiting := (SELECT count(*) FROM (
            SELECT 1 FROM live l WHERE l.q = qu.q AND l.state = 'w' LIMIT most) x);
        scheduled := count_scheduled(qu, now_ms, most);
        handed_off := (SELECT count(*) FROM (
            SELECT 1 FROM live l WHERE l.q = qu.q AND l.state = 'h' LIMIT most) x);
        active := handed_off + (SELECT count(*) FROM (
            SELECT 1 FROM live l WHERE l.q = qu.q AND l.lease IS NOT NULL LIMIT most) x);
        blocked := (SELECT count(*) FROM (
            SELECT 1 FROM live l WHERE l.q = qu.q AND (l.next).seq IS NOT NULL LIMIT most) x);
        completed := count_ended(qu, 'completed', now_ms, most);
        failed := count_ended(qu, 'failed', now_ms, most);
        cancelled := count_ended(qu, 'cancelled', now_ms, most);
        RETURN NEXT;
    END LOOP;
END $$;

-- count_scheduled(queue, now, most) -> the number of scheduled jobs, counted up to `most`. It counts priority by
-- priority, so that due jobs cost no time.
CREATE FUNCTION count_scheduled(qu queues, now_ms bigint, most bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    level smallint;
    total bigint := 0;
BEGIN
    SELECT priority INTO level FROM live WHERE q = qu.q AND state = 'w' ORDER BY priority DESC LIMIT 1;
    WHILE level IS NOT NULL AND total < most LOOP
        total := total + (SELECT count(*) FROM (
            SELECT 1 FROM live WHERE q = qu.q AND state = 'w' AND priority = level AND run_at > now_ms
            LIMIT most - total) x);
        SELECT priority INTO level FROM live
        WHERE q = qu.q AND state = 'w' AND priority < level ORDER BY priority DESC LIMIT 1;
    END LOOP;
    RETURN total;
END $$;

-- count_ended(queue, kind, now, most) -> the number of unexpired outcomes of a kind, counted up to `most`.
CREATE FUNCTION count_ended(qu queues, word text, now_ms bigint, most bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    total bigint;
BEGIN
    SELECT count(*) INTO total FROM (
        SELECT 1 FROM ended WHERE q + 0 = qu.q AND kind = word AND expires_at > now_ms LIMIT most) x;
    RETURN least(most, total + (SELECT count(*) FROM (
        SELECT 1 FROM ended WHERE q + 0 = qu.q AND kind = word AND expires_at IS NULL LIMIT most) x));
END $$;

-- guess(query) -> the planner's estimate of the number of rows.
CREATE FUNCTION guess(query text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT JSON) ' || query INTO plan;
    RETURN (plan #>> '{0,Plan,Plan Rows}')::bigint;
END $$;
