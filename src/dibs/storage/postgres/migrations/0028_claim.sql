-- The rows of a claim have the columns that most jobs need, and the others as one text, which is NULL for most jobs.

-- The types of the results change, which CREATE OR REPLACE does not allow.
DROP FUNCTION claim(text, uuid, integer, bigint);
DROP FUNCTION claim_limited(integer, uuid, integer, bigint);

-- pack_rest(columns of a job) -> a JSON array of them, for rest_of().
CREATE FUNCTION pack_rest(
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
CREATE FUNCTION rest_of(
    seq bigint, attributes json, overrides json, retention jsonb, first bigint, revision bigint, enqueues integer,
    retries integer, stalls integer, timeouts integer, error json, origin json, key text
) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN first <> seq OR revision <> seq OR enqueues + retries + stalls + timeouts <> 1
                     OR num_nonnulls(attributes, overrides, retention, error, origin, key) > 0
           THEN pack_rest(attributes, overrides, retention, first, revision, enqueues, retries, stalls, timeouts, error,
                          origin, key) END
$$;

-- claim(queue, lease, most, now) -> a row for each claimed job, in the order of claims, and a last row without a job.
-- The last row has the time of the claim, the holder of the lease, and next_due (the time of the next scheduled job).
-- Its `lost` is true if the lease is unknown, expired or dropped; then no job is claimed.
-- The row of the lease is locked FOR KEY SHARE, so that reap() and drop_lease(), which lock it FOR UPDATE, run before
-- or after this claim. The columns of a job are listed one by one, because taking them out of a row value costs more
-- than finding the job. A queue with a limit is left to claim_limited().
CREATE FUNCTION claim(queue text, under uuid, most integer, manual bigint)
RETURNS TABLE (
    lost boolean, now_ms bigint, next_due bigint, holder text, fence bigint, id text, payload bytea, priority smallint,
    run_at bigint, enqueued_at bigint, seq bigint, attempts integer, memo bytea, rest text
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
                    RETURNING l.fence, l.id, l.payload, l.priority, l.run_at, l.enqueued_at, l.seq, l.attempts, l.memo,
                        rest_of(l.seq, l.attributes, l.overrides, l.retention, l.first, l.revision, l.enqueues, l.retries,
                                l.stalls, l.timeouts, l.error, l.origin, l.key) AS rest
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
    lost boolean, now_ms bigint, next_due bigint, holder text, fence bigint, id text, payload bytea, priority smallint,
    run_at bigint, enqueued_at bigint, seq bigint, attempts integer, memo bytea, rest text
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
            -- A run that ended since the claim read the time may have made the room. The new run begins after its end.
            now_ms := tick(manual);
            IF qu.log_level = 'all' THEN
                names := ARRAY(SELECT id FROM live WHERE ctid = ANY (picked) ORDER BY run_at, seq);
            END IF;
            RETURN QUERY
            WITH taken AS (
                UPDATE live l SET state = 'a', fence = nextval('numbers'), lease = under,
                    holder = claim_limited.holder, claimed_at = claim_limited.now_ms, attempts = attempts + 1
                WHERE ctid = ANY (picked)
                RETURNING l.fence, l.id, l.payload, l.priority, l.run_at, l.enqueued_at, l.seq, l.attempts, l.memo,
                    rest_of(l.seq, l.attributes, l.overrides, l.retention, l.first, l.revision, l.enqueues, l.retries,
                            l.stalls, l.timeouts, l.error, l.origin, l.key) AS rest
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
