-- The verbs that change given ids (cancel, amend, retry_failed, forget), and configure.

-- drop_next(queue, job, now) -> the events to log. Removes the successor. The revisions of its enqueues become a
-- dropped range, which remembers that they were cancelled (contract 1, When an enqueue is done). The range is joined to
-- the latest one if no revision of the current lies between the two. Otherwise the ranges inside the current or the
-- outcome stay, at most eight.
CREATE FUNCTION drop_next(qu queues, j live, now_ms bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    o ended;
    ranges bigint[];
    kept bigint[] := '{}';
    i integer;
BEGIN
    SELECT * INTO o FROM ended WHERE q = j.q AND id = j.id FOR UPDATE;
    ranges := coalesce(o.dropped, '{}') || coalesce(j.dropped, '{}');
    IF cardinality(ranges) > 0 AND j.revision < ranges[cardinality(ranges) - 1] THEN
        kept := ranges;
        kept[cardinality(kept)] := (j.next).revision;
    ELSE
        FOR i IN 1 .. cardinality(ranges) BY 2 LOOP
            IF j.first <= ranges[i] AND ranges[i + 1] <= j.revision
               OR o.first <= ranges[i] AND ranges[i + 1] <= o.revision
                  AND (o.expires_at IS NULL OR o.expires_at > now_ms) THEN
                kept := kept || ranges[i] || ranges[i + 1];
            END IF;
        END LOOP;
        kept := kept || (j.next).first || (j.next).revision;
    END IF;
    UPDATE ended SET dropped = NULL WHERE q = j.q AND id = j.id AND dropped IS NOT NULL;
    UPDATE live SET next = NULL, dropped = latest_dropped(kept) WHERE q = j.q AND id = j.id;
    IF qu.log_level = 'off' THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY[next_event('cancelled', j.id, j.next, now_ms, now_ms)];
END $$;

-- cancel_one(queue, now, id, running) -> the status of the id and the events to log (contract 3, cancel).
CREATE FUNCTION cancel_one(
    qu queues, now_ms bigint, wanted text, running boolean, OUT status text, OUT told text[]
) LANGUAGE plpgsql AS $$
DECLARE
    j live;
BEGIN
    told := '{}';
    SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted FOR UPDATE;
    IF NOT FOUND THEN
        SELECT kind INTO status FROM ended
        WHERE q = qu.q AND id = wanted AND (expires_at IS NULL OR expires_at > now_ms);
        status := coalesce(status, 'not_found');
        RETURN;
    ELSIF j.state = 'w' THEN
        status := 'cancelled';
        told := end_run(qu, j, 'cancelled', now_ms, NULL, NULL, NULL);
        RETURN;
    END IF;
    status := 'active';
    IF (j.next).seq IS NOT NULL THEN
        status := 'cancelled';
        told := drop_next(qu, j, now_ms);
    END IF;
    IF NOT running THEN
        RETURN;
    END IF;
    SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted;
    IF j.state = 'h' THEN
        status := 'cancelled';
        told := told || end_run(qu, j, 'cancelled', now_ms, NULL, NULL, NULL);
        RETURN;
    END IF;
    status := 'requested';
    IF j.cancel_requested IS NOT TRUE THEN
        UPDATE live SET cancel_requested = true WHERE q = j.q AND id = j.id;
        IF qu.log_level = 'all' THEN
            told := told || note_event('cancel_requested', j, now_ms);
        END IF;
    END IF;
END $$;

-- cancel(queue, ids, running, now) -> statuses in the order of the ids.
CREATE FUNCTION cancel(queue text, ids text[], running boolean, manual bigint) RETURNS text[]
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    answer record;
    statuses text[] := '{}';
    told text[] := '{}';
    wanted text;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    PERFORM lock_ids(qu, ids);
    FOREACH wanted IN ARRAY ids LOOP
        answer := cancel_one(qu, now_ms, wanted, running);
        statuses := statuses || answer.status;
        told := told || answer.told;
    END LOOP;
    IF 'cancelled' = ANY (statuses) OR cardinality(told) > 0 THEN
        PERFORM tell(qu, now_ms, told);
        PERFORM ring(qu, false, cardinality(told) > 0, ids);
    END IF;
    RETURN statuses;
END $$;

-- merged(attributes, patch) -> the attributes, with the top-level keys of the patch replaced or added.
CREATE FUNCTION merged(old json, patch json) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_object_agg(key, value) FROM (
        SELECT key, value FROM json_each(coalesce(old, '{}'))
        WHERE key NOT IN (SELECT json_object_keys(patch))
        UNION ALL SELECT key, value FROM json_each(patch)) both_of_them
$$;

-- size_of(attributes) -> the number of bytes of all names and values, to which a limit applies.
CREATE FUNCTION size_of(attributes json) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(octet_length(key) + octet_length(value::text)), 0) FROM json_each(attributes)
$$;

-- amend(queue, id, patch, payload, now) -> amended, active or not_found. If the attributes would grow beyond `most`
-- bytes, it returns their size as text and changes nothing. The keys of `patch` are the fields to change: attributes,
-- when, priority, retention, payload. The payload itself is a separate argument.
CREATE FUNCTION amend(queue text, wanted text, patch json, new_payload bytea, most bigint, manual bigint)
RETURNS text LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    j live;
    o ended;
    s successor;
    asks text[] := ARRAY(SELECT json_object_keys(patch));
    given jsonb := (patch -> 'retention')::jsonb;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted FOR UPDATE;
    SELECT * INTO o FROM ended
    WHERE q = qu.q AND id = wanted AND (expires_at IS NULL OR expires_at > now_ms) FOR UPDATE;
    IF j.id IS NULL AND (asks <> '{retention}' OR o.id IS NULL) THEN
        RETURN 'not_found';
    ELSIF j.state <> 'w' AND asks && '{payload,when,priority}' THEN
        RETURN 'active';
    END IF;
    s := j.next;
    IF 'attributes' = ANY (asks) THEN
        j.attributes := merged(j.attributes, patch -> 'attributes');
        IF s.seq IS NOT NULL THEN
            s.attributes := merged(s.attributes, patch -> 'attributes');
        END IF;
        IF greatest(size_of(j.attributes), size_of(s.attributes)) > most THEN
            RETURN greatest(size_of(j.attributes), size_of(s.attributes));
        END IF;
    END IF;
    IF s.seq IS NOT NULL AND 'retention' = ANY (asks) THEN
        s.retention := given;
    END IF;
    UPDATE live SET
        attributes = j.attributes,
        payload = CASE WHEN 'payload' = ANY (asks) THEN new_payload ELSE payload END,
        priority = CASE WHEN 'priority' = ANY (asks) THEN (patch ->> 'priority')::smallint ELSE priority END,
        retention = CASE WHEN 'retention' = ANY (asks) THEN given ELSE retention END,
        run_at = CASE WHEN 'when' = ANY (asks) THEN start_time((patch ->> 'when')::bigint, now_ms)
                 ELSE run_at END,
        next = CASE WHEN s.seq IS NULL THEN NULL ELSE s END
    WHERE q = j.q AND id = j.id RETURNING * INTO j;
    IF o.id IS NOT NULL AND 'retention' = ANY (asks) THEN
        UPDATE ended SET expires_at = expiry(kind, now_ms, given, NULL, qu.retention)
        WHERE q = o.q AND id = o.id;
    END IF;
    IF qu.log_level = 'all' THEN
        PERFORM tell(qu, now_ms, ARRAY[CASE WHEN j.id IS NULL THEN queue_event('amended', wanted, now_ms)
                                       ELSE note_event('amended', j, now_ms) END]);
    END IF;
    PERFORM ring(qu, asks && '{when,priority}', qu.log_level = 'all', NULL);
    RETURN 'amended';
END $$;

-- queue_event(kind, id, now) -> an event about a queue, or about an id without a job; logged at level `all` only.
CREATE FUNCTION queue_event(kind text, id text, now_ms bigint) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT json_build_array(kind, id, now_ms)::text
$$;

-- retry_failed(queue, ids, now) -> statuses in the order of the ids. Removes the failed outcome and makes the job wait
-- from now on, with counts 0 and a new revision. The insert of the new row locks the id before the outcome is read.
CREATE FUNCTION retry_failed(queue text, ids text[], manual bigint) RETURNS text[]
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    o ended;
    j live;
    statuses text[] := '{}';
    told text[] := '{}';
    wanted text;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    PERFORM pg_current_xact_id();
    FOREACH wanted IN ARRAY ids LOOP
        SELECT * INTO o FROM ended
        WHERE q = qu.q AND id = wanted AND (expires_at IS NULL OR expires_at > now_ms) FOR UPDATE;
        PERFORM 1 FROM live WHERE q = qu.q AND id = wanted;
        IF FOUND THEN
            statuses := statuses || 'live'::text;
            CONTINUE;
        ELSIF o.kind IS DISTINCT FROM 'failed' OR o.payload IS NULL THEN
            statuses := statuses || CASE WHEN o.kind = 'failed' THEN 'not_kept'
                                         ELSE coalesce(o.kind, 'not_found') END;
            CONTINUE;
        END IF;
        IF begin_live(qu, (o.id, o.payload, o.priority, o.attributes, o.overrides, o.retention, now_ms, 0)::request,
                      now_ms, o.origin) IS NULL THEN
            statuses := statuses || 'live'::text;
            CONTINUE;
        END IF;
        UPDATE live SET dropped = o.dropped WHERE q = o.q AND id = o.id RETURNING * INTO j;
        DELETE FROM ended WHERE q = o.q AND id = o.id;
        statuses := statuses || 'queued'::text;
        IF qu.log_level = 'all' THEN
            told := told || note_event('queued', j, now_ms);
        END IF;
    END LOOP;
    IF 'queued' = ANY (statuses) THEN
        PERFORM tell(qu, now_ms, told);
        PERFORM ring(qu, true, cardinality(told) > 0, NULL);
    END IF;
    RETURN statuses;
END $$;

-- forget(queue, ids, now) -> for each id true if it existed. A marker of the id stays in `ended` until prune(), because
-- begin_live() needs its numbers.
CREATE FUNCTION forget(queue text, ids text[], manual bigint) RETURNS boolean[]
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    j live;
    o ended;
    known boolean[] := '{}';
    told text[] := '{}';
    wanted text;
    i integer := 0;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    PERFORM lock_ids(qu, ids);
    FOREACH wanted IN ARRAY ids LOOP
        i := i + 1;
        DELETE FROM live WHERE q = qu.q AND id = wanted RETURNING * INTO j;
        DELETE FROM ended WHERE q = qu.q AND id = wanted RETURNING * INTO o;
        known[i] := j.id IS NOT NULL
            OR o.id IS NOT NULL AND (o.expires_at IS NULL OR o.expires_at > now_ms);
        IF j.id IS NOT NULL OR o.kind = 'forgotten' THEN
            PERFORM leave_trace(qu, wanted, greatest(j.revision, (j.next).revision, j.fence, o.fence));
        END IF;
        IF known[i] AND qu.log_level = 'all' THEN
            told := told || queue_event('forgotten', wanted, now_ms);
        END IF;
    END LOOP;
    PERFORM tell(qu, now_ms, told);
    PERFORM ring(qu, true, cardinality(told) > 0, ids);
    RETURN known;
END $$;

-- leave_trace(queue, id, number): insert a marker for a removed id, with the highest number that it had. The marker is
-- expired from the start and has an empty revision range, so that only begin_live() takes it into account.
CREATE FUNCTION leave_trace(qu queues, wanted text, number bigint) RETURNS void LANGUAGE sql AS $$
    INSERT INTO ended (q, id, kind, fence, first, revision, ended_at, expires_at, horizon, enqueues,
                       enqueued_at, run_at, attempts, retries, stalls, timeouts)
    VALUES (qu.q, wanted, 'forgotten', number, 0, -1, 0, 0, pg_snapshot_xmax(pg_current_snapshot()), 0,
            0, 0, 0, 0, 0, 0)
$$;

-- configure(queue, patch, now) -> the settings after the change. The keys of `patch` are the settings to change.
CREATE FUNCTION configure(queue text, patch jsonb, manual bigint) RETURNS queues
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    before queues := queue_of(queue);
    after queues;
    now_ms bigint := tick(manual);
    told text[] := '{}';
BEGIN
    SELECT * INTO before FROM queues WHERE q = before.q FOR UPDATE;
    UPDATE queues SET
        paused = CASE WHEN patch ? 'paused' THEN (patch ->> 'paused')::boolean ELSE paused END,
        max_active = CASE WHEN patch ? 'max_active' THEN (patch ->> 'max_active')::bigint ELSE max_active END,
        retention = CASE WHEN patch ? 'retention' THEN patch -> 'retention' ELSE retention END,
        log_level = coalesce(patch ->> 'log_level', log_level),
        log_age = coalesce((patch ->> 'log_age')::bigint, log_age),
        log_bytes = coalesce((patch ->> 'log_bytes')::bigint, log_bytes),
        request_key_age = coalesce((patch ->> 'request_key_age')::bigint, request_key_age)
    WHERE q = before.q RETURNING * INTO after;
    IF 'all' IN (before.log_level, after.log_level) AND after IS DISTINCT FROM before THEN
        IF before.paused <> after.paused THEN
            told := told || queue_event(CASE WHEN after.paused THEN 'paused' ELSE 'resumed' END, '', now_ms);
        END IF;
        before.paused := after.paused;
        IF before IS DISTINCT FROM after THEN
            told := told || queue_event('configured', '', now_ms);
        END IF;
        PERFORM tell(after, now_ms, told);
    END IF;
    PERFORM ring(after, true, cardinality(told) > 0, NULL);
    RETURN after;
END $$;
