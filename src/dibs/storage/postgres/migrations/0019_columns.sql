-- The columns of keys, memos and update-only requests, and new settings of a queue. Migrations 0020 to 0022 have the
-- functions that use them.

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

-- free_key(queue, key): called in the step in which a run of a job with a key leaves its lease: it ends, comes back, is
-- handed off or forgotten.
CREATE FUNCTION free_key(qu queues, freed text) RETURNS void LANGUAGE sql AS '';

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
