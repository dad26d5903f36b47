-- Completions of plain runs whose outcomes are not kept: one statement finds the rows by position, and writes a short entry
-- of the log.

-- complete_plain(queue, now, ids, fences, spots) -> the positions, from 1, of the settlements that are done. `spots` are the
-- positions of the rows at the claim. A settlement is left to complete_all() if its row has moved since then, or if its run
-- has more to write: a key, a retention of its own, a successor, an earlier outcome, or values that a short event does not
-- have. The caller has checked that the queue keeps no outcome and no result. The entry of the log is an object with the
-- values that are common to its events, and an array for each other field: see
-- dibs/storage/postgres/codec/event_log.py. Numbers are relative, to be short.
CREATE FUNCTION complete_plain(qu queues, now_ms bigint, ids text[], fences bigint[], spots tid[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    has_outcomes boolean := EXISTS (SELECT 1 FROM ended e WHERE e.q = qu.q);
    horizon xid8 := greatest(pg_current_xact_id(), pg_snapshot_xmax(pg_current_snapshot()));
    common_holder text;
    base bigint;
    done bigint[];
    hashes integer[];
    packed text;
BEGIN
    SELECT l.holder, l.revision INTO common_holder, base FROM live l WHERE l.ctid = spots[1];
    -- The conditions on q and id are written so that no index fits them, see complete_all() in 0027_traces.sql.
    WITH gone AS (
        DELETE FROM live j USING (
            SELECT * FROM unnest(ids, fences, spots) WITH ORDINALITY AS u (id, fence, spot, place)
            ORDER BY u.id COLLATE "C") s
        WHERE j.ctid = s.spot AND j.fence = s.fence AND j.id = s.id COLLATE "POSIX" AND j.q + 0 = qu.q
          AND (j.next).revision IS NULL AND j.key IS NULL AND j.retention IS NULL
          AND j.attempts = 1 AND j.enqueues = 1 AND j.run_at = j.enqueued_at AND j.first = j.revision
          AND j.holder = common_holder
          AND (NOT has_outcomes OR NOT EXISTS (SELECT 1 FROM ended e WHERE e.q = qu.q AND e.id = s.id OFFSET 0))
        RETURNING s.place, j.id, j.fence, j.revision, j.enqueued_at, j.claimed_at
    )
    SELECT array_agg(g.place), array_agg(hashtext(g.id)),
           CASE WHEN qu.log_level <> 'off' THEN
               '"ids":' || array_to_json(array_agg(g.id))
               || ',"fences":' || array_to_json(array_agg(g.fence - fences[1]))
               || ',"revisions":' || array_to_json(array_agg(g.revision - base))
               || ',"waits":' || array_to_json(array_agg(now_ms - g.enqueued_at))
               || ',"runs":' || array_to_json(array_agg(now_ms - g.claimed_at)) END
    INTO done, hashes, packed FROM (SELECT * FROM gone ORDER BY gone.place) g;
    IF done IS NULL THEN
        RETURN '{}';
    END IF;
    INSERT INTO traces VALUES (qu.q, nextval('numbers'), horizon, hashes);
    IF packed IS NOT NULL THEN
        PERFORM begin_telling();
        INSERT INTO events (q, n, at, count, packed) VALUES (
            qu.q, nextval('numbers'), now_ms, cardinality(done),
            '{"at":' || now_ms || ',"holder":' || to_json(common_holder) || ',"fence":' || fences[1]
            || ',"revision":' || base || ',' || packed || '}');
    END IF;
    RETURN done;
END $$;

-- A parameter is added, which CREATE OR REPLACE does not allow.
DROP FUNCTION settle(text, bigint, boolean, text[], bigint[], text[], bytea[], text[]);

-- settle(queue, now, plain, one array per field, spots): as in 0026_limits_kept.sql. `spots` are the positions of the rows
-- at the claim; NULL if the caller does not know them.
CREATE FUNCTION settle(
    queue text, manual bigint, plain boolean, ids text[], fences bigint[], kinds text[],
    results bytea[], details text[], spots tid[] DEFAULT NULL, OUT statuses text[], OUT revisions bigint[]
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    answer record;
    told text[] := '{}';
    ends text[] := '{}';
    settled bigint[] := '{}';
    i integer;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    IF NOT FOUND THEN
        statuses := ARRAY(SELECT 'lost' FROM generate_series(1, cardinality(ids)));
        RETURN;
    END IF;
    IF plain THEN
        IF spots[1] IS NOT NULL AND qu.log_results = 0 AND expiry('completed', now_ms, NULL, NULL, qu.retention) <= now_ms THEN
            settled := complete_plain(qu, now_ms, ids, fences, spots);
        END IF;
        IF cardinality(settled) < cardinality(ids) THEN
            settled := settled || complete_all(qu, now_ms, ids, fences, results);
        END IF;
        IF cardinality(settled) = cardinality(ids) THEN
            PERFORM ring(qu, qu.max_active IS NOT NULL OR qu.per_key IS NOT NULL, qu.log_level <> 'off', ids);
            RETURN;
        END IF;
    END IF;
    PERFORM lock_ids(qu, ids);
    FOR i IN 1 .. cardinality(ids) LOOP
        IF i = ANY (settled) THEN
            statuses[i] := 'done';
            ends := ends || ids[i];
            CONTINUE;
        END IF;
        answer := settle_one(qu, now_ms, ids[i], fences[i], coalesce(kinds[i], 'completed'), results[i],
                             details[i]::json);
        statuses[i] := answer.status;
        revisions[i] := answer.revision;
        told := told || answer.told;
        IF answer.over THEN
            ends := ends || ids[i];
        END IF;
    END LOOP;
    PERFORM tell(qu, now_ms, told);
    PERFORM ring(qu, true, cardinality(told) > 0 OR cardinality(settled) > 0, ends);
END $$;
