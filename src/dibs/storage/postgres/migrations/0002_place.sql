-- Functions that every step uses: the clock, numbers, queues, the event log and notifications.

-- raise_numbers(floor): raise the sequence, so that the next number is above `floor`.
-- The lock prevents two calls from setting the sequence back. It is released at once, not at commit, because the
-- transaction may belong to the caller and last long.
CREATE FUNCTION raise_numbers(floor bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_lock({lock});
    IF (SELECT last_value FROM {name}.numbers) < floor THEN
        PERFORM setval('{name_text}.numbers', floor);
    END IF;
    PERFORM pg_advisory_unlock({lock});
EXCEPTION WHEN OTHERS OR query_canceled THEN
    PERFORM pg_advisory_unlock({lock});
    RAISE;
END $$;

-- tick(manual) -> the current time in ms, never before an earlier result. Afterwards nextval('numbers') is at least
-- this time in us. `manual` NULL selects the server's clock; a step back of that clock can show for up to 50 ms,
-- because `seen` is only written every 50 ms. A manual clock never steps back. The numbers run up to a second ahead of
-- the clock, so that they are raised about once a second instead of at each call. Plain SQL calls this function, too,
-- so it names its schema. On a standby it writes nothing. Every verb starts here, so one SELECT reads both sequences.
CREATE FUNCTION tick(manual bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    latest bigint;
    drawn bigint;
    now_ms bigint := coalesce(manual, floor(extract(epoch FROM clock_timestamp()) * 1000));
BEGIN
    SELECT s.last_value, n.last_value INTO latest, drawn FROM {name}.seen s, {name}.numbers n;
    -- setval writes WAL, so it runs at most 20 times a second; that is enough to detect a clock that was set back.
    IF now_ms > latest + (CASE WHEN manual IS NULL THEN 50 ELSE 0 END) AND NOT pg_is_in_recovery() THEN
        PERFORM setval('{name_text}.seen', now_ms);
    END IF;
    now_ms := greatest(now_ms, latest);
    IF drawn < now_ms * 1000 AND NOT pg_is_in_recovery() THEN
        PERFORM {name}.raise_numbers(now_ms * 1000 + 1000000);
    END IF;
    RETURN now_ms;
END $$;

-- queue_of(name) -> the row of the queue; inserts it if the queue is new.
CREATE FUNCTION queue_of(wanted text) RETURNS queues LANGUAGE plpgsql AS $$
DECLARE
    found_queue queues;
BEGIN
    LOOP
        SELECT * INTO found_queue FROM queues WHERE name = wanted;
        IF FOUND THEN
            RETURN found_queue;
        END IF;
        INSERT INTO queues (name) VALUES (wanted) ON CONFLICT DO NOTHING;
    END LOOP;
END $$;

-- know_queues(names): insert the rows of new queues. Called in a separate, short transaction: a row that a long
-- transaction inserts would block every other first enqueue to the queue until that transaction ends.
CREATE FUNCTION know_queues(names text[]) RETURNS void LANGUAGE plpgsql {pinned} AS $$
DECLARE
    wanted text;
BEGIN
    FOR wanted IN SELECT u.name FROM unnest(names) AS u (name) ORDER BY u.name COLLATE "C" LOOP
        PERFORM queue_of(wanted);
    END LOOP;
END $$;

-- lock_ids(queue, ids) -> true if any of the ids is live (waiting or active). Locks the rows of the live ids in sorted
-- order, so that two batches cannot deadlock. The LATERAL subquery makes one index lookup per id. Why not = ANY: before
-- Postgres 17 it reads the whole queue (15 ms for 100 of 20,000 ids). A plain join that was planned while the table was
-- empty also reads the whole queue (70 ms).
CREATE FUNCTION lock_ids(qu queues, ids text[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM (SELECT u.id FROM unnest(ids) AS u (id) ORDER BY u.id COLLATE "C") a,
        LATERAL (SELECT 1 FROM live j WHERE j.q = qu.q AND j.id = a.id FOR UPDATE) one;
    RETURN FOUND;
END $$;

-- begin_telling(): announce that this transaction will append log entries, so that shown_until() hides later entries
-- until it ends. For that it takes a shared advisory lock until the end of the transaction. The key of the lock is the
-- latest number in units of 1,024 us, in 32 bits, which distinguishes transactions within 49 days. Every entry of this
-- transaction gets a number above it. A transaction of several steps takes the lock only once.
CREATE FUNCTION begin_telling() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    me text := pg_current_xact_id()::text;
BEGIN
    IF current_setting('{setting}', true) IS DISTINCT FROM me THEN
        PERFORM pg_advisory_xact_lock_shared({log_class}, ((last_value >> 10)::bit(32))::integer),
                set_config('{setting}', me, true)
        FROM numbers;
    END IF;
END $$;

-- shown_until() -> the number up to which readers may see log entries. Open transactions that append entries, and
-- those that start later, use numbers above it, so an entry never appears behind a reader. Only transactions that
-- append entries lower the result. Call it in an earlier statement than the one that reads the entries, because
-- under READ COMMITTED each statement has another snapshot.
CREATE FUNCTION shown_until() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    -- Read this before pg_locks: a transaction that takes its lock after the query of pg_locks uses higher numbers.
    latest bigint := (SELECT last_value FROM numbers);
    back bigint;
BEGIN
    SELECT max(((latest >> 10) - objid::bigint) & 4294967295) INTO back FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 2 AND mode = 'ShareLock' AND granted
      AND classid::bigint = {log_class} AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
    RETURN CASE WHEN back IS NULL THEN latest ELSE ((latest >> 10) - back) << 10 END;
END $$;

-- tell(queue, now, events): append one entry with these events, given as JSON texts, to the log. An empty list
-- appends none.
CREATE FUNCTION tell(qu queues, now_ms bigint, told text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(told) > 0 THEN
        PERFORM begin_telling();
        INSERT INTO events (q, n, at, count, packed)
        VALUES (qu.q, nextval('numbers'), now_ms, cardinality(told), '[' || array_to_string(told, ',') || ']');
    END IF;
END $$;

-- ring(queue, work, told, ids): notify listeners of new work, of log entries (`told`) and of ended ids. Postgres sends
-- the notification at commit, and equal notifications once. Without a listening client it sends none, because NOTIFY
-- takes a lock at commit for which all writers of the database wait.
CREATE FUNCTION ring(qu queues, work boolean, told boolean, ids text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    kinds text := '';
    named text := '';
BEGIN
    IF greatest(qu.work_until, qu.events_until, qu.ids_until) < clock_timestamp() THEN
        RETURN;
    END IF;
    IF work AND qu.work_until > clock_timestamp() THEN
        kinds := kinds || 'w';
    END IF;
    IF told AND qu.events_until > clock_timestamp() THEN
        kinds := kinds || 'e';
    END IF;
    IF cardinality(ids) > 0 AND qu.ids_until > clock_timestamp() THEN
        kinds := kinds || 'i';
        named := to_json(ids)::text;
        IF octet_length(named) > 7000 THEN
            named := '';
        END IF;
    END IF;
    IF kinds <> '' THEN
        PERFORM pg_notify('{channel}', qu.q || ' ' || kinds || ' ' || named);
    END IF;
END $$;

-- run_event(kind, job, now, error) -> the event of the end of an attempt, or of a waiting job (with attempt 0).
CREATE FUNCTION run_event(kind text, j live, now_ms bigint, error json) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        kind, j.id, now_ms, CASE WHEN j.state = 'w' THEN 0 ELSE j.attempts END, coalesce(j.fence, 0),
        j.enqueued_at, j.run_at, j.claimed_at, now_ms, coalesce(j.holder, ''),
        j.first, j.revision, j.enqueues, error)::text
$$;

-- note_event(kind, job, now) -> an event that is logged at level `all` only.
CREATE FUNCTION note_event(kind text, j live, now_ms bigint) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        kind, j.id, now_ms, CASE WHEN j.state = 'w' THEN 0 ELSE j.attempts END, coalesce(j.fence, 0),
        j.enqueued_at, j.run_at, j.claimed_at, NULL, coalesce(j.holder, ''),
        j.first, j.revision, j.enqueues, NULL)::text
$$;

-- notes_of(queue, kind, ids, now) -> note_event() of some live jobs, in the order of `ids`.
CREATE FUNCTION notes_of(qu queues, kind text, ids text[], now_ms bigint) RETURNS text[]
LANGUAGE sql STABLE AS $$
    SELECT array_agg(note_event(kind, one.j, now_ms) ORDER BY a.place)
    FROM unnest(ids) WITH ORDINALITY AS a (id, place),
        LATERAL (SELECT j FROM live j WHERE j.q = qu.q AND j.id = a.id OFFSET 0) one
$$;

-- next_event(kind, id, successor, now, finished) -> the event of a successor that was blocked or dropped.
CREATE FUNCTION next_event(kind text, id text, s successor, now_ms bigint, finished bigint) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        kind, id, now_ms, 0, 0, s.enqueued_at, s.run_at, NULL, finished, '',
        s.first, s.revision, s.enqueues, NULL)::text
$$;
