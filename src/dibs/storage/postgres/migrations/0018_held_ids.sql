-- Calls on one id that overlap: the verbs that look at a job and at an outcome.
--
-- Under READ COMMITTED, each statement of a function has another snapshot, and a SELECT that waits for the end of a run
-- does not show the row that a follow-up of this end inserts for the same id.

-- hold_absent(queue, id) -> true if the id is not live. Then no other call can create the id until the end of this
-- transaction. It waits for a call that is creating or removing the id. The inserted row is in no index but the primary
-- key.
CREATE FUNCTION hold_absent(qu queues, wanted text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO live (q, id, state, priority, run_at, seq, first, revision, enqueued_at, payload)
    VALUES (qu.q, wanted, 'x', 0, 0, 0, 0, 0, 0, '') ON CONFLICT (q, id) DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM live WHERE q = qu.q AND id = wanted;
    RETURN true;
END $$;

-- cancel_one(queue, now, id, running): as before. One statement looks for a job and for the outcome.
CREATE OR REPLACE FUNCTION cancel_one(
    qu queues, now_ms bigint, wanted text, running boolean, OUT status text, OUT told text[]
) LANGUAGE plpgsql AS $$
DECLARE
    j live;
    is_live boolean;
BEGIN
    told := '{}';
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
    IF j.state = 'w' THEN
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

-- amend(queue, id, patch, payload, now): as before. It holds the id before it reads the outcome.
CREATE OR REPLACE FUNCTION amend(queue text, wanted text, patch json, new_payload bytea, most bigint, manual bigint)
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
    LOOP
        SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted FOR UPDATE;
        EXIT WHEN FOUND OR qu.q IS NULL OR hold_absent(qu, wanted);
    END LOOP;
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

-- retry_failed(queue, ids, now): as before. It holds each id before it reads the outcome.
CREATE OR REPLACE FUNCTION retry_failed(queue text, ids text[], manual bigint) RETURNS text[]
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
        IF qu.q IS NOT NULL AND NOT hold_absent(qu, wanted) THEN
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
            qu, (o.id, o.payload, o.priority, o.attributes, o.overrides, o.retention, now_ms, 0)::request, now_ms,
            o.origin);
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

-- forget(queue, ids, now): as before. It holds each id before it removes the outcome.
CREATE OR REPLACE FUNCTION forget(queue text, ids text[], manual bigint) RETURNS boolean[]
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
        LOOP
            DELETE FROM live WHERE q = qu.q AND id = wanted RETURNING * INTO j;
            EXIT WHEN FOUND OR qu.q IS NULL OR hold_absent(qu, wanted);
        END LOOP;
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

-- finish(queue, id, kind, result, details, revision, now): as before. It looks for a job again before not_found.
CREATE OR REPLACE FUNCTION finish(
    queue text, wanted text, said text, result bytea, details json, within bigint, manual bigint
) RETURNS text LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    j live;
    o ended;
    told text[];
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    LOOP
        SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted FOR UPDATE;
        SELECT * INTO o FROM ended WHERE q = qu.q AND id = wanted AND within BETWEEN first AND revision;
        EXIT WHEN j.id IS NOT NULL OR o.id IS NOT NULL;
        PERFORM 1 FROM live WHERE q = qu.q AND id = wanted;
        EXIT WHEN NOT FOUND;
    END LOOP;
    IF o.id IS NOT NULL THEN
        RETURN CASE WHEN o.kind = said THEN 'done' ELSE 'lost' END;
    ELSIF j.id IS NULL THEN
        RETURN 'not_found';
    ELSIF within NOT BETWEEN j.first AND j.revision THEN
        RETURN 'lost';
    ELSIF j.state <> 'h' THEN
        RETURN 'refused';
    END IF;
    told := end_with(qu, j, said, now_ms, result, details);
    PERFORM tell(qu, now_ms, told);
    PERFORM ring(qu, true, cardinality(told) > 0, ARRAY[wanted]);
    RETURN 'done';
END $$;
