-- The verb claim, in one or more queues, and the jobs of a lease.

-- claim(queues, limits, lease, now) -> for each queue: rows with arrays of claimed jobs in the order of claims, and
-- then a row without jobs. `step` is the position of the queue, from 1. The last row has the time of the claim, the
-- holder of the lease, and next_due (the time of the next scheduled job). Its `lost` is true if the lease is unknown,
-- expired or dropped; then no job is claimed. A queue with the limit 0 gets the time only. One statement starts the
-- jobs of all queues without limits. Queues with limits and paused queues are left to claim_limited(). `looked` is the
-- time by which a job is due, and the answer has it as now: a job that falls due during the claim may have been passed.
-- The time of the runs is read again while their rows are locked: a claim that read it before could give a job whose
-- run ended since a `claimed_at` before that end. Each row of jobs has its claimed_at as `now_ms`. drop_lease() and
-- reap() read the time again in the same way.
CREATE OR REPLACE FUNCTION claim(names text[], limits integer[], under uuid, manual bigint) RETURNS TABLE (
    step integer, lost boolean, now_ms bigint, next_due bigint, holder text, held_back bigint, priority smallint,
    fences bigint[], spots text[], ids text[], payloads bytea[], starts bigint[], enqueues bigint[], seqs bigint[],
    tries integer[], memos bytea[], rests text[]
) LANGUAGE plpgsql {pinned} AS $$
#variable_conflict use_column
DECLARE
    looked bigint := tick(manual);
    at bigint;
    p record := pick_due(names, limits, under, looked);
    -- The jobs of one row of the answer. An array has at most 1 GB.
    size integer;
    logged record;
    i integer;
BEGIN
    IF cardinality(p.picked) > 0 THEN
        at := tick(manual);
        IF at >= p.ends THEN
            -- The lease has expired since `looked`, so it can no longer start runs.
            RETURN QUERY SELECT * FROM claim(names, limits, under, manual);
            RETURN;
        END IF;
        IF p.logs THEN
            SELECT * INTO logged FROM logged_runs(p.picked);
        END IF;
        size := CASE WHEN p.bytes < 100000000 THEN cardinality(p.picked) ELSE 8 END;
        FOR i IN 1 .. cardinality(p.picked) BY size LOOP
            RETURN QUERY
            WITH taken AS (
                UPDATE live l SET
                    state = 'w', lease = under, fence = nextval('numbers'), holder = p.named, claimed_at = at,
                    attempts = attempts + 1, busy_key = key
                WHERE ctid = ANY (p.picked[i:i + size - 1])
                RETURNING l.q, {started}
            )
            SELECT array_position(p.qs, t.q), NULL::boolean, at, NULL::bigint, NULL::text, NULL::bigint, {arrays}
            FROM (SELECT * FROM taken ORDER BY taken.q, taken.priority DESC, taken.run_at, taken.seq) t
            GROUP BY t.q, t.priority ORDER BY t.q, t.priority DESC;
        END LOOP;
        IF p.logs THEN
            PERFORM log_claims(logged.qs, logged.ids, at);
        END IF;
    END IF;
    FOR i IN 1 .. cardinality(names) LOOP
        IF p.qs[i] IS NULL AND limits[i] > 0 THEN
            RETURN QUERY SELECT i, c.* FROM claim_limited(names[i], under, limits[i], manual) c;
        ELSE
            step := i;
            lost := false;
            now_ms := looked;
            next_due := p.dues[i];
            holder := CASE WHEN p.qs[i] IS NOT NULL THEN p.named END;
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- pick_due(queues, limits, lease, now) -> the due jobs that claim() starts in all queues without limits, locked, and
-- their size in bytes. `qs` has the number of the queue of each step, NULL if it has no part in the common claim, and
-- `dues` its next scheduled job. `named` is the holder of the lease, and `ends` the time at which it expires. `logs` is
-- true if one of the queues logs claims. The row of the lease is locked FOR KEY SHARE, so that reap() and drop_lease(),
-- which lock it FOR UPDATE, run before or after this claim. The bounds in `claims` are a little too wide: a row that
-- another transaction moved may come back out of order.
CREATE OR REPLACE FUNCTION pick_due(
    names text[], limits integer[], under uuid, looked bigint,
    OUT picked tid[], OUT bytes bigint, OUT qs integer[], OUT dues bigint[], OUT named text, OUT ends bigint, OUT logs boolean
) LANGUAGE plpgsql AS $$
DECLARE
    w record;
    room bigint;
    batch record;
BEGIN
    FOR place IN 1 .. cardinality(names) LOOP
        CONTINUE WHEN limits[place] = 0;
        SELECT k.q, l.holder, l.expires_at, k.log_level = 'all' AS logs INTO w FROM queues k, leases l
        WHERE k.name = names[place] AND l.lease = under AND l.q = k.q AND l.expires_at > looked AND NOT l.dropped
          AND NOT k.paused AND NOT is_limited(k)
        FOR KEY SHARE OF l;
        CONTINUE WHEN NOT FOUND;
        qs[place] := w.q;
        -- A lease has one holder.
        named := w.holder;
        ends := least(ends, w.expires_at);
        IF w.logs THEN
            logs := true;
            PERFORM begin_log_step();
        END IF;
        room := limits[place];
        w := next_line(qs[place], 32767);
        WHILE w.priority IS NOT NULL LOOP
            IF room > 0 THEN
                -- Lock the rows in a separate statement. In one statement with the UPDATE, the planner may run the
                -- locking query twice.
                SELECT array_agg(x.spot) AS spots, sum(x.bytes) AS bytes, min(x.run_at) AS first_run_at, min(x.seq) AS first_seq,
                       max(x.run_at) AS last_run_at, max(x.seq) AS last_seq
                INTO batch FROM (
                    SELECT l.ctid AS spot, l.run_at, l.seq,
                           octet_length(l.payload) + coalesce(octet_length(l.memo), 0) AS bytes FROM live l
                    WHERE l.q = qs[place] AND l.state = 'w' AND l.priority = w.priority AND l.run_at <= looked
                      AND (l.run_at, l.seq) >= (w.run_at, w.seq) AND l.fence IS NULL
                    ORDER BY l.run_at, l.seq LIMIT room FOR UPDATE SKIP LOCKED) x;
                IF batch.spots IS NOT NULL THEN
                    INSERT INTO claims VALUES (
                        qs[place], under, nextval('numbers'), w.priority, batch.first_run_at, batch.first_seq,
                        batch.last_run_at, batch.last_seq);
                    picked := picked || batch.spots;
                    bytes := coalesce(bytes, 0) + batch.bytes;
                    room := room - cardinality(batch.spots);
                END IF;
            END IF;
            dues[place] := least(dues[place], (
                SELECT l.run_at FROM live l
                WHERE l.q = qs[place] AND l.state = 'w' AND l.priority = w.priority
                  AND l.run_at > greatest(looked, w.run_at - 1) ORDER BY l.run_at LIMIT 1));
            EXIT WHEN w.below IS NULL;
            w := next_line(qs[place], w.priority);
        END LOOP;
    END LOOP;
END $$;

-- is_limited(queue) -> true if claims of the queue have limits, or if a limit has held jobs back.
CREATE OR REPLACE FUNCTION is_limited(qu queues) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT qu.has_held_back OR num_nonnulls(qu.max_active, qu.per_key, (qu.rate).starts, (qu.key_rate).starts) > 0
$$;

-- limits_keys(queue) -> true if the queue has a limit by key, or a paused key.
CREATE OR REPLACE FUNCTION limits_keys(qu queues) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT num_nonnulls(qu.per_key, (qu.key_rate).starts) > 0 OR qu.shares <> '{}' AND qu.shares @? '$.* ? (@ == 0)'
$$;

-- logged_runs(rows) -> the queues and ids of the jobs in queues that log claims, in the order of claims.
CREATE OR REPLACE FUNCTION logged_runs(picked tid[], OUT qs integer[], OUT ids text[]) LANGUAGE sql AS $$
    SELECT array_agg(x.q), array_agg(x.id) FROM (
        SELECT l.q, l.id FROM live l JOIN queues k ON k.q = l.q
        WHERE l.ctid = ANY (picked) AND k.log_level = 'all' ORDER BY l.priority DESC, l.run_at, l.seq) x
$$;

-- log_claims(queues, ids, now): log that the jobs of logged_runs() have started.
CREATE OR REPLACE FUNCTION log_claims(qs integer[], ids text[], now_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM append_log(k.q, now_ms, notes_of(k.q, 'claimed', ARRAY(
        SELECT u.id FROM unnest(qs, ids) AS u (q, id) WHERE u.q = k.q), now_ms))
    FROM queues k WHERE k.q = ANY (qs);
END $$;

-- pack_rest(columns of a job) -> a JSON array of them, for rest_of().
CREATE OR REPLACE FUNCTION pack_rest(
    attributes json, overrides json, retention jsonb, first bigint, revision bigint, enqueues integer,
    retries integer, stalls integer, timeouts integer, error json, origin json, key text
) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN json_build_array(
        attributes, overrides, retention, first, revision, enqueues, retries, stalls, timeouts, error, origin, key);
END $$;

-- rest_of(columns of a job) -> the columns that claim() does not return on their own as a JSON array; NULL if they all
-- have the values of a new job with payload and priority alone. A column costs the client and the server 0.1 us in
-- each row. decode_claim() in dibs/storage/postgres/codec/claims.py reads it. Why not one function with pack_rest():
-- each claim would prepare the expressions of the array.
CREATE OR REPLACE FUNCTION rest_of(
    seq bigint, attributes json, overrides json, retention jsonb, first bigint, revision bigint, enqueues integer,
    retries integer, stalls integer, timeouts integer, error json, origin json, key text
) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN first <> seq OR revision <> seq OR (enqueues, retries, stalls, timeouts) <> (1, 0, 0, 0)
                     OR num_nonnulls(attributes, overrides, retention, error, origin, key) > 0
           THEN pack_rest(attributes, overrides, retention, first, revision, enqueues, retries, stalls, timeouts, error,
                          origin, key) END
$$;

-- active_runs(queue number, lease) -> the ids of the active jobs of a lease; of each lease if it is NULL. `returned` is
-- true for a job of which an earlier run failed.
CREATE OR REPLACE FUNCTION active_runs(wanted integer, held uuid) RETURNS TABLE (id text, returned boolean) LANGUAGE sql STABLE AS $$
    SELECT DISTINCT j.id, j.returned
    FROM claims c, LATERAL (
        SELECT l.id, greatest(l.retries, l.stalls, l.timeouts) > 0 AS returned FROM live l
        WHERE l.q = c.q AND l.state = 'w' AND l.priority = c.priority
          AND (l.run_at, l.seq) >= (c.first_run_at, c.first_seq) AND (l.run_at, l.seq) <= (c.last_run_at, c.last_seq)
          AND l.fence IS NOT NULL AND l.lease = c.lease OFFSET 0) j
    WHERE c.q = wanted AND (held IS NULL OR c.lease = held)
$$;

-- prune_claims(queue number, lease): delete the rows of claims without active jobs, of each lease if it is NULL.
CREATE OR REPLACE FUNCTION prune_claims(wanted integer, held uuid) RETURNS void LANGUAGE sql AS $$
    DELETE FROM claims WHERE ctid = ANY (ARRAY(
        SELECT c.ctid FROM claims c
        WHERE c.q = wanted AND (held IS NULL OR c.lease = held) AND NOT EXISTS (
            SELECT 1 FROM live l
            WHERE l.q = c.q AND l.state = 'w' AND l.priority = c.priority
              AND (l.run_at, l.seq) >= (c.first_run_at, c.first_seq) AND (l.run_at, l.seq) <= (c.last_run_at, c.last_seq)
              AND l.fence IS NOT NULL AND l.lease = c.lease OFFSET 0)
        FOR UPDATE SKIP LOCKED))
$$;

-- look_ahead(queue, now) -> true if a claim would take a job, and the time after now at which a claim may take more.
CREATE OR REPLACE FUNCTION look_ahead(qu queues, now_ms bigint, OUT due boolean, OUT next_due bigint)
LANGUAGE plpgsql AS $$
BEGIN
    IF is_limited(qu) THEN
        SELECT l.due, l.next_due INTO due, next_due FROM limited_ahead(qu, now_ms, true) l;
    ELSE
        SELECT l.due, l.next_due INTO due, next_due FROM line_ahead(qu, now_ms) l;
    END IF;
END $$;

-- line_ahead(queue, now) -> true if a job in the line is due, and the earliest run_at after now. Costs two index
-- lookups for each priority in use.
CREATE OR REPLACE FUNCTION line_ahead(qu queues, now_ms bigint, OUT due boolean, OUT next_due bigint)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT coalesce(bool_or(EXISTS (
               SELECT 1 FROM live l
               WHERE l.q = qu.q AND l.state = 'w' AND l.priority = w.priority AND l.run_at <= now_ms
                 AND (l.run_at, l.seq) >= (w.run_at, w.seq) AND l.fence IS NULL)), false),
           min((SELECT l.run_at FROM live l
                WHERE l.q = qu.q AND l.state = 'w' AND l.priority = w.priority
                  AND l.run_at > greatest(now_ms, w.run_at - 1) ORDER BY l.run_at LIMIT 1))
    INTO due, next_due FROM lines_of(qu.q) w;
END $$;
