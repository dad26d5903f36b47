-- The functions that applications call from SQL. docs/howto/use_from_sql.md describes them.

-- refuse(argument, reason): raise the error of a bad argument.
CREATE OR REPLACE FUNCTION refuse(argument text, reason text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', COLUMN = argument, MESSAGE = argument || ' ' || reason;
END $$;

-- check_size(argument, value, most): refuse a text that is NULL, empty or longer than `most` bytes.
CREATE OR REPLACE FUNCTION check_size(argument text, value text, most integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF value IS NULL THEN
        PERFORM refuse(argument, 'is NULL; pass a text');
    ELSIF octet_length(value) NOT BETWEEN 1 AND most THEN
        PERFORM refuse(argument, format('has %s bytes; it must have 1 to %s', octet_length(value), most));
    END IF;
END $$;

-- check_range(argument, value, low, high): refuse a number that is NULL or outside of the range.
CREATE OR REPLACE FUNCTION check_range(argument text, value numeric, low bigint, high bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF value IS NULL THEN
        PERFORM refuse(argument, 'is NULL; pass a number');
    ELSIF value NOT BETWEEN low AND high THEN
        PERFORM refuse(argument, format('is %s; it must be %s to %s', value, low, high));
    END IF;
END $$;

-- check_call(queue): refuse a bad name of a queue, and every isolation level but READ COMMITTED. Under a higher one,
-- the functions of the verbs would read rows as they were before the transaction.
CREATE OR REPLACE FUNCTION check_call(queue text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_transaction_state', MESSAGE = format(
            'the isolation level is %s; dibs needs READ COMMITTED: call it in another transaction',
            current_setting('transaction_isolation'));
    END IF;
    PERFORM check_size('queue', queue, CASE WHEN right(queue, 5) = '!fail' THEN 505 ELSE 500 END);
END $$;

-- interval_ms(argument, interval, low) -> the interval in ms, rounded up; NULL for NULL. Refuses less than `low` ms and
-- more than 100,000 days. A month counts as 30 days, and a year as 365.25 days.
CREATE OR REPLACE FUNCTION interval_ms(argument text, value interval, low bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    -- Not numeric, which has no infinity before Postgres 14.
    seconds double precision := extract(epoch FROM value);
BEGIN
    IF seconds < 0 OR seconds > 8640000000 OR seconds = 0 AND low > 0 THEN
        PERFORM refuse(argument, format('is %s; it must be %s to 100,000 days', value,
                                        CASE low WHEN 0 THEN '0 seconds' ELSE '1 ms' END));
    END IF;
    RETURN ceil(seconds::numeric * 1000);
END $$;

-- time_ms(argument, time) -> the time in ms since the epoch, rounded up; NULL for NULL.
CREATE OR REPLACE FUNCTION time_ms(argument text, value timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF value < timestamptz 'epoch' OR value >= timestamptz '9999-01-01 00:00:00+00' THEN
        PERFORM refuse(argument, format('is %s; it must be from 1970 to the end of the year 9998 in UTC', value));
    END IF;
    RETURN ceil(extract(epoch FROM value)::numeric * 1000);
END $$;

-- start_of(run_at, delay) -> the time as start_time() takes it; NULL if both are NULL.
CREATE OR REPLACE FUNCTION start_of(run_at timestamptz, delay interval) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF run_at IS NOT NULL AND delay IS NOT NULL THEN
        PERFORM refuse('run_at', 'and delay are both set; set at most one of them');
    END IF;
    RETURN coalesce(time_ms('run_at', run_at), -1 - interval_ms('delay', delay, 0));
END $$;

-- json_bytes(argument, value) -> the JSON as UTF-8, `null` for NULL. Refuses more than 1 MiB and more than 64 levels.
CREATE OR REPLACE FUNCTION json_bytes(argument text, value jsonb) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    bytes bytea := convert_to(coalesce(value, 'null')::text, 'UTF8');
BEGIN
    IF octet_length(bytes) > 1048576 THEN
        PERFORM refuse(argument, format('has %s bytes; the limit is 1048576: store it elsewhere and send its address',
                                        octet_length(bytes)));
    ELSIF value @? 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")' THEN
        PERFORM refuse(argument, 'is nested deeper than 64; flatten it');
    END IF;
    RETURN bytes;
END $$;

-- check_attributes(attributes): refuse attributes that are no JSON object, or that break a limit. NULL passes.
CREATE OR REPLACE FUNCTION check_attributes(attributes jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(attributes) <> 'object' THEN
        PERFORM refuse('attributes', format('is a JSON %s; pass an object', jsonb_typeof(attributes)));
    ELSIF attributes ? '' THEN
        PERFORM refuse('attributes', 'has an empty name; a name must have 1 to 65536 bytes');
    ELSIF size_of(attributes::json) > 65536 THEN
        PERFORM refuse('attributes', format('has %s bytes; the limit is 65536: use the payload instead',
                                            size_of(attributes::json)));
    ELSIF attributes @? 'strict $.*.**{64} ? (@.type() == "object" || @.type() == "array")' THEN
        PERFORM refuse('attributes', 'is nested deeper than 64; flatten it');
    ELSIF attributes @? 'strict $.** ? (@.type() == "number" && (@ > 9007199254740992 || @ < -9007199254740992))' THEN
        PERFORM refuse('attributes', 'contains a number beyond 2**53; send it as text');
    END IF;
END $$;

-- failure(error, error_type) -> the details of a Fail, as end_with() takes them. A text of more than 16 KiB loses its
-- middle. Errors are stored as arrays of the fields of dibs.model.job.Error.
CREATE OR REPLACE FUNCTION failure(error text, error_type text) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    PERFORM check_size('error_type', error_type, 512);
    IF octet_length(error_type) + octet_length(error) > 16384 THEN
        -- A character has at most four bytes, so the rest has at most half of the limit, as from Python.
        error := left(error, 1000) || E'\n[... cut by dibs ...]\n' || right(error, 1000);
    END IF;
    RETURN json_build_object('error', json_build_array(error_type, coalesce(error, ''), '', NULL, 'error'));
END $$;

-- base32(number, digits) -> the lowest digits of a number in Crockford's base 32.
CREATE OR REPLACE FUNCTION base32(number bigint, digits integer) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT string_agg(substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', (number >> 5 * i & 31)::integer + 1, 1), '' ORDER BY i DESC)
    FROM generate_series(0, digits - 1) i
$$;

-- new_id() -> a ULID: the time in ms, a number of the sequence, which makes ids of one ms grow, and 25 random bits.
CREATE OR REPLACE FUNCTION new_id() RETURNS text LANGUAGE sql AS $$
    SELECT base32(tick(NULL), 10) || base32(nextval('numbers'), 11) || base32((random() * 33554431)::bigint, 5)
$$;

-- enqueue_job(queue, id, payload, ...) -> the id, the status of the verb enqueue (contract 3), whether the request_key
-- was known, and the revision. `on_conflict` is update, reject, reject_failed or supersede.
CREATE OR REPLACE FUNCTION enqueue_job(
    queue text, INOUT id text DEFAULT NULL, payload jsonb DEFAULT 'null', priority integer DEFAULT 0,
    run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, attributes jsonb DEFAULT NULL,
    request_key text DEFAULT NULL, on_conflict text DEFAULT 'update', lease interval DEFAULT NULL,
    timeout interval DEFAULT NULL, max_retries integer DEFAULT NULL, retention interval DEFAULT NULL,
    key text DEFAULT NULL,
    OUT status text, OUT repeated boolean, OUT revision bigint
) LANGUAGE plpgsql SECURITY DEFINER {pinned} AS $$
DECLARE
    how integer := CASE on_conflict WHEN 'update' THEN 0 WHEN 'reject' THEN 16 WHEN 'reject_failed' THEN 48
                              WHEN 'supersede' THEN 128 END;
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
        PERFORM refuse('on_conflict', 'must be one of update, reject, reject_failed, supersede');
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
        queue, NULL, how & 16 = 0 AND request_key IS NULL, ARRAY[id], ARRAY[bytes], ARRAY[priority::smallint],
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

-- signal_job(queue, id, name, value, request_key) -> delivered, absent or full, as `queue.signal` in Python, whose
-- signals are the same attributes. 333 is an Update(create=False, run_at="wake").
CREATE OR REPLACE FUNCTION signal_job(
    queue text, id text, name text, value jsonb DEFAULT 'null', request_key text DEFAULT NULL
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER {pinned} AS $$
DECLARE
    signal jsonb := jsonb_build_object('dibs.signal.' || name || '.' || new_id(),
                                       jsonb_build_object('json', coalesce(value, 'null')));
    answer record;
BEGIN
    PERFORM check_call(queue), check_size('id', id, 512), check_size('name', name, 96),
            check_size('value', coalesce(value, 'null')::text, 65000), check_attributes(signal);
    IF request_key IS NOT NULL THEN
        PERFORM check_size('request_key', request_key, 128);
    END IF;
    SELECT * INTO answer FROM enqueue(
        queue, NULL, false, ARRAY[id], ARRAY[''::bytea], ARRAY[0::smallint], ARRAY[NULL::bigint], ARRAY[333],
        ARRAY[signal::text], ARRAY[NULL::text], ARRAY[NULL::text], ARRAY[NULL::text], ARRAY[request_key], NULL);
    RETURN CASE WHEN answer.statuses[1] IN ('updated', 'blocked') THEN 'delivered' ELSE answer.statuses[1] END;
END $$;

-- claim_jobs(queue, max_jobs, ttl, holder) -> the claimed jobs, in the order of claims, with the lease that holds all
-- of them for `ttl`, or for the longest lease that one of the jobs sets. First returns jobs of expired leases to the
-- queue. A `payload` that is no JSON is NULL; `payload_bytes` always has it.
CREATE OR REPLACE FUNCTION claim_jobs(
    queue text, max_jobs integer DEFAULT 1, ttl interval DEFAULT '30 seconds', holder text DEFAULT NULL
) RETURNS TABLE (
    id text, payload jsonb, attributes jsonb, attempts integer, retries integer, stalls integer, timeouts integer,
    fence bigint, lease uuid, lease_expires_at timestamptz, payload_bytes bytea
) LANGUAGE plpgsql SECURITY DEFINER {pinned} AS $$
#variable_conflict use_column
DECLARE
    held uuid := gen_random_uuid();
    length bigint := interval_ms('ttl', coalesce(ttl, '30 seconds'), 1);
    named text := coalesce(holder, 'sql:' || session_user || ':' || pg_backend_pid());
    own bigint;
BEGIN
    PERFORM check_call(queue), check_range('max_jobs', max_jobs, 1, 1000000), check_size('holder', named, 512);
    PERFORM reap(queue, 100, NULL);
    PERFORM grant_lease(ARRAY[queue], held, length, named, NULL);
    PERFORM claim(ARRAY[queue], ARRAY[max_jobs], held, NULL);
    SELECT coalesce(max((j.overrides ->> 'lease')::bigint), 0) INTO own
    FROM queues k, active_runs(k.q, held) r JOIN live j ON j.id = r.id
    WHERE k.name = queue AND j.q = k.q HAVING count(*) > 0;
    IF NOT FOUND THEN
        PERFORM drop_lease(ARRAY[queue], held, 1, NULL);
        RETURN;
    ELSIF own > length THEN
        PERFORM renew(ARRAY[queue], held, own, NULL);
    END IF;
    RETURN QUERY
    SELECT j.id, as_jsonb(j.payload), coalesce(j.attributes::jsonb, '{}'), j.attempts, j.retries, j.stalls, j.timeouts,
           j.fence, j.lease, as_time(l.expires_at), j.payload
    FROM leases l, active_runs(l.q, held) r, live j
    WHERE l.lease = held AND j.q = l.q AND j.id = r.id ORDER BY j.priority DESC, j.run_at, j.seq;
END $$;

-- heartbeat(queue, lease, ttl) -> true if the lease is alive; then it ends no earlier than `ttl` from now, and
-- `cancel_requested` has the ids of its jobs that were asked to stop.
CREATE OR REPLACE FUNCTION heartbeat(
    queue text, lease uuid, ttl interval DEFAULT '30 seconds',
    OUT alive boolean, OUT expires_at timestamptz, OUT cancel_requested text[]
) LANGUAGE plpgsql SECURITY DEFINER {pinned} AS $$
DECLARE
    length bigint := interval_ms('ttl', coalesce(ttl, '30 seconds'), 1);
BEGIN
    PERFORM check_call(queue);
    IF lease IS NULL THEN
        PERFORM refuse('lease', 'is NULL; pass the lease that claim_jobs returned');
    END IF;
    SELECT as_time(r.ends_at), r.asked INTO expires_at, cancel_requested
    FROM renew(ARRAY[queue], lease, length, NULL) r WHERE r.name = queue;
    alive := FOUND;
END $$;

-- settle_job(queue, id, fence, kind, result, details) -> the status of the verb settle for one settlement, and the
-- revision after a hand-off. Serves the functions below; completed has no details.
CREATE OR REPLACE FUNCTION settle_job(
    queue text, id text, fence bigint, kind text, result bytea, details json, OUT status text, OUT revision bigint
) LANGUAGE plpgsql AS $$
DECLARE
    answer record;
BEGIN
    PERFORM check_call(queue), check_size('id', id, 512), check_range('fence', fence, 0, 9007199254740992);
    SELECT * INTO answer FROM settle(
        ARRAY[queue], '{1}', ARRAY[kind = 'completed'], NULL, ARRAY[id], ARRAY[fence], ARRAY[kind], ARRAY[result],
        ARRAY[details::text]);
    status := coalesce(answer.statuses[1], 'done');
    revision := answer.revisions[1];
END $$;

-- complete_job(queue, id, fence, result) -> done, or lost if the run with this fence has ended or come back already.
CREATE OR REPLACE FUNCTION complete_job(queue text, id text, fence bigint, result jsonb DEFAULT NULL) RETURNS text
LANGUAGE sql SECURITY DEFINER {pinned} AS $$
    SELECT (settle_job(queue, id, fence, 'completed', json_bytes('result', result), NULL)).status
$$;

-- fail_job(queue, id, fence, error, error_type) -> done or lost.
CREATE OR REPLACE FUNCTION fail_job(
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

-- release_job(queue, id, fence, delay) -> the answers of retry_job(). The job waits as before its claim, or with
-- `delay` until then.
CREATE OR REPLACE FUNCTION release_job(queue text, id text, fence bigint, delay interval DEFAULT NULL) RETURNS text
LANGUAGE sql SECURITY DEFINER {pinned} AS $$
    SELECT (settle_job(queue, id, fence, 'release', NULL, CASE WHEN delay IS NOT NULL THEN
        json_build_object('when', start_of(NULL, delay)) END)).status
$$;

-- hand_off_job(queue, id, fence) -> handed_off with the revision for finish_job(), cancelled, or lost. The run leaves
-- its lease, and never comes back by itself.
CREATE OR REPLACE FUNCTION hand_off_job(queue text, id text, fence bigint, OUT status text, OUT revision bigint)
LANGUAGE sql SECURITY DEFINER {pinned} AS $$
    SELECT * FROM settle_job(queue, id, fence, 'hand_off', NULL, NULL)
$$;

-- finish_job(queue, id, revision, result, error, error_type) -> done, lost, not_found or refused. Ends a
-- handed-off run: as failed if `error` is set, else as completed.
CREATE OR REPLACE FUNCTION finish_job(
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

-- cancel_job(queue, id, running) -> the answers of the verb cancel (contract 3).
CREATE OR REPLACE FUNCTION cancel_job(queue text, id text, running boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER {pinned} AS $$
BEGIN
    PERFORM check_call(queue), check_size('id', id, 512);
    RETURN (cancel(queue, ARRAY[id], coalesce(running, false), NULL))[1];
END $$;

-- amend_job(queue, id, attributes, payload, priority, run_at, delay, lease) -> amended, active or not_found. Changes
-- the fields that are not NULL; attributes are merged at the top level.
CREATE OR REPLACE FUNCTION amend_job(
    queue text, id text, attributes jsonb DEFAULT NULL, payload jsonb DEFAULT NULL, priority integer DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, lease interval DEFAULT NULL
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER {pinned} AS $$
DECLARE
    start bigint := start_of(run_at, delay);
    patch jsonb := jsonb_strip_nulls(jsonb_build_object(
        'priority', priority, 'when', start, 'payload', CASE WHEN payload IS NOT NULL THEN true END,
        'overrides', CASE WHEN lease IS NOT NULL THEN jsonb_build_object('lease', interval_ms('lease', lease, 1)) END));
    answer text;
BEGIN
    PERFORM check_call(queue), check_size('id', id, 512), check_attributes(attributes),
            check_range('priority', coalesce(priority, 0), -1000, 1000);
    IF attributes IS NOT NULL THEN
        patch := patch || jsonb_build_object('attributes', attributes);
    END IF;
    answer := amend(queue, id, patch::json, json_bytes('payload', payload), 65536, NULL);
    -- amend() returns the size of merged attributes that break the limit.
    IF answer ~ '^[0-9]' THEN
        PERFORM refuse('attributes', format('have %s bytes after the merge; the limit is 65536', answer));
    END IF;
    RETURN answer;
END $$;

-- forget_job(queue, id) -> true if the id existed. Removes its job and its outcome.
CREATE OR REPLACE FUNCTION forget_job(queue text, id text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER {pinned} AS $$
BEGIN
    PERFORM check_call(queue), check_size('id', id, 512);
    RETURN (forget(queue, ARRAY[id], NULL))[1];
END $$;

-- A function with the privileges of its owner must not be open to every role that may read the views.
REVOKE EXECUTE ON FUNCTION
    enqueue_job, claim_jobs, heartbeat, complete_job, fail_job, retry_job, release_job, hand_off_job, finish_job,
    cancel_job, amend_job, forget_job
FROM PUBLIC;
