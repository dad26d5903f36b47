-- The end, retry and release of a run (contract 3), for one locked row of `live`.

-- expiry(kind, now, given, jobs, queues) -> the time at which an outcome of this kind expires, NULL for never. The
-- retention of the settlement (`given`) has precedence over that of the job, then that of the queue, then the default.
CREATE OR REPLACE FUNCTION expiry(kind text, now_ms bigint, given jsonb, jobs jsonb, queues jsonb) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT now_ms + (CASE
        WHEN given ? kind THEN given ->> kind
        WHEN jobs ? kind THEN jobs ->> kind
        WHEN queues ? kind THEN queues ->> kind
        WHEN kind = 'failed' THEN '604800000'
        ELSE '3600000' END)::bigint
$$;

-- keeps_data(kind, ...) -> true if an outcome of this kind keeps the data (payload, attributes ...) of the job.
CREATE OR REPLACE FUNCTION keeps_data(kind text, given jsonb, jobs jsonb, queues jsonb) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT coalesce(given -> 'keep_payload', jobs -> 'keep_payload', queues -> 'keep_payload', '["failed"]')
           ? kind
$$;

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
        cancel_requested = NULL, progress = NULL, next = NULL, dropped = NULL, busy_key = NULL
    WHERE q = j.q AND id = j.id;
    PERFORM note_start(j.q, s.priority, s.run_at, s.seq);
END $$;

-- keep(job, kind, ...): write the outcome of a job that ends now, over any older outcome. A kept outcome has the
-- progress of its run. An outcome without retention keeps its fence and revision range until prune(), so that a
-- repeated settlement gets the right answer.
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
        CASE WHEN data THEN j.key END, CASE WHEN data AND kind = 'failed' THEN j.memo END,
        CASE WHEN kept THEN j.progress END)
    ON CONFLICT (q, id) DO UPDATE SET {replaced};
END $$;

-- end_run(queue, job, kind, now, result, error, given) -> the events to log. Writes the outcome of the current job and
-- promotes its successor. A waiting job can only end as cancelled.
CREATE OR REPLACE FUNCTION end_run(
    qu queues, j live, kind text, now_ms bigint, result bytea, error json, given jsonb
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    logged text[] := '{}';
    heir live;
BEGIN
    IF kind = 'failed' AND right(qu.name, 5) = '!fail' THEN
        -- An outcome that failed in a fail queue never expires and keeps its payload, so that people can find it.
        given := '{"failed": null, "keep_payload": ["failed"]}';
    END IF;
    j := join_range(j);
    PERFORM keep(qu, j, kind, now_ms, result, error, given);
    PERFORM promote(j);
    IF qu.has_output THEN
        PERFORM remove_output(qu, ARRAY[j.id], now_ms);
    END IF;
    IF j.key IS NOT NULL THEN
        PERFORM free_key(j);
    END IF;
    IF qu.fair THEN
        PERFORM move_turn(qu, j, j.id);
    END IF;
    IF qu.log_level <> 'off' THEN
        logged := ARRAY[run_event(kind, j, now_ms, error)];
        IF kind = 'completed' AND qu.log_results > 0 THEN
            logged[1] := with_result(logged[1], qu, result);
        END IF;
        IF qu.log_level = 'all' AND (j.next).revision IS NOT NULL THEN
            SELECT * INTO heir FROM live WHERE q = j.q AND id = j.id;
            logged := logged || note_event('promoted', heir, now_ms);
        END IF;
    END IF;
    RETURN logged;
END $$;

-- return_to_queue(queue, job, now, run_at, cause, error) -> the events to log. The active job waits again, and the
-- enqueues that its successor has merged are applied to it. `cause` is error, timeout or stall; NULL releases the job,
-- with 1 attempt less. A release without `back_at` keeps the place of the job, its run_at and seq; a job that was claimed
-- while it was parked has no seq to keep. With `parks` the job is parked until `back_at`: its seq is 0. If a request was
-- blocked since the claim, also one that a cancel dropped, the job is due now instead. Never called for a run whose
-- cancellation was requested.
CREATE OR REPLACE FUNCTION return_to_queue(
    qu queues, j live, now_ms bigint, back_at bigint, cause text, why json, parks boolean DEFAULT false
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    s successor := j.next;
    folds boolean := s.revision IS NOT NULL;
    replaces boolean := folds AND s.replaces;
    resets boolean := folds AND s.resets;
    at bigint := coalesce(back_at, j.run_at);
    after bigint;
    level smallint;
BEGIN
    IF parks AND (folds OR j.dropped[cardinality(j.dropped)] > j.fence) THEN
        parks := false;
        at := now_ms;
    END IF;
    IF folds THEN
        -- greatest and least ignore NULL, which stands for no limit.
        at := least(greatest(at, s.lo), s.hi);
    END IF;
    UPDATE live SET
        state = 'w', run_at = at,
        seq = CASE WHEN parks THEN 0 WHEN back_at IS NULL AND seq > 0 THEN seq ELSE nextval('numbers') END,
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
        progress = NULL, next = NULL, busy_key = NULL
    WHERE q = j.q AND id = j.id RETURNING priority, live.run_at, seq INTO level, at, after;
    PERFORM note_start(j.q, level, at, after);
    IF j.key IS NOT NULL THEN
        PERFORM free_key(j);
    END IF;
    IF qu.fair THEN
        PERFORM move_turn(qu, j, j.id);
    END IF;
    IF qu.log_level = 'off' THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY[run_event(
        CASE cause WHEN 'error' THEN 'retried' WHEN 'timeout' THEN 'timed_out' WHEN 'stall' THEN 'stalled'
        ELSE 'released' END, j, now_ms, why)];
END $$;

-- leave_trace(queue number, id, number): insert a marker for a removed id, with the highest number that it had. The
-- marker is expired from the start and has an empty revision range, so that only begin_live() takes it into account.
CREATE OR REPLACE FUNCTION leave_trace(queue integer, wanted text, number bigint) RETURNS void LANGUAGE sql AS $$
    INSERT INTO ended (q, id, kind, fence, first, revision, ended_at, expires_at, horizon, enqueues,
                       enqueued_at, run_at, attempts, retries, stalls, timeouts)
    VALUES (queue, wanted, 'forgotten', number, 0, -1, 0, 0, pg_snapshot_xmax(pg_current_snapshot()), 0,
            0, 0, 0, 0, 0, 0) ON CONFLICT DO NOTHING
$$;
