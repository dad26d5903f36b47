-- Claims, and leases. A lease is the right of a worker to the jobs that it claims, until the lease expires.

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
    attempts integer, retries integer, stalls integer, timeouts integer, error json, origin json
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
                        l.attempts, l.retries, l.stalls, l.timeouts, l.error, l.origin
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

-- grant_lease(queues, lease, ttl, holder, now) -> the current time. Creates the lease on each of the queues.
CREATE FUNCTION grant_lease(names text[], new_lease uuid, ttl bigint, named text, manual bigint)
RETURNS bigint LANGUAGE plpgsql {pinned} AS $$
DECLARE
    now_ms bigint := tick(manual);
    name text;
BEGIN
    FOREACH name IN ARRAY names LOOP
        INSERT INTO leases VALUES (new_lease, (queue_of(name)).q, named, now_ms + ttl) ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN now_ms;
END $$;

-- The jobs of a lease are sorted by COLLATE "POSIX", which is the same order as "C". Why not "C": the primary key has
-- that order, and a plan that is made while the table is empty would then read the whole queue along the key.

-- renew(queues, lease, ttl, now) -> a first row with only the current time, then a row for each queue where the lease
-- is alive. Extends the lease to `ttl` ms from now, and never shortens it. `asked` lists the ids whose cancellation
-- was requested.
CREATE FUNCTION renew(names text[], held uuid, ttl bigint, manual bigint)
RETURNS TABLE (name text, now_ms bigint, ends_at bigint, asked text[])
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
BEGIN
    now_ms := tick(manual);
    RETURN NEXT;
    FOR qu IN SELECT * FROM queues k WHERE k.name = ANY (names) ORDER BY q LOOP
        UPDATE leases SET expires_at = greatest(expires_at, now_ms + ttl)
        WHERE lease = held AND q = qu.q AND expires_at > now_ms AND NOT dropped
        RETURNING expires_at INTO ends_at;
        IF FOUND THEN
            name := qu.name;
            asked := ARRAY(
                SELECT id FROM live WHERE q = qu.q AND lease = held AND cancel_requested
                ORDER BY id COLLATE "POSIX");
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- release_some(queue, lease, most, stalled, now) -> the jobs that it took away from the lease, up to `most`. The caller
-- has locked the row of the lease.
CREATE FUNCTION release_some(qu queues, held uuid, most integer, stalled boolean, now_ms bigint)
RETURNS TABLE (id text, fence bigint, kind text) LANGUAGE plpgsql AS $$
DECLARE
    j live;
    back record;
    told text[] := '{}';
    ends text[] := '{}';
BEGIN
    FOR j IN
        SELECT * FROM live l WHERE l.q = qu.q AND l.lease = held
        ORDER BY l.id COLLATE "POSIX" LIMIT most FOR UPDATE
    LOOP
        back := give_back(qu, j, now_ms, stalled);
        id := j.id;
        fence := j.fence;
        kind := back.kind;
        told := told || back.told;
        IF kind = 'cancelled' THEN
            ends := ends || id;
        END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM tell(qu, now_ms, told);
    PERFORM ring(qu, true, cardinality(told) > 0, ends);
END $$;
