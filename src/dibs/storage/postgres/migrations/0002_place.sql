-- The clock, the numbers, queues, the log and the bell: what every step needs.

-- raise_numbers(floor): the next number drawn is above `floor`.
-- The lock keeps two raises from setting the sequence back; it is let go at once, not at the end of a
-- transaction that may be the caller's and long.
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

-- tick(manual) -> now in ms, never before one that was seen; from here on nextval('numbers') is at least that in us.
-- `manual` NULL: the server's clock. A back step of it is noticed to within 50 ms; a manual clock never steps back at
-- all. The numbers run up to a second ahead of the clock, so they are raised about once a second, not each time.
-- Called from plain SQL as well, so it names its schema. On a standby, which is only read, nothing is written down.
-- One statement for both, because every verb begins with it.
CREATE FUNCTION tick(manual bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    latest bigint;
    drawn bigint;
    now_ms bigint := coalesce(manual, floor(extract(epoch FROM clock_timestamp()) * 1000));
BEGIN
    SELECT s.last_value, n.last_value INTO latest, drawn FROM {name}.seen s, {name}.numbers n;
    -- Not each time: setval writes WAL, and 20 times a second is enough to tell a clock that was set back.
    IF now_ms > latest + (CASE WHEN manual IS NULL THEN 50 ELSE 0 END) AND NOT pg_is_in_recovery() THEN
        PERFORM setval('{name_text}.seen', now_ms);
    END IF;
    now_ms := greatest(now_ms, latest);
    IF drawn < now_ms * 1000 AND NOT pg_is_in_recovery() THEN
        PERFORM {name}.raise_numbers(now_ms * 1000 + 1000000);
    END IF;
    RETURN now_ms;
END $$;

-- queue_of(name) -> the queue's row, made if it is new.
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

-- know_queues(names): make their rows, in a transaction of its own. A row that is new in a transaction that stays
-- open would hold up everybody else who enqueues there first.
CREATE FUNCTION know_queues(names text[]) RETURNS void LANGUAGE plpgsql {pinned} AS $$
DECLARE
    wanted text;
BEGIN
    FOR wanted IN SELECT u.name FROM unnest(names) AS u (name) ORDER BY u.name COLLATE "C" LOOP
        PERFORM queue_of(wanted);
    END LOOP;
END $$;

-- lock_ids(queue, ids) -> whether any is live; those that are stay locked, taken in sorted order, so that two
-- batches never wait for each other. One look into the key for each: for = ANY, an ordered scan before 17 reads
-- the whole queue (15 ms for 100 of 20,000), and so does a plain join planned while the table was empty (70 ms).
CREATE FUNCTION lock_ids(qu queues, ids text[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM (SELECT u.id FROM unnest(ids) AS u (id) ORDER BY u.id COLLATE "C") a,
        LATERAL (SELECT 1 FROM live j WHERE j.q = qu.q AND j.id = a.id FOR UPDATE) one;
    RETURN FOUND;
END $$;

-- begin_telling(): what this transaction tells from here on has a number above the one it shows to readers.
-- It holds, to its end, a shared advisory lock whose key is a number drawn before, in units of 1,024 us and
-- without the bits above 32: enough to tell transactions of 49 days apart. Once for each transaction, however
-- many jobs the caller joins to it.
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

-- shown_until() -> readers may be shown entries up to this number: whoever still tells, or begins to, draws
-- above it, so nothing ever appears at or before what was handed out. Unrelated transactions, however long,
-- hold nothing back. Must come in a statement of its own, before the one that reads: see READ COMMITTED.
CREATE FUNCTION shown_until() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    -- First this: who takes the lock after we looked for it draws above this.
    latest bigint := (SELECT last_value FROM numbers);
    back bigint;
BEGIN
    SELECT max(((latest >> 10) - objid::bigint) & 4294967295) INTO back FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 2 AND mode = 'ShareLock' AND granted
      AND classid::bigint = {log_class} AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
    RETURN CASE WHEN back IS NULL THEN latest ELSE ((latest >> 10) - back) << 10 END;
END $$;

-- tell(queue, now, events): append one packed entry; no events, no entry. `events` are JSON texts.
CREATE FUNCTION tell(qu queues, now_ms bigint, told text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(told) > 0 THEN
        PERFORM begin_telling();
        INSERT INTO events (q, n, at, count, packed)
        VALUES (qu.q, nextval('numbers'), now_ms, cardinality(told), '[' || array_to_string(told, ',') || ']');
    END IF;
END $$;

-- ring(queue, work, told, ids): wake whoever listens; a hint, sent at commit, equal ones once.
-- Silent when nobody listens: NOTIFY takes a lock at commit that all writers of the database share.
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

-- run_event(kind, job, now, error) -> the end of an attempt, or of a waiting job (then attempt 0).
CREATE FUNCTION run_event(kind text, j live, now_ms bigint, error json) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        kind, j.id, now_ms, CASE WHEN j.state = 'w' THEN 0 ELSE j.attempts END, coalesce(j.fence, 0),
        j.enqueued_at, j.run_at, j.claimed_at, now_ms, coalesce(j.holder, ''),
        j.first, j.revision, j.enqueues, error)::text
$$;

-- note_event(kind, job, now) -> what only the level `all` keeps.
CREATE FUNCTION note_event(kind text, j live, now_ms bigint) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        kind, j.id, now_ms, CASE WHEN j.state = 'w' THEN 0 ELSE j.attempts END, coalesce(j.fence, 0),
        j.enqueued_at, j.run_at, j.claimed_at, NULL, coalesce(j.holder, ''),
        j.first, j.revision, j.enqueues, NULL)::text
$$;

-- notes_of(queue, kind, ids, now) -> note_event() for some live jobs, in list order.
CREATE FUNCTION notes_of(qu queues, kind text, ids text[], now_ms bigint) RETURNS text[]
LANGUAGE sql STABLE AS $$
    SELECT array_agg(note_event(kind, one.j, now_ms) ORDER BY a.place)
    FROM unnest(ids) WITH ORDINALITY AS a (id, place),
        LATERAL (SELECT j FROM live j WHERE j.q = qu.q AND j.id = a.id OFFSET 0) one
$$;

-- next_event(kind, id, successor, now, finished) -> what happened to a successor: blocked, or dropped.
CREATE FUNCTION next_event(kind text, id text, s successor, now_ms bigint, finished bigint) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        kind, id, now_ms, 0, 0, s.enqueued_at, s.run_at, NULL, finished, '',
        s.first, s.revision, s.enqueues, NULL)::text
$$;
