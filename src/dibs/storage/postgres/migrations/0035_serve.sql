-- The steps of several queues in one function: plain completions and plain claims take one statement for all queues.

-- complete_runs(queue numbers, owners, now, ids, fences, spots) -> the positions, from 1, of the settlements that are done:
-- as complete_plain() in 0034_completions.sql, which it replaces, but for several queues. `owners` has for each settlement
-- the position of its queue in `qs`; a settlement whose queue is NULL there is left out. The caller has checked that the
-- queues keep no outcome and no result. An entry of the log has the runs of one queue and one holder.
CREATE FUNCTION complete_runs(
    qs integer[], owners integer[], now_ms bigint, ids text[], fences bigint[], spots tid[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    with_outcomes integer[] := ARRAY(
        SELECT u.q FROM unnest(qs) AS u (q) WHERE EXISTS (SELECT 1 FROM ended e WHERE e.q = u.q));
    logged integer[] := ARRAY(SELECT k.q FROM queues k WHERE k.q = ANY (qs) AND k.log_level <> 'off');
    horizon xid8 := greatest(pg_current_xact_id(), pg_snapshot_xmax(pg_current_snapshot()));
    done bigint[];
BEGIN
    IF cardinality(logged) > 0 THEN
        PERFORM begin_telling();
    END IF;
    -- The conditions on q and id are written so that no index fits them, see complete_all() in 0027_traces.sql.
    WITH gone AS (
        DELETE FROM live j USING (
            SELECT u.*, qs[u.owner] AS q
            FROM unnest(ids, fences, spots, owners) WITH ORDINALITY AS u (id, fence, spot, owner, place)
            ORDER BY u.owner, u.id COLLATE "C") s
        WHERE j.ctid = s.spot AND j.fence = s.fence AND j.id = s.id COLLATE "POSIX" AND j.q + 0 = s.q
          AND (j.next).revision IS NULL AND j.key IS NULL AND j.retention IS NULL
          AND j.attempts = 1 AND j.enqueues = 1 AND j.run_at = j.enqueued_at AND j.first = j.revision
          AND (j.q <> ALL (with_outcomes)
               OR NOT EXISTS (SELECT 1 FROM ended e WHERE e.q = s.q AND e.id = s.id OFFSET 0))
        RETURNING s.place, j.q, j.holder, j.id, j.fence, j.revision, j.enqueued_at, j.claimed_at
    ), sets AS (
        SELECT g.q, g.holder, count(*) AS runs, array_agg(g.place) AS places, array_agg(hashtext(g.id)) AS hashes,
               array_agg(g.id) AS ids, array_agg(g.fence) AS fences, array_agg(g.revision) AS revisions,
               array_agg(now_ms - g.enqueued_at) AS waits, array_agg(now_ms - g.claimed_at) AS runs_ms
        FROM (SELECT * FROM gone ORDER BY gone.q, gone.holder, gone.place) g
        GROUP BY g.q, g.holder
    ), traced AS (
        INSERT INTO traces SELECT s.q, nextval('numbers'), horizon, s.hashes FROM sets s
    ), told AS (
        -- Numbers are relative to the first one, to be short.
        INSERT INTO events (q, n, at, count, packed)
        SELECT s.q, nextval('numbers'), now_ms, s.runs, concat(
            '{"at":', now_ms, ',"holder":', to_json(s.holder), ',"fence":', s.fences[1], ',"revision":', s.revisions[1],
            ',"ids":', array_to_json(s.ids),
            ',"fences":', array_to_json(ARRAY(SELECT n - s.fences[1] FROM unnest(s.fences) AS u (n))),
            ',"revisions":', array_to_json(ARRAY(SELECT n - s.revisions[1] FROM unnest(s.revisions) AS u (n))),
            ',"waits":', array_to_json(s.waits), ',"runs":', array_to_json(s.runs_ms), '}')
        FROM sets s WHERE s.q = ANY (logged)
    )
    SELECT coalesce(array_agg(p.place), '{}') INTO done FROM sets s, unnest(s.places) AS p (place);
    RETURN done;
END $$;

-- settle_rest(queue, now, plain, one array per field, settled): the rest of settle(), after complete_runs(). `settled` are
-- the positions of the settlements that are done.
CREATE FUNCTION settle_rest(
    qu queues, now_ms bigint, plain boolean, ids text[], fences bigint[], kinds text[], results bytea[], details text[],
    settled bigint[], OUT statuses text[], OUT revisions bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    answer record;
    told text[] := '{}';
    ends text[] := '{}';
    i integer;
BEGIN
    IF plain THEN
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

-- ends_short(queue, now) -> true if the queue keeps neither completed outcomes nor results in its log, as complete_runs()
-- needs it.
CREATE FUNCTION ends_short(qu queues, now_ms bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT qu.log_results = 0 AND expiry('completed', now_ms, NULL, NULL, qu.retention) <= now_ms
$$;

-- settle(...): as in 0034_completions.sql.
CREATE OR REPLACE FUNCTION settle(
    queue text, manual bigint, plain boolean, ids text[], fences bigint[], kinds text[],
    results bytea[], details text[], spots tid[] DEFAULT NULL, OUT statuses text[], OUT revisions bigint[]
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    settled bigint[] := '{}';
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    IF NOT FOUND THEN
        statuses := ARRAY(SELECT 'lost' FROM generate_series(1, cardinality(ids)));
        RETURN;
    END IF;
    IF plain AND spots[1] IS NOT NULL AND ends_short(qu, now_ms) THEN
        settled := complete_runs(ARRAY[qu.q], array_fill(1, ARRAY[cardinality(ids)]), now_ms, ids, fences, spots);
    END IF;
    SELECT r.statuses, r.revisions INTO statuses, revisions
    FROM settle_rest(qu, now_ms, plain, ids, fences, kinds, results, details, settled) r;
END $$;

DROP FUNCTION complete_plain(queues, bigint, text[], bigint[], tid[]);

-- settle_steps(names, one array per step, owners, now, one array per field) -> the statuses and revisions of each step
-- with settlements that are not all done, see serve().
CREATE FUNCTION settle_steps(
    names text[], firsts integer[], lasts integer[], plains boolean[], owners integer[], manual bigint,
    ids text[], fences bigint[], kinds text[], results bytea[], details text[], spots tid[]
) RETURNS TABLE (step integer, statuses text[], revisions bigint[]) LANGUAGE plpgsql AS $$
DECLARE
    now_ms bigint := tick(manual);
    -- The number of each queue whose settlements complete_runs() takes.
    qs integer[] := ARRAY(
        SELECT CASE WHEN s.plain AND spots[s.first] IS NOT NULL AND ends_short(k, now_ms) THEN k.q END
        FROM unnest(names, firsts, plains) WITH ORDINALITY AS s (name, first, plain, place)
            LEFT JOIN queues k ON k.name = s.name
        ORDER BY s.place);
    done bigint[] := '{}';
    are_all_done boolean := false;
    qu queues;
    i integer;
BEGIN
    IF num_nonnulls(VARIADIC qs) > 0 THEN
        done := complete_runs(qs, owners, now_ms, ids, fences, spots);
        are_all_done := cardinality(done) = (
            SELECT sum(s.last - s.first + 1) FROM unnest(qs, firsts, lasts) AS s (q, first, last) WHERE s.q IS NOT NULL);
    END IF;
    IF are_all_done THEN
        PERFORM ring(k, k.max_active IS NOT NULL OR k.per_key IS NOT NULL, k.log_level <> 'off', ids[s.first:s.last])
        FROM unnest(qs, firsts, lasts) AS s (q, first, last) JOIN queues k ON k.q = s.q
        WHERE greatest(k.work_until, k.events_until, k.ids_until) >= clock_timestamp();
    END IF;
    FOR i IN 1 .. cardinality(names) LOOP
        CONTINUE WHEN lasts[i] < firsts[i] OR qs[i] IS NOT NULL AND are_all_done;
        SELECT * INTO qu FROM queues k WHERE k.name = names[i];
        IF FOUND THEN
            SELECT r.statuses, r.revisions INTO statuses, revisions
            FROM settle_rest(qu, now_ms, plains[i], ids[firsts[i]:lasts[i]], fences[firsts[i]:lasts[i]],
                             kinds[firsts[i]:lasts[i]], results[firsts[i]:lasts[i]], details[firsts[i]:lasts[i]], ARRAY(
                                 SELECT u.place - firsts[i] + 1 FROM unnest(done) AS u (place)
                                 WHERE u.place BETWEEN firsts[i] AND lasts[i])) r;
        ELSE
            statuses := array_fill('lost'::text, ARRAY[lasts[i] - firsts[i] + 1]);
            revisions := NULL;
        END IF;
        IF statuses IS NOT NULL THEN
            step := i;
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- serve(names, lease, now, one array per step, owners, one array per field of the settlements) -> the answers of several
-- queues. `firsts` and `lasts` are the positions of the settlements of a step in the arrays of settlements, and `owners`
-- the step of each settlement. All settlements come before all claims. The rows of a step are in this order: one with
-- statuses and revisions, if its settlements are not all done; and the rows of claim(). The last row of a step that claims
-- nothing has only the time.
CREATE FUNCTION serve(
    names text[], under uuid, manual bigint, limits integer[], firsts integer[], lasts integer[], plains boolean[],
    owners integer[], given_ids text[], given_fences bigint[], kinds text[], results bytea[], details text[],
    given_spots tid[]
) RETURNS TABLE (
    step integer, statuses text[], revisions bigint[], lost boolean, now_ms bigint, next_due bigint, holder text,
    filed bigint, priority smallint, fences bigint[], spots text[], ids text[], payloads bytea[], starts bigint[],
    enqueues bigint[], seqs bigint[], tries integer[], memos bytea[], rests text[]
) LANGUAGE plpgsql {pinned} AS $$
#variable_conflict use_column
BEGIN
    IF cardinality(given_ids) > 0 THEN
        RETURN QUERY SELECT s.step, s.statuses, s.revisions, NULL::boolean, NULL::bigint, NULL::bigint, NULL::text,
            NULL::bigint, NULL::smallint, NULL::bigint[], NULL::text[], NULL::text[], NULL::bytea[], NULL::bigint[],
            NULL::bigint[], NULL::bigint[], NULL::integer[], NULL::bytea[], NULL::text[]
        FROM settle_steps(names, firsts, lasts, plains, owners, manual, given_ids, given_fences, kinds, results, details,
                          given_spots) s;
    END IF;
    RETURN QUERY SELECT c.step, NULL::text[], NULL::bigint[], c.lost, c.now_ms, c.next_due, c.holder, c.filed, c.priority,
        c.fences, c.spots, c.ids, c.payloads, c.starts, c.enqueues, c.seqs, c.tries, c.memos, c.rests
    FROM claim_steps(names, limits, under, manual) c;
END $$;
