-- A page of the log reads the entries that it needs. An entry may have 1,000 events.

-- read_events(queue, from, most, now): as in 0009_reading.sql, but `most` counts events: of the entries, it returns the
-- first ones that have so many events together, besides the entry `since` itself, which a reader may have read before.
CREATE OR REPLACE FUNCTION read_events(queue text, since bigint, most integer, manual bigint)
RETURNS TABLE (trimmed bigint, n bigint, count integer, packed text)
LANGUAGE plpgsql {pinned} AS $$
#variable_conflict use_variable
DECLARE
    qu queues;
    shown bigint;
    wanted bigint := most;
BEGIN
    PERFORM tick(manual);
    shown := shown_until();
    SELECT * INTO qu FROM queues WHERE name = queue;
    trimmed := qu.trimmed;
    IF since IS NULL THEN
        SELECT e.n, e.count, e.packed INTO n, count, packed FROM events e
        WHERE e.q = qu.q AND e.n <= shown ORDER BY e.n DESC LIMIT 1;
        RETURN NEXT;
        RETURN;
    END IF;
    FOR n, count, packed IN
        SELECT e.n, e.count, e.packed FROM events e
        WHERE e.q = qu.q AND e.n >= since AND e.n <= shown ORDER BY e.n LIMIT most::bigint + 1
    LOOP
        RETURN NEXT;
        IF n > since THEN
            wanted := wanted - count;
        END IF;
        EXIT WHEN wanted <= 0;
    END LOOP;
    IF NOT FOUND THEN
        RETURN NEXT;
    END IF;
END $$;
