-- The verbs prune and import: expired outcomes are removed, and exported ids are restored.

-- prune(queue, most, now) -> the numbers of removed outcomes, request keys and events. Outcomes and request keys
-- together are at most `most`. Keeps rows that a running transaction may still need, see begin_live() in
-- 0004_enqueue.sql.
CREATE FUNCTION prune(
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
END $$;

-- prune_ended(queue, kind, most, now, horizon) -> the number of expired outcomes of a kind that it removed.
CREATE FUNCTION prune_ended(qu queues, word text, most bigint, now_ms bigint, horizon_now xid8) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    picked tid[];
BEGIN
    picked := ARRAY(
        SELECT ctid FROM ended
        WHERE q + 0 = qu.q AND kind = word AND expires_at <= now_ms AND horizon < horizon_now
        ORDER BY expires_at LIMIT most FOR UPDATE SKIP LOCKED);
    IF cardinality(picked) > 0 THEN
        -- Keep the dropped ranges of the outcome in the row of the live job, which still needs the latest ones.
        UPDATE live j SET dropped = latest_dropped(o.dropped || j.dropped) FROM ended o
        WHERE o.ctid = ANY (picked) AND o.dropped IS NOT NULL AND j.q = o.q AND j.id = o.id;
        DELETE FROM ended WHERE ctid = ANY (picked);
    END IF;
    RETURN cardinality(picked);
END $$;

-- trim_events(queue, now) -> the number of events that it removed: those older than log_age, and the oldest beyond
-- log_bytes.
CREATE FUNCTION trim_events(qu queues, now_ms bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    shown bigint := shown_until();
    edge bigint;
    gone bigint;
BEGIN
    SELECT max(n) INTO edge FROM (
        SELECT n, at, sum(octet_length(packed)) OVER (ORDER BY n DESC) AS size FROM events WHERE q = qu.q) e
    WHERE (at < now_ms - qu.log_age OR size > qu.log_bytes) AND n <= shown;
    IF edge IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE queues SET trimmed = edge WHERE q = qu.q AND trimmed < edge;
    WITH old AS (
        DELETE FROM events WHERE q = qu.q AND n <= edge RETURNING count
    ) SELECT coalesce(sum(count), 0) INTO gone FROM old;
    RETURN gone;
END $$;

-- import_ids(queue, records, floor, now) -> imported or exists, in the order of the records. Raises the numbers above
-- `floor`. A record is {"current", "successor", "outcome", "dropped"}, whose keys inside are the columns of live and
-- ended.
CREATE FUNCTION import_ids(queue text, ids text[], records text[], floor bigint, manual bigint) RETURNS text[]
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues := queue_of(queue);
    now_ms bigint := tick(manual);
    statuses text[] := '{}';
    i integer;
BEGIN
    PERFORM pg_current_xact_id();
    PERFORM raise_numbers(floor);
    FOR i IN 1 .. cardinality(ids) LOOP
        statuses[i] := CASE WHEN import_one(qu, now_ms, ids[i], records[i]::json) THEN 'imported' ELSE 'exists' END;
    END LOOP;
    PERFORM ring(qu, true, false, ids);
    RETURN statuses;
END $$;

-- import_one(queue, now, id, record) -> true if the id was imported. An active run that was not handed off arrives as
-- released, and a run whose cancellation was requested as cancelled. The import adds no log entry for either.
CREATE FUNCTION import_one(qu queues, now_ms bigint, wanted text, record json) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    j live := json_populate_record(NULL::live, record -> 'current');
    o ended := json_populate_record(NULL::ended, record -> 'outcome');
BEGIN
    qu.log_level := 'off';
    PERFORM 1 FROM live WHERE q = qu.q AND id = wanted FOR UPDATE;
    IF FOUND OR EXISTS (SELECT 1 FROM ended WHERE q = qu.q AND id = wanted
                        AND (expires_at IS NULL OR expires_at > now_ms)) THEN
        RETURN false;
    END IF;
    IF j.seq IS NOT NULL THEN
        j.q := qu.q;
        j.id := wanted;
        INSERT INTO live VALUES (j.*) ON CONFLICT (q, id) DO NOTHING;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    DELETE FROM ended WHERE q = qu.q AND id = wanted;
    IF o.kind IS NOT NULL THEN
        o.q := qu.q;
        o.id := wanted;
        o.horizon := pg_snapshot_xmax(pg_current_snapshot());
        INSERT INTO ended VALUES (o.*);
    END IF;
    IF j.state = 'a' THEN
        PERFORM give_back(qu, j, now_ms, false);
    END IF;
    RETURN true;
END $$;
