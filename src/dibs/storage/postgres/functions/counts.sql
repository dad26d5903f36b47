-- The verb counts.

-- counts(queues, now) -> a row for each existing queue. Counts up to 100,000 ids per state exactly, all in one
-- snapshot. Above that it returns the planner's estimate and sets `approximate`. The estimate of the waiting jobs has
-- those that a key holds back.
CREATE OR REPLACE FUNCTION counts(names text[], manual bigint)
RETURNS TABLE (
    name text, waiting bigint, scheduled bigint, retrying bigint, active bigint, handed_off bigint, blocked bigint,
    completed bigint, failed bigint, cancelled bigint, approximate boolean
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    now_ms bigint := tick(manual);
    beyond bigint := 100001;
    q integer;
BEGIN
    FOR q, name, waiting, scheduled, retrying, active, handed_off, blocked, completed, failed, cancelled IN
        SELECT * FROM count_all(names, now_ms, beyond)
    LOOP
        approximate := beyond <= greatest(waiting, active, blocked, completed, failed, cancelled);
        IF waiting = beyond THEN
            waiting := greatest(beyond, guess(format(
                'SELECT 1 FROM live WHERE q = %s AND state IN (''w'', ''k'')', q)));
        END IF;
        IF scheduled = beyond THEN
            scheduled := least(waiting, greatest(beyond, guess(format(
                'SELECT 1 FROM live WHERE q = %s AND state = ''w'' AND run_at > %s', q, now_ms))));
        END IF;
        IF retrying = beyond THEN
            -- The planner knows the share of jobs with an error. It knows nothing of an expression.
            retrying := least(waiting, greatest(beyond, guess(format(
                'SELECT 1 FROM live WHERE q = %s AND state IN (''w'', ''k'') AND error IS NOT NULL', q))));
        END IF;
        IF completed = beyond THEN
            completed := greatest(beyond, guess(format(
                'SELECT 1 FROM ended WHERE q + 0 = %s AND kind = ''completed'' AND expires_at > %s', q, now_ms)));
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- count_all(queues, now, most) -> the columns of counts(), each counted up to `most`. STABLE functions see the snapshot
-- of the calling statement, so a job that changes its state during the call is counted once. Waiting jobs are those in
-- the line and those that a key holds back.
CREATE OR REPLACE FUNCTION count_all(names text[], now_ms bigint, most bigint)
RETURNS TABLE (
    q integer, name text, waiting bigint, scheduled bigint, retrying bigint, active bigint, handed_off bigint, blocked bigint,
    completed bigint, failed bigint, cancelled bigint
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    qu queues;
    in_line bigint;
    returned bigint;
BEGIN
    FOR qu IN SELECT * FROM queues k WHERE k.name = ANY (names) ORDER BY k.q LOOP
        q := qu.q;
        name := qu.name;
        SELECT count(*), count(*) FILTER (WHERE a.returned) INTO in_line, returned FROM active_runs(qu.q, NULL) a;
        waiting := (SELECT count(*) FROM (
            SELECT 1 FROM live l WHERE l.q = qu.q AND l.state = 'w' LIMIT most + in_line) x) - in_line;
        IF qu.has_held_back THEN
            waiting := least(most, waiting + (SELECT count(*) FROM (
                SELECT 1 FROM live l WHERE l.q + 0 = qu.q AND l.state = 'k' LIMIT most) x));
        END IF;
        scheduled := count_scheduled(qu, now_ms, most);
        -- The condition of the index live_returned as it is there: only then does the count read no rows. Why not state IN
        -- ('w', 'k'): a plan for an empty table would take the index live_line, and then read all waiting jobs.
        retrying := (SELECT count(*) FROM (
            SELECT 1 FROM live l WHERE l.q = qu.q AND l.state <> 'h'
              AND (l.state = 'h' OR greatest(l.retries, l.stalls, l.timeouts) > 0) LIMIT most + returned) x) - returned;
        handed_off := (SELECT count(*) FROM (
            SELECT 1 FROM live l WHERE l.q = qu.q AND l.state = 'h' LIMIT most) x);
        active := handed_off + in_line;
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
CREATE OR REPLACE FUNCTION count_scheduled(qu queues, now_ms bigint, most bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT least(most, coalesce(sum((SELECT count(*) FROM (
        SELECT 1 FROM live l
        WHERE l.q = qu.q AND l.state = s.state AND l.priority = s.priority AND l.run_at > now_ms LIMIT most) x)), 0))::bigint
    FROM (SELECT 'w'::"char" AS state, w.priority FROM lines_of(qu.q) w
          UNION ALL SELECT 'k', f.priority FROM filed_priorities(qu) f (priority) WHERE qu.fair) s
$$;

-- count_ended(queue, kind, now, most) -> the number of unexpired outcomes of a kind, counted up to `most`.
CREATE OR REPLACE FUNCTION count_ended(qu queues, word text, now_ms bigint, most bigint) RETURNS bigint
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
CREATE OR REPLACE FUNCTION guess(query text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT JSON) ' || query INTO plan;
    RETURN (plan #>> '{0,Plan,Plan Rows}')::bigint;
END $$;
