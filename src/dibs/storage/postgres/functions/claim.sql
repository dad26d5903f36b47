-- The verb claim in a queue without limits, and jobs that a claim leaves in the line.

-- claim(queue, lease, most, now) -> rows with arrays of claimed jobs, in the order of claims, and a last row without jobs.
-- The last row has the time of the claim, the holder of the lease, and next_due (the time of the next scheduled job).
-- Its `lost` is true if the lease is unknown, expired or dropped; then no job is claimed.
-- The row of the lease is locked FOR KEY SHARE, so that reap() and drop_lease(), which lock it FOR UPDATE, run before
-- or after this claim. A queue with a limit is left to claim_limited(). The first look finds the first waiting job, and
-- the rows are read from its run_at on. A job that another transaction returns in between, with an earlier run_at, is
-- left to the next claim.
-- `looked` is the time by which a job is due. The time of the runs is read again while their rows are locked: a claim that
-- read it before could give a job whose run ended since a `claimed_at` before that end. Each row of jobs has its claimed_at
-- as `now_ms`. claim_steps(), drop_lease() and reap() read the time again in the same way.
-- If the claim takes 100 jobs or more of a priority, they stay in the line, unless it has many of them already. With fewer
-- jobs, the row in line_claims would cost more than it saves. The bounds of the claim are a little too wide: a row that
-- another transaction moved may come back out of order.
CREATE OR REPLACE FUNCTION claim(queue text, under uuid, most integer, manual bigint)
RETURNS TABLE (
    lost boolean, now_ms bigint, next_due bigint, holder text, held_back bigint, priority smallint, fences bigint[],
    spots text[], ids text[], payloads bytea[], starts bigint[], enqueues bigint[], seqs bigint[], tries integer[],
    memos bytea[], rests text[]
) LANGUAGE plpgsql {pinned} AS $$
#variable_conflict use_column
DECLARE
    looked bigint := tick(manual);
    qu queues;
    room bigint := most;
    level smallint;
    -- No due job of this priority comes before it.
    since bigint;
    after bigint;
    picked tid[];
    first_run_at bigint;
    first_seq bigint;
    last_run_at bigint;
    last_seq bigint;
    in_line boolean;
    -- The jobs of one row of the answer. An array has at most 1 GB.
    size integer;
    i integer;
    names text[];
    due bigint;
BEGIN
    now_ms := looked;
    lost := false;
    SELECT * INTO qu FROM queues WHERE name = queue;
    SELECT l.holder INTO holder FROM leases l
    WHERE lease = under AND q = qu.q AND expires_at > now_ms AND NOT dropped FOR KEY SHARE;
    IF NOT FOUND THEN
        lost := true;
        RETURN NEXT;
        RETURN;
    END IF;
    IF qu.max_active IS NOT NULL OR qu.has_held_back OR qu.per_key IS NOT NULL OR (qu.rate).starts IS NOT NULL
       OR (qu.key_rate).starts IS NOT NULL THEN
        RETURN QUERY SELECT * FROM claim_limited(qu.q, under, most, manual);
        RETURN;
    END IF;
    IF qu.paused THEN
        RETURN NEXT;
        RETURN;
    END IF;
    IF qu.log_level = 'all' THEN
        PERFORM begin_log_step();
    END IF;
    SELECT priority, run_at, seq INTO level, since, after FROM live
    WHERE q = qu.q AND state = 'w' AND fence IS NULL ORDER BY priority DESC, run_at, seq LIMIT 1;
    WHILE level IS NOT NULL LOOP
        IF room > 0 THEN
            -- Lock the rows in a separate statement. In one statement with the UPDATE, the planner may run the locking
            -- query twice.
            SELECT coalesce(array_agg(x.spot), '{}'), min(x.run_at), min(x.seq), max(x.run_at), max(x.seq),
                   CASE WHEN sum(x.bytes) < 100000000 THEN greatest(count(*), 1) ELSE 8 END
            INTO picked, first_run_at, first_seq, last_run_at, last_seq, size FROM (
                SELECT ctid AS spot, run_at, seq, octet_length(payload) + coalesce(octet_length(memo), 0) AS bytes FROM live
                WHERE q = qu.q AND state = 'w' AND priority = level AND run_at <= looked
                  AND (run_at, seq) >= (since, after) AND fence IS NULL
                ORDER BY run_at, seq LIMIT room FOR UPDATE SKIP LOCKED) x;
            IF cardinality(picked) > 0 THEN
                now_ms := tick(manual);
                in_line := false;
                IF cardinality(picked) >= 100 THEN
                    PERFORM leave_line(qu, under, 3, false);
                    in_line := coalesce((SELECT sum(jobs) FROM line_claims WHERE q = qu.q), 0) < 4000;
                END IF;
                IF in_line THEN
                    INSERT INTO line_claims VALUES (
                        qu.q, under, nextval('numbers'), level, first_run_at, first_seq, last_run_at, last_seq,
                        cardinality(picked));
                END IF;
                IF qu.log_level = 'all' THEN
                    names := ARRAY(SELECT id FROM live WHERE ctid = ANY (picked) ORDER BY run_at, seq);
                END IF;
                FOR i IN 1 .. cardinality(picked) BY size LOOP
                    -- The statement of start_runs() itself: one more call shows in claims of one job.
                    RETURN QUERY
                    WITH taken AS (
                        UPDATE live l SET
                            state = CASE WHEN in_line THEN 'w' ELSE 'a' END,
                            lease = CASE WHEN NOT in_line THEN under END,
                            line_lease = CASE WHEN in_line THEN under END, fence = nextval('numbers'),
                            holder = claim.holder, claimed_at = claim.now_ms, attempts = attempts + 1
                        WHERE ctid = ANY (picked[i:i + size - 1])
                        RETURNING l.ctid AS spot, l.fence, l.id, l.payload, l.run_at, l.enqueued_at, l.seq, l.attempts,
                            l.memo, rest_of(l.seq, l.attributes, l.overrides, l.retention, l.first, l.revision,
                                            l.enqueues, l.retries, l.stalls, l.timeouts, l.error, l.origin, l.key) AS rest
                    )
                    SELECT NULL::boolean, claim.now_ms, NULL::bigint, NULL::text, NULL::bigint, level,
                           array_agg(t.fence), array_agg(t.spot::text), array_agg(t.id), array_agg(t.payload),
                           array_agg(t.run_at), array_agg(t.enqueued_at), array_agg(t.seq), array_agg(t.attempts),
                           CASE WHEN count(t.memo) > 0 THEN array_agg(t.memo) END,
                           CASE WHEN count(t.rest) > 0 THEN array_agg(t.rest) END
                    FROM (SELECT * FROM taken ORDER BY taken.run_at, taken.seq) t;
                END LOOP;
                room := room - cardinality(picked);
                IF qu.log_level = 'all' THEN
                    PERFORM append_log(qu, now_ms, notes_of(qu, 'claimed', names, now_ms));
                END IF;
            END IF;
        END IF;
        SELECT least(due, (SELECT run_at FROM live
                           WHERE q = qu.q AND state = 'w' AND priority = level AND run_at > looked
                           ORDER BY run_at LIMIT 1)),
               (SELECT priority FROM live
                WHERE q = qu.q AND state = 'w' AND priority < level ORDER BY priority DESC LIMIT 1)
        INTO due, level;
        since := 0;
        after := 0;
    END LOOP;
    next_due := due;
    RETURN NEXT;
END $$;

-- start_runs(rows, lease, holder, now, in_line) -> one row of arrays: the jobs that start, in the order of claims. `spots`
-- are the positions of the rows, with which a settlement finds them. `memos` and `rests` are NULL if each element is.
CREATE OR REPLACE FUNCTION start_runs(
    picked tid[], under uuid, named text, now_ms bigint, in_line boolean,
    OUT fences bigint[], OUT spots text[], OUT ids text[], OUT payloads bytea[], OUT starts bigint[],
    OUT enqueues bigint[], OUT seqs bigint[], OUT tries integer[], OUT memos bytea[], OUT rests text[]
) LANGUAGE plpgsql AS $$
BEGIN
    WITH taken AS (
        UPDATE live l SET
            state = CASE WHEN in_line THEN 'w' ELSE 'a' END, lease = CASE WHEN NOT in_line THEN under END,
            line_lease = CASE WHEN in_line THEN under END, fence = nextval('numbers'), holder = named,
            claimed_at = now_ms, attempts = attempts + 1
        WHERE ctid = ANY (picked)
        RETURNING l.ctid AS spot, l.fence, l.id, l.payload, l.run_at, l.enqueued_at, l.seq, l.attempts, l.memo,
            rest_of(l.seq, l.attributes, l.overrides, l.retention, l.first, l.revision, l.enqueues, l.retries, l.stalls,
                    l.timeouts, l.error, l.origin, l.key) AS rest
    )
    SELECT array_agg(t.fence), array_agg(t.spot::text), array_agg(t.id), array_agg(t.payload), array_agg(t.run_at),
           array_agg(t.enqueued_at), array_agg(t.seq), array_agg(t.attempts),
           CASE WHEN count(t.memo) > 0 THEN array_agg(t.memo) END, CASE WHEN count(t.rest) > 0 THEN array_agg(t.rest) END
    INTO fences, spots, ids, payloads, starts, enqueues, seqs, tries, memos, rests
    FROM (SELECT * FROM taken ORDER BY taken.run_at, taken.seq) t;
END $$;

-- line_jobs(queue number, lease) -> the rows of active jobs in the line; of each lease if it is NULL.
CREATE OR REPLACE FUNCTION line_jobs(wanted integer, held uuid) RETURNS TABLE (spot tid, key text) LANGUAGE sql STABLE AS $$
    SELECT DISTINCT j.ctid, j.key
    FROM line_claims c, LATERAL (
        SELECT l.ctid, l.key FROM live l
        WHERE l.q = c.q AND l.state = 'w' AND l.priority = c.priority
          AND (l.run_at, l.seq) >= (c.first_run_at, c.first_seq) AND (l.run_at, l.seq) <= (c.last_run_at, c.last_seq)
          AND l.fence IS NOT NULL AND l.line_lease = c.lease OFFSET 0) j
    WHERE c.q = wanted AND (held IS NULL OR c.lease = held)
$$;

-- leave_line(queue, lease, spared, waits): take the jobs of a lease out of the line (NULL: of each lease), except those of
-- its `spared` latest claims. Without `waits`, a job that another transaction has locked stays in the line.
CREATE OR REPLACE FUNCTION leave_line(qu queues, held uuid, spared integer, waits boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c line_claims;
    picked tid[];
BEGIN
    IF waits THEN
        -- Another call may move the jobs of a claim at this moment.
        PERFORM 1 FROM line_claims l WHERE l.q = qu.q AND (held IS NULL OR l.lease = held) FOR UPDATE;
    END IF;
    FOR c IN
        SELECT * FROM line_claims l
        WHERE l.q = qu.q AND l.n = ANY (ARRAY(
            SELECT o.n FROM line_claims o WHERE o.q = qu.q AND (held IS NULL OR o.lease = held)
            ORDER BY o.n DESC OFFSET spared))
        FOR UPDATE SKIP LOCKED
    LOOP
        IF waits THEN
            picked := ARRAY(
                SELECT ctid FROM live l
                WHERE l.q = c.q AND l.state = 'w' AND l.priority = c.priority
                  AND (l.run_at, l.seq) >= (c.first_run_at, c.first_seq)
                  AND (l.run_at, l.seq) <= (c.last_run_at, c.last_seq)
                  AND l.fence IS NOT NULL AND l.line_lease = c.lease
                ORDER BY l.id COLLATE "POSIX" FOR UPDATE);
        ELSE
            picked := ARRAY(
                SELECT ctid FROM live l
                WHERE l.q = c.q AND l.state = 'w' AND l.priority = c.priority
                  AND (l.run_at, l.seq) >= (c.first_run_at, c.first_seq)
                  AND (l.run_at, l.seq) <= (c.last_run_at, c.last_seq)
                  AND l.fence IS NOT NULL AND l.line_lease = c.lease
                FOR UPDATE SKIP LOCKED);
        END IF;
        UPDATE live SET state = 'a', lease = line_lease WHERE ctid = ANY (picked);
        PERFORM 1 FROM live l
        WHERE l.q = c.q AND l.state = 'w' AND l.priority = c.priority
          AND (l.run_at, l.seq) >= (c.first_run_at, c.first_seq) AND (l.run_at, l.seq) <= (c.last_run_at, c.last_seq)
          AND l.fence IS NOT NULL AND l.line_lease = c.lease LIMIT 1;
        IF NOT FOUND THEN
            DELETE FROM line_claims l WHERE l.q = c.q AND l.lease = c.lease AND l.n = c.n;
        END IF;
    END LOOP;
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
    SELECT CASE WHEN first <> seq OR revision <> seq OR enqueues + retries + stalls + timeouts <> 1
                     OR num_nonnulls(attributes, overrides, retention, error, origin, key) > 0
           THEN pack_rest(attributes, overrides, retention, first, revision, enqueues, retries, stalls, timeouts, error,
                          origin, key) END
$$;

-- look_ahead(queue, now) -> true if a claim would take a job, and the time after now at which a claim may take more.
CREATE OR REPLACE FUNCTION look_ahead(qu queues, now_ms bigint, OUT due boolean, OUT next_due bigint)
LANGUAGE plpgsql AS $$
BEGIN
    IF qu.has_held_back OR qu.per_key IS NOT NULL OR (qu.rate).starts IS NOT NULL OR (qu.key_rate).starts IS NOT NULL THEN
        SELECT l.due, l.next_due INTO due, next_due FROM limited_ahead(qu, now_ms, true) l;
    ELSE
        SELECT l.due, l.next_due INTO due, next_due FROM line_ahead(qu, now_ms) l;
    END IF;
END $$;

-- line_ahead(queue, now) -> true if a job in the line is due, and the earliest run_at after now. Costs two index lookups
-- for each priority in use.
CREATE OR REPLACE FUNCTION line_ahead(qu queues, now_ms bigint, OUT due boolean, OUT next_due bigint)
LANGUAGE plpgsql AS $$
DECLARE
    level smallint;
BEGIN
    due := false;
    SELECT priority INTO level FROM live WHERE q = qu.q AND state = 'w' ORDER BY priority DESC LIMIT 1;
    WHILE level IS NOT NULL LOOP
        due := due OR EXISTS (
            SELECT 1 FROM live
            WHERE q = qu.q AND state = 'w' AND priority = level AND run_at <= now_ms AND fence IS NULL);
        next_due := least(next_due, (
            SELECT run_at FROM live
            WHERE q = qu.q AND state = 'w' AND priority = level AND run_at > now_ms
            ORDER BY run_at LIMIT 1));
        SELECT priority INTO level FROM live
        WHERE q = qu.q AND state = 'w' AND priority < level ORDER BY priority DESC LIMIT 1;
    END LOOP;
END $$;
