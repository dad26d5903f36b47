-- The last progress of a run stays with its outcome. A run without progress has NULL there, which takes no space.

ALTER TABLE ended ADD COLUMN progress json;

-- keep(job, kind, ...): as in 0021_ends.sql. A kept outcome has the progress of its run.
CREATE OR REPLACE FUNCTION keep(
    qu queues, j live, kind text, now_ms bigint, result bytea, error json, given jsonb
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    expires bigint := expiry(kind, now_ms, given, j.retention, qu.retention);
    kept boolean := expires IS NULL OR expires > now_ms;
    data boolean := kept AND keeps_data(kind, given, j.retention, qu.retention);
BEGIN
    INSERT INTO ended AS old VALUES (
        j.q, j.id, kind, coalesce(j.fence, 0), j.first, j.revision, now_ms, expires,
        pg_snapshot_xmax(pg_current_snapshot()),
        CASE WHEN kept THEN result END, CASE WHEN kept THEN error END,
        j.enqueues, j.enqueued_at, j.run_at, j.claimed_at, j.holder,
        j.attempts, j.retries, j.stalls, j.timeouts,
        CASE WHEN data THEN j.payload END, CASE WHEN data THEN j.priority END,
        CASE WHEN kept THEN j.attributes END, CASE WHEN data THEN j.overrides END,
        CASE WHEN data THEN j.retention END, j.origin, j.dropped,
        CASE WHEN data THEN j.key END, CASE WHEN data AND kind = 'failed' THEN j.memo END,
        CASE WHEN kept THEN j.progress END)
    ON CONFLICT (q, id) DO UPDATE SET
        kind = excluded.kind, fence = excluded.fence, first = excluded.first, revision = excluded.revision,
        ended_at = excluded.ended_at, expires_at = excluded.expires_at, horizon = excluded.horizon,
        result = excluded.result, error = excluded.error, enqueues = excluded.enqueues,
        enqueued_at = excluded.enqueued_at, run_at = excluded.run_at, claimed_at = excluded.claimed_at,
        holder = excluded.holder, attempts = excluded.attempts, retries = excluded.retries,
        stalls = excluded.stalls, timeouts = excluded.timeouts, payload = excluded.payload,
        priority = excluded.priority, attributes = excluded.attributes, overrides = excluded.overrides,
        retention = excluded.retention, origin = excluded.origin, key = excluded.key, memo = excluded.memo,
        progress = excluded.progress,
        dropped = latest_dropped(old.dropped || excluded.dropped);
END $$;

-- complete_all(queue, now, ids, fences, results): as in 0030_drain.sql. A kept outcome has the progress of its run.
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
            j.attributes, j.overrides, j.retention, j.origin, j.dropped, j.key, j.progress,
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
            CASE WHEN d.data THEN g.retention END, g.origin, g.dropped, CASE WHEN d.data THEN g.key END,
            NULL, CASE WHEN d.kept THEN g.progress END
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
            key = excluded.key, memo = NULL, progress = excluded.progress,
            dropped = latest_dropped(old.dropped || excluded.dropped)
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
    o.key, o.memo, o.progress::jsonb AS progress
FROM ended o JOIN queues k USING (q)
WHERE o.kind <> 'forgotten'
  AND (o.expires_at IS NULL OR as_time(o.expires_at) > clock_timestamp());
