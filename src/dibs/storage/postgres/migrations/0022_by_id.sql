-- The verbs that change given ids, with keys, memos and update-only requests, and the
-- functions for SQL programs. A job that waits has no fence; its state is w, or k if a claim has put it aside because of
-- its key.

-- cancel_one(queue, now, id, running): as before, also for a job in the state k.
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
    IF j.fence IS NULL THEN
        status := 'cancelled';
        told := end_run(qu, j, 'cancelled', now_ms, NULL, NULL, NULL);
        RETURN;
    END IF;
    status := 'active';
    IF (j.next).revision IS NOT NULL THEN
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
    IF j.key IS NOT NULL AND asks && '{when,priority}' THEN
        PERFORM free_key(j);
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
        IF j.key IS NOT NULL THEN
            PERFORM free_key(j);
        END IF;
        IF known[i] AND qu.log_level = 'all' THEN
            told := told || queue_event('forgotten', wanted, now_ms);
        END IF;
    END LOOP;
    PERFORM tell(qu, now_ms, told);
    PERFORM ring(qu, true, cardinality(told) > 0, ids);
    RETURN known;
END $$;

-- The functions for SQL programs: enqueue_job() takes a key, release_job() a delay, and the setting fail_handler of the
-- queue decides about the fail job. Roles keep their privileges on the functions that are created again.
CREATE TABLE kept_grants AS
SELECT p.proname::text AS function, a.grantee, a.is_grantable
FROM pg_catalog.pg_proc p, LATERAL aclexplode(p.proacl) a
WHERE p.pronamespace = '{name_text}'::regnamespace AND a.grantee <> p.proowner
  AND p.proname IN ('enqueue_job', 'fail_job', 'release_job', 'finish_job');

DROP FUNCTION enqueue_job(
    text, text, jsonb, integer, timestamptz, interval, jsonb, text, text, interval, interval, integer, interval);
DROP FUNCTION fail_job(text, text, bigint, text, text, boolean);
DROP FUNCTION release_job(text, text, bigint);
DROP FUNCTION finish_job(text, text, bigint, jsonb, text, text, boolean);
DROP FUNCTION failure(text, text, boolean);

-- failure(error, error_type) -> the details of a Fail, as end_with() in 0006_settle.sql takes them. A text of
-- more than 16 KiB loses its middle. Errors are stored as arrays of the fields of dibs.model.job.Error.
CREATE FUNCTION failure(error text, error_type text) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    PERFORM check_size('error_type', error_type, 512);
    IF octet_length(error_type) + octet_length(error) > 16384 THEN
        -- A character has at most four bytes, so the rest has at most half of the limit, as from Python.
        error := left(error, 1000) || E'\n[... cut by dibs ...]\n' || right(error, 1000);
    END IF;
    RETURN json_build_object('error', json_build_array(error_type, coalesce(error, ''), '', NULL, 'error'));
END $$;

-- enqueue_job(queue, id, payload, ...) -> the id, the status of the verb enqueue (contract 3), whether the request_key was
-- known, and the revision. `on_conflict` is update, reject or reject_failed.
CREATE FUNCTION enqueue_job(
    queue text, INOUT id text DEFAULT NULL, payload jsonb DEFAULT 'null', priority integer DEFAULT 0,
    run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, attributes jsonb DEFAULT NULL,
    request_key text DEFAULT NULL, on_conflict text DEFAULT 'update', lease interval DEFAULT NULL,
    timeout interval DEFAULT NULL, max_retries integer DEFAULT NULL, retention interval DEFAULT NULL,
    key text DEFAULT NULL,
    OUT status text, OUT repeated boolean, OUT revision bigint
) LANGUAGE plpgsql SECURITY DEFINER {pinned} AS $$
DECLARE
    how integer := CASE on_conflict WHEN 'update' THEN 0 WHEN 'reject' THEN 16 WHEN 'reject_failed' THEN 48 END;
    bytes bytea := json_bytes('payload', payload);
    start bigint := start_of(run_at, delay);
    kept bigint := interval_ms('retention', retention, 0);
    limits jsonb := jsonb_strip_nulls(jsonb_build_object(
        'lease', interval_ms('lease', lease, 1), 'timeout', interval_ms('timeout', timeout, 1),
        'max_retries', max_retries));
    answer record;
BEGIN
    PERFORM check_call(queue);
    IF right(queue, 5) = '!fail' THEN
        PERFORM refuse('queue', format('is %s, a fail queue: only dibs enqueues there; use another name', queue));
    ELSIF queue = 'dibs.workers' THEN
        PERFORM refuse('queue', 'is dibs.workers, reserved for the records of workers; use another name');
    ELSIF how IS NULL THEN
        PERFORM refuse('on_conflict', 'must be one of update, reject, reject_failed');
    END IF;
    id := coalesce(id, new_id());
    PERFORM check_size('id', id, 512), check_range('priority', priority, -1000, 1000), check_attributes(attributes),
            check_range('max_retries', coalesce(max_retries, 0), 0, 2147483647);
    IF request_key IS NOT NULL THEN
        PERFORM check_size('request_key', request_key, 128);
    END IF;
    IF key IS NOT NULL THEN
        PERFORM check_size('key', key, 128);
    END IF;
    SELECT * INTO answer FROM enqueue(
        queue, NULL, how = 0 AND request_key IS NULL, ARRAY[id], ARRAY[bytes], ARRAY[priority::smallint],
        ARRAY[start], ARRAY[how], ARRAY[nullif(attributes, '{}')::text], ARRAY[nullif(limits, '{}')::text],
        ARRAY[CASE WHEN kept IS NOT NULL THEN
            jsonb_build_object('completed', kept, 'failed', kept, 'cancelled', kept)::text END],
        ARRAY[key], ARRAY[request_key], NULL);
    -- `statuses` is NULL if the job is new.
    status := coalesce(answer.statuses[1], 'queued');
    repeated := coalesce(answer.repeats[1], false);
    revision := answer.revisions[1];
    id := coalesce(answer.first_ids[1], id);
END $$;

-- fail_job(queue, id, fence, error, error_type) -> done or lost.
CREATE FUNCTION fail_job(
    queue text, id text, fence bigint, error text, error_type text DEFAULT 'Failed'
) RETURNS text LANGUAGE sql SECURITY DEFINER {pinned} AS $$
    SELECT (settle_job(queue, id, fence, 'failed', NULL, failure(error, error_type))).status
$$;

-- retry_job(queue, id, fence, delay, error, error_type) -> returned, cancelled (the run was asked to stop, and ended),
-- lost, or refused for a handed-off run. The job waits again, with one more retry.
CREATE OR REPLACE FUNCTION retry_job(
    queue text, id text, fence bigint, delay interval DEFAULT '0 seconds', error text DEFAULT NULL,
    error_type text DEFAULT 'Failed'
) RETURNS text LANGUAGE sql SECURITY DEFINER {pinned} AS $$
    SELECT (settle_job(queue, id, fence, 'retry', NULL, json_strip_nulls(json_build_object(
        'cause', 'error', 'when', start_of(NULL, delay),
        'error', CASE WHEN error IS NOT NULL THEN failure(error, error_type) -> 'error' END)))).status
$$;

-- release_job(queue, id, fence, delay) -> the answers of retry_job(). The job waits as before its claim, or with `delay`
-- until then.
CREATE FUNCTION release_job(queue text, id text, fence bigint, delay interval DEFAULT NULL) RETURNS text
LANGUAGE sql SECURITY DEFINER {pinned} AS $$
    SELECT (settle_job(queue, id, fence, 'release', NULL, CASE WHEN delay IS NOT NULL THEN
        json_build_object('when', start_of(NULL, delay)) END)).status
$$;

-- finish_job(queue, id, revision, result, error, error_type) -> done, lost, not_found or refused. Ends a
-- handed-off run: as failed if `error` is set, else as completed.
CREATE FUNCTION finish_job(
    queue text, id text, revision bigint, result jsonb DEFAULT NULL, error text DEFAULT NULL,
    error_type text DEFAULT 'Failed'
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER {pinned} AS $$
DECLARE
    bytes bytea := json_bytes('result', result);
BEGIN
    PERFORM check_call(queue), check_size('id', id, 512), check_range('revision', revision, 0, 9007199254740992);
    IF error IS NULL THEN
        RETURN finish(queue, id, 'completed', bytes, NULL, revision, NULL);
    ELSIF result IS NOT NULL THEN
        PERFORM refuse('result', 'and error are both set; set at most one of them');
    END IF;
    RETURN finish(queue, id, 'failed', NULL, failure(error, error_type), revision, NULL);
END $$;

REVOKE EXECUTE ON FUNCTION enqueue_job, fail_job, release_job, finish_job FROM PUBLIC;

DO $$
DECLARE
    g record;
BEGIN
    FOR g IN SELECT * FROM kept_grants LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %I TO %s%s', g.function, CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END,
                       CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
    END LOOP;
END $$;

DROP TABLE kept_grants;
