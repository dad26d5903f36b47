-- The verb enqueue: new jobs, updates of waiting jobs, and requests for active jobs.

-- asked_for(item, now) -> a follow-up as a request. The item is a FollowUp in the JSON that
-- dibs/storage/postgres/codec/parameters.py writes.
CREATE OR REPLACE FUNCTION asked_for(item json, now_ms bigint) RETURNS request LANGUAGE sql STABLE AS $$
    SELECT (item ->> 'id', decode(item ->> 'payload', 'base64'), (item ->> 'priority')::smallint,
            item -> 'attributes', item -> 'overrides', (item -> 'retention')::jsonb,
            start_time((item ->> 'when')::bigint, now_ms), (item ->> 'how')::integer, item ->> 'key')::request
$$;

-- start_time(when, now) -> the start time of a job in ms. `when` is a time, a delay d encoded as -1 - d, or NULL for
-- now.
CREATE OR REPLACE FUNCTION start_time(said bigint, now_ms bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN said IS NULL THEN now_ms WHEN said >= 0 THEN said ELSE now_ms - 1 - said END
$$;

-- enqueue(queue, now, one array per field) -> one row of arrays in the order of the requests, and one more row for each
-- existing outcome that a request wants. `statuses` NULL means: all queued as new jobs, with first = revision. `plain`
-- says of a single request that it is not update-only and has no Reject, request_key or want_outcome. A field that is
-- NULL in every request may be passed as a NULL array. `job_keys` has the keys of the jobs, and `once` the request
-- keys. `repeats` says which requests repeat a request_key, and `first_ids` has the id of the first request with that
-- key; NULL for an answer absent.
CREATE OR REPLACE FUNCTION enqueue(
    queue text, manual bigint, plain boolean, ids text[], payloads bytea[], priorities smallint[],
    whens bigint[], hows integer[], attributes text[], overrides text[], retentions text[],
    job_keys text[], once text[], wants boolean[]
) RETURNS SETOF enqueued LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint;
    e enqueued;
    -- The number of new jobs that max_waiting still allows; NULL for a queue without this bound.
    room bigint;
    answers record;
    -- Assigns a transaction id. prune() keeps rows of ids that ended during a running transaction, and finds running
    -- transactions by their ids.
    myself xid8 := pg_current_xact_id();
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    IF NOT FOUND THEN
        qu := queue_of(queue);
    END IF;
    IF qu.max_waiting IS NOT NULL THEN
        qu := hold_bound(qu, ids);
        room := qu.max_waiting - count_waiting(qu, qu.max_waiting);
    END IF;
    now_ms := tick(manual);
    IF coalesce(room >= cardinality(ids), true) AND (plain OR cardinality(ids) > 1 AND wants IS NULL) THEN
        e.revisions := enqueue_new(qu, now_ms, ids, payloads, priorities, whens, hows, attributes, overrides, retentions,
                                 job_keys, once);
        IF e.revisions IS NOT NULL THEN
            IF qu.log_level = 'all' THEN
                PERFORM append_log(qu.q, now_ms, notes_of(qu.q, 'queued', ids, now_ms));
            END IF;
            PERFORM notify_waits(qu, true, qu.log_level = 'all', NULL);
            RETURN NEXT e;
            RETURN;
        END IF;
    END IF;
    answers := enqueue_each(qu, now_ms, room, ids, payloads, priorities, whens, hows, attributes, overrides, retentions,
                            job_keys, once, wants);
    e.statuses := answers.statuses;
    e.founds := answers.founds;
    e.firsts := answers.firsts;
    e.revisions := answers.revisions;
    e.repeats := answers.repeats;
    e.first_ids := answers.first_ids;
    RETURN NEXT e;
    e.statuses := NULL;
    FOR i IN 1 .. coalesce(cardinality(wants), 0) LOOP
        e.kept := answers.olds[i];
        IF (e.kept).id IS NOT NULL AND ((e.kept).expires_at IS NULL OR (e.kept).expires_at > now_ms) THEN
            e.place := i;
            RETURN NEXT e;
        END IF;
    END LOOP;
END $$;

-- enqueue_each(queue, now, room, one array per field) -> the arrays of enqueue(), and for each request that wants the
-- outcome of its id the outcome before the request. Does one request after the other, but each series of four or more
-- new ids between others as a set. One set of all new ids would draw their numbers before those of the others, and seq
-- has the order of the requests. `room` is the number of new jobs that max_waiting still allows; NULL for no bound.
CREATE OR REPLACE FUNCTION enqueue_each(
    qu queues, now_ms bigint, room bigint, ids text[], payloads bytea[], priorities smallint[], whens bigint[],
    hows integer[], attributes text[], overrides text[], retentions text[], job_keys text[], once text[], wants boolean[],
    OUT statuses text[], OUT founds text[], OUT firsts bigint[], OUT revisions bigint[], OUT repeats boolean[],
    OUT first_ids text[], OUT olds ended[]
) LANGUAGE plpgsql AS $$
DECLARE
    -- The ends of the series, at the places where they begin.
    series bigint[];
    drawn bigint[];
    r request;
    a admission;
    logged text[] := '{}';
    -- The ids whose run a request ended.
    ends text[];
BEGIN
    IF room IS NULL AND once IS NULL AND wants IS NULL AND cardinality(ids) > 1 AND NOT has_snapshot() THEN
        series := new_series(qu, hows, ids);
        statuses := array_fill('queued'::text, ARRAY[cardinality(ids)]);
        founds := array_fill('nothing'::text, ARRAY[cardinality(ids)]);
        repeats := array_fill(false, ARRAY[cardinality(ids)]);
        first_ids := array_fill(NULL::text, ARRAY[cardinality(ids)]);
    END IF;
    FOR i IN 1 .. cardinality(ids) LOOP
        IF series[i] IS NOT NULL THEN
            drawn := enqueue_new(
                qu, now_ms, ids[i:series[i]], payloads[i:series[i]], priorities[i:series[i]], whens[i:series[i]],
                NULL, attributes[i:series[i]], overrides[i:series[i]], retentions[i:series[i]], job_keys[i:series[i]], NULL);
            IF drawn IS NOT NULL THEN
                firsts[i:series[i]] := drawn;
                revisions[i:series[i]] := drawn;
                IF qu.log_level = 'all' THEN
                    logged := logged || notes_of(qu.q, 'queued', ids[i:series[i]], now_ms);
                END IF;
            END IF;
        END IF;
        CONTINUE WHEN revisions[i] IS NOT NULL;
        r := (ids[i], payloads[i], coalesce(priorities[i], 0), attributes[i], overrides[i], retentions[i],
              start_time(whens[i], now_ms), coalesce(hows[i], 0), job_keys[i])::request;
        a := CASE WHEN once[i] IS NULL THEN admit(qu, now_ms, r, room) ELSE admit_once(qu, now_ms, r, room, once[i]) END;
        room := a.left_room;
        statuses[i] := a.status;
        founds[i] := a.was;
        firsts[i] := a.first;
        revisions[i] := a.revision;
        repeats[i] := a.repeated;
        first_ids[i] := a.first_id;
        logged := logged || a.logged;
        IF a.over THEN
            ends := ends || ids[i];
        END IF;
        IF wants[i] AND NOT a.repeated THEN
            olds[i] := CASE WHEN a.over THEN a.before ELSE (SELECT e FROM ended e WHERE e.q = qu.q AND e.id = ids[i]) END;
        END IF;
    END LOOP;
    PERFORM append_log(qu.q, now_ms, logged);
    IF statuses && ARRAY['queued', 'updated', 'blocked'] THEN
        PERFORM notify_waits(qu, true, cardinality(logged) > 0, ends);
    END IF;
END $$;

-- enqueue_new(queue, now, one array per field) -> the numbers of the new jobs in the order of `ids`, which may have the
-- request keys `once`, and Reject. It returns NULL and inserts nothing if an id is live or repeated, if a request key
-- is known or repeated, if a request is update-only, and under Reject if an id has a row in `ended`; the live ids are
-- then locked, in sorted order. An expired key is known, too; the caller then uses its row again.
CREATE OR REPLACE FUNCTION enqueue_new(
    qu queues, now_ms bigint, ids text[], payloads bytea[], priorities smallint[], whens bigint[], hows integer[],
    attributes text[], overrides text[], retentions text[], keys text[], once text[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
    -- The bits of all requests. In a SQL function, Postgres would plan this query again in each call.
    bits integer := 0;
BEGIN
    IF has_snapshot() THEN
        -- admit() compares each id with the rows that the snapshot does not show.
        RETURN NULL;
    END IF;
    IF cardinality(ids) = 1 THEN
        -- Without unnest(), a single job takes a third of the time.
        number := begin_live(qu.q, (
            ids[1], payloads[1], coalesce(priorities[1], 0), attributes[1], overrides[1], retentions[1],
            start_time(whens[1], now_ms), 0, keys[1])::request, now_ms, NULL);
        IF qu.fair AND number IS NOT NULL THEN
            PERFORM move_turn(qu, NULL, ids[1]);
        END IF;
        RETURN CASE WHEN number IS NOT NULL THEN ARRAY[number] END;
    END IF;
    IF hows IS NOT NULL THEN
        bits := (SELECT bit_or(u.how) FROM unnest(hows) AS u (how));
    END IF;
    IF bits & 64 <> 0 THEN
        RETURN NULL;
    END IF;
    -- An index lookup for each id takes 1 to 2 us, so the INSERT finds the live ids. A batch often has only live ids,
    -- as in a repeated import, and for such a batch its first ids are enough.
    PERFORM 1 FROM unnest(ids[1:10]) AS u (id), LATERAL (SELECT 1 FROM live j WHERE j.q = qu.q AND j.id = u.id OFFSET 0) one;
    IF NOT FOUND THEN
        BEGIN
            RETURN insert_new(qu, now_ms, ids, payloads, priorities, whens, attributes, overrides, retentions, keys, once,
                              bits & 16 <> 0);
        EXCEPTION WHEN unique_violation THEN
            -- The caller then enqueues each job with admit(), in the order of the requests.
        END;
    END IF;
    PERFORM lock_ids(qu.q, ids);
    RETURN NULL;
END $$;

-- insert_new(queue, now, one array per field, rejects) -> the answer of enqueue_new() for several ids. It raises
-- unique_violation where that returns NULL. The keys are inserted before the jobs, as admit_once() does it for each
-- request. So of two equal batches that run at the same time, the second one waits at its first key, and then finds all
-- keys known. Why an exception instead of ON CONFLICT for the jobs: for each row, ON CONFLICT looks into the index once
-- more, and writes 48 bytes of WAL more.
CREATE OR REPLACE FUNCTION insert_new(
    qu queues, now_ms bigint, ids text[], payloads bytea[], priorities smallint[], whens bigint[],
    attributes text[], overrides text[], retentions text[], keys text[], once text[], rejects boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    drawn bigint[] := ARRAY(SELECT nextval('numbers') FROM generate_series(1, cardinality(ids)));
    first_state "char" := CASE WHEN qu.fair AND begin_fair_step(qu) THEN 'k' ELSE 'w' END;
BEGIN
    IF once IS NOT NULL THEN
        INSERT INTO request_keys (q, key, status, found, first, revision, expires_at, id)
        SELECT qu.q, a.key, 'queued', 'nothing', a.n, a.n, now_ms + qu.request_key_age, a.id
        FROM unnest(once, ids, drawn) AS a (key, id, n)
        WHERE a.key IS NOT NULL
        ORDER BY a.key COLLATE "C";
    END IF;
    INSERT INTO live (q, id, state, priority, run_at, seq, first, revision, enqueued_at,
                      payload, attributes, overrides, retention, key)
    SELECT qu.q, a.id, first_state, coalesce(a.priority, 0), start_time(a.said, now_ms), a.n, a.n, a.n, now_ms,
           a.payload, a.attributes::json, a.overrides::json, a.retention::jsonb, a.key
    FROM unnest(ids, payloads, priorities, whens, attributes, overrides, retentions, keys, drawn)
        AS a (id, payload, priority, said, attributes, overrides, retention, key, n)
    ORDER BY a.id COLLATE "C";
    -- If the sequence still stands at our last number, no id can have ended under a higher number.
    IF drawn[cardinality(ids)] < pg_sequence_last_value('numbers') AND ended_since(qu.q, ids, drawn[1]) THEN
        RAISE unique_violation;
    END IF;
    -- The inserted rows hold the ids, so no run of them can end between this look and the end of the transaction.
    IF rejects AND EXISTS (
        SELECT 1 FROM unnest(ids) AS a (id),
            LATERAL (SELECT * FROM ended e WHERE e.q = qu.q AND e.id = a.id OFFSET 0) o
    ) THEN
        RAISE unique_violation;
    END IF;
    IF first_state = 'k' THEN
        PERFORM join_turns(qu, drawn, coalesce(keys, array_fill(NULL::text, ARRAY[cardinality(ids)])));
    ELSIF priorities IS NULL AND whens IS NULL THEN
        PERFORM note_start(qu.q, 0::smallint, now_ms, 0);
    ELSE
        PERFORM note_starts(qu.q, ARRAY(SELECT coalesce(priorities[i], 0::smallint) FROM generate_subscripts(ids, 1) i), ARRAY(
            SELECT start_time(whens[i], now_ms) FROM generate_subscripts(ids, 1) i));
    END IF;
    RETURN drawn;
END $$;

-- new_series(queue, hows, ids) -> for each request with which a series of four or more new ids begins the place of the
-- last one; NULL if a request is update-only. A new id is not live, and not requested before in the batch. If a request
-- has Reject, an id with an outcome is not new. Why not EXISTS: the planner may read the whole queue into a hash table
-- for it; a scalar subquery is an index lookup for each id.
CREATE OR REPLACE FUNCTION new_series(qu queues, hows integer[], ids text[]) RETURNS bigint[] LANGUAGE sql STABLE AS $$
    SELECT array_agg(CASE WHEN s.fresh AND s.n = s.begins AND s.ends - s.begins >= 3 THEN s.ends END ORDER BY s.n)
    FROM (
        SELECT r.n, r.fresh, min(r.n) OVER w AS begins, max(r.n) OVER w AS ends FROM (
            SELECT f.n, f.fresh, f.n - count(*) FILTER (WHERE f.fresh) OVER (ORDER BY f.n) AS island FROM (
                SELECT a.n, a.n = a.first
                    AND (SELECT true FROM live j WHERE j.q = qu.q AND j.id = a.id) IS NULL
                    AND (b.bits & 16 = 0 OR (SELECT true FROM ended e WHERE e.q = qu.q AND e.id = a.id) IS NULL) AS fresh
                FROM (
                    SELECT u.id, u.n, min(u.n) OVER (PARTITION BY u.id) AS first FROM unnest(ids) WITH ORDINALITY AS u (id, n)
                ) a, (SELECT coalesce(bit_or(h.how), 0) AS bits FROM unnest(hows) AS h (how)) b
                WHERE b.bits & 64 = 0) f) r
        WINDOW w AS (PARTITION BY r.fresh, r.island)) s
$$;

-- enqueue_batch(queue, now, key set, batch number, keys, fields as for enqueue()) -> one row: whether the number is
-- taken, and the statuses, NULL if each is `queued`. If the number is taken, nothing was enqueued, and also if a status
-- is `full`. The row of the key set comes first. So of two writers with the same number, the second waits here until
-- the first one's jobs are committed, and then finds the number taken.
CREATE OR REPLACE FUNCTION enqueue_batch(
    queue text, manual bigint, set_name text, number integer, keys bytea, plain boolean, ids text[], payloads bytea[],
    priorities smallint[], whens bigint[], hows integer[], attributes text[], job_keys text[],
    OUT taken boolean, OUT statuses text[]
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues := queue_of(queue);
    now_ms bigint := tick(manual);
BEGIN
    INSERT INTO key_sets (q, name, n, members, expires_at)
    VALUES (qu.q, set_name, number, keys, now_ms + qu.request_key_age) ON CONFLICT DO NOTHING;
    taken := NOT FOUND;
    IF taken THEN
        RETURN;
    END IF;
    BEGIN
        SELECT e.statuses INTO enqueue_batch.statuses
        FROM enqueue(queue, manual, plain, ids, payloads, priorities, whens, hows, attributes, NULL, NULL, job_keys, NULL, NULL) e;
        IF 'full' = ANY (enqueue_batch.statuses) THEN
            RAISE SQLSTATE 'DBFUL';
        END IF;
    EXCEPTION WHEN SQLSTATE 'DBFUL' THEN
        -- The jobs are undone; `statuses` is not.
        DELETE FROM key_sets k WHERE k.q = qu.q AND k.name = set_name AND k.n = number;
        RETURN;
    END;
    IF enqueue_batch.statuses IS NOT NULL THEN
        UPDATE key_sets k SET statuses = enqueue_batch.statuses WHERE k.q = qu.q AND k.name = set_name AND k.n = number;
    END IF;
END $$;

-- begin_live(queue number, request, now, origin) -> the number of the new waiting job, or NULL if the id is live
-- already. The number is drawn before the insert, and so before the unique index reserves the id. A transaction that
-- ended or removed the id in between left a row in `ended` or in `traces` with a higher number. So the function checks
-- both after the insert, and starts over if it finds such a row. Why not number the row after the insert: that would
-- write every job twice.
CREATE OR REPLACE FUNCTION begin_live(queue integer, r request, now_ms bigint, origin json) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
BEGIN
    LOOP
        number := nextval('numbers');
        INSERT INTO live (q, id, state, priority, run_at, seq, first, revision, enqueued_at,
                          payload, attributes, overrides, retention, origin, key)
        VALUES (queue, r.id, 'w', r.priority, r.run_at, number, number, number, now_ms,
                r.payload, r.attributes, r.overrides, r.retention, origin, r.key)
        ON CONFLICT (q, id) DO NOTHING;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        -- If the sequence still stands at our number, no run can have a higher one.
        IF number = pg_sequence_last_value('numbers') OR NOT ended_since(queue, ARRAY[r.id], number) THEN
            PERFORM note_start(queue, r.priority, r.run_at, number);
            RETURN number;
        END IF;
        DELETE FROM live WHERE q = queue AND id = r.id;
    END LOOP;
END $$;

-- set_data(successor, request) -> the successor with the data of the request.
CREATE OR REPLACE FUNCTION set_data(s successor, r request) RETURNS successor LANGUAGE plpgsql AS $$
BEGIN
    s.payload := r.payload;
    s.attributes := r.attributes;
    s.priority := r.priority;
    s.overrides := r.overrides;
    s.retention := r.retention;
    s.key := r.key;
    RETURN s;
END $$;

-- hold_bound(queue, ids) -> the row of a queue with max_waiting. Until the end of this transaction, no other enqueue to
-- the queue counts its jobs, and none of the ids that are live changes. So all waits of the call are over before it
-- counts.
CREATE OR REPLACE FUNCTION hold_bound(qu queues, ids text[]) RETURNS queues LANGUAGE plpgsql AS $$
BEGIN
    IF has_snapshot() THEN
        RAISE EXCEPTION USING ERRCODE = 'feature_not_supported', MESSAGE = format(
            'the queue %s has the setting max_waiting, and the isolation level of this transaction is %s, which does not '
            'show the jobs that others enqueued since its first statement; use READ COMMITTED, or remove max_waiting',
            qu.name, current_setting('transaction_isolation'));
    END IF;
    PERFORM 1 FROM bounds b WHERE b.q = qu.q FOR UPDATE;
    PERFORM lock_ids(qu.q, ids);
    -- A configure that returned during the wait.
    SELECT * INTO qu FROM queues WHERE q = qu.q;
    RETURN qu;
END $$;

-- count_waiting(queue, most) -> the number of waiting jobs, counted up to `most`. The index has the active jobs, too.
CREATE OR REPLACE FUNCTION count_waiting(qu queues, most bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    active bigint := (SELECT count(*) FROM active_runs(qu.q, NULL));
    waiting bigint := (SELECT count(*) FROM (
        SELECT 1 FROM live l WHERE l.q = qu.q AND l.state = 'w' LIMIT most + active) x) - active;
BEGIN
    IF qu.has_held_back AND waiting < most THEN
        waiting := least(most, waiting + (SELECT count(*) FROM (
            SELECT 1 FROM live l WHERE l.q + 0 = qu.q AND l.state = 'k' LIMIT most) x));
    END IF;
    RETURN waiting;
END $$;

-- admit_once(queue, now, request, room, request key) -> the answer of admit() for a request that acts once. Of two
-- concurrent requests with the same new key, the second waits here for the first one's answer.
CREATE OR REPLACE FUNCTION admit_once(qu queues, now_ms bigint, r request, room bigint, once text) RETURNS admission
LANGUAGE plpgsql AS $$
DECLARE
    known request_keys;
    a admission;
BEGIN
    INSERT INTO request_keys VALUES (qu.q, once, '', '', 0, 0, 0) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT * INTO known FROM request_keys WHERE q = qu.q AND key = once FOR UPDATE;
    END IF;
    IF known.expires_at > now_ms THEN
        RETURN (known.status, known.found, known.first, known.revision, '{}', room, true, known.id, NULL, NULL)::admission;
    END IF;
    a := admit(qu, now_ms, r, room);
    IF a.status IN ('full', 'dropped') THEN
        -- Only the row of this call: another one may wait for the row of an expired key.
        DELETE FROM request_keys WHERE q = qu.q AND key = once AND expires_at = 0;
    ELSE
        UPDATE request_keys SET status = a.status, found = a.was, first = a.first, revision = a.revision,
            expires_at = now_ms + qu.request_key_age, id = CASE WHEN a.status <> 'absent' THEN r.id END
        WHERE q = qu.q AND key = once;
    END IF;
    RETURN a;
END $$;

-- admit(queue, now, request, room) -> the answer to one request, by the table in contract 3. `room` is the number of
-- new jobs that max_waiting still allows, and `left_room` that number afterwards; NULL for no bound, as for follow-ups.
-- The id stays locked until the end of the transaction; so does an id that an update-only request finds absent.
CREATE OR REPLACE FUNCTION admit(qu queues, now_ms bigint, r request, room bigint) RETURNS admission LANGUAGE plpgsql AS $$
DECLARE
    j live;
    a admission;
BEGIN
    LOOP
        SELECT * INTO j FROM live WHERE q = qu.q AND id = r.id FOR UPDATE;
        EXIT WHEN FOUND;
        a := admit_absent(qu, now_ms, r, room);
        IF a.status IS NOT NULL THEN
            RETURN a;
        END IF;
        room := a.left_room;
    END LOOP;
    a := (NULL, CASE WHEN j.fence IS NULL THEN 'waiting' WHEN (j.next).revision IS NULL THEN 'active'
          ELSE 'active+blocked' END, j.first, j.revision, '{}', room, false, NULL, NULL, NULL)::admission;
    IF r.how & 16 <> 0 THEN
        a.status := 'duplicate';
        RETURN a;
    END IF;
    IF r.how & 64 <> 0 AND r.attributes IS NOT NULL THEN
        j := add_attributes(j, r.attributes);
        -- MOST_ATTRIBUTES in dibs/model/rules.py
        IF greatest(size_of(j.attributes), size_of((j.next).attributes)) > 65536 THEN
            RETURN ('full', a.was, 0, 0, '{}', room, false, NULL, NULL, NULL)::admission;
        END IF;
    END IF;
    a.revision := nextval('numbers');
    IF j.fence IS NULL THEN
        a.status := 'updated';
        a.logged := renew_waiting(qu, j, r, now_ms, a.revision);
        RETURN a;
    END IF;
    a.status := 'blocked';
    j.next := folded(j.next, r, r.run_at, now_ms, a.revision);
    a.first := (j.next).first;
    UPDATE live SET
        next = j.next,
        attributes = CASE WHEN r.how & 64 <> 0 THEN j.attributes ELSE attributes END
    WHERE q = j.q AND id = j.id;
    IF qu.log_level = 'all' THEN
        a.logged := ARRAY[next_event('blocked', j.id, j.next, now_ms, NULL)];
    END IF;
    IF r.how & 128 <> 0 THEN
        a.over := j.state = 'h';
        IF a.over THEN
            -- The outcome before this end. The successor waits now.
            a.before := (SELECT e FROM ended e WHERE e.q = j.q AND e.id = j.id);
            a.left_room := room - 1;
        END IF;
        a.logged := a.logged || ask_to_end(qu, j, now_ms);
    END IF;
    RETURN a;
END $$;

-- admit_absent(queue, now, request, room) -> the answer to a request whose id was not live; without a status if the id
-- has become live. Under READ COMMITTED, a SELECT that waits for the end of a run does not show the row that a
-- follow-up of this end inserts for the same id. So before an answer that makes no job, the id is looked up in `live`
-- again.
CREATE OR REPLACE FUNCTION admit_absent(qu queues, now_ms bigint, r request, room bigint) RETURNS admission
LANGUAGE plpgsql AS $$
DECLARE
    a admission := (NULL, 'nothing', 0, 0, '{}', room, false, NULL, NULL, NULL);
    j live;
BEGIN
    IF has_snapshot() THEN
        PERFORM check_snapshot(qu.q, r.id);
    END IF;
    IF r.how & 16 <> 0 THEN
        SELECT kind, first, revision INTO a.status, a.first, a.revision FROM ended
        WHERE q = qu.q AND id = r.id AND (expires_at IS NULL OR expires_at > now_ms)
          AND (kind = 'completed' OR kind = 'failed' AND r.how & 32 <> 0);
    ELSIF r.how & 64 <> 0 THEN
        a.status := CASE WHEN hold_absent(qu.q, r.id) THEN 'absent' END;
        RETURN a;
    END IF;
    IF a.status IS NULL AND room <= 0 THEN
        a.status := CASE qu.when_full WHEN 'refuse' THEN 'full' ELSE 'dropped' END;
        a.first := 0;
        a.revision := 0;
    END IF;
    IF a.status IS NOT NULL THEN
        PERFORM 1 FROM live WHERE q = qu.q AND id = r.id;
        a.status := CASE WHEN NOT FOUND THEN a.status END;
        RETURN a;
    END IF;
    a.revision := begin_live(qu.q, r, now_ms, NULL);
    IF a.revision IS NULL AND room IS NOT NULL THEN
        -- The insert waited for another transaction, which may have brought jobs back.
        a.left_room := qu.max_waiting - count_waiting(qu, qu.max_waiting);
    ELSIF a.revision IS NOT NULL THEN
        a.status := 'queued';
        a.first := a.revision;
        IF qu.fair THEN
            PERFORM move_turn(qu, NULL, r.id);
        END IF;
        a.left_room := room - 1;
        IF qu.log_level = 'all' THEN
            SELECT * INTO j FROM live WHERE q = qu.q AND id = r.id;
            a.logged := ARRAY[note_event('queued', j, now_ms)];
        END IF;
    END IF;
    RETURN a;
END $$;

-- add_attributes(job, attributes) -> the job with the attributes of an update-only request merged into its own, and
-- into those of a successor that makes a job.
CREATE OR REPLACE FUNCTION add_attributes(j live, given json) RETURNS live LANGUAGE plpgsql AS $$
DECLARE
    s successor := j.next;
BEGIN
    j.attributes := merged(j.attributes, given);
    IF s.seq > 0 THEN
        s.attributes := merged(s.attributes, given);
        j.next := s;
    END IF;
    RETURN j;
END $$;

-- renew_waiting(queue, job, request, now, number) -> the events to log. Updates a waiting job, which keeps its seq and
-- so its position among equal jobs. A parked job, whose seq is 0, gets one if the request moves or wakes it. The memo
-- belongs to the data: a request that replaces the data drops it. `job` has the attributes of an update-only request.
CREATE OR REPLACE FUNCTION renew_waiting(qu queues, j live, r request, now_ms bigint, number bigint) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    replaces boolean := r.how & 4 = 0;
    resets boolean := r.how & 8 = 0;
    parked boolean := j.seq = 0;
    wakes boolean := parked AND r.how & 256 <> 0;
    before live := j;
BEGIN
    IF j.key IS NOT NULL THEN
        PERFORM free_key(j);
    END IF;
    UPDATE live SET
        state = 'w',
        run_at = CASE WHEN wakes THEN least(run_at, now_ms) ELSE moved(run_at, r.how & 3, r.run_at) END,
        seq = CASE WHEN wakes OR parked AND r.how & 3 <> 1 THEN number ELSE seq END,
        revision = number, enqueues = enqueues + 1,
        payload = CASE WHEN replaces THEN r.payload ELSE payload END,
        priority = CASE WHEN replaces THEN r.priority ELSE priority END,
        attributes = CASE WHEN replaces THEN r.attributes WHEN r.how & 64 <> 0 THEN j.attributes ELSE attributes END,
        overrides = CASE WHEN replaces THEN r.overrides ELSE overrides END,
        retention = CASE WHEN replaces THEN r.retention ELSE retention END,
        key = CASE WHEN replaces THEN r.key ELSE key END,
        memo = CASE WHEN replaces THEN NULL ELSE memo END,
        attempts = CASE WHEN resets THEN 0 ELSE attempts END,
        retries = CASE WHEN resets THEN 0 ELSE retries END,
        stalls = CASE WHEN resets THEN 0 ELSE stalls END,
        timeouts = CASE WHEN resets THEN 0 ELSE timeouts END,
        error = CASE WHEN resets THEN NULL ELSE error END
    WHERE q = j.q AND id = j.id RETURNING * INTO j;
    PERFORM note_start(j.q, j.priority, j.run_at, j.seq);
    IF qu.fair THEN
        PERFORM move_turn(qu, before, j.id);
    END IF;
    RETURN CASE WHEN qu.log_level = 'all' THEN ARRAY[note_event('updated', j, now_ms)] ELSE '{}' END;
END $$;

-- has_snapshot() -> true under REPEATABLE READ and SERIALIZABLE: every statement then reads the rows as they were when
-- the transaction began to read.
CREATE OR REPLACE FUNCTION has_snapshot() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted')
$$;

-- check_snapshot(queue number, id): raise a serialization failure if an id that the snapshot of this transaction shows
-- as not live was enqueued, or has ended, since then. Under READ COMMITTED this does nothing. Postgres raises the
-- failure when a row is locked that was changed after the snapshot, and when an insert meets a row that the snapshot
-- does not show. So a missing row is inserted and deleted again; until the end of this transaction, no other can insert
-- it.
CREATE OR REPLACE FUNCTION check_snapshot(queue integer, wanted text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM hold_absent(queue, wanted);
    PERFORM 1 FROM ended WHERE q = queue AND id = wanted FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM leave_trace(queue, wanted, 0);
        DELETE FROM ended WHERE q = queue AND id = wanted;
    END IF;
END $$;

-- joined(identity, queue) -> the queue if this schema is the one that the app has opened, else no row. The statements
-- in a transaction of the caller begin with it. `identity` is the result of the query `identity` in sql/place.sql. A
-- queue that was made after the snapshot of the transaction raises a serialization failure.
CREATE OR REPLACE FUNCTION joined(wanted text, queue text) RETURNS SETOF text LANGUAGE plpgsql {pinned} AS $$
BEGIN
    IF wanted <> (
        SELECT current_database() || ' ' || (extract(epoch FROM min(applied_at)) * 1000000)::bigint FROM migrations
    ) THEN
        RETURN;
    END IF;
    IF has_snapshot() AND NOT EXISTS (SELECT 1 FROM queues k WHERE k.name = joined.queue) THEN
        INSERT INTO queues (name) VALUES (joined.queue) ON CONFLICT DO NOTHING;
        DELETE FROM queues k WHERE k.name = joined.queue;
    END IF;
    RETURN NEXT queue;
END $$;

-- hold_absent(queue number, id) -> true if the id is not live. Then no other call can create the id until the end of
-- this transaction. It waits for a call that is creating or removing the id. The inserted row is in no index but the
-- primary key.
CREATE OR REPLACE FUNCTION hold_absent(queue integer, wanted text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO live (q, id, state, priority, run_at, seq, first, revision, enqueued_at, payload)
    VALUES (queue, wanted, 'x', 0, 0, 0, 0, 0, 0, '') ON CONFLICT (q, id) DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM live WHERE q = queue AND id = wanted;
    RETURN true;
END $$;

-- lock_ids(queue number, ids) -> true if any of the ids is live (waiting or active). Locks the rows of the live ids in
-- sorted order, so that two batches cannot deadlock. The LATERAL subquery makes one index lookup per id. Why not = ANY:
-- before Postgres 17 it reads the whole queue (15 ms for 100 of 20,000 ids). A plain join that was planned while the
-- table was empty also reads the whole queue (70 ms).
CREATE OR REPLACE FUNCTION lock_ids(queue integer, ids text[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM (SELECT u.id FROM unnest(ids) AS u (id) ORDER BY u.id COLLATE "C") a,
        LATERAL (SELECT 1 FROM live j WHERE j.q = queue AND j.id = a.id FOR UPDATE) one;
    RETURN FOUND;
END $$;
