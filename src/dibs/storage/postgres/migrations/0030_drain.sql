-- A claim steps over the dead index entries of earlier claims once instead of twice, and completions write shorter events.

-- claim(queue, lease, most, now): as in 0028_claim.sql. The first look finds the first waiting job, and the rows are read
-- from its run_at on. A job that another transaction returns in between, with an earlier run_at, is left to the next claim.
CREATE OR REPLACE FUNCTION claim(queue text, under uuid, most integer, manual bigint)
RETURNS TABLE (
    lost boolean, now_ms bigint, next_due bigint, holder text, fence bigint, id text, payload bytea, priority smallint,
    run_at bigint, enqueued_at bigint, seq bigint, attempts integer, memo bytea, rest text
) LANGUAGE plpgsql {pinned} AS $$
#variable_conflict use_column
DECLARE
    qu queues;
    room bigint := most;
    level smallint;
    -- No due job of this priority has an earlier run_at.
    since bigint;
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
    SELECT priority, run_at INTO level, since FROM live
    WHERE q = qu.q AND state = 'w' ORDER BY priority DESC, run_at, seq LIMIT 1;
    WHILE level IS NOT NULL LOOP
        IF room > 0 THEN
            -- Lock the rows in a separate statement. In one statement with the UPDATE, the planner may run the locking
            -- query twice.
            picked := ARRAY(
                SELECT ctid FROM live
                WHERE q = qu.q AND state = 'w' AND priority = level AND run_at BETWEEN since AND now_ms
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
        since := 0;
    END LOOP;
    next_due := due;
    RETURN NEXT;
END $$;

-- complete_all(queue, now, ids, fences, results) -> the positions, from 1, of the settlements that are done: as in
-- 0027_traces.sql. The entry of the log is an object with the time, the holder of the first run, and the events. If the
-- holder of a run and its attempts, enqueues, run_at and first have their usual values, its event has five fields.
-- Otherwise, or with a result, it has all of them. dibs/storage/postgres/codec/event_log.py reads both.
CREATE OR REPLACE FUNCTION complete_all(qu queues, now_ms bigint, ids text[], fences bigint[], results bytea[])
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    usual bigint := expiry('completed', now_ms, NULL, NULL, qu.retention);
    keeps boolean := keeps_data('completed', NULL, NULL, qu.retention);
    -- NULL if the log keeps no results.
    longest integer := nullif(qu.log_results, 0);
    horizon xid8 := greatest(pg_current_xact_id(), pg_snapshot_xmax(pg_current_snapshot()));
    done bigint[];
    keys text[];
    told text;
    common_holder text;
    hashes integer[];
BEGIN
    WITH gone AS (
        DELETE FROM live j USING (
            SELECT a.*, one.spot
            FROM (SELECT * FROM unnest(ids, fences, results) WITH ORDINALITY AS u (id, fence, result, place)
                  ORDER BY u.id COLLATE "C") a,
                LATERAL (SELECT l.ctid AS spot FROM live l WHERE l.q = qu.q AND l.id = a.id OFFSET 0) one) s
        WHERE j.ctid = s.spot AND j.fence = s.fence AND (j.next).revision IS NULL
        RETURNING s.place, s.result, j.id, j.fence, j.first, j.revision, j.enqueues, j.enqueued_at, j.run_at,
            j.claimed_at, j.holder, j.attempts, j.retries, j.stalls, j.timeouts, j.payload, j.priority,
            j.attributes, j.overrides, j.retention, j.origin, j.dropped, j.key,
            CASE WHEN j.retention IS NULL THEN usual
                 ELSE expiry('completed', now_ms, NULL, j.retention, qu.retention) END AS expires,
            CASE WHEN j.retention IS NULL THEN keeps
                 ELSE keeps_data('completed', NULL, j.retention, qu.retention) END AS keeps
    ), kept AS (
        INSERT INTO ended AS old
        SELECT qu.q, g.id, 'completed', g.fence, g.first, g.revision, now_ms, g.expires, horizon,
            CASE WHEN d.kept THEN g.result END, NULL,
            g.enqueues, g.enqueued_at, g.run_at, g.claimed_at, g.holder,
            g.attempts, g.retries, g.stalls, g.timeouts,
            CASE WHEN d.data THEN g.payload END, CASE WHEN d.data THEN g.priority END,
            CASE WHEN d.kept THEN g.attributes END, CASE WHEN d.data THEN g.overrides END,
            CASE WHEN d.data THEN g.retention END, g.origin, g.dropped, CASE WHEN d.data THEN g.key END
        FROM gone g, LATERAL (
            SELECT x.kept, x.kept AND g.keeps AS data
            FROM (SELECT g.expires IS NULL OR g.expires > now_ms AS kept) x) d
        WHERE d.kept OR EXISTS (SELECT 1 FROM ended e WHERE e.q = qu.q AND e.id = g.id OFFSET 0)
        ON CONFLICT (q, id) DO UPDATE SET
            kind = excluded.kind, fence = excluded.fence, first = excluded.first,
            revision = excluded.revision, ended_at = excluded.ended_at, expires_at = excluded.expires_at,
            horizon = excluded.horizon, result = excluded.result, error = excluded.error,
            enqueues = excluded.enqueues, enqueued_at = excluded.enqueued_at, run_at = excluded.run_at,
            claimed_at = excluded.claimed_at, holder = excluded.holder, attempts = excluded.attempts,
            retries = excluded.retries, stalls = excluded.stalls, timeouts = excluded.timeouts,
            payload = excluded.payload, priority = excluded.priority, attributes = excluded.attributes,
            overrides = excluded.overrides, retention = excluded.retention, origin = excluded.origin,
            key = excluded.key, memo = NULL, dropped = latest_dropped(old.dropped || excluded.dropped)
    )
    SELECT array_agg(place), array_agg(key) FILTER (WHERE key IS NOT NULL),
           array_agg(hashtext(id)) FILTER (WHERE expires <= now_ms),
           CASE WHEN qu.log_level <> 'off' THEN string_agg(CASE
               WHEN attempts + enqueues = 2 AND run_at = enqueued_at AND first = revision AND holder = shared
                    AND coalesce(octet_length(result) > longest, true)
               THEN format('[%s,%s,%s,%s,%s]', to_json(id), fence, enqueued_at, claimed_at, revision)
               ELSE format(
                   '["completed",%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,null%s]', to_json(id), now_ms, attempts, fence,
                   enqueued_at, run_at, claimed_at, now_ms, to_json(holder), first, revision, enqueues,
                   CASE WHEN octet_length(result) <= longest
                        THEN ',"' || translate(encode(result, 'base64'), E'\n', '') || '"' END)
               END, ',' ORDER BY place) END,
           min(shared)
    INTO done, keys, hashes, told, common_holder FROM gone, (SELECT holder AS shared FROM gone LIMIT 1) one;
    IF hashes IS NOT NULL THEN
        INSERT INTO traces VALUES (qu.q, nextval('numbers'), horizon, hashes);
    END IF;
    IF keys IS NOT NULL THEN
        INSERT INTO freed SELECT qu.q, u.key FROM unnest(keys) AS u (key);
    END IF;
    IF told IS NOT NULL THEN
        PERFORM begin_telling();
        INSERT INTO events (q, n, at, count, packed) VALUES (
            qu.q, nextval('numbers'), now_ms, cardinality(done),
            '{"at":' || now_ms || ',"holder":' || to_json(common_holder) || ',"events":[' || told || ']}');
    END IF;
    RETURN done;
END $$;
