-- The event log: events, their entries, and what a reader may see of them.

-- begin_log_step(): announce that this transaction will append log entries, so that shown_until() hides later entries
-- until it ends. For that it takes a shared advisory lock until the end of the transaction. The key of the lock is the
-- latest number in units of 1,024 us, in 32 bits, which distinguishes transactions within 49 days. Every entry of this
-- transaction gets a number above it. A transaction of several steps takes the lock only once. If another session holds
-- the key in exclusive mode, the lock of an earlier number does as well: readers then see a little less until the end.
CREATE OR REPLACE FUNCTION begin_log_step() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    me text := pg_current_xact_id()::text;
    mark bigint;
BEGIN
    IF current_setting('{setting}', true) IS DISTINCT FROM me THEN
        mark := pg_sequence_last_value('numbers') >> 10;
        WHILE NOT pg_try_advisory_xact_lock_shared({log_class}, mark::bit(32)::integer) LOOP
            mark := mark - 1;
        END LOOP;
        PERFORM set_config('{setting}', me, true);
    END IF;
END $$;

-- shown_until() -> the number up to which readers may see log entries. Open transactions that append entries, and those
-- that start later, use numbers above it, so an entry never appears behind a reader. Only transactions that append
-- entries lower the result. A transaction that appends also has the table `events` open for writing, which needs a
-- right on it, so the advisory lock of any other session does not count. A writer that has not opened the table yet
-- draws its numbers after this look. Call it in an earlier statement than the one that reads the entries, because under
-- READ COMMITTED each statement has another snapshot.
CREATE OR REPLACE FUNCTION shown_until() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    -- Read this before pg_locks: a transaction that opens `events` after the query of pg_locks uses higher numbers.
    latest bigint := (SELECT last_value FROM numbers);
    back bigint;
BEGIN
    WITH held AS MATERIALIZED (
        SELECT l.virtualtransaction, l.locktype, l.objid FROM pg_locks l
        WHERE l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND CASE l.locktype
              WHEN 'advisory' THEN l.objsubid = 2 AND l.mode = 'ShareLock' AND l.classid::bigint = {log_class}
              WHEN 'relation' THEN l.mode = 'RowExclusiveLock' AND l.relation = 'events'::regclass END
    )
    SELECT max(((latest >> 10) - a.objid::bigint) & 4294967295) INTO back FROM held a
    WHERE a.locktype = 'advisory'
      AND a.virtualtransaction IN (SELECT w.virtualtransaction FROM held w WHERE w.locktype = 'relation');
    RETURN CASE WHEN back IS NULL THEN latest ELSE ((latest >> 10) - back) << 10 END;
END $$;

-- append_entry(queue number, now, number of events, packed): append an entry to the log, unless `packed` is NULL.
CREATE OR REPLACE FUNCTION append_entry(queue integer, now_ms bigint, size integer, packed text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF packed IS NOT NULL THEN
        PERFORM begin_log_step();
        INSERT INTO events VALUES (queue, nextval('numbers'), now_ms, size, packed);
    END IF;
END $$;

-- append_log(queue number, now, events): append one entry with these events, given as JSON texts, to the log. An empty
-- list appends none.
CREATE OR REPLACE FUNCTION append_log(queue integer, now_ms bigint, logged text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(logged) > 0 THEN
        PERFORM append_entry(queue, now_ms, cardinality(logged), '[' || array_to_string(logged, ',') || ']');
    END IF;
END $$;

-- run_event(kind, job, now, error) -> the event of the end of an attempt, or of a waiting job (with attempt 0).
CREATE OR REPLACE FUNCTION run_event(kind text, j live, now_ms bigint, error json) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        kind, j.id, now_ms, CASE WHEN j.fence IS NULL THEN 0 ELSE j.attempts END, coalesce(j.fence, 0),
        j.enqueued_at, j.run_at, j.claimed_at, now_ms, coalesce(j.holder, ''),
        j.first, j.revision, j.enqueues, error)::text
$$;

-- note_event(kind, job, now) -> an event that is logged at level `all` only.
CREATE OR REPLACE FUNCTION note_event(kind text, j live, now_ms bigint) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        kind, j.id, now_ms, CASE WHEN j.fence IS NULL THEN 0 ELSE j.attempts END, coalesce(j.fence, 0),
        j.enqueued_at, j.run_at, j.claimed_at, NULL, coalesce(j.holder, ''),
        j.first, j.revision, j.enqueues, NULL)::text
$$;

-- notes_of(queue number, kind, ids, now) -> note_event() of some live jobs, in the order of `ids`.
CREATE OR REPLACE FUNCTION notes_of(queue integer, kind text, ids text[], now_ms bigint) RETURNS text[]
LANGUAGE sql STABLE AS $$
    SELECT array_agg(note_event(kind, one.j, now_ms) ORDER BY a.place)
    FROM unnest(ids) WITH ORDINALITY AS a (id, place),
        LATERAL (SELECT j FROM live j WHERE j.q = queue AND j.id = a.id OFFSET 0) one
$$;

-- next_event(kind, id, successor, now, finished) -> the event of a successor that was blocked or dropped.
CREATE OR REPLACE FUNCTION next_event(kind text, id text, s successor, now_ms bigint, finished bigint) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        kind, id, now_ms, 0, 0, s.enqueued_at, s.run_at, NULL, finished, '',
        s.first, s.revision, s.enqueues, NULL)::text
$$;

-- with_result(event, queue, result) -> the event with the result of the run as one more element, in base64, if the
-- setting log_results of the queue allows its length.
CREATE OR REPLACE FUNCTION with_result(event text, qu queues, result bytea) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN qu.log_results > 0 AND octet_length(result) <= qu.log_results
        THEN left(event, -1) || ',"' || translate(encode(result, 'base64'), E'\n', '') || '"]' ELSE event END
$$;

-- read_events(queue, from, most, now) -> log entries from a number on, oldest first, each with the number up to which
-- the log was trimmed: the first ones that have up to `most` events together, besides the entry `since` itself, which a
-- reader may have read before. Without entries it returns one row with that number. `since` NULL selects only the last
-- entry.
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
