-- The output of runs: reports append chunks, readers go on from an offset, and ends remove what belongs to older jobs.
--
-- A row of `output` belongs to the job or the unexpired outcome whose `first` is its `owner`. So an end writes none of
-- these rows, and a row without an owner is never shown, also before it is removed.

-- append_output(queue, job, now, chunks, most): append one report to the output of an active job, whose row the caller
-- has locked, so that reports commit in the order of their numbers. Removes the oldest chunks beyond `most` bytes.
CREATE OR REPLACE FUNCTION append_output(qu queues, j live, now_ms bigint, chunks bytea[], most bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    -- CHUNK_OVERHEAD in dibs/model/limits.py
    size bigint := (SELECT sum(octet_length(u.chunk) + 64) FROM unnest(chunks) AS u (chunk));
    total bigint := size + coalesce(
        (SELECT o.total FROM output o WHERE o.q = qu.q AND o.id = j.id ORDER BY o.n DESC LIMIT 1), 0);
BEGIN
    INSERT INTO output VALUES (
        qu.q, j.id, nextval('numbers'), j.first, 0, size, total, now_ms, j.attempts, j.fence, j.first, j.revision,
        j.holder, chunks);
    IF total > most THEN
        PERFORM trim_output(qu, j.id, total - most);
    END IF;
END $$;

-- trim_output(queue, id, edge): remove the oldest chunks of an id until those after the first `edge` bytes of its reports
-- are left. Removes no more chunks than needed. The row of the last removed chunk stays, so that readers learn what they
-- miss.
CREATE OR REPLACE FUNCTION trim_output(qu queues, wanted text, edge bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    o output;
    excess bigint;
    gone integer := 0;
    chunk bytea;
BEGIN
    SELECT * INTO o FROM output WHERE q = qu.q AND id = wanted AND total >= edge ORDER BY n LIMIT 1;
    excess := edge - o.total + o.size;
    IF excess <= 0 THEN
        RETURN;
    END IF;
    FOREACH chunk IN ARRAY o.chunks LOOP
        gone := gone + 1;
        o.size := o.size - octet_length(chunk) - 64;
        excess := excess - octet_length(chunk) - 64;
        EXIT WHEN excess <= 0;
    END LOOP;
    DELETE FROM output WHERE q = qu.q AND id = wanted AND n < o.n;
    UPDATE output SET removed = removed + gone, size = o.size, chunks = o.chunks[gone + 1 :]
    WHERE q = qu.q AND id = wanted AND n = o.n;
END $$;

-- remove_output(queue, ids, now): remove the output of these ids that belongs to neither their job nor an unexpired
-- outcome. Call it after the jobs and outcomes have changed, while they are locked: its snapshot then has each report
-- for which the lock waited. OFFSET 0 keeps the order of the look-ups, whatever the statistics of the tables say.
CREATE OR REPLACE FUNCTION remove_output(qu queues, ids text[], now_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM output WHERE ctid = ANY (ARRAY(
        SELECT gone.spot FROM unnest(ids) AS u (id), LATERAL (
            SELECT o.ctid AS spot FROM output o
            WHERE o.q = qu.q AND o.id = u.id
              AND o.owner IS DISTINCT FROM (SELECT j.first FROM live j WHERE j.q = qu.q AND j.id = u.id)
              AND o.owner IS DISTINCT FROM (
                SELECT e.first FROM ended e
                WHERE e.q = qu.q AND e.id = u.id AND (e.expires_at IS NULL OR e.expires_at > now_ms))
            OFFSET 0) gone));
END $$;

-- read_output(queue, id, since, most, now) -> the oldest row of an id without its chunks, then the rows with its chunks
-- from the number `since` on: the first ones that have up to `most` chunks together, besides the row `since` itself, which
-- a reader may have read before. Output of an expired outcome is left out. `since` NULL selects only the newest row.
CREATE OR REPLACE FUNCTION read_output(queue text, wanted text, since bigint, most integer, manual bigint)
RETURNS SETOF output LANGUAGE plpgsql {pinned} AS $$
DECLARE
    now_ms bigint := tick(manual);
    here integer := (SELECT q FROM queues WHERE name = queue);
    o output;
    room bigint := most;
BEGIN
    IF since IS NULL THEN
        RETURN QUERY SELECT * FROM output WHERE q = here AND id = wanted ORDER BY n DESC LIMIT 1;
        RETURN;
    END IF;
    FOR o IN
        WITH owners AS MATERIALIZED (
            SELECT first FROM live WHERE q = here AND id = wanted
            UNION ALL
            SELECT first FROM ended WHERE q = here AND id = wanted AND (expires_at IS NULL OR expires_at > now_ms)
        ), mine AS NOT MATERIALIZED (
            SELECT * FROM output WHERE q = here AND id = wanted AND owner = ANY (ARRAY(SELECT first FROM owners)))
        (SELECT q, id, n, owner, removed, size, total, at, attempt, fence, first, revision, holder, NULL::bytea[]
         FROM mine ORDER BY n LIMIT 1)
        UNION ALL
        (SELECT * FROM mine WHERE n >= since ORDER BY n LIMIT most::bigint + 1)
    LOOP
        RETURN NEXT o;
        IF o.n > since THEN
            room := room - coalesce(cardinality(o.chunks), 0);
        END IF;
        EXIT WHEN room <= 0;
    END LOOP;
END $$;
