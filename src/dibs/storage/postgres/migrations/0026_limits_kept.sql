-- The end of a run wakes those who wait for room; clocks and freed keys are pruned; filed jobs count as waiting.

-- settle(queue, now, one array per field): as in 0006_settle.sql. Also under per_key, an end makes room for work.
CREATE OR REPLACE FUNCTION settle(
    queue text, manual bigint, plain boolean, ids text[], fences bigint[], kinds text[],
    results bytea[], details text[], OUT statuses text[], OUT revisions bigint[]
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    answer record;
    told text[] := '{}';
    ends text[] := '{}';
    settled bigint[] := '{}';
    i integer;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    IF NOT FOUND THEN
        statuses := ARRAY(SELECT 'lost' FROM generate_series(1, cardinality(ids)));
        RETURN;
    END IF;
    IF plain THEN
        settled := complete_all(qu, now_ms, ids, fences, results);
        IF cardinality(settled) = cardinality(ids) THEN
            PERFORM ring(qu, qu.max_active IS NOT NULL OR qu.per_key IS NOT NULL, qu.log_level <> 'off', ids);
            RETURN;
        END IF;
    END IF;
    PERFORM lock_ids(qu, ids);
    FOR i IN 1 .. cardinality(ids) LOOP
        IF i = ANY (settled) THEN
            statuses[i] := 'done';
            ends := ends || ids[i];
            CONTINUE;
        END IF;
        answer := settle_one(qu, now_ms, ids[i], fences[i], coalesce(kinds[i], 'completed'), results[i],
                             details[i]::json);
        statuses[i] := answer.status;
        revisions[i] := answer.revision;
        told := told || answer.told;
        IF answer.over THEN
            ends := ends || ids[i];
        END IF;
    END LOOP;
    PERFORM tell(qu, now_ms, told);
    PERFORM ring(qu, true, cardinality(told) > 0 OR cardinality(settled) > 0, ends);
END $$;

-- prune(queue, most, now): as in 0008_pruning.sql. prune_limits() is the last step: a claim has locked the row of the
-- queue, which trim_events() may write, when it writes clocks.
CREATE OR REPLACE FUNCTION prune(
    queue text, most integer, manual bigint, OUT outcomes bigint, OUT keys bigint, OUT told bigint
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    horizon_now xid8 := pg_snapshot_xmin(pg_current_snapshot());
    word text;
    found_some bigint;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    outcomes := 0;
    FOREACH word IN ARRAY '{completed,failed,cancelled}'::text[] LOOP
        found_some := prune_ended(qu, word, most - outcomes, now_ms, horizon_now);
        outcomes := outcomes + found_some;
    END LOOP;
    PERFORM prune_ended(qu, 'forgotten', most, now_ms, horizon_now);
    DELETE FROM request_keys WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM request_keys WHERE q + 0 = qu.q AND expires_at <= now_ms
        ORDER BY expires_at LIMIT most - outcomes FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS keys = ROW_COUNT;
    told := trim_events(qu, now_ms);
    PERFORM prune_limits(qu, most, now_ms);
END $$;

-- prune_limits(queue, most, now): remove the freed keys of a queue without limits by key, and clocks that have no effect
-- any more. The lock keeps configure() from setting such a limit until the freed keys are removed.
CREATE FUNCTION prune_limits(qu queues, most integer, now_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM freed WHERE q = qu.q) THEN
        SELECT * INTO qu FROM queues WHERE q = qu.q FOR KEY SHARE;
        IF qu.per_key IS NULL AND (qu.key_rate).starts IS NULL THEN
            DELETE FROM freed WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM freed WHERE q = qu.q LIMIT 100000 FOR UPDATE SKIP LOCKED));
        END IF;
    END IF;
    DELETE FROM clocks WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM clocks WHERE q + 0 = qu.q AND NOT waits AND opens <= now_ms AND clock <= now_ms * 1000
        LIMIT most FOR UPDATE SKIP LOCKED));
END $$;

-- count_all(queues, now, most): as in 0009_reading.sql. Waiting jobs are those in the line and filed ones. A filed job
-- is never scheduled.
CREATE OR REPLACE FUNCTION count_all(names text[], now_ms bigint, most bigint)
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
        IF qu.has_filed THEN
            waiting := least(most, waiting + (SELECT count(*) FROM (
                SELECT 1 FROM live l WHERE l.q + 0 = qu.q AND l.state = 'k' LIMIT most) x));
        END IF;
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

-- counts(queues, now): as in 0009_reading.sql. The estimate of the waiting jobs has the filed ones.
CREATE OR REPLACE FUNCTION counts(names text[], manual bigint)
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
            waiting := greatest(beyond, guess(format(
                'SELECT 1 FROM live WHERE q = %s AND state IN (''w'', ''k'')', q)));
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
