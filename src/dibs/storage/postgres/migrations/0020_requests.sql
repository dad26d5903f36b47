-- Requests with a key, and update-only requests: what the verb enqueue does.

-- In `how`, 64 marks an update-only request, which leaves an id without a live job unchanged.
ALTER TYPE request ADD ATTRIBUTE key text;

-- folded(successor, request, at, now, number) -> the successor with one more request merged into it, or a new successor
-- if it is NULL. `lo` and `hi` change as in dibs.model.fold.
CREATE OR REPLACE FUNCTION folded(s successor, r request, at bigint, now_ms bigint, number bigint) RETURNS successor
LANGUAGE plpgsql AS $$
DECLARE
    rule integer := r.how & 3;
    makes_job boolean := r.how & 64 = 0;
BEGIN
    IF s.revision IS NULL THEN
        RETURN (r.payload, r.attributes, r.priority, r.overrides, r.retention, r.how & 4 = 0,
                CASE WHEN makes_job THEN at ELSE 0 END,
                CASE WHEN rule IN (0, 2) THEN at END, CASE WHEN rule IN (0, 3) THEN at END,
                r.how & 8 = 0, now_ms, CASE WHEN makes_job THEN number ELSE 0 END, number, number, 1,
                r.key, makes_job)::successor;
    END IF;
    IF makes_job AND s.creates IS FALSE THEN
        s := set_data(s, r);
        s.creates := true;
        s.run_at := at;
        s.seq := number;
        s.enqueued_at := now_ms;
    END IF;
    IF r.how & 4 = 0 THEN
        s := set_data(s, r);
        s.replaces := true;
    END IF;
    IF s.creates IS NOT FALSE THEN
        s.run_at := moved(s.run_at, rule, at);
    END IF;
    IF rule = 0 THEN
        s.lo := at;
        s.hi := at;
    ELSIF rule = 2 THEN
        s.lo := greatest(s.lo, at);
        s.hi := CASE WHEN s.hi IS NULL THEN NULL ELSE greatest(s.hi, at) END;
    ELSIF rule = 3 THEN
        s.lo := CASE WHEN s.lo IS NULL THEN NULL ELSE least(s.lo, at) END;
        s.hi := least(s.hi, at);
    END IF;
    s.resets := s.resets OR r.how & 8 = 0;
    s.revision := number;
    s.enqueues := s.enqueues + 1;
    RETURN s;
END $$;

-- set_data(successor, request) -> the successor with the data of the request.
CREATE FUNCTION set_data(s successor, r request) RETURNS successor LANGUAGE plpgsql AS $$
BEGIN
    s.payload := r.payload;
    s.attributes := r.attributes;
    s.priority := r.priority;
    s.overrides := r.overrides;
    s.retention := r.retention;
    s.key := r.key;
    RETURN s;
END $$;

-- begin_live(queue, request, now, origin): as before, with the key of the request.
CREATE OR REPLACE FUNCTION begin_live(qu queues, r request, now_ms bigint, origin json) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
BEGIN
    LOOP
        number := nextval('numbers');
        INSERT INTO live (q, id, state, priority, run_at, seq, first, revision, enqueued_at,
                          payload, attributes, overrides, retention, origin, key)
        VALUES (qu.q, r.id, 'w', r.priority, r.run_at, number, number, number, now_ms,
                r.payload, r.attributes, r.overrides, r.retention, origin, r.key)
        ON CONFLICT (q, id) DO NOTHING;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        PERFORM 1 FROM ended WHERE q = qu.q AND id = r.id AND greatest(fence, revision) >= number;
        IF NOT FOUND THEN
            RETURN number;
        END IF;
        DELETE FROM live WHERE q = qu.q AND id = r.id;
    END LOOP;
END $$;

-- renew_waiting(queue, job, request, now, number) -> the events to log. Updates a waiting job, which keeps its seq and
-- so its position among equal jobs. The memo belongs to the data: a request that replaces the data drops it.
CREATE OR REPLACE FUNCTION renew_waiting(qu queues, j live, r request, now_ms bigint, number bigint) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    replaces boolean := r.how & 4 = 0;
    resets boolean := r.how & 8 = 0;
BEGIN
    IF j.key IS NOT NULL THEN
        PERFORM free_key(j);
    END IF;
    UPDATE live SET
        state = 'w',
        run_at = moved(run_at, r.how & 3, r.run_at),
        revision = number, enqueues = enqueues + 1,
        payload = CASE WHEN replaces THEN r.payload ELSE payload END,
        priority = CASE WHEN replaces THEN r.priority ELSE priority END,
        attributes = CASE WHEN replaces THEN r.attributes ELSE attributes END,
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
    RETURN CASE WHEN qu.log_level = 'all' THEN ARRAY[note_event('updated', j, now_ms)] ELSE '{}' END;
END $$;

-- admit(queue, now, request) -> status, was, first, revision, and the events to log. Enqueues one job by the table in
-- contract 3. The id stays locked until the end of the transaction; so does an id that an update-only request finds
-- absent.
-- Under READ COMMITTED, a SELECT that waits for the end of a run does not show the row that a follow-up of this end
-- inserts for the same id. So under Reject, an id with an outcome is looked up in `live` again.
CREATE OR REPLACE FUNCTION admit(
    qu queues, now_ms bigint, r request,
    OUT status text, OUT was text, OUT first bigint, OUT revision bigint, OUT told text[]
) LANGUAGE plpgsql AS $$
DECLARE
    j live;
    o ended;
    rejects boolean := r.how & 16 <> 0;
BEGIN
    told := '{}';
    LOOP
        SELECT * INTO j FROM live WHERE q = qu.q AND id = r.id FOR UPDATE;
        EXIT WHEN FOUND;
        PERFORM check_snapshot(qu, r.id);
        IF rejects THEN
            SELECT * INTO o FROM ended
            WHERE q = qu.q AND id = r.id AND (expires_at IS NULL OR expires_at > now_ms)
              AND (kind = 'completed' OR kind = 'failed' AND r.how & 32 <> 0);
            IF FOUND THEN
                PERFORM 1 FROM live WHERE q = qu.q AND id = r.id;
                CONTINUE WHEN FOUND;
                status := o.kind;
                was := 'nothing';
                first := o.first;
                revision := o.revision;
                RETURN;
            END IF;
        ELSIF r.how & 64 <> 0 THEN
            CONTINUE WHEN NOT hold_absent(qu, r.id);
            status := 'absent';
            was := 'nothing';
            first := 0;
            revision := 0;
            RETURN;
        END IF;
        revision := begin_live(qu, r, now_ms, NULL);
        IF revision IS NOT NULL THEN
            status := 'queued';
            was := 'nothing';
            first := revision;
            IF qu.log_level = 'all' THEN
                SELECT * INTO j FROM live WHERE q = qu.q AND id = r.id;
                told := ARRAY[note_event('queued', j, now_ms)];
            END IF;
            RETURN;
        END IF;
    END LOOP;
    was := CASE WHEN j.fence IS NULL THEN 'waiting' WHEN (j.next).revision IS NULL THEN 'active'
             ELSE 'active+blocked' END;
    IF rejects THEN
        status := 'duplicate';
        first := j.first;
        revision := j.revision;
        RETURN;
    END IF;
    revision := nextval('numbers');
    IF was = 'waiting' THEN
        status := 'updated';
        first := j.first;
        told := renew_waiting(qu, j, r, now_ms, revision);
        RETURN;
    END IF;
    j.next := folded(j.next, r, r.run_at, now_ms, revision);
    UPDATE live SET next = j.next WHERE q = j.q AND id = j.id;
    status := 'blocked';
    first := (j.next).first;
    IF qu.log_level = 'all' THEN
        told := ARRAY[next_event('blocked', j.id, j.next, now_ms, NULL)];
    END IF;
END $$;

DROP FUNCTION enqueue_new(queues, bigint, text[], bytea[], smallint[], bigint[], text[], text[], text[]);

-- enqueue_new(...) -> the numbers of the new jobs in the order of `ids`, for a batch without repeated ids. If an id is
-- not new, it returns NULL and inserts no job; the live ids are then locked, in sorted order.
CREATE FUNCTION enqueue_new(
    qu queues, now_ms bigint, ids text[], payloads bytea[], priorities smallint[], whens bigint[],
    attributes text[], overrides text[], retentions text[], keys text[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    drawn bigint[];
    taken integer;
BEGIN
    IF has_snapshot() THEN
        -- admit() compares each id with the rows that the snapshot does not show.
        RETURN NULL;
    END IF;
    IF cardinality(ids) = 1 THEN
        -- Without unnest(), a single job takes a third of the time.
        drawn[1] := begin_live(qu, (
            ids[1], payloads[1], coalesce(priorities[1], 0), attributes[1], overrides[1], retentions[1],
            start_time(whens[1], now_ms), 0, keys[1])::request, now_ms, NULL);
        RETURN CASE WHEN drawn[1] IS NOT NULL THEN drawn END;
    END IF;
    IF lock_ids(qu, ids) THEN
        RETURN NULL;
    END IF;
    drawn := ARRAY(SELECT nextval('numbers') FROM generate_series(1, cardinality(ids)));
    INSERT INTO live (q, id, state, priority, run_at, seq, first, revision, enqueued_at,
                      payload, attributes, overrides, retention, key)
    SELECT qu.q, a.id, 'w', coalesce(a.priority, 0), start_time(a.said, now_ms), a.n, a.n, a.n, now_ms,
           a.payload, a.attributes::json, a.overrides::json, a.retention::jsonb, a.key
    FROM unnest(ids, payloads, priorities, whens, attributes, overrides, retentions, keys, drawn)
        AS a (id, payload, priority, said, attributes, overrides, retention, key, n)
    ORDER BY a.id COLLATE "C"
    ON CONFLICT (q, id) DO NOTHING;
    GET DIAGNOSTICS taken = ROW_COUNT;
    -- If the sequence still stands at our last number, no id can have ended under a higher number.
    IF taken < cardinality(ids) OR drawn[taken] < (SELECT last_value FROM numbers) AND EXISTS (
        SELECT 1 FROM unnest(ids) AS a (id),
            LATERAL (SELECT * FROM ended e WHERE e.q = qu.q AND e.id = a.id OFFSET 0) o
        WHERE greatest(o.fence, o.revision) >= drawn[1]
    ) THEN
        -- Another transaction used one of the ids between lock_ids() and the insert. Remove our rows; the caller
        -- then enqueues each job with admit().
        DELETE FROM live l USING unnest(ids, drawn) AS a (id, n)
        WHERE l.q = qu.q AND l.id = a.id AND l.revision = a.n AND l.first = a.n;
        RETURN NULL;
    END IF;
    RETURN drawn;
END $$;

DROP FUNCTION enqueue(
    text, bigint, boolean, text[], bytea[], smallint[], bigint[], integer[], text[], text[], text[], text[], boolean[]);

-- enqueue(queue, now, one array per field) -> one row of arrays in the order of the requests, and one more row for
-- each existing outcome that a request wants. `statuses` NULL means: all queued as new jobs, with first = revision.
-- `plain` says that no id is repeated and that no request is update-only or has Reject, request_key or want_outcome. A
-- field that is NULL in every request may be passed as a NULL array. `job_keys` has the keys of the jobs, and `once` the
-- request keys. `repeats` says which requests repeat a request_key, and `first_ids` has the id of the first request with
-- that key; NULL for an answer absent, and for a key that was stored before 0011_request_keys.sql.
CREATE FUNCTION enqueue(
    queue text, manual bigint, plain boolean, ids text[], payloads bytea[], priorities smallint[],
    whens bigint[], hows integer[], attributes text[], overrides text[], retentions text[],
    job_keys text[], once text[], wants boolean[]
) RETURNS TABLE (
    statuses text[], founds text[], firsts bigint[], revisions bigint[], repeats boolean[],
    first_ids text[], place integer, kept ended
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues := queue_of(queue);
    now_ms bigint;
    r request;
    known request_keys;
    answer record;
    told text[] := '{}';
    i integer;
    -- Assigns a transaction id. prune() keeps rows of ids that ended during a running transaction, and finds running
    -- transactions by their ids.
    myself xid8 := pg_current_xact_id();
BEGIN
    now_ms := tick(manual);
    IF plain THEN
        revisions := enqueue_new(qu, now_ms, ids, payloads, priorities, whens, attributes, overrides,
                                 retentions, job_keys);
        IF revisions IS NOT NULL THEN
            IF qu.log_level = 'all' THEN
                told := notes_of(qu, 'queued', ids, now_ms);
                PERFORM tell(qu, now_ms, told);
            END IF;
            PERFORM ring(qu, true, cardinality(told) > 0, NULL);
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    FOR i IN 1 .. cardinality(ids) LOOP
        IF once[i] IS NOT NULL THEN
            -- Of two concurrent requests with the same new key, the second waits here for the first one's answer.
            INSERT INTO request_keys VALUES (qu.q, once[i], '', '', 0, 0, 0) ON CONFLICT DO NOTHING;
            SELECT * INTO known FROM request_keys WHERE q = qu.q AND key = once[i] FOR UPDATE;
            IF known.expires_at > now_ms THEN
                statuses[i] := known.status;
                founds[i] := known.found;
                firsts[i] := known.first;
                revisions[i] := known.revision;
                repeats[i] := true;
                first_ids[i] := known.id;
                CONTINUE;
            END IF;
        END IF;
        r := (ids[i], payloads[i], coalesce(priorities[i], 0), attributes[i], overrides[i], retentions[i],
              start_time(whens[i], now_ms), coalesce(hows[i], 0), job_keys[i])::request;
        answer := admit(qu, now_ms, r);
        statuses[i] := answer.status;
        founds[i] := answer.was;
        firsts[i] := answer.first;
        revisions[i] := answer.revision;
        repeats[i] := false;
        first_ids[i] := NULL;
        told := told || answer.told;
        IF once[i] IS NOT NULL THEN
            UPDATE request_keys SET status = answer.status, found = answer.was, first = answer.first,
                revision = answer.revision, expires_at = now_ms + qu.request_key_age,
                id = CASE WHEN answer.status <> 'absent' THEN ids[i] END
            WHERE q = qu.q AND key = once[i];
        END IF;
    END LOOP;
    PERFORM tell(qu, now_ms, told);
    PERFORM ring(qu, true, cardinality(told) > 0, NULL);
    RETURN NEXT;
    statuses := NULL;
    FOR i IN 1 .. coalesce(cardinality(wants), 0) LOOP
        IF wants[i] THEN
            place := i;
            SELECT e.* INTO kept FROM ended e
            WHERE e.q = qu.q AND e.id = ids[i] AND (e.expires_at IS NULL OR e.expires_at > now_ms);
            IF FOUND THEN
                RETURN NEXT;
            END IF;
        END IF;
    END LOOP;
END $$;

-- asked_for(item, now) -> a follow-up as a request. The item is a FollowUp in the JSON that
-- dibs/storage/postgres/codec/parameters.py writes.
CREATE OR REPLACE FUNCTION asked_for(item json, now_ms bigint) RETURNS request LANGUAGE sql STABLE AS $$
    SELECT (item ->> 'id', decode(item ->> 'payload', 'base64'), (item ->> 'priority')::smallint,
            item -> 'attributes', item -> 'overrides', (item -> 'retention')::jsonb,
            start_time((item ->> 'when')::bigint, now_ms), (item ->> 'how')::integer, item ->> 'key')::request
$$;
