-- The columns of keys, memos and update-only requests, and new settings of a queue, with the functions and views that
-- show them. Migrations 0020 to 0022 have the verbs that use them.

-- The key of a job and its memo are NULL for a job without one. `memo` has the bytes that a run stored for later runs.
ALTER TABLE live ADD COLUMN key text COLLATE "C", ADD COLUMN memo bytea;
ALTER TABLE ended ADD COLUMN key text COLLATE "C", ADD COLUMN memo bytea;

-- `creates` is false while all merged requests are update-only. Such a successor has run_at and seq 0, and makes no job
-- when its run ends. NULL, in rows that were stored before this migration, is true.
ALTER TYPE successor ADD ATTRIBUTE key text COLLATE "C", ADD ATTRIBUTE creates boolean;

-- A limit on how often runs start: `starts` in `per` ms, after a first burst of `burst` at once.
CREATE TYPE start_rate AS (starts bigint, per bigint, burst bigint);

-- progress_until: the time until which a client listens for progress, like work_until in 0001_tables.sql.
ALTER TABLE queues
    ADD COLUMN fail_handler boolean NOT NULL DEFAULT false,
    ADD COLUMN log_results integer NOT NULL DEFAULT 0,
    ADD COLUMN per_key bigint,
    ADD COLUMN rate start_rate,
    ADD COLUMN key_rate start_rate,
    ADD COLUMN progress_until timestamptz NOT NULL DEFAULT clock_timestamp() + interval '1 minute';

-- limits_changed(before, after): called by configure() with the row of the queue before and after the change, which it
-- has locked.
CREATE FUNCTION limits_changed(before queues, after queues) RETURNS void LANGUAGE sql AS '';

-- free_key(job): called with the row of a job with a key as it was before this step, in which its run leaves its lease
-- (it ends, comes back, is handed off or forgotten), or in which the waiting job leaves its place in the line.
CREATE FUNCTION free_key(j live) RETURNS void LANGUAGE sql AS '';

-- configure(queue, patch, now) -> the settings after the change. The keys of `patch` are the settings to change.
CREATE OR REPLACE FUNCTION configure(queue text, patch jsonb, manual bigint) RETURNS queues
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    before queues := queue_of(queue);
    after queues;
    now_ms bigint := tick(manual);
    told text[] := '{}';
BEGIN
    SELECT * INTO before FROM queues WHERE q = before.q FOR UPDATE;
    UPDATE queues SET
        paused = coalesce((patch ->> 'paused')::boolean, paused),
        max_active = CASE WHEN patch ? 'max_active' THEN (patch ->> 'max_active')::bigint ELSE max_active END,
        retention = coalesce(patch -> 'retention', retention),
        log_level = coalesce(patch ->> 'log_level', log_level),
        log_age = coalesce((patch ->> 'log_age')::bigint, log_age),
        log_bytes = coalesce((patch ->> 'log_bytes')::bigint, log_bytes),
        request_key_age = coalesce((patch ->> 'request_key_age')::bigint, request_key_age),
        fail_handler = coalesce((patch ->> 'fail_handler')::boolean, fail_handler),
        log_results = coalesce((patch ->> 'log_results')::integer, log_results),
        per_key = CASE WHEN patch ? 'per_key' THEN (patch ->> 'per_key')::bigint ELSE per_key END,
        rate = CASE WHEN patch ? 'rate' THEN rate_of(patch -> 'rate') ELSE rate END,
        key_rate = CASE WHEN patch ? 'key_rate' THEN rate_of(patch -> 'key_rate') ELSE key_rate END
    WHERE q = before.q RETURNING * INTO after;
    PERFORM limits_changed(before, after);
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

-- rate_of(json) -> a rate from an object with its fields; NULL for a JSON null.
CREATE FUNCTION rate_of(given jsonb) RETURNS start_rate LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN jsonb_typeof(given) = 'object'
        THEN ((given ->> 'starts')::bigint, (given ->> 'per')::bigint, (given ->> 'burst')::bigint)::start_rate END
$$;

-- run_event(kind, job, now, error) -> the event of the end of an attempt, or of a waiting job (with attempt 0).
CREATE OR REPLACE FUNCTION run_event(kind text, j live, now_ms bigint, error json) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        kind, j.id, now_ms, CASE WHEN j.fence IS NULL THEN 0 ELSE j.attempts END, coalesce(j.fence, 0),
        j.enqueued_at, j.run_at, j.claimed_at, now_ms, coalesce(j.holder, ''),
        j.first, j.revision, j.enqueues, error)::text
$$;

-- note_event(kind, job, now) -> an event that is logged at level `all` only.
CREATE OR REPLACE FUNCTION note_event(kind text, j live, now_ms bigint) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        kind, j.id, now_ms, CASE WHEN j.fence IS NULL THEN 0 ELSE j.attempts END, coalesce(j.fence, 0),
        j.enqueued_at, j.run_at, j.claimed_at, NULL, coalesce(j.holder, ''),
        j.first, j.revision, j.enqueues, NULL)::text
$$;

-- watch(queues, for, now) -> a row for each existing queue, for a client that waits for work, events, ids or progress. Afterwards, changes of these
-- queues send notifications for at least 30 s, at most a minute. `due` is true if a claim would find a job. `unheard`
-- is true if no client was known to listen before, so that a change may have happened without a notification. A wait for progress also
-- ends with a run, so it needs the notifications of both.
CREATE OR REPLACE FUNCTION watch(names text[], kind text, manual bigint)
RETURNS TABLE (
    name text, q integer, now_ms bigint, due boolean, next_due bigint, ends_at bigint, hidden boolean,
    unheard boolean
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    ahead record;
    heard timestamptz;
    shown bigint;
    until timestamptz := clock_timestamp() + interval '1 minute';
BEGIN
    now_ms := tick(manual);
    IF kind = 'events' THEN
        shown := shown_until();
    END IF;
    FOR qu IN SELECT * FROM queues k WHERE k.name = ANY (names) ORDER BY k.q LOOP
        heard := CASE kind WHEN 'work' THEN qu.work_until WHEN 'events' THEN qu.events_until
                 WHEN 'ids' THEN qu.ids_until ELSE least(qu.progress_until, qu.ids_until) END;
        unheard := heard < clock_timestamp();
        IF heard < clock_timestamp() + interval '30 seconds' THEN
            UPDATE queues k SET
                work_until = CASE kind WHEN 'work' THEN until ELSE work_until END,
                events_until = CASE kind WHEN 'events' THEN until ELSE events_until END,
                ids_until = CASE WHEN kind IN ('ids', 'progress') THEN until ELSE ids_until END,
                progress_until = CASE kind WHEN 'progress' THEN until ELSE progress_until END
            WHERE k.q = qu.q;
        END IF;
        name := qu.name;
        q := qu.q;
        due := false;
        next_due := NULL;
        IF kind = 'work' AND NOT qu.paused THEN
            ahead := look_ahead(qu, now_ms);
            due := ahead.due AND (qu.max_active IS NULL OR qu.max_active > (
                SELECT count(*) FROM live l WHERE l.q = qu.q AND l.lease IS NOT NULL));
            next_due := ahead.next_due;
        ELSIF kind = 'events' THEN
            ends_at := (SELECT max(e.n) FROM events e WHERE e.q = qu.q AND e.n <= shown);
            hidden := EXISTS (SELECT 1 FROM events e WHERE e.q = qu.q AND e.n > shown);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- know_fail_queue(queue) -> the setting fail_handler of a queue. If it is true, inserts the row of the fail queue, in a
-- separate transaction like know_queues() in 0002_place.sql.
CREATE FUNCTION know_fail_queue(queue text) RETURNS boolean LANGUAGE plpgsql {pinned} AS $$
DECLARE
    handled boolean := coalesce((SELECT fail_handler FROM queues WHERE name = queue), false);
BEGIN
    IF handled AND right(queue, 5) <> '!fail' THEN
        PERFORM queue_of(queue || '!fail');
    END IF;
    RETURN handled;
END $$;
CREATE OR REPLACE VIEW jobs AS
SELECT k.name AS queue, j.id,
    CASE WHEN j.state IN ('w', 'k')
         THEN CASE WHEN as_time(j.run_at) > clock_timestamp() THEN 'scheduled' ELSE 'waiting' END
         WHEN j.state = 'a' THEN 'active' ELSE 'handed_off' END AS state,
    (j.next).seq IS NOT NULL AS blocked,
    j.priority, as_time(j.run_at) AS run_at, as_time(j.enqueued_at) AS enqueued_at,
    as_time(j.claimed_at) AS claimed_at, j.holder, as_time(l.expires_at) AS lease_expires_at,
    j.attempts, j.retries, j.stalls, j.timeouts, j.enqueues,
    as_jsonb(j.payload) AS payload, j.payload AS payload_bytes, j.attributes::jsonb AS attributes,
    j.progress::jsonb AS progress, coalesce(j.cancel_requested, false) AS cancel_requested,
    j.error ->> 0 AS error_type, j.error ->> 1 AS error_message,
    as_jsonb((j.next).payload) AS next_payload, as_time((j.next).run_at) AS next_run_at,
    j.seq, j.first, j.revision, j.fence, j.lease,
    (j.overrides ->> 'lease')::bigint * interval '1 millisecond' AS own_lease,
    j.overrides::jsonb AS overrides, j.retention, as_origin(j.origin) AS origin,
    j.key, j.memo
FROM live j JOIN queues k USING (q) LEFT JOIN leases l ON l.lease = j.lease AND l.q = j.q;

CREATE OR REPLACE VIEW outcomes AS
SELECT k.name AS queue, o.id, o.kind AS state, as_time(o.ended_at) AS ended_at,
    as_time(o.expires_at) AS expires_at, as_time(o.enqueued_at) AS enqueued_at,
    as_time(o.run_at) AS run_at, as_time(o.claimed_at) AS claimed_at, o.holder,
    o.attempts, o.retries, o.stalls, o.timeouts, o.enqueues,
    as_jsonb(o.result) AS result, o.result AS result_bytes,
    o.error ->> 0 AS error_type, o.error ->> 1 AS error_message, o.error ->> 2 AS traceback,
    o.priority, as_jsonb(o.payload) AS payload, o.payload AS payload_bytes,
    o.attributes::jsonb AS attributes, o.first, o.revision, o.fence,
    (o.overrides ->> 'lease')::bigint * interval '1 millisecond' AS own_lease,
    o.overrides::jsonb AS overrides, o.retention, as_origin(o.origin) AS origin,
    o.key, o.memo
FROM ended o JOIN queues k USING (q)
WHERE o.kind <> 'forgotten'
  AND (o.expires_at IS NULL OR as_time(o.expires_at) > clock_timestamp());

-- The type of the result changes, which CREATE OR REPLACE does not allow.
DROP FUNCTION claim(text, uuid, integer, bigint);

-- claim(queue, lease, most, now) -> a row for each claimed job, in the order of claims, and a last row without a job.
-- The last row has the time of the claim, the holder of the lease, and next_due (the time of the next scheduled job).
-- Its `lost` is true if the lease is unknown, expired or dropped; then no job is claimed.
-- The row of the lease is locked FOR KEY SHARE, so that reap() and drop_lease(), which lock it FOR UPDATE, run before
-- or after this claim. The columns of a job are listed one by one, because taking them out of a row value costs more
-- than finding the job.
CREATE FUNCTION claim(queue text, under uuid, most integer, manual bigint)
RETURNS TABLE (
    lost boolean, now_ms bigint, next_due bigint, holder text, fence bigint,
    id text, payload bytea, attributes json, priority smallint, overrides json, retention jsonb,
    run_at bigint, enqueued_at bigint, seq bigint, first bigint, revision bigint, enqueues integer,
    attempts integer, retries integer, stalls integer, timeouts integer, error json, origin json,
    key text, memo bytea
) LANGUAGE plpgsql {pinned} AS $$
#variable_conflict use_column
DECLARE
    qu queues;
    room bigint := most;
    level smallint;
    picked tid[];
    names text[];
    due bigint;
BEGIN
    now_ms := tick(manual);
    lost := false;
    SELECT * INTO qu FROM queues WHERE name = queue;
    SELECT l.holder INTO holder FROM leases l
    WHERE lease = under AND q = qu.q AND expires_at > now_ms AND NOT dropped FOR KEY SHARE;
    IF NOT FOUND THEN
        lost := true;
        RETURN NEXT;
        RETURN;
    END IF;
    IF qu.max_active IS NOT NULL THEN
        -- This lock serializes claims, so that the count below is exact. A concurrent settle can only lower the count.
        SELECT * INTO qu FROM queues WHERE q = qu.q FOR NO KEY UPDATE;
        room := least(most, greatest(0, coalesce(qu.max_active, most + 0::bigint) - CASE
            WHEN qu.max_active IS NULL THEN 0
            ELSE (SELECT count(*) FROM live WHERE q = qu.q AND lease IS NOT NULL) END));
    END IF;
    IF qu.paused THEN
        RETURN NEXT;
        RETURN;
    END IF;
    IF qu.log_level = 'all' THEN
        PERFORM begin_telling();
    END IF;
    SELECT priority INTO level FROM live WHERE q = qu.q AND state = 'w' ORDER BY priority DESC LIMIT 1;
    WHILE level IS NOT NULL LOOP
        IF room > 0 THEN
            -- Lock the rows in a separate statement. In one statement with the UPDATE, the planner may run the locking
            -- query twice.
            picked := ARRAY(
                SELECT ctid FROM live
                WHERE q = qu.q AND state = 'w' AND priority = level AND run_at <= now_ms
                ORDER BY run_at, seq LIMIT room FOR UPDATE SKIP LOCKED);
            IF cardinality(picked) > 0 THEN
                IF qu.log_level = 'all' THEN
                    names := ARRAY(SELECT id FROM live WHERE ctid = ANY (picked) ORDER BY run_at, seq);
                END IF;
                RETURN QUERY
                WITH taken AS (
                    UPDATE live l SET state = 'a', fence = nextval('numbers'), lease = under,
                        holder = claim.holder, claimed_at = claim.now_ms, attempts = attempts + 1
                    WHERE ctid = ANY (picked)
                    RETURNING l.fence, l.id, l.payload, l.attributes, l.priority, l.overrides, l.retention,
                        l.run_at, l.enqueued_at, l.seq, l.first, l.revision, l.enqueues,
                        l.attempts, l.retries, l.stalls, l.timeouts, l.error, l.origin, l.key, l.memo
                )
                SELECT NULL::boolean, NULL::bigint, NULL::bigint, NULL::text, t.* FROM taken t ORDER BY t.run_at, t.seq;
                room := room - cardinality(picked);
                IF qu.log_level = 'all' THEN
                    PERFORM tell(qu, now_ms, notes_of(qu, 'claimed', names, now_ms));
                END IF;
            END IF;
        END IF;
        SELECT least(due, (SELECT run_at FROM live
                           WHERE q = qu.q AND state = 'w' AND priority = level AND run_at > now_ms
                           ORDER BY run_at LIMIT 1)),
               (SELECT priority FROM live
                WHERE q = qu.q AND state = 'w' AND priority < level ORDER BY priority DESC LIMIT 1)
        INTO due, level;
    END LOOP;
    next_due := due;
    RETURN NEXT;
END $$;
