-- The end of a run whose outcome is not kept writes no row of `ended`. New jobs are inserted without speculative rows.

-- Ids whose runs ended without a row of `ended`, as hashes, for enqueues that run at the same time: see begin_live().
-- One row for each call of complete_all(). `n` is above the fences of these runs. prune() keeps a row while a
-- transaction runs that ran when the jobs ended; each of these transactions has a lower id than `horizon`.
CREATE TABLE traces (
    q integer NOT NULL,
    n bigint NOT NULL,
    horizon xid8 NOT NULL,
    hashes integer[] NOT NULL,
    PRIMARY KEY (q, n)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- ended_since(queue, ids, number) -> true if a run of one of the ids may have ended under `number` or a higher one.
CREATE FUNCTION ended_since(qu queues, ids text[], number bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1 FROM unnest(ids) AS a (id),
            LATERAL (SELECT * FROM ended e WHERE e.q = qu.q AND e.id = a.id OFFSET 0) o
        WHERE greatest(o.fence, o.revision) >= number
    ) OR EXISTS (
        SELECT 1 FROM traces t WHERE t.q = qu.q AND t.n > number
          AND t.hashes && ARRAY(SELECT hashtext(a.id) FROM unnest(ids) AS a (id)));
END $$;

-- begin_live(queue, request, now, origin): as in 0020_requests.sql. A transaction that ended or removed the id between
-- the draw of the number and the insert left a row in `ended` or in `traces` with a higher number.
CREATE OR REPLACE FUNCTION begin_live(qu queues, r request, now_ms bigint, origin json) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
BEGIN
    LOOP
        number := nextval('numbers');
        INSERT INTO live (q, id, state, priority, run_at, seq, first, revision, enqueued_at,
                          payload, attributes, overrides, retention, origin, key)
        VALUES (qu.q, r.id, 'w', r.priority, r.run_at, number, number, number, now_ms,
                r.payload, r.attributes, r.overrides, r.retention, origin, r.key)
        ON CONFLICT (q, id) DO NOTHING;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        -- If the sequence still stands at our number, no run can have a higher one.
        IF number = (SELECT last_value FROM numbers) OR NOT ended_since(qu, ARRAY[r.id], number) THEN
            RETURN number;
        END IF;
        DELETE FROM live WHERE q = qu.q AND id = r.id;
    END LOOP;
END $$;

-- enqueue_new(...): as in 0020_requests.sql. Why an exception instead of ON CONFLICT: for each row, ON CONFLICT looks into
-- the index once more, and writes 48 bytes of WAL more.
CREATE OR REPLACE FUNCTION enqueue_new(
    qu queues, now_ms bigint, ids text[], payloads bytea[], priorities smallint[], whens bigint[],
    attributes text[], overrides text[], retentions text[], keys text[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    drawn bigint[];
BEGIN
    IF has_snapshot() THEN
        -- admit() compares each id with the rows that the snapshot does not show.
        RETURN NULL;
    END IF;
    IF cardinality(ids) = 1 THEN
        -- Without unnest(), a single job takes a third of the time.
        drawn[1] := begin_live(qu, (
            ids[1], payloads[1], coalesce(priorities[1], 0), attributes[1], overrides[1], retentions[1],
            start_time(whens[1], now_ms), 0, keys[1])::request, now_ms, NULL);
        RETURN CASE WHEN drawn[1] IS NOT NULL THEN drawn END;
    END IF;
    IF lock_ids(qu, ids) THEN
        RETURN NULL;
    END IF;
    drawn := ARRAY(SELECT nextval('numbers') FROM generate_series(1, cardinality(ids)));
    BEGIN
        INSERT INTO live (q, id, state, priority, run_at, seq, first, revision, enqueued_at,
                          payload, attributes, overrides, retention, key)
        SELECT qu.q, a.id, 'w', coalesce(a.priority, 0), start_time(a.said, now_ms), a.n, a.n, a.n, now_ms,
               a.payload, a.attributes::json, a.overrides::json, a.retention::jsonb, a.key
        FROM unnest(ids, payloads, priorities, whens, attributes, overrides, retentions, keys, drawn)
            AS a (id, payload, priority, said, attributes, overrides, retention, key, n)
        ORDER BY a.id COLLATE "C";
        -- If the sequence still stands at our last number, no id can have ended under a higher number.
        IF drawn[cardinality(ids)] < (SELECT last_value FROM numbers) AND ended_since(qu, ids, drawn[1]) THEN
            RAISE unique_violation;
        END IF;
    EXCEPTION WHEN unique_violation THEN
        -- Another transaction used one of the ids after lock_ids(). The caller then enqueues each job with admit().
        RETURN NULL;
    END;
    RETURN drawn;
END $$;

-- complete_all(queue, now, ids, fences, results) -> the positions, from 1, of the settlements that are done: runs that
-- are active under the given fence and have no successor. No id is repeated. An outcome that is not kept replaces an
-- older row of `ended`, and otherwise writes none.
-- The rows are deleted in the order of the ids, so that two batches cannot deadlock, and without a lock before, which
-- would write 54 bytes of WAL for each. A row that another call has changed since it was found is left to settle_one(),
-- or is compared with fence and successor again. The DELETE names no column of an index: with one, Postgres may plan to
-- read the whole queue while the table is empty, see lock_ids() in 0002_place.sql.
-- Why format() builds the events: json_build_array() and concat() look up the types of their arguments for each job.
-- An active row always has claimed_at and holder.
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
    told text[];
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
           CASE WHEN qu.log_level <> 'off' THEN array_agg(format(
               '["completed",%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,null%s]', to_json(id), now_ms, attempts, fence,
               enqueued_at, run_at, claimed_at, now_ms, to_json(holder), first, revision, enqueues,
               CASE WHEN octet_length(result) <= longest
                    THEN ',"' || translate(encode(result, 'base64'), E'\n', '') || '"' END) ORDER BY place) END
    INTO done, keys, hashes, told FROM gone;
    IF hashes IS NOT NULL THEN
        INSERT INTO traces VALUES (qu.q, nextval('numbers'), horizon, hashes);
    END IF;
    IF keys IS NOT NULL THEN
        INSERT INTO freed SELECT qu.q, u.key FROM unnest(keys) AS u (key);
    END IF;
    PERFORM tell(qu, now_ms, told);
    RETURN done;
END $$;

-- prune(queue, most, now): as in 0026_limits_kept.sql, and removes traces that no transaction needs.
CREATE OR REPLACE FUNCTION prune(
    queue text, most integer, manual bigint, OUT outcomes bigint, OUT keys bigint, OUT told bigint
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    horizon_now xid8 := pg_snapshot_xmin(pg_current_snapshot());
    word text;
    found_some bigint;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    outcomes := 0;
    FOREACH word IN ARRAY '{completed,failed,cancelled}'::text[] LOOP
        found_some := prune_ended(qu, word, most - outcomes, now_ms, horizon_now);
        outcomes := outcomes + found_some;
    END LOOP;
    PERFORM prune_ended(qu, 'forgotten', most, now_ms, horizon_now);
    DELETE FROM traces WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM traces WHERE q = qu.q AND horizon < horizon_now
        ORDER BY n LIMIT 10000 FOR UPDATE SKIP LOCKED));
    DELETE FROM request_keys WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM request_keys WHERE q + 0 = qu.q AND expires_at <= now_ms
        ORDER BY expires_at LIMIT most - outcomes FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS keys = ROW_COUNT;
    told := trim_events(qu, now_ms);
    PERFORM prune_limits(qu, most, now_ms);
END $$;
