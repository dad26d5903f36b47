-- The ends and returns of a run with keys, memos, update-only requests, fail_handler and log_results.

-- join_range(job) -> the job as it ends. A successor that makes no job adds its revisions and its number of requests to the
-- job, and is removed.
CREATE FUNCTION join_range(j live) RETURNS live LANGUAGE plpgsql AS $$
BEGIN
    IF (j.next).creates IS FALSE THEN
        j.revision := (j.next).revision;
        j.enqueues := j.enqueues + (j.next).enqueues;
        j.next := NULL;
    END IF;
    RETURN j;
END $$;

-- promote(job): make the successor of an ended job the waiting job, with counts 0. Without one, delete the row.
CREATE OR REPLACE FUNCTION promote(j live) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    s successor := j.next;
BEGIN
    IF s.revision IS NULL THEN
        DELETE FROM live WHERE q = j.q AND id = j.id;
        RETURN;
    END IF;
    UPDATE live SET
        state = 'w', priority = s.priority, run_at = s.run_at, seq = s.seq, first = s.first,
        revision = s.revision, enqueued_at = s.enqueued_at, enqueues = s.enqueues,
        attempts = 0, retries = 0, stalls = 0, timeouts = 0, payload = s.payload,
        attributes = s.attributes, overrides = s.overrides, retention = s.retention,
        key = s.key, memo = NULL,
        error = NULL, origin = NULL, fence = NULL, claimed_at = NULL, lease = NULL, holder = NULL,
        cancel_requested = NULL, progress = NULL, next = NULL, dropped = NULL
    WHERE q = j.q AND id = j.id;
END $$;

-- keep(job, kind, ...): write the outcome of a job that ends now, over any older outcome. An outcome without
-- retention keeps its fence and revision range until prune(), so that a repeated settlement gets the right answer. Every
-- kept outcome has the attributes. Only a failed job can run again, so only its memo is kept.
CREATE OR REPLACE FUNCTION keep(
    qu queues, j live, kind text, now_ms bigint, result bytea, error json, given jsonb
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    expires bigint := expiry(kind, now_ms, given, j.retention, qu.retention);
    kept boolean := expires IS NULL OR expires > now_ms;
    data boolean := kept AND keeps_data(kind, given, j.retention, qu.retention);
BEGIN
    INSERT INTO ended AS old VALUES (
        j.q, j.id, kind, coalesce(j.fence, 0), j.first, j.revision, now_ms, expires,
        pg_snapshot_xmax(pg_current_snapshot()),
        CASE WHEN kept THEN result END, CASE WHEN kept THEN error END,
        j.enqueues, j.enqueued_at, j.run_at, j.claimed_at, j.holder,
        j.attempts, j.retries, j.stalls, j.timeouts,
        CASE WHEN data THEN j.payload END, CASE WHEN data THEN j.priority END,
        CASE WHEN kept THEN j.attributes END, CASE WHEN data THEN j.overrides END,
        CASE WHEN data THEN j.retention END, j.origin, j.dropped,
        CASE WHEN data THEN j.key END, CASE WHEN data AND kind = 'failed' THEN j.memo END)
    ON CONFLICT (q, id) DO UPDATE SET
        kind = excluded.kind, fence = excluded.fence, first = excluded.first, revision = excluded.revision,
        ended_at = excluded.ended_at, expires_at = excluded.expires_at, horizon = excluded.horizon,
        result = excluded.result, error = excluded.error, enqueues = excluded.enqueues,
        enqueued_at = excluded.enqueued_at, run_at = excluded.run_at, claimed_at = excluded.claimed_at,
        holder = excluded.holder, attempts = excluded.attempts, retries = excluded.retries,
        stalls = excluded.stalls, timeouts = excluded.timeouts, payload = excluded.payload,
        priority = excluded.priority, attributes = excluded.attributes, overrides = excluded.overrides,
        retention = excluded.retention, origin = excluded.origin, key = excluded.key, memo = excluded.memo,
        dropped = latest_dropped(old.dropped || excluded.dropped);
END $$;

-- with_result(event, queue, result) -> the event with the result of the run as one more element, in base64, if the
-- setting log_results of the queue allows its length.
CREATE FUNCTION with_result(event text, qu queues, result bytea) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN qu.log_results > 0 AND octet_length(result) <= qu.log_results
        THEN left(event, -1) || ',"' || translate(encode(result, 'base64'), E'\n', '') || '"]' ELSE event END
$$;

-- end_run(queue, job, kind, now, result, error, given) -> the events to log. Writes the outcome of the current job and
-- promotes its successor. A waiting job can only end as cancelled.
CREATE OR REPLACE FUNCTION end_run(
    qu queues, j live, kind text, now_ms bigint, result bytea, error json, given jsonb
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    told text[] := '{}';
    heir live;
BEGIN
    IF kind = 'failed' AND right(qu.name, 5) = '!fail' THEN
        -- An outcome that failed in a fail queue never expires and keeps its payload, so that people can find it.
        given := '{"failed": null, "keep_payload": ["failed"]}';
    END IF;
    j := join_range(j);
    PERFORM keep(qu, j, kind, now_ms, result, error, given);
    PERFORM promote(j);
    IF j.key IS NOT NULL THEN
        PERFORM free_key(j);
    END IF;
    IF qu.log_level <> 'off' THEN
        told := ARRAY[run_event(kind, j, now_ms, error)];
        IF kind = 'completed' AND qu.log_results > 0 THEN
            told[1] := with_result(told[1], qu, result);
        END IF;
        IF qu.log_level = 'all' AND (j.next).revision IS NOT NULL THEN
            SELECT * INTO heir FROM live WHERE q = j.q AND id = j.id;
            told := told || note_event('promoted', heir, now_ms);
        END IF;
    END IF;
    RETURN told;
END $$;

-- come_back(queue, job, now, run_at, cause, error) -> the events to log. The active job waits again, and the enqueues
-- that its successor has merged are applied to it. `cause` is error, timeout or stall; NULL releases the
-- job, with 1 attempt less. A release without `back_at` keeps the place of the job, its run_at and seq. Never called for a run whose cancellation was requested.
CREATE OR REPLACE FUNCTION come_back(
    qu queues, j live, now_ms bigint, back_at bigint, cause text, why json
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    s successor := j.next;
    folds boolean := s.revision IS NOT NULL;
    replaces boolean := folds AND s.replaces;
    resets boolean := folds AND s.resets;
    at bigint := coalesce(back_at, j.run_at);
BEGIN
    IF folds THEN
        -- greatest and least ignore NULL, which stands for no limit.
        at := least(greatest(at, s.lo), s.hi);
    END IF;
    UPDATE live SET
        state = 'w', run_at = at,
        seq = CASE WHEN back_at IS NULL THEN seq ELSE nextval('numbers') END,
        revision = CASE WHEN folds THEN s.revision ELSE revision END,
        enqueues = enqueues + CASE WHEN folds THEN s.enqueues ELSE 0 END,
        attempts = CASE WHEN resets THEN 0 WHEN cause IS NULL THEN attempts - 1 ELSE attempts END,
        retries = CASE WHEN resets THEN 0 ELSE retries + (cause IS NOT DISTINCT FROM 'error')::int END,
        timeouts = CASE WHEN resets THEN 0 ELSE timeouts + (cause IS NOT DISTINCT FROM 'timeout')::int END,
        stalls = CASE WHEN resets THEN 0 ELSE stalls + (cause IS NOT DISTINCT FROM 'stall')::int END,
        error = CASE WHEN resets THEN NULL ELSE coalesce(why, error) END,
        payload = CASE WHEN replaces THEN s.payload ELSE payload END,
        priority = CASE WHEN replaces THEN s.priority ELSE priority END,
        attributes = CASE WHEN replaces THEN s.attributes ELSE attributes END,
        overrides = CASE WHEN replaces THEN s.overrides ELSE overrides END,
        retention = CASE WHEN replaces THEN s.retention ELSE retention END,
        key = CASE WHEN replaces THEN s.key ELSE key END,
        memo = CASE WHEN replaces THEN NULL ELSE memo END,
        fence = NULL, claimed_at = NULL, lease = NULL, holder = NULL, cancel_requested = NULL,
        progress = NULL, next = NULL
    WHERE q = j.q AND id = j.id;
    IF j.key IS NOT NULL THEN
        PERFORM free_key(j);
    END IF;
    IF qu.log_level = 'off' THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY[run_event(
        CASE cause WHEN 'error' THEN 'retried' WHEN 'timeout' THEN 'timed_out' WHEN 'stall' THEN 'stalled'
        ELSE 'released' END, j, now_ms, why)];
END $$;

-- complete_all(queue, now, ids, fences, results) -> the positions, from 1, of the settlements that are done: runs that
-- are active under the given fence and have no successor. Takes two statements for the whole batch; no id is repeated.
-- Why format() builds the events: json_build_array() and concat() look up the types of their arguments for each job.
-- An active row always has claimed_at and holder.
CREATE OR REPLACE FUNCTION complete_all(qu queues, now_ms bigint, ids text[], fences bigint[], results bytea[])
RETURNS bigint[] LANGUAGE plpgsql SET enable_hashjoin = on AS $$
DECLARE
    usual bigint := expiry('completed', now_ms, NULL, NULL, qu.retention);
    keeps boolean := keeps_data('completed', NULL, NULL, qu.retention);
    -- NULL if the log keeps no results.
    longest integer := nullif(qu.log_results, 0);
    horizon xid8 := pg_snapshot_xmax(pg_current_snapshot());
    picked tid[];
    done bigint[];
    keys text[];
    told text[];
BEGIN
    picked := ARRAY(
        SELECT one.ctid
        FROM (SELECT * FROM unnest(ids, fences) AS u (id, fence) ORDER BY u.id COLLATE "C") a,
            LATERAL (
                SELECT j.ctid FROM live j
                WHERE j.q = qu.q AND j.id = a.id AND j.fence = a.fence AND (j.next).revision IS NULL
                FOR UPDATE) one);
    WITH gone AS (
        DELETE FROM live j USING unnest(ids, results) WITH ORDINALITY AS s (id, result, place)
        WHERE j.ctid = ANY (picked) AND s.id = j.id
        RETURNING s.place, s.result, j.id, j.fence, j.first, j.revision, j.enqueues, j.enqueued_at, j.run_at,
            j.claimed_at, j.holder, j.attempts, j.retries, j.stalls, j.timeouts, j.payload, j.priority,
            j.attributes, j.overrides, j.retention, j.origin, j.dropped, j.key,
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
            CASE WHEN d.kept THEN g.attributes END, CASE WHEN d.data THEN g.overrides END,
            CASE WHEN d.data THEN g.retention END, g.origin, g.dropped, CASE WHEN d.data THEN g.key END
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
            key = excluded.key, memo = NULL, dropped = latest_dropped(old.dropped || excluded.dropped)
    )
    SELECT array_agg(place), array_agg(key) FILTER (WHERE key IS NOT NULL),
           CASE WHEN qu.log_level <> 'off' THEN array_agg(format(
               '["completed",%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,null%s]', to_json(id), now_ms, attempts, fence,
               enqueued_at, run_at, claimed_at, now_ms, to_json(holder), first, revision, enqueues,
               CASE WHEN octet_length(result) <= longest
                    THEN ',"' || translate(encode(result, 'base64'), E'\n', '') || '"' END) ORDER BY place) END
    INTO done, keys, told FROM gone;
    IF keys IS NOT NULL THEN
        INSERT INTO freed SELECT qu.q, u.key FROM unnest(keys) AS u (key);
    END IF;
    PERFORM tell(qu, now_ms, told);
    RETURN done;
END $$;

-- hand_to_failure(queue, job, error, now): enqueue the fail job into the fail queue (contract 3, the fail job).
CREATE OR REPLACE FUNCTION hand_to_failure(qu queues, j live, why json, now_ms bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    into_queue queues := queue_of(qu.name || '!fail');
    r request;
    f live;
    told text[] := '{}';
BEGIN
    r := (lpad(to_hex(nextval('numbers')), 16, '0'), j.payload, 0, NULL, NULL, NULL, now_ms, 0, NULL)::request;
    PERFORM begin_live(into_queue, r, now_ms, json_build_array(
        qu.name, j.id, j.revision, j.fence, j.attempts, j.retries, j.stalls, j.timeouts, j.enqueued_at, why,
        j.run_at, j.attributes));
    IF into_queue.log_level = 'all' THEN
        SELECT * INTO f FROM live WHERE q = into_queue.q AND id = r.id;
        told := ARRAY[note_event('queued', f, now_ms)];
        PERFORM tell(into_queue, now_ms, told);
    END IF;
    PERFORM ring(into_queue, true, cardinality(told) > 0, NULL);
END $$;

-- end_with(queue, job, kind, now, result, details) -> the events to log. Ends a run. `details` has the error, then
-- (follow-ups) and retention of a Complete, Fail or Cancelled; NULL if all have their defaults. The setting fail_handler
-- decides about the fail job. A transaction of the caller with an older snapshot does not see the latest setting, so
-- dibs/storage/postgres/transactions.py reads it outside and sends it as `handled`.
CREATE OR REPLACE FUNCTION end_with(qu queues, j live, kind text, now_ms bigint, result bytea, details json)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    told text[];
    handled boolean := qu.fail_handler;
BEGIN
    told := end_run(qu, j, kind, now_ms, result, details -> 'error', (details -> 'retention')::jsonb);
    IF details -> 'handled' IS NOT NULL AND has_snapshot() THEN
        handled := (details ->> 'handled')::boolean;
    END IF;
    IF handled AND kind = 'failed' AND right(qu.name, 5) <> '!fail' THEN
        PERFORM hand_to_failure(qu, join_range(j), details -> 'error', now_ms);
    END IF;
    IF details -> 'then' IS NOT NULL THEN
        PERFORM follow(details -> 'then', now_ms);
    END IF;
    RETURN told;
END $$;

-- settle_one(queue, now, id, fence, kind, result, details) -> status, revision and events of one settlement. `kind` is
-- completed, failed, cancelled, retry, release or hand_off. details.refused marks a settlement that breaks a limit.
CREATE OR REPLACE FUNCTION settle_one(
    qu queues, now_ms bigint, wanted text, under bigint, said text, result bytea, details json,
    OUT status text, OUT revision bigint, OUT told text[], OUT over boolean
) LANGUAGE plpgsql AS $$
DECLARE
    j live;
    o ended;
    ends boolean := said IN ('completed', 'failed', 'cancelled');
    back_at bigint := (details ->> 'when')::bigint;
BEGIN
    told := '{}';
    over := false;
    SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted FOR UPDATE;
    IF j.id IS NULL THEN
        PERFORM check_snapshot(qu, wanted);
    END IF;
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
        IF j.key IS NOT NULL THEN
            PERFORM free_key(j);
        END IF;
        UPDATE live SET state = 'h', lease = NULL WHERE q = j.q AND id = j.id RETURNING * INTO j;
        IF qu.log_level = 'all' THEN
            told := ARRAY[note_event('handed_off', j, now_ms)];
        END IF;
    ELSE
        status := 'returned';
        IF said = 'retry' OR back_at IS NOT NULL THEN
            back_at := start_time(back_at, now_ms);
        END IF;
        told := come_back(qu, j, now_ms, back_at, CASE said WHEN 'retry' THEN details ->> 'cause' END,
                          details -> 'error');
    END IF;
END $$;

DROP FUNCTION report(text, text, bigint, json, bigint);

-- report(queue, id, fence, progress, memo, now) -> true if the run with this fence is active. Then stores its progress
-- and its memo, unless they are NULL. An empty memo removes the memo.
CREATE FUNCTION report(queue text, wanted text, under bigint, said json, new_memo bytea, manual bigint) RETURNS boolean
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    known boolean;
BEGIN
    PERFORM tick(manual);
    SELECT * INTO qu FROM queues WHERE name = queue;
    UPDATE live SET
        progress = coalesce(said, progress),
        memo = CASE WHEN new_memo IS NULL THEN memo ELSE nullif(new_memo, '') END
    WHERE q = qu.q AND id = wanted AND fence = under;
    known := FOUND;
    IF known AND said IS NOT NULL AND qu.progress_until > clock_timestamp() THEN
        PERFORM pg_notify('{channel}', qu.q || ' p ' || json_build_array(wanted));
    END IF;
    RETURN known;
END $$;
