-- The verb serve: the settlements and claims of several queues in one statement for each part.

-- serve(names, lease, now, one array per step, owners, one array per field of the settlements) -> the answers of several
-- queues. `firsts` and `lasts` are the positions of the settlements of a step in the arrays of settlements, and `owners`
-- the step of each settlement. All settlements come before all claims. The rows of a step are in this order: one with
-- statuses and revisions, if its settlements are not all done; and the rows of claim(). The last row of a step that claims
-- nothing has only the time.
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
    FROM claim_steps(names, limits, under, manual) c;
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

-- claim_steps(names, limits, lease, now): the claims of serve(). For all queues without limits one statement finds the
-- first waiting jobs, one locks the jobs of their priority, and one starts them, as claim() does for one queue. A queue
-- with jobs of a lower priority, too, goes on with claim(). Other queues are left to claim().
CREATE OR REPLACE FUNCTION claim_steps(names text[], limits integer[], under uuid, manual bigint) RETURNS TABLE (
    step integer, lost boolean, now_ms bigint, next_due bigint, holder text, held_back bigint, priority smallint,
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
          AND NOT k.paused AND k.log_level <> 'all' AND k.max_active IS NULL AND NOT k.has_held_back
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
