-- The verbs settle, finish and report: a run ends, returns its job to waiting, or stores its progress.

-- complete_all(queue, now, ids, fences, results) -> the positions, from 1, of the settlements that are done: runs that
-- are active under the given fence and have no successor. Takes two statements for the whole batch; no id is repeated.
-- Why format() builds the events: json_build_array() and concat() look up the types of their arguments for each job.
-- An active row always has claimed_at and holder.
CREATE FUNCTION complete_all(qu queues, now_ms bigint, ids text[], fences bigint[], results bytea[])
RETURNS bigint[] LANGUAGE plpgsql SET enable_hashjoin = on AS $$
DECLARE
    usual bigint := expiry('completed', now_ms, NULL, NULL, qu.retention);
    keeps boolean := keeps_data('completed', NULL, NULL, qu.retention);
    horizon xid8 := pg_snapshot_xmax(pg_current_snapshot());
    picked tid[];
    done bigint[];
    told text[];
BEGIN
    picked := ARRAY(
        SELECT one.ctid
        FROM (SELECT * FROM unnest(ids, fences) AS u (id, fence) ORDER BY u.id COLLATE "C") a,
            LATERAL (
                SELECT j.ctid FROM live j
                WHERE j.q = qu.q AND j.id = a.id AND j.fence = a.fence AND (j.next).seq IS NULL FOR UPDATE) one);
    WITH gone AS (
        DELETE FROM live j USING unnest(ids, results) WITH ORDINALITY AS s (id, result, place)
        WHERE j.ctid = ANY (picked) AND s.id = j.id
        RETURNING s.place, s.result, j.id, j.fence, j.first, j.revision, j.enqueues, j.enqueued_at, j.run_at,
            j.claimed_at, j.holder, j.attempts, j.retries, j.stalls, j.timeouts, j.payload, j.priority,
            j.attributes, j.overrides, j.retention, j.origin, j.dropped,
            CASE WHEN j.retention IS NULL THEN usual
                 ELSE expiry('completed', now_ms, NULL, j.retention, qu.retention) END AS expires,
            CASE WHEN j.retention IS NULL THEN keeps
                 ELSE keeps_data('completed', NULL, j.retention, qu.retention) END AS keeps
    ), kept AS (
        INSERT INTO ended AS old
        SELECT qu.q, g.id, 'completed', g.fence, g.first, g.revision, now_ms, g.expires, horizon,
            CASE WHEN d.kept THEN g.result END, NULL,
            g.enqueues, g.enqueued_at, g.run_at, g.claimed_at, g.holder,
            g.attempts, g.retries, g.stalls, g.timeouts,
            CASE WHEN d.data THEN g.payload END, CASE WHEN d.data THEN g.priority END,
            CASE WHEN d.data THEN g.attributes END, CASE WHEN d.data THEN g.overrides END,
            CASE WHEN d.data THEN g.retention END, g.origin, g.dropped
        FROM gone g, LATERAL (
            SELECT x.kept, x.kept AND g.keeps AS data
            FROM (SELECT g.expires IS NULL OR g.expires > now_ms AS kept) x) d
        ON CONFLICT (q, id) DO UPDATE SET
            kind = excluded.kind, fence = excluded.fence, first = excluded.first,
            revision = excluded.revision, ended_at = excluded.ended_at, expires_at = excluded.expires_at,
            horizon = excluded.horizon, result = excluded.result, error = excluded.error,
            enqueues = excluded.enqueues, enqueued_at = excluded.enqueued_at, run_at = excluded.run_at,
            claimed_at = excluded.claimed_at, holder = excluded.holder, attempts = excluded.attempts,
            retries = excluded.retries, stalls = excluded.stalls, timeouts = excluded.timeouts,
            payload = excluded.payload, priority = excluded.priority, attributes = excluded.attributes,
            overrides = excluded.overrides, retention = excluded.retention, origin = excluded.origin,
            dropped = latest_dropped(old.dropped || excluded.dropped)
    )
    SELECT array_agg(place),
           CASE WHEN qu.log_level <> 'off' THEN array_agg(format(
               '["completed",%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,null]', to_json(id), now_ms, attempts, fence,
               enqueued_at, run_at, claimed_at, now_ms, to_json(holder), first, revision, enqueues) ORDER BY place) END
    INTO done, told FROM gone;
    PERFORM tell(qu, now_ms, told);
    RETURN done;
END $$;

-- asked_for(item, now) -> a follow-up as a request. The item is a FollowUp in the JSON that
-- dibs/storage/postgres/codec/parameters.py writes.
CREATE FUNCTION asked_for(item json, now_ms bigint) RETURNS request LANGUAGE sql STABLE AS $$
    SELECT (item ->> 'id', decode(item ->> 'payload', 'base64'), (item ->> 'priority')::smallint,
            item -> 'attributes', item -> 'overrides', (item -> 'retention')::jsonb,
            start_time((item ->> 'when')::bigint, now_ms), (item ->> 'how')::integer)::request
$$;

-- follow(then, now): enqueue the follow-ups of an end, in the same atomic step.
CREATE FUNCTION follow(items json, now_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    item json;
    into_queue queues;
    answer record;
BEGIN
    FOR item IN SELECT * FROM json_array_elements(items) LOOP
        into_queue := queue_of(item ->> 'queue');
        answer := admit(into_queue, now_ms, asked_for(item, now_ms));
        PERFORM tell(into_queue, now_ms, answer.told);
        PERFORM ring(into_queue, true, cardinality(answer.told) > 0, NULL);
    END LOOP;
END $$;

-- hand_to_failure(queue, job, error, now): enqueue the fail job into the fail queue (contract 3, the fail job).
CREATE FUNCTION hand_to_failure(qu queues, j live, why json, now_ms bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    into_queue queues := queue_of(qu.name || '!fail');
    r request;
    f live;
    told text[] := '{}';
BEGIN
    r := (lpad(to_hex(nextval('numbers')), 16, '0'), j.payload, 0, NULL, NULL, NULL, now_ms, 0)::request;
    PERFORM begin_live(into_queue, r, now_ms, json_build_array(
        qu.name, j.id, j.revision, j.fence, j.attempts, j.retries, j.stalls, j.timeouts, j.enqueued_at, why));
    IF into_queue.log_level = 'all' THEN
        SELECT * INTO f FROM live WHERE q = into_queue.q AND id = r.id;
        told := ARRAY[note_event('queued', f, now_ms)];
        PERFORM tell(into_queue, now_ms, told);
    END IF;
    PERFORM ring(into_queue, true, cardinality(told) > 0, NULL);
END $$;

-- end_with(queue, job, kind, now, result, details) -> the events to log. Ends a run. `details` has the error, handled,
-- then (follow-ups) and retention of a Complete, Fail or Cancelled; NULL if all have their defaults.
CREATE FUNCTION end_with(qu queues, j live, kind text, now_ms bigint, result bytea, details json)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    told text[];
BEGIN
    told := end_run(qu, j, kind, now_ms, result, details -> 'error', (details -> 'retention')::jsonb);
    IF (details ->> 'handled')::boolean AND right(qu.name, 5) <> '!fail' THEN
        PERFORM hand_to_failure(qu, j, details -> 'error', now_ms);
    END IF;
    IF details -> 'then' IS NOT NULL THEN
        PERFORM follow(details -> 'then', now_ms);
    END IF;
    RETURN told;
END $$;

-- settle_one(queue, now, id, fence, kind, result, details) -> status, revision and events of one settlement. `kind` is
-- completed, failed, cancelled, retry, release or hand_off. details.refused marks a settlement that breaks a limit.
CREATE FUNCTION settle_one(
    qu queues, now_ms bigint, wanted text, under bigint, said text, result bytea, details json,
    OUT status text, OUT revision bigint, OUT told text[], OUT over boolean
) LANGUAGE plpgsql AS $$
DECLARE
    j live;
    o ended;
    ends boolean := said IN ('completed', 'failed', 'cancelled');
BEGIN
    told := '{}';
    over := false;
    SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted FOR UPDATE;
    IF j.fence IS DISTINCT FROM under THEN
        -- A repeated settlement gets the answer of the first one.
        SELECT * INTO o FROM ended WHERE q = qu.q AND id = wanted AND fence = under AND under <> 0;
        status := CASE WHEN ends AND o.kind = said THEN 'done'
                       WHEN NOT ends AND o.kind = 'cancelled' THEN 'cancelled' ELSE 'lost' END;
    ELSIF (details ->> 'refused')::boolean THEN
        status := 'refused';
    ELSIF ends THEN
        status := 'done';
        over := true;
        told := end_with(qu, j, said, now_ms, result, details);
    ELSIF j.state = 'h' THEN
        status := CASE said WHEN 'hand_off' THEN 'handed_off' ELSE 'refused' END;
        revision := CASE said WHEN 'hand_off' THEN j.revision END;
    ELSIF j.cancel_requested THEN
        status := 'cancelled';
        over := true;
        told := end_run(qu, j, 'cancelled', now_ms, NULL, NULL, NULL);
    ELSIF said = 'hand_off' THEN
        status := 'handed_off';
        revision := j.revision;
        UPDATE live SET state = 'h', lease = NULL WHERE q = j.q AND id = j.id RETURNING * INTO j;
        IF qu.log_level = 'all' THEN
            told := ARRAY[note_event('handed_off', j, now_ms)];
        END IF;
    ELSE
        status := 'returned';
        told := come_back(qu, j, now_ms, start_time((details ->> 'when')::bigint, now_ms),
                          CASE said WHEN 'retry' THEN details ->> 'cause' END, details -> 'error');
    END IF;
END $$;

-- settle(queue, now, one array per field) -> statuses and revisions in the order of the settlements; `statuses` NULL
-- means that all are done. `plain` says that each settlement is a Complete without follow-ups and retention, and that
-- no id is repeated.
CREATE FUNCTION settle(
    queue text, manual bigint, plain boolean, ids text[], fences bigint[], kinds text[],
    results bytea[], details text[], OUT statuses text[], OUT revisions bigint[]
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    answer record;
    told text[] := '{}';
    ends text[] := '{}';
    settled bigint[] := '{}';
    i integer;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    IF NOT FOUND THEN
        statuses := ARRAY(SELECT 'lost' FROM generate_series(1, cardinality(ids)));
        RETURN;
    END IF;
    IF plain THEN
        settled := complete_all(qu, now_ms, ids, fences, results);
        IF cardinality(settled) = cardinality(ids) THEN
            PERFORM ring(qu, qu.max_active IS NOT NULL, qu.log_level <> 'off', ids);
            RETURN;
        END IF;
    END IF;
    PERFORM lock_ids(qu, ids);
    FOR i IN 1 .. cardinality(ids) LOOP
        IF i = ANY (settled) THEN
            statuses[i] := 'done';
            ends := ends || ids[i];
            CONTINUE;
        END IF;
        answer := settle_one(qu, now_ms, ids[i], fences[i], coalesce(kinds[i], 'completed'), results[i],
                             details[i]::json);
        statuses[i] := answer.status;
        revisions[i] := answer.revision;
        told := told || answer.told;
        IF answer.over THEN
            ends := ends || ids[i];
        END IF;
    END LOOP;
    PERFORM tell(qu, now_ms, told);
    PERFORM ring(qu, true, cardinality(told) > 0 OR cardinality(settled) > 0, ends);
END $$;

-- finish(queue, id, kind, result, details, revision, now) -> done, lost, not_found or refused. Ends a handed-off run,
-- which is named by a revision in its range. Checks the conditions in the order of contract 3.
CREATE FUNCTION finish(
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
    SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted FOR UPDATE;
    SELECT * INTO o FROM ended WHERE q = qu.q AND id = wanted AND within BETWEEN first AND revision;
    IF FOUND THEN
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

-- report(queue, id, fence, progress, now) -> true if the run with this fence is active. Then stores its progress.
CREATE FUNCTION report(queue text, wanted text, under bigint, said json, manual bigint) RETURNS boolean
LANGUAGE plpgsql {pinned} AS $$
BEGIN
    PERFORM tick(manual);
    UPDATE live SET progress = said
    WHERE q = (SELECT q FROM queues WHERE name = queue) AND id = wanted AND fence = under;
    RETURN FOUND;
END $$;
