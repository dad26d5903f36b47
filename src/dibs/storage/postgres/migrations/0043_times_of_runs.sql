-- The time of a run is read while its rows are locked: a claim that read it before could give a job whose run ended since
-- a `claimed_at` before that end. So claimed_at of a run is never before finished_at of the run before of the same id, and
-- finished_at of a run never before its claimed_at. Each row of jobs has its claimed_at as `now_ms`. claim_limited() in
-- 0033_in_line_limits.sql does the same.

-- claim(queue, lease, most, now): as in 0030_drain.sql, with a row of arrays instead of a row for each job. The last row
-- has no jobs. `looked` is the time by which a job is due. If it takes 100 jobs or more of a priority, they stay in the line,
-- unless it has many of them already. With fewer jobs, the row in line_claims would cost more than it saves. The bounds of
-- the claim are a little too wide: a row that another transaction moved may come back out of order.
CREATE OR REPLACE FUNCTION claim(queue text, under uuid, most integer, manual bigint)
RETURNS TABLE (
    lost boolean, now_ms bigint, next_due bigint, holder text, filed bigint, priority smallint, fences bigint[],
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
                    PERFORM tell(qu, now_ms, notes_of(qu, 'claimed', names, now_ms));
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

-- claim_steps(names, limits, lease, now): the claims of serve(). For all queues without limits one statement finds the
-- first waiting jobs, one locks the jobs of their priority, and one starts them, as claim() does for
-- one queue. A queue with jobs of a lower priority, too, goes on with claim(). Other queues are left to claim().
CREATE OR REPLACE FUNCTION claim_steps(names text[], limits integer[], under uuid, manual bigint) RETURNS TABLE (
    step integer, lost boolean, now_ms bigint, next_due bigint, holder text, filed bigint, priority smallint,
    fences bigint[], spots text[], ids text[], payloads bytea[], starts bigint[], enqueues bigint[], seqs bigint[],
    tries integer[], memos bytea[], rests text[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    -- The time by which a job is due, and the time at which the runs begin.
    looked bigint := tick(manual);
    at bigint := looked;
    -- The steps that are claimed together, their queues, and their first waiting jobs.
    steps integer[];
    qs integer[];
    mosts integer[];
    named text;
    levels smallint[];
    first_run_ats bigint[];
    first_seqs bigint[];
    picked tid[];
    picked_qs integer[];
    -- The queues whose jobs stay in the line.
    lined integer[];
    bytes bigint;
    dues bigint[];
    have_lower boolean[];
    i integer;
    place integer := 1;
BEGIN
    -- A lease has one holder.
    SELECT array_agg(x.place ORDER BY x.place), array_agg(x.q ORDER BY x.place), array_agg(x.most ORDER BY x.place),
           min(x.holder)
    INTO steps, qs, mosts, named FROM (
        SELECT s.place, k.q, s.most, l.holder
        FROM unnest(names, limits) WITH ORDINALITY AS s (name, most, place)
            JOIN queues k ON k.name = s.name JOIN leases l ON l.lease = under AND l.q = k.q
        WHERE s.most > 0 AND l.expires_at > looked AND NOT l.dropped
          AND NOT k.paused AND k.log_level <> 'all' AND k.max_active IS NULL AND NOT k.has_filed
          AND num_nonnulls(k.per_key, (k.rate).starts, (k.key_rate).starts) = 0
        FOR KEY SHARE OF l) x;
    PERFORM leave_line(k, under, 3, false) FROM queues k
    WHERE k.q = ANY (qs) AND (SELECT count(*) FROM line_claims c WHERE c.q = k.q AND c.lease = under) > 3;
    SELECT array_agg(f.priority ORDER BY s.place), array_agg(f.run_at ORDER BY s.place),
           array_agg(f.seq ORDER BY s.place)
    INTO levels, first_run_ats, first_seqs
    FROM unnest(qs) WITH ORDINALITY AS s (q, place) LEFT JOIN LATERAL (
        SELECT l.priority, l.run_at, l.seq FROM live l
        WHERE l.q = s.q AND l.state = 'w' AND l.fence IS NULL ORDER BY l.priority DESC, l.run_at, l.seq LIMIT 1) f ON true;
    WITH found AS MATERIALIZED (
        SELECT s.q, s.level, x.spot, x.run_at, x.seq, x.bytes
        FROM unnest(qs, mosts, levels, first_run_ats, first_seqs) AS s (q, most, level, since, after), LATERAL (
            SELECT l.ctid AS spot, l.run_at, l.seq,
                   octet_length(l.payload) + coalesce(octet_length(l.memo), 0) AS bytes FROM live l
            WHERE l.q = s.q AND l.state = 'w' AND l.priority = s.level AND l.run_at <= looked
              AND (l.run_at, l.seq) >= (s.since, s.after) AND l.fence IS NULL
            ORDER BY l.run_at, l.seq LIMIT s.most FOR UPDATE SKIP LOCKED) x
    ), added AS (
        INSERT INTO line_claims
        SELECT f.q, under, nextval('numbers'), f.level, min(f.run_at), min(f.seq), max(f.run_at), max(f.seq), count(*)
        FROM found f GROUP BY f.q, f.level
        HAVING count(*) >= 100 AND coalesce((SELECT sum(c.jobs) FROM line_claims c WHERE c.q = f.q), 0) < 4000
        RETURNING q
    )
    SELECT coalesce(array_agg(f.spot), '{}'), array_agg(f.q), ARRAY(SELECT q FROM added), sum(f.bytes)
    INTO picked, picked_qs, lined, bytes FROM found f;
    IF bytes >= 100000000 THEN
        -- An array has at most 1 GB. claim() locks the same rows again.
        steps := NULL;
    ELSIF cardinality(picked) > 0 THEN
        at := tick(manual);
        RETURN QUERY
        WITH taken AS (
            UPDATE live l SET
                state = CASE WHEN l.q = ANY (lined) THEN 'w' ELSE 'a' END,
                lease = CASE WHEN l.q <> ALL (lined) THEN under END,
                line_lease = CASE WHEN l.q = ANY (lined) THEN under END,
                fence = nextval('numbers'), holder = named, claimed_at = at, attempts = attempts + 1
            WHERE ctid = ANY (picked)
            RETURNING l.q, l.priority, l.ctid AS spot, l.fence, l.id, l.payload, l.run_at, l.enqueued_at, l.seq, l.attempts,
                l.memo, rest_of(l.seq, l.attributes, l.overrides, l.retention, l.first, l.revision, l.enqueues,
                                l.retries, l.stalls, l.timeouts, l.error, l.origin, l.key) AS rest
        )
        SELECT steps[array_position(qs, t.q)], NULL::boolean, at, NULL::bigint, NULL::text, NULL::bigint,
               t.priority, array_agg(t.fence), array_agg(t.spot::text), array_agg(t.id), array_agg(t.payload),
               array_agg(t.run_at), array_agg(t.enqueued_at), array_agg(t.seq), array_agg(t.attempts),
               CASE WHEN count(t.memo) > 0 THEN array_agg(t.memo) END,
               CASE WHEN count(t.rest) > 0 THEN array_agg(t.rest) END
        FROM (SELECT * FROM taken ORDER BY taken.q, taken.priority, taken.run_at, taken.seq) t
        GROUP BY t.q, t.priority;
    END IF;
    SELECT array_agg((SELECT l.run_at FROM live l
                      WHERE l.q = s.q AND l.state = 'w' AND l.priority = s.level AND l.run_at > looked
                      ORDER BY l.run_at LIMIT 1) ORDER BY s.place),
           array_agg(EXISTS (SELECT 1 FROM live l
                             WHERE l.q = s.q AND l.state = 'w' AND l.priority < s.level) ORDER BY s.place)
    INTO dues, have_lower FROM unnest(qs, levels) WITH ORDINALITY AS s (q, level, place);
    FOR i IN 1 .. cardinality(names) LOOP
        IF limits[i] > 0 AND steps[place] IS DISTINCT FROM i THEN
            RETURN QUERY SELECT i, c.* FROM claim(names[i], under, limits[i], manual) c;
            CONTINUE;
        END IF;
        step := i;
        lost := false;
        now_ms := at;
        IF limits[i] > 0 THEN
            next_due := dues[place];
            holder := named;
            place := place + 1;
            IF have_lower[place - 1] THEN
                RETURN QUERY SELECT i, c.* FROM claim(
                    names[i], under, limits[i] - (
                        SELECT count(*)::integer FROM unnest(picked_qs) AS u (q) WHERE u.q = qs[place - 1]), manual) c;
                CONTINUE;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- drop_lease(queues, lease, most, now) -> the number of remaining jobs, for each queue that has the lease. Releases up
-- to `most` jobs per queue. After the first call the lease is lost for renew and claim. The row of the lease is
-- deleted with its last job. An expired lease is left to reap().
CREATE OR REPLACE FUNCTION drop_lease(names text[], held uuid, most integer, manual bigint)
RETURNS TABLE (name text, remaining bigint) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    now_ms bigint := tick(manual);
    qu queues;
BEGIN
    FOR qu IN SELECT * FROM queues k WHERE k.name = ANY (names) ORDER BY q LOOP
        PERFORM 1 FROM leases WHERE lease = held AND q = qu.q AND expires_at > now_ms FOR UPDATE;
        IF FOUND THEN
            now_ms := tick(manual);
            PERFORM release_some(qu, held, most, false, now_ms);
            name := qu.name;
            SELECT count(*) INTO remaining FROM live WHERE q = qu.q AND lease = held;
            IF remaining > 0 THEN
                UPDATE leases SET dropped = true WHERE lease = held AND q = qu.q;
            ELSE
                DELETE FROM leases WHERE lease = held AND q = qu.q;
            END IF;
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- reap(queue, most, now) -> up to `most` jobs of expired leases, each with its fence and its new state: stalled,
-- released (if the lease was dropped) or cancelled. Deletes an expired lease with its last job. If no lease has
-- expired, it costs one index lookup. Skips leases that a concurrent reap or claim has locked.
CREATE OR REPLACE FUNCTION reap(queue text, most integer, manual bigint)
RETURNS TABLE (id text, fence bigint, kind text) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    now_ms bigint := tick(manual);
    qu queues;
    l leases;
    room integer := most;
    taken integer;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    FOR l IN
        SELECT * FROM leases WHERE q + 0 = qu.q AND expires_at <= now_ms
        ORDER BY expires_at FOR UPDATE SKIP LOCKED
    LOOP
        RETURN QUERY SELECT * FROM release_some(qu, l.lease, room, NOT l.dropped, tick(manual));
        GET DIAGNOSTICS taken = ROW_COUNT;
        room := room - taken;
        PERFORM 1 FROM live WHERE q = qu.q AND lease = l.lease LIMIT 1;
        EXIT WHEN FOUND;
        DELETE FROM leases WHERE lease = l.lease AND q = qu.q;
    END LOOP;
END $$;
