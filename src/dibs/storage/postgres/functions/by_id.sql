-- The verbs that change given ids: cancel, amend, retry_failed, forget.

-- cancel(queue, ids, running, now) -> statuses in the order of the ids.
CREATE OR REPLACE FUNCTION cancel(queue text, ids text[], running boolean, manual bigint) RETURNS text[]
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    answer record;
    statuses text[] := '{}';
    logged text[] := '{}';
    wanted text;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    PERFORM lock_ids(qu.q, ids);
    FOREACH wanted IN ARRAY ids LOOP
        answer := cancel_one(qu, now_ms, wanted, running);
        statuses := statuses || answer.status;
        logged := logged || answer.logged;
    END LOOP;
    IF 'cancelled' = ANY (statuses) OR cardinality(logged) > 0 THEN
        PERFORM append_log(qu.q, now_ms, logged);
        PERFORM notify_waits(qu, false, cardinality(logged) > 0, ids);
    END IF;
    RETURN statuses;
END $$;

-- cancel_one(queue, now, id, running) -> the status of the id and the events to log (contract 3, cancel). One statement
-- looks for a job and for the outcome.
CREATE OR REPLACE FUNCTION cancel_one(
    qu queues, now_ms bigint, wanted text, running boolean, OUT status text, OUT logged text[]
) LANGUAGE plpgsql AS $$
DECLARE
    j live;
    is_live boolean;
BEGIN
    logged := '{}';
    LOOP
        SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted FOR UPDATE;
        EXIT WHEN FOUND;
        SELECT EXISTS (SELECT 1 FROM live WHERE q = qu.q AND id = wanted), coalesce((
            SELECT kind FROM ended
            WHERE q = qu.q AND id = wanted AND (expires_at IS NULL OR expires_at > now_ms)), 'not_found')
        INTO is_live, status;
        IF NOT is_live THEN
            RETURN;
        END IF;
    END LOOP;
    IF j.fence IS NULL THEN
        status := 'cancelled';
        logged := end_run(qu, j, 'cancelled', now_ms, NULL, NULL, NULL);
        RETURN;
    END IF;
    status := 'active';
    IF (j.next).revision IS NOT NULL THEN
        status := 'cancelled';
        logged := drop_next(qu, j, now_ms);
    END IF;
    IF NOT running THEN
        RETURN;
    END IF;
    SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted;
    status := CASE j.state WHEN 'h' THEN 'cancelled' ELSE 'requested' END;
    logged := logged || ask_to_end(qu, j, now_ms);
END $$;

-- ask_to_end(queue, job, now) -> the events to log. Requests the cancellation of an active run; a handed-off run ends
-- as cancelled at once.
CREATE OR REPLACE FUNCTION ask_to_end(qu queues, j live, now_ms bigint) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    IF j.state = 'h' THEN
        RETURN end_run(qu, j, 'cancelled', now_ms, NULL, NULL, NULL);
    ELSIF j.cancel_requested THEN
        RETURN '{}';
    END IF;
    UPDATE live SET cancel_requested = true WHERE q = j.q AND id = j.id;
    RETURN CASE WHEN qu.log_level = 'all' THEN ARRAY[note_event('cancel_requested', j, now_ms)] ELSE '{}' END;
END $$;

-- amend(queue, id, patch, payload, now) -> amended, active or not_found. If the attributes would grow beyond `most`
-- bytes, it returns their size as text and changes nothing. The keys of `patch` are the fields to change: attributes,
-- when, priority, retention, overrides (merged into those of the job), payload. The payload itself is a separate
-- argument. Without a live job, it holds the id, and changes attributes and retention of the outcome. A successor that
-- makes no job has no data to change.
CREATE OR REPLACE FUNCTION amend(queue text, wanted text, patch json, new_payload bytea, most bigint, manual bigint)
RETURNS text LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    j live;
    before live;
    o ended;
    asks text[] := ARRAY(SELECT json_object_keys(patch));
    given jsonb := (patch -> 'retention')::jsonb;
    size bigint := 0;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    LOOP
        SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted FOR UPDATE;
        EXIT WHEN FOUND OR qu.q IS NULL OR hold_absent(qu.q, wanted);
    END LOOP;
    SELECT * INTO o FROM ended
    WHERE q = qu.q AND id = wanted AND (expires_at IS NULL OR expires_at > now_ms) FOR UPDATE;
    IF j.id IS NULL AND (o.id IS NULL OR asks = '{}' OR NOT asks <@ '{attributes,retention}') THEN
        RETURN 'not_found';
    ELSIF j.fence IS NOT NULL AND asks && '{payload,when,priority,overrides}' THEN
        RETURN 'active';
    END IF;
    IF 'attributes' = ANY (asks) THEN
        IF j.id IS NULL THEN
            o.attributes := merged(o.attributes, patch -> 'attributes');
        ELSE
            j := add_attributes(j, patch -> 'attributes');
        END IF;
        size := greatest(size_of(coalesce(j.attributes, o.attributes)), size_of((j.next).attributes));
        IF size > most THEN
            RETURN size;
        END IF;
    END IF;
    IF j.id IS NOT NULL THEN
        before := j;
        j := amend_live(j, patch, new_payload, now_ms);
        IF qu.fair THEN
            PERFORM move_turn(qu, before, j.id);
        END IF;
    END IF;
    IF o.id IS NOT NULL AND (j.id IS NULL OR given ? o.kind) THEN
        UPDATE ended SET
            attributes = o.attributes,
            expires_at = CASE WHEN given ? kind THEN now_ms + (given ->> kind)::bigint ELSE expires_at END
        WHERE q = o.q AND id = o.id;
    END IF;
    IF qu.log_level = 'all' THEN
        PERFORM append_log(qu.q, now_ms, ARRAY[CASE WHEN j.id IS NULL THEN queue_event('amended', wanted, now_ms)
                                       ELSE note_event('amended', j, now_ms) END]);
    END IF;
    PERFORM notify_waits(qu, asks && '{when,priority}', qu.log_level = 'all', NULL);
    RETURN 'amended';
END $$;

-- amend_live(job, patch, payload, now) -> the row of a locked job after amend(). A successor that makes a job gets the
-- attributes, which `job` has already, and the retention.
CREATE OR REPLACE FUNCTION amend_live(j live, patch json, new_payload bytea, now_ms bigint) RETURNS live LANGUAGE plpgsql AS $$
DECLARE
    s successor := j.next;
    asks text[] := ARRAY(SELECT json_object_keys(patch));
    moves boolean := asks && '{when,priority}';
    given jsonb := (patch -> 'retention')::jsonb;
BEGIN
    IF s.seq > 0 AND 'retention' = ANY (asks) THEN
        s.retention := given;
    END IF;
    IF j.key IS NOT NULL AND moves THEN
        PERFORM free_key(j);
    END IF;
    UPDATE live SET
        attributes = j.attributes,
        payload = CASE WHEN 'payload' = ANY (asks) THEN new_payload ELSE payload END,
        priority = CASE WHEN 'priority' = ANY (asks) THEN (patch ->> 'priority')::smallint ELSE priority END,
        retention = CASE WHEN 'retention' = ANY (asks) THEN given ELSE retention END,
        run_at = CASE WHEN 'when' = ANY (asks) THEN start_time((patch ->> 'when')::bigint, now_ms)
                 ELSE run_at END,
        overrides = CASE WHEN 'overrides' = ANY (asks) THEN merged(overrides, patch -> 'overrides') ELSE overrides END,
        state = CASE WHEN state = 'k' AND moves THEN 'w' ELSE state END,
        next = CASE WHEN s.revision IS NULL THEN NULL ELSE s END
    WHERE q = j.q AND id = j.id RETURNING * INTO j;
    IF moves THEN
        PERFORM note_start(j.q, j.priority, j.run_at, j.seq);
    END IF;
    RETURN j;
END $$;

-- merged(old, patch) -> the object `old`, with the top-level keys of the patch replaced or added.
CREATE OR REPLACE FUNCTION merged(old json, patch json) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_object_agg(key, value) FROM (
        SELECT key, value FROM json_each(coalesce(old, '{}'))
        WHERE key NOT IN (SELECT json_object_keys(patch))
        UNION ALL SELECT key, value FROM json_each(patch)) both_of_them
$$;

-- size_of(attributes) -> the number of bytes of all names and values, to which a limit applies.
CREATE OR REPLACE FUNCTION size_of(attributes json) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(octet_length(key) + octet_length(value::text)), 0) FROM json_each(attributes)
$$;

-- retry_failed(queue, ids, delay, now) -> statuses in the order of the ids. Removes the failed outcome and makes the
-- job wait, due after the delay, with counts 0, a new revision, and the key and the memo of the outcome. It holds each
-- id before it reads the outcome.
CREATE OR REPLACE FUNCTION retry_failed(queue text, ids text[], delay bigint, manual bigint) RETURNS text[]
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    o ended;
    j live;
    statuses text[] := '{}';
    logged text[] := '{}';
    wanted text;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    PERFORM pg_current_xact_id();
    FOREACH wanted IN ARRAY ids LOOP
        IF qu.q IS NOT NULL AND NOT hold_absent(qu.q, wanted) THEN
            statuses := statuses || 'live'::text;
            CONTINUE;
        END IF;
        SELECT * INTO o FROM ended
        WHERE q = qu.q AND id = wanted AND (expires_at IS NULL OR expires_at > now_ms) FOR UPDATE;
        IF o.kind IS DISTINCT FROM 'failed' OR o.payload IS NULL THEN
            statuses := statuses || CASE WHEN o.kind = 'failed' THEN 'not_kept'
                                         ELSE coalesce(o.kind, 'not_found') END;
            CONTINUE;
        END IF;
        PERFORM begin_live(
            qu.q, (o.id, o.payload, o.priority, o.attributes, o.overrides, o.retention, now_ms + delay, 0, o.key)::request,
            now_ms, o.origin);
        UPDATE live SET dropped = o.dropped, memo = o.memo WHERE q = o.q AND id = o.id RETURNING * INTO j;
        IF qu.has_output THEN
            UPDATE output SET owner = j.first WHERE q = o.q AND id = o.id AND owner = o.first;
        END IF;
        DELETE FROM ended WHERE q = o.q AND id = o.id;
        statuses := statuses || 'queued'::text;
        IF qu.fair THEN
            PERFORM move_turn(qu, NULL, wanted);
        END IF;
        IF qu.log_level = 'all' THEN
            logged := logged || note_event('queued', j, now_ms);
        END IF;
    END LOOP;
    IF 'queued' = ANY (statuses) THEN
        PERFORM append_log(qu.q, now_ms, logged);
        PERFORM notify_waits(qu, true, cardinality(logged) > 0, NULL);
    END IF;
    RETURN statuses;
END $$;

-- forget(queue, ids, now) -> for each id true if it existed. It holds each id before it removes the outcome. A marker
-- of the id stays in `ended` until prune(), because begin_live() needs its numbers. A forgotten run of a job with a key
-- frees the key.
CREATE OR REPLACE FUNCTION forget(queue text, ids text[], manual bigint) RETURNS boolean[]
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    j live;
    o ended;
    known boolean[] := '{}';
    logged text[] := '{}';
    wanted text;
    i integer := 0;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    PERFORM lock_ids(qu.q, ids);
    FOREACH wanted IN ARRAY ids LOOP
        i := i + 1;
        LOOP
            DELETE FROM live WHERE q = qu.q AND id = wanted RETURNING * INTO j;
            EXIT WHEN FOUND OR qu.q IS NULL OR hold_absent(qu.q, wanted);
        END LOOP;
        DELETE FROM ended WHERE q = qu.q AND id = wanted RETURNING * INTO o;
        known[i] := j.id IS NOT NULL
            OR o.id IS NOT NULL AND (o.expires_at IS NULL OR o.expires_at > now_ms);
        IF j.id IS NOT NULL OR o.kind = 'forgotten' THEN
            PERFORM leave_trace(qu.q, wanted, greatest(j.revision, (j.next).revision, j.fence, o.fence));
        END IF;
        IF j.key IS NOT NULL THEN
            PERFORM free_key(j);
        END IF;
        IF qu.fair THEN
            PERFORM move_turn(qu, j, wanted);
        END IF;
        IF qu.has_output THEN
            DELETE FROM output WHERE q = qu.q AND id = wanted;
        END IF;
        IF known[i] AND qu.log_level = 'all' THEN
            logged := logged || queue_event('forgotten', wanted, now_ms);
        END IF;
    END LOOP;
    PERFORM append_log(qu.q, now_ms, logged);
    PERFORM notify_waits(qu, true, cardinality(logged) > 0, ids);
    RETURN known;
END $$;
