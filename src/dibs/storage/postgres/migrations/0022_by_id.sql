-- The verbs that change given ids, with keys, memos and update-only requests; what a wait for progress reads; and the
-- functions for SQL programs.

-- amend(queue, id, patch, payload, now): as before. Without a live job, it changes attributes and retention of the outcome. The
-- attributes that it merges there keep the limit `most`, too. A successor that makes no job has no data to change.
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
    size bigint := 0;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    LOOP
        SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted FOR UPDATE;
        EXIT WHEN FOUND OR qu.q IS NULL OR hold_absent(qu, wanted);
    END LOOP;
    SELECT * INTO o FROM ended
    WHERE q = qu.q AND id = wanted AND (expires_at IS NULL OR expires_at > now_ms) FOR UPDATE;
    IF j.id IS NULL AND (o.id IS NULL OR asks = '{}' OR NOT asks <@ '{attributes,retention}') THEN
        RETURN 'not_found';
    ELSIF j.fence IS NOT NULL AND asks && '{payload,when,priority}' THEN
        RETURN 'active';
    END IF;
    s := j.next;
    IF 'attributes' = ANY (asks) THEN
        IF j.id IS NULL THEN
            o.attributes := merged(o.attributes, patch -> 'attributes');
            size := size_of(o.attributes);
        ELSE
            j.attributes := merged(j.attributes, patch -> 'attributes');
            size := size_of(j.attributes);
        END IF;
        IF s.seq > 0 THEN
            s.attributes := merged(s.attributes, patch -> 'attributes');
            size := greatest(size, size_of(s.attributes));
        END IF;
        IF size > most THEN
            RETURN size;
        END IF;
    END IF;
    IF s.seq > 0 AND 'retention' = ANY (asks) THEN
        s.retention := given;
    END IF;
    UPDATE live SET
        attributes = j.attributes,
        payload = CASE WHEN 'payload' = ANY (asks) THEN new_payload ELSE payload END,
        priority = CASE WHEN 'priority' = ANY (asks) THEN (patch ->> 'priority')::smallint ELSE priority END,
        retention = CASE WHEN 'retention' = ANY (asks) THEN given ELSE retention END,
        run_at = CASE WHEN 'when' = ANY (asks) THEN start_time((patch ->> 'when')::bigint, now_ms)
                 ELSE run_at END,
        state = CASE WHEN state = 'k' AND asks && '{when,priority}' THEN 'w' ELSE state END,
        next = CASE WHEN s.revision IS NULL THEN NULL ELSE s END
    WHERE q = j.q AND id = j.id RETURNING * INTO j;
    IF o.id IS NOT NULL AND (j.id IS NULL OR given ? o.kind) THEN
        UPDATE ended SET
            attributes = o.attributes,
            expires_at = CASE WHEN given ? kind THEN now_ms + (given ->> kind)::bigint ELSE expires_at END
        WHERE q = o.q AND id = o.id;
    END IF;
    IF qu.log_level = 'all' THEN
        PERFORM tell(qu, now_ms, ARRAY[CASE WHEN j.id IS NULL THEN queue_event('amended', wanted, now_ms)
                                       ELSE note_event('amended', j, now_ms) END]);
    END IF;
    PERFORM ring(qu, asks && '{when,priority}', qu.log_level = 'all', NULL);
    RETURN 'amended';
END $$;

-- retry_failed(queue, ids, now): as before. A job gets the key and the memo of its outcome.
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
            qu, (o.id, o.payload, o.priority, o.attributes, o.overrides, o.retention, now_ms, 0, o.key)::request,
            now_ms, o.origin);
        UPDATE live SET dropped = o.dropped, memo = o.memo WHERE q = o.q AND id = o.id RETURNING * INTO j;
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

-- forget(queue, ids, now): as before. A forgotten run of a job with a key frees the key.
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
        IF j.key IS NOT NULL AND j.lease IS NOT NULL THEN
            PERFORM free_key(qu, j.key);
        END IF;
        IF known[i] AND qu.log_level = 'all' THEN
            told := told || queue_event('forgotten', wanted, now_ms);
        END IF;
    END LOOP;
    PERFORM tell(qu, now_ms, told);
    PERFORM ring(qu, true, cardinality(told) > 0, ids);
    RETURN known;
END $$;
