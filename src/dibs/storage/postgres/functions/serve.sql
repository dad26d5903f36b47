-- The verb serve: the settlements and claims of several queues in one statement for each part.

-- serve(names, lease, now, one array per step, owners, one array per field of the settlements) -> the answers of
-- several queues. `firsts` and `lasts` are the positions of the settlements of a step in the arrays of settlements, and
-- `owners` the step of each settlement. All settlements come before all claims. The rows of a step are in this order:
-- one with statuses and revisions, if its settlements are not all done; and the rows of claim(). The last row of a step
-- that claims nothing has only the time.
CREATE OR REPLACE FUNCTION serve(
    names text[], under uuid, manual bigint, limits integer[], firsts integer[], lasts integer[], plains boolean[],
    owners integer[], given_ids text[], given_fences bigint[], kinds text[], results bytea[], details text[],
    given_spots tid[]
) RETURNS TABLE (
    step integer, statuses text[], revisions bigint[], lost boolean, now_ms bigint, next_due bigint, holder text,
    held_back bigint, priority smallint, fences bigint[], spots text[], ids text[], payloads bytea[], starts bigint[],
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
    RETURN QUERY SELECT c.step, NULL::text[], NULL::bigint[], c.lost, c.now_ms, c.next_due, c.holder, c.held_back, c.priority,
        c.fences, c.spots, c.ids, c.payloads, c.starts, c.enqueues, c.seqs, c.tries, c.memos, c.rests
    FROM claim(names, limits, under, manual) c;
END $$;

-- settle_steps(names, one array per step, owners, now, one array per field) -> the statuses and revisions of each step
-- with settlements that are not all done, see serve().
CREATE OR REPLACE FUNCTION settle_steps(
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
        PERFORM notify_waits(k, k.max_active IS NOT NULL OR k.per_key IS NOT NULL, k.log_level <> 'off', ids[s.first:s.last])
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
