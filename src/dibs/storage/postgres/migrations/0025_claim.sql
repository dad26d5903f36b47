-- The verb claim under limits, and the time of the next start.

-- claim(queue, lease, most, now) -> a row for each claimed job, in the order of claims, and a last row without a job.
-- The last row has the time of the claim, the holder of the lease, and next_due (the time of the next scheduled job).
-- Its `lost` is true if the lease is unknown, expired or dropped; then no job is claimed.
-- The row of the lease is locked FOR KEY SHARE, so that reap() and drop_lease(), which lock it FOR UPDATE, run before
-- or after this claim. The columns of a job are listed one by one, because taking them out of a row value costs more
-- than finding the job. A queue with a limit is left to claim_limited().
CREATE OR REPLACE FUNCTION claim(queue text, under uuid, most integer, manual bigint)
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
    IF qu.max_active IS NOT NULL OR qu.has_filed OR qu.per_key IS NOT NULL OR (qu.rate).starts IS NOT NULL
       OR (qu.key_rate).starts IS NOT NULL THEN
        RETURN QUERY SELECT * FROM claim_limited(qu.q, under, most, manual);
        RETURN;
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

-- claim_limited(queue number, lease, most, now) -> the rows of claim() for a queue with max_active, with limits by key
-- or rate, or with jobs that such limits have filed. One such claim runs at a time. A concurrent settle can only lower
-- the counts of runs. The time is read again under the lock, so that the starts of two claims have the order of their
-- times. The last row has the number of jobs that the claim filed as its `fence`; at most 10,000 a call. It is one long
-- function, because a function that returns the rows of another one stores them all first.
CREATE FUNCTION claim_limited(wanted integer, under uuid, most integer, manual bigint)
RETURNS TABLE (
    lost boolean, now_ms bigint, next_due bigint, holder text, fence bigint,
    id text, payload bytea, attributes json, priority smallint, overrides json, retention jsonb,
    run_at bigint, enqueued_at bigint, seq bigint, first bigint, revision bigint, enqueues integer,
    attempts integer, retries integer, stalls integer, timeouts integer, error json, origin json,
    key text, memo bytea
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    qu queues;
    keyed boolean;
    room bigint;
    starts integer := 0;
    filed integer := 0;
    level smallint;
    -- The place of the last job that was read, and the number of jobs to read next.
    at bigint := -1;
    after bigint := -1;
    size integer;
    step record;
    picked tid[];
    keys text[];
    shut text[] := '{}';
    names text[];
BEGIN
    SELECT * INTO qu FROM queues WHERE q = wanted FOR NO KEY UPDATE;
    now_ms := tick(manual);
    SELECT l.holder INTO holder FROM leases l WHERE lease = under AND q = qu.q AND expires_at > now_ms;
    lost := NOT FOUND;
    IF lost OR qu.paused THEN
        RETURN NEXT;
        RETURN;
    END IF;
    IF qu.log_level = 'all' THEN
        PERFORM begin_telling();
    END IF;
    room := least(most, claim_room(qu, now_ms));
    keyed := qu.per_key IS NOT NULL OR (qu.key_rate).starts IS NOT NULL;
    IF keyed THEN
        PERFORM reopen_freed(qu, now_ms);
    ELSIF qu.has_filed THEN
        PERFORM bring_all(qu, most + 1000);
    END IF;
    size := least(2000, room + 20);
    SELECT priority INTO level FROM live WHERE q = qu.q AND state = 'w' ORDER BY priority DESC LIMIT 1;
    WHILE level IS NOT NULL AND room > 0 LOOP
        IF keyed THEN
            step := pick_admitted(qu, now_ms, level, room, size, shut, at, after);
            SELECT l.picked, l.keys INTO picked, keys FROM lock_unchanged(step.picked, step.keys) l;
        ELSE
            picked := ARRAY(
                SELECT ctid FROM live
                WHERE q = qu.q AND state = 'w' AND priority = level AND run_at <= now_ms
                ORDER BY run_at, seq LIMIT room FOR UPDATE SKIP LOCKED);
        END IF;
        IF cardinality(picked) > 0 THEN
            IF qu.log_level = 'all' THEN
                names := ARRAY(SELECT id FROM live WHERE ctid = ANY (picked) ORDER BY run_at, seq);
            END IF;
            RETURN QUERY
            WITH taken AS (
                UPDATE live l SET state = 'a', fence = nextval('numbers'), lease = under,
                    holder = claim_limited.holder, claimed_at = claim_limited.now_ms, attempts = attempts + 1
                WHERE ctid = ANY (picked)
                RETURNING l.fence, l.id, l.payload, l.attributes, l.priority, l.overrides, l.retention,
                    l.run_at, l.enqueued_at, l.seq, l.first, l.revision, l.enqueues,
                    l.attempts, l.retries, l.stalls, l.timeouts, l.error, l.origin, l.key, l.memo
            )
            SELECT NULL::boolean, NULL::bigint, NULL::bigint, NULL::text, t.* FROM taken t ORDER BY t.run_at, t.seq;
            room := room - cardinality(picked);
            starts := starts + cardinality(picked);
            IF qu.log_level = 'all' THEN
                PERFORM tell(qu, now_ms, notes_of(qu, 'claimed', names, now_ms));
            END IF;
        END IF;
        IF keyed THEN
            IF (qu.key_rate).starts IS NOT NULL THEN
                PERFORM charge(qu.q, qu.key_rate, now_ms, keys);
            END IF;
            -- If an admitted job was locked, its key is not closed, so none is filed.
            IF filed < 10000 AND cardinality(picked) = cardinality(step.picked) THEN
                filed := filed + file_jobs(qu, step.passed);
            ELSE
                shut := (shut || step.passed_keys)[:100];
            END IF;
            PERFORM reopen(qu, now_ms, array_remove(keys || step.passed_keys, NULL));
            at := step.at;
            after := step.after;
            IF step.seen = size THEN
                size := least(2000, size * 4);
                CONTINUE;
            END IF;
            at := -1;
            after := -1;
        END IF;
        SELECT priority INTO level FROM live
        WHERE q = qu.q AND state = 'w' AND priority < level ORDER BY priority DESC LIMIT 1;
    END LOOP;
    IF starts > 0 AND (qu.rate).starts IS NOT NULL THEN
        PERFORM charge(qu.q, qu.rate, now_ms, array_fill(''::text, ARRAY[starts]));
    END IF;
    next_due := (limited_ahead(qu, now_ms, false)).next_due;
    fence := filed;
    RETURN NEXT;
END $$;

-- claim_room(queue, now) -> the number of runs that max_active and the rate of the queue allow now; NULL for any number.
CREATE FUNCTION claim_room(qu queues, now_ms bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT least(
        CASE WHEN qu.max_active IS NOT NULL THEN greatest(0, qu.max_active - (
            SELECT count(*) FROM live WHERE q = qu.q AND lease IS NOT NULL)) END,
        CASE WHEN (qu.rate).starts IS NOT NULL THEN starts_left(
            (SELECT clock FROM clocks WHERE q = qu.q AND key = ''), qu.rate, now_ms) END)
$$;

-- line_ahead(queue, now) -> true if a job in the line is due, and the earliest run_at after now. Costs two index lookups
-- for each priority in use.
CREATE FUNCTION line_ahead(qu queues, now_ms bigint, OUT due boolean, OUT next_due bigint)
LANGUAGE plpgsql AS $$
DECLARE
    level smallint;
BEGIN
    due := false;
    SELECT priority INTO level FROM live WHERE q = qu.q AND state = 'w' ORDER BY priority DESC LIMIT 1;
    WHILE level IS NOT NULL LOOP
        due := due OR EXISTS (
            SELECT 1 FROM live
            WHERE q = qu.q AND state = 'w' AND priority = level AND run_at <= now_ms);
        next_due := least(next_due, (
            SELECT run_at FROM live
            WHERE q = qu.q AND state = 'w' AND priority = level AND run_at > now_ms
            ORDER BY run_at LIMIT 1));
        SELECT priority INTO level FROM live
        WHERE q = qu.q AND state = 'w' AND priority < level ORDER BY priority DESC LIMIT 1;
    END LOOP;
END $$;

-- look_ahead(queue, now) -> true if a claim would take a job, and the time after now at which a claim may take more.
CREATE OR REPLACE FUNCTION look_ahead(qu queues, now_ms bigint, OUT due boolean, OUT next_due bigint)
LANGUAGE plpgsql AS $$
BEGIN
    IF qu.has_filed OR qu.per_key IS NOT NULL OR (qu.rate).starts IS NOT NULL OR (qu.key_rate).starts IS NOT NULL THEN
        SELECT l.due, l.next_due INTO due, next_due FROM limited_ahead(qu, now_ms, true) l;
    ELSE
        SELECT l.due, l.next_due INTO due, next_due FROM line_ahead(qu, now_ms) l;
    END IF;
END $$;

-- limited_ahead(queue, now, exact) -> look_ahead() for a queue with limits. Without `exact`, `due` may be true because
-- of jobs that are not admitted. `next_due` may be too early, but not too late: a claim that ended early has not noted
-- which clocks the jobs behind its last one wait for, so while a job in the line is due, all clocks count.
CREATE FUNCTION limited_ahead(qu queues, now_ms bigint, exact boolean, OUT due boolean, OUT next_due bigint)
LANGUAGE plpgsql AS $$
DECLARE
    keyed boolean := qu.per_key IS NOT NULL OR (qu.key_rate).starts IS NOT NULL;
    queue_opens bigint;
BEGIN
    SELECT l.due, l.next_due INTO due, next_due FROM line_ahead(qu, now_ms) l;
    IF (qu.key_rate).starts IS NOT NULL THEN
        next_due := least(
            next_due,
            (SELECT opens FROM clocks WHERE q + 0 = qu.q AND waits AND opens > now_ms ORDER BY opens LIMIT 1),
            CASE WHEN due THEN (SELECT min(opens) FROM (
                SELECT opens FROM clocks WHERE q + 0 = qu.q AND NOT waits AND opens > now_ms AND key <> ''
                ORDER BY opens LIMIT 1) x) END);
    END IF;
    IF keyed AND exact THEN
        due := due AND admits_in_line(qu, now_ms) OR admits_filed(qu, now_ms);
    ELSIF qu.has_filed AND NOT keyed THEN
        due := due OR EXISTS (SELECT 1 FROM live WHERE q + 0 = qu.q AND state = 'k');
    END IF;
    IF (qu.rate).starts IS NOT NULL THEN
        SELECT opens INTO queue_opens FROM clocks WHERE q = qu.q AND key = '' AND opens > now_ms;
        IF FOUND THEN
            next_due := CASE WHEN due THEN queue_opens
                             WHEN next_due IS NOT NULL THEN greatest(queue_opens, next_due) END;
            due := false;
        END IF;
    END IF;
END $$;

-- admits_in_line(queue, now) -> true if one of the first 100 due jobs of a priority in the line is admitted, or if there
-- are more than 100. Then a claim has not filed all of them yet.
CREATE FUNCTION admits_in_line(qu queues, now_ms bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    level smallint;
    front text[];
BEGIN
    SELECT priority INTO level FROM live WHERE q = qu.q AND state = 'w' ORDER BY priority DESC LIMIT 1;
    WHILE level IS NOT NULL LOOP
        front := ARRAY(
            SELECT key FROM live WHERE q = qu.q AND state = 'w' AND priority = level AND run_at <= now_ms
            ORDER BY run_at, seq LIMIT 101);
        IF cardinality(front) > 100 OR array_position(front, NULL) IS NOT NULL
           OR EXISTS (SELECT 1 FROM rooms(qu, now_ms, front) r WHERE r.room > 0) THEN
            RETURN true;
        END IF;
        SELECT priority INTO level FROM live
        WHERE q = qu.q AND state = 'w' AND priority < level ORDER BY priority DESC LIMIT 1;
    END LOOP;
    RETURN false;
END $$;

-- admits_filed(queue, now) -> true if the next claim would bring back a filed job.
CREATE FUNCTION admits_filed(qu queues, now_ms bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT qu.has_filed AND EXISTS (
        SELECT 1 FROM rooms(qu, now_ms, ARRAY(
            SELECT key FROM freed WHERE q = qu.q
            UNION SELECT key FROM clocks WHERE q + 0 = qu.q AND waits AND opens <= now_ms)) r
        WHERE r.room > 0 AND EXISTS (SELECT 1 FROM live f WHERE f.q + 0 = qu.q AND f.state = 'k' AND f.key = r.key OFFSET 0))
$$;
