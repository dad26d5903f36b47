-- The verb prune.

-- prune(queue, most, now) -> the numbers of removed outcomes, request keys and events. Outcomes, request keys and
-- batches of key sets together are at most `most`. Also removes traces. Keeps rows that a running transaction may still
-- need, see
-- begin_live(). prune_limits() is the last step: a claim has locked the row of the queue, which trim_events() may
-- write, when it writes clocks.
CREATE OR REPLACE FUNCTION prune(
    queue text, most integer, manual bigint, OUT outcomes bigint, OUT keys bigint, OUT logged bigint
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
    DELETE FROM traces WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM traces WHERE q = qu.q AND horizon < horizon_now
        ORDER BY n LIMIT 10000 FOR UPDATE SKIP LOCKED));
    DELETE FROM request_keys WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM request_keys WHERE q + 0 = qu.q AND expires_at <= now_ms
        ORDER BY expires_at LIMIT most - outcomes FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS keys = ROW_COUNT;
    DELETE FROM key_sets WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM key_sets WHERE q + 0 = qu.q AND expires_at <= now_ms
        ORDER BY expires_at LIMIT most - outcomes - keys FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS found_some = ROW_COUNT;
    keys := keys + found_some;
    logged := trim_events(qu, now_ms);
    PERFORM prune_limits(qu, most, now_ms);
END $$;

-- prune_ended(queue, kind, most, now, horizon) -> the number of expired outcomes of a kind that it removed.
CREATE OR REPLACE FUNCTION prune_ended(qu queues, word text, most bigint, now_ms bigint, horizon_now xid8) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    picked tid[];
    ids text[];
BEGIN
    picked := ARRAY(
        SELECT ctid FROM ended
        WHERE q + 0 = qu.q AND kind = word AND expires_at <= now_ms AND horizon < horizon_now
        ORDER BY expires_at LIMIT most FOR UPDATE SKIP LOCKED);
    IF cardinality(picked) > 0 THEN
        -- Keep the dropped ranges of the outcome in the row of the live job, which still needs the latest ones.
        UPDATE live j SET dropped = latest_dropped(o.dropped || j.dropped) FROM ended o
        WHERE o.ctid = ANY (picked) AND o.dropped IS NOT NULL AND j.q = o.q AND j.id = o.id;
        WITH gone AS (
            DELETE FROM ended WHERE ctid = ANY (picked) RETURNING id
        ) SELECT array_agg(id) INTO ids FROM gone;
        IF qu.has_output THEN
            PERFORM remove_output(qu, ids, now_ms);
        END IF;
    END IF;
    RETURN cardinality(picked);
END $$;

-- trim_events(queue, now) -> the number of events that it removed: those older than log_age, and the oldest beyond
-- log_bytes.
CREATE OR REPLACE FUNCTION trim_events(qu queues, now_ms bigint) RETURNS bigint LANGUAGE plpgsql AS $$
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
