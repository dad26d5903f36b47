-- The verbs settle, finish and report: runs that end, are retried, released or handed off.

-- settle(queues, lasts, plains, now, one array per field, spots) -> a row for each step, which is the settlements of
-- one queue: its position from 1, and statuses and revisions in the order of its settlements. `statuses` NULL means
-- that all are done. A step without settlements has no row. `lasts` are the positions of the last settlements of the
-- steps in the arrays, and `plains` says that each settlement of a step is a Complete without follow-ups and retention,
-- and that no id is repeated. `spots` are the positions of the rows at the claim; NULL if the caller does not know
-- those of a step. Also under per_key, an end makes room for work.
CREATE OR REPLACE FUNCTION settle(
    names text[], lasts integer[], plains boolean[], manual bigint, ids text[], fences bigint[], kinds text[],
    results bytea[], details text[], spots tid[] DEFAULT NULL
) RETURNS TABLE (step integer, statuses text[], revisions bigint[]) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    now_ms bigint := tick(manual);
    qu queues;
    known queues[];
    -- The position of the first settlement of each step.
    firsts bigint[];
    -- The number of each queue whose settlements complete_runs() takes.
    qs integer[];
    done bigint[] := '{}';
    taken bigint := 0;
    a integer := 1;
    z integer;
BEGIN
    FOR i IN 1 .. cardinality(names) LOOP
        SELECT * INTO qu FROM queues WHERE name = names[i];
        known[i] := qu;
        firsts[i] := a;
        IF plains[i] AND spots[a] IS NOT NULL AND a <= lasts[i] AND NOT qu.has_output AND ends_short(qu, now_ms) THEN
            qs[i] := qu.q;
            taken := taken + lasts[i] - a + 1;
        END IF;
        a := lasts[i] + 1;
    END LOOP;
    IF taken > 0 THEN
        done := complete_runs(qs, firsts, now_ms, ids, fences, spots);
    END IF;
    FOR i IN 1 .. cardinality(names) LOOP
        qu := known[i];
        a := firsts[i];
        z := lasts[i];
        CONTINUE WHEN z < a;
        step := i;
        IF qu.q IS NULL THEN
            statuses := array_fill('lost'::text, ARRAY[z - a + 1]);
            revisions := NULL;
        ELSIF qs[i] IS NOT NULL AND cardinality(done) = taken THEN
            statuses := NULL;
            revisions := NULL;
            PERFORM notify_waits(qu, qu.max_active IS NOT NULL OR qu.per_key IS NOT NULL, qu.log_level <> 'off', ids[a:z]);
        ELSE
            SELECT r.statuses, r.revisions INTO statuses, revisions
            FROM settle_rest(qu, now_ms, plains[i], ids[a:z], fences[a:z], kinds[a:z], results[a:z], details[a:z],
                             ARRAY(SELECT u.place - a + 1 FROM unnest(done) AS u (place) WHERE u.place BETWEEN a AND z)) r;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- settle_one(queue, now, id, fence, kind, result, details) -> status, revision and events of one settlement. `kind` is
-- completed, failed, cancelled, retry, release or hand_off. details.refused marks a settlement that breaks a limit.
CREATE OR REPLACE FUNCTION settle_one(
    qu queues, now_ms bigint, wanted text, under bigint, said text, result bytea, details json,
    OUT status text, OUT revision bigint, OUT logged text[], OUT over boolean
) LANGUAGE plpgsql AS $$
DECLARE
    j live;
    o ended;
    ends boolean := said IN ('completed', 'failed', 'cancelled');
    back_at bigint := (details ->> 'when')::bigint;
    is_leased boolean;
BEGIN
    logged := '{}';
    over := false;
    SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted FOR UPDATE;
    IF j.id IS NULL AND has_snapshot() THEN
        PERFORM check_snapshot(qu.q, wanted);
    END IF;
    is_leased := j.fence = under AND j.lease IS NOT NULL;
    IF j.fence IS DISTINCT FROM under THEN
        -- A repeated settlement gets the answer of the first one.
        SELECT * INTO o FROM ended WHERE q = qu.q AND id = wanted AND fence = under AND under <> 0;
        status := CASE WHEN ends AND o.kind = said THEN 'done'
                       WHEN NOT ends AND o.kind = 'cancelled' THEN 'cancelled' ELSE 'lost' END;
    ELSIF (details ->> 'refused')::boolean THEN
        status := 'refused';
    ELSIF ends THEN
        status := 'done';
        over := true;
        logged := end_with(qu, j, said, now_ms, result, details);
    ELSIF j.state = 'h' THEN
        status := CASE said WHEN 'hand_off' THEN 'handed_off' ELSE 'refused' END;
        revision := CASE said WHEN 'hand_off' THEN j.revision END;
    ELSIF j.cancel_requested THEN
        status := 'cancelled';
        over := true;
        logged := end_run(qu, j, 'cancelled', now_ms, NULL, NULL, NULL);
    ELSIF said = 'hand_off' THEN
        status := 'handed_off';
        revision := j.revision;
        IF j.key IS NOT NULL THEN
            PERFORM free_key(j);
        END IF;
        UPDATE live SET state = 'h', lease = NULL, busy_key = NULL WHERE q = j.q AND id = j.id RETURNING * INTO j;
        IF qu.log_level = 'all' THEN
            logged := ARRAY[note_event('handed_off', j, now_ms)];
        END IF;
    ELSE
        status := 'returned';
        IF said = 'retry' OR back_at IS NOT NULL THEN
            back_at := start_time(back_at, now_ms);
        END IF;
        logged := return_to_queue(qu, j, now_ms, back_at, CASE said WHEN 'retry' THEN details ->> 'cause' END,
                          details -> 'error', (details ->> 'parked')::boolean);
    END IF;
    IF is_leased AND status <> 'refused' AND details ->> 'cost' IS NOT NULL
       AND ((qu.rate).starts IS NOT NULL OR (qu.key_rate).starts IS NOT NULL) THEN
        INSERT INTO costs SELECT qu.q, nextval('numbers'), j.key, now_ms, (details ->> 'cost')::bigint;
    END IF;
END $$;

-- settle_rest(queue, now, plain, one array per field, settled): the rest of settle(), after complete_runs(). `settled`
-- are the positions of the settlements that are done.
CREATE OR REPLACE FUNCTION settle_rest(
    qu queues, now_ms bigint, plain boolean, ids text[], fences bigint[], kinds text[], results bytea[], details text[],
    settled bigint[], OUT statuses text[], OUT revisions bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    answer record;
    logged text[] := '{}';
    ends text[] := '{}';
    i integer;
BEGIN
    IF plain THEN
        IF cardinality(settled) < cardinality(ids) THEN
            settled := settled || complete_all(qu, now_ms, ids, fences, results);
        END IF;
        IF cardinality(settled) = cardinality(ids) THEN
            PERFORM notify_waits(qu, qu.max_active IS NOT NULL OR qu.per_key IS NOT NULL, qu.log_level <> 'off', ids);
            RETURN;
        END IF;
    END IF;
    PERFORM lock_ids(qu.q, ids);
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
        logged := logged || answer.logged;
        IF answer.over THEN
            ends := ends || ids[i];
        END IF;
    END LOOP;
    PERFORM append_log(qu.q, now_ms, logged);
    PERFORM notify_waits(qu, true, cardinality(logged) > 0 OR cardinality(settled) > 0, ends);
END $$;

-- complete_runs(queue numbers, firsts, now, ids, fences, spots) -> the positions, from 1, of the settlements that are
-- done: completions of first runs with nothing to keep, in several queues. A run is left out if it has a key, a
-- retention of its own, a successor, an earlier outcome, or values that a short event does not have. `firsts` has the
-- position of the first settlement of each queue in `qs`; the settlements of a NULL there are left out. The caller has
-- checked that the queues keep no outcome and no result. An entry of the log has the runs of one queue and one holder:
-- an object with the values that are common to its events, and an array for each other field, see
-- dibs/storage/postgres/codec/event_log.py. Numbers are relative, to be short.
CREATE OR REPLACE FUNCTION complete_runs(
    qs integer[], firsts bigint[], now_ms bigint, ids text[], fences bigint[], spots tid[]
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
        PERFORM begin_log_step();
    END IF;
    -- The conditions on q and id are written so that no index fits them, see complete_all().
    WITH gone AS (
        DELETE FROM live j USING (
            SELECT u.*, qs[width_bucket(u.place, firsts)] AS q
            FROM unnest(ids, fences, spots) WITH ORDINALITY AS u (id, fence, spot, place)
            ORDER BY 5, u.id COLLATE "C") s
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
    ), logged AS (
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

-- complete_all(queue, now, ids, fences, results) -> the positions, from 1, of the settlements that are done: runs that
-- are active under the given fence and have no successor. No id is repeated. An outcome that is not kept replaces an
-- older row of `ended`, and otherwise writes none. A kept outcome has the progress of its run. A transaction with an
-- older snapshot does not see all output that it ends; it writes a row for prune(), which removes the output. The rows
-- are deleted in the order of the ids, so that two batches cannot deadlock, and without a lock before, which would
-- write 54 bytes of WAL for each. A row that another call has changed since it was found is left to settle_one(), or is
-- compared with fence and successor again. The DELETE names no column of an index: with one, Postgres may plan to read
-- the whole queue while the table is empty, see lock_ids(). The entry of the log is an object with the time, the holder
-- of the first run, and the events. If the holder of a run and its attempts, enqueues, run_at and first have their
-- usual values, its event is short, see completed_event().
CREATE OR REPLACE FUNCTION complete_all(qu queues, now_ms bigint, ids text[], fences bigint[], results bytea[])
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    usual bigint := expiry('completed', now_ms, NULL, NULL, qu.retention);
    keeps boolean := keeps_data('completed', NULL, NULL, qu.retention);
    horizon xid8 := greatest(pg_current_xact_id(), pg_snapshot_xmax(pg_current_snapshot()));
    done bigint[];
    keys text[];
    logged text;
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
            CASE WHEN d.kept THEN g.result END, NULL, g.enqueues, g.enqueued_at, g.run_at, g.claimed_at, g.holder,
            g.attempts, g.retries, g.stalls, g.timeouts,
            CASE WHEN d.data THEN g.payload END, CASE WHEN d.data THEN g.priority END,
            CASE WHEN d.kept THEN g.attributes END, CASE WHEN d.data THEN g.overrides END,
            CASE WHEN d.data THEN g.retention END, g.origin, g.dropped, CASE WHEN d.data THEN g.key END,
            NULL, CASE WHEN d.kept THEN g.progress END
        FROM gone g, LATERAL (
            SELECT x.kept, x.kept AND g.keeps AS data FROM (SELECT g.expires IS NULL OR g.expires > now_ms AS kept) x) d
        WHERE d.kept OR qu.has_output AND has_snapshot()
           OR EXISTS (SELECT 1 FROM ended e WHERE e.q = qu.q AND e.id = g.id OFFSET 0)
        ON CONFLICT (q, id) DO UPDATE SET {replaced}
    )
    SELECT array_agg(place), array_agg(key) FILTER (WHERE key IS NOT NULL),
           array_agg(hashtext(id)) FILTER (WHERE expires <= now_ms),
           '{"at":' || now_ms || ',"holder":' || to_json(min(shared)) || ',"events":[' || string_agg(completed_event(
               (attempts, enqueues) = (1, 1) AND run_at = enqueued_at AND first = revision AND holder = shared,
               id, fence, enqueued_at, claimed_at, revision, now_ms, attempts, run_at, holder, first, enqueues,
               CASE WHEN octet_length(result) <= nullif(qu.log_results, 0) THEN result END), ',' ORDER BY place)
               FILTER (WHERE qu.log_level <> 'off') || ']}'
    INTO done, keys, hashes, logged FROM gone, (SELECT holder AS shared FROM gone LIMIT 1) one;
    IF hashes IS NOT NULL THEN
        INSERT INTO traces VALUES (qu.q, nextval('numbers'), horizon, hashes);
    END IF;
    IF keys IS NOT NULL THEN
        INSERT INTO freed SELECT qu.q, u.key FROM unnest(keys) AS u (key);
    END IF;
    IF qu.has_output THEN
        PERFORM remove_output(qu, ARRAY(SELECT ids[u.place] FROM unnest(done) AS u (place)), now_ms);
    END IF;
    PERFORM append_entry(qu.q, now_ms, cardinality(done), logged);
    RETURN done;
END $$;

-- completed_event(short, ...) -> an event of complete_all(). A short one without a result has five fields, others have
-- all of them. dibs/storage/postgres/codec/event_log.py reads both. Why format() builds the events: json_build_array()
-- and concat() look up the types of their arguments for each job. Postgres puts this expression into the calling query.
CREATE OR REPLACE FUNCTION completed_event(
    short boolean, id text, fence bigint, enqueued_at bigint, claimed_at bigint, revision bigint, now_ms bigint,
    attempts integer, run_at bigint, holder text, first bigint, enqueues integer, result bytea
) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN short AND result IS NULL
        THEN format('[%s,%s,%s,%s,%s]', to_json(id), fence, enqueued_at, claimed_at, revision)
        ELSE format(
            '["completed",%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,null%s]', to_json(id), now_ms, attempts, fence,
            enqueued_at, run_at, claimed_at, now_ms, to_json(holder), first, revision, enqueues,
            ',"' || translate(encode(result, 'base64'), E'\n', '') || '"') END
$$;

-- finish(queue, id, kind, result, details, revision, now) -> done, lost, not_found or refused. Ends a handed-off run,
-- which is named by a revision in its range. Checks the conditions in the order of contract 3. It looks for a job again
-- before not_found.
CREATE OR REPLACE FUNCTION finish(
    queue text, wanted text, said text, result bytea, details json, within bigint, manual bigint
) RETURNS text LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint := tick(manual);
    j live;
    o ended;
    logged text[];
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    LOOP
        SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted FOR UPDATE;
        SELECT * INTO o FROM ended WHERE q = qu.q AND id = wanted AND within BETWEEN first AND revision;
        EXIT WHEN j.id IS NOT NULL OR o.id IS NOT NULL;
        PERFORM 1 FROM live WHERE q = qu.q AND id = wanted;
        EXIT WHEN NOT FOUND;
    END LOOP;
    IF o.id IS NOT NULL THEN
        RETURN CASE WHEN o.kind = said THEN 'done' ELSE 'lost' END;
    ELSIF j.id IS NULL THEN
        RETURN 'not_found';
    ELSIF within NOT BETWEEN j.first AND j.revision THEN
        RETURN 'lost';
    ELSIF j.state <> 'h' THEN
        RETURN 'refused';
    END IF;
    logged := end_with(qu, j, said, now_ms, result, details);
    PERFORM append_log(qu.q, now_ms, logged);
    PERFORM notify_waits(qu, true, cardinality(logged) > 0, ARRAY[wanted]);
    RETURN 'done';
END $$;

-- report(queue, id, fence, progress, memo, chunks, most, now) -> true if the run with this fence is active. Then stores
-- its progress, its memo and its chunks of output, unless they are NULL. An empty memo removes the memo. A report of
-- output alone writes no version of the job, so that it does not fail a transaction with an older snapshot that ends
-- it. It marks the queue before it locks the job: claims with limits lock in this order, too.
CREATE OR REPLACE FUNCTION report(
    queue text, wanted text, under bigint, said json, new_memo bytea, chunks bytea[], most bigint, manual bigint
) RETURNS boolean LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    j live;
    known boolean;
BEGIN
    PERFORM tick(manual);
    SELECT * INTO qu FROM queues WHERE name = queue;
    IF chunks IS NOT NULL AND NOT qu.has_output THEN
        UPDATE queues SET has_output = true WHERE q = qu.q;
    END IF;
    IF said IS NOT NULL OR new_memo IS NOT NULL THEN
        UPDATE live SET
            progress = coalesce(said, progress),
            memo = CASE WHEN new_memo IS NULL THEN memo ELSE nullif(new_memo, '') END
        WHERE q = qu.q AND id = wanted AND fence = under;
        known := FOUND;
    END IF;
    IF chunks IS NOT NULL THEN
        SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted AND fence = under FOR NO KEY UPDATE;
        known := FOUND;
        IF known THEN
            PERFORM append_output(qu, j, tick(manual), chunks, most);
        END IF;
    END IF;
    IF known AND (said IS NOT NULL OR chunks IS NOT NULL) AND qu.progress_until > clock_timestamp() THEN
        PERFORM pg_notify('{channel}', qu.q || ' p ' || json_build_array(wanted));
    END IF;
    RETURN known;
END $$;

-- end_with(queue, job, kind, now, result, details) -> the events to log. Ends a run. `details` has the error, then
-- (follow-ups) and retention of a Complete, Fail or Cancelled; NULL if all have their defaults. The setting
-- fail_handler decides about the fail job. A transaction of the caller with an older snapshot does not see the latest
-- setting, so dibs/storage/postgres/transactions.py reads it outside and sends it as `handled`.
CREATE OR REPLACE FUNCTION end_with(qu queues, j live, kind text, now_ms bigint, result bytea, details json)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    logged text[];
    handled boolean := qu.fail_handler;
BEGIN
    logged := end_run(qu, j, kind, now_ms, result, details -> 'error', (details -> 'retention')::jsonb);
    IF details -> 'handled' IS NOT NULL AND has_snapshot() THEN
        handled := (details ->> 'handled')::boolean;
    END IF;
    IF handled AND kind = 'failed' AND right(qu.name, 5) <> '!fail' THEN
        PERFORM hand_to_failure(qu, join_range(j), details -> 'error', now_ms);
    END IF;
    IF details -> 'then' IS NOT NULL THEN
        PERFORM follow(details -> 'then', now_ms);
    END IF;
    RETURN logged;
END $$;

-- follow(then, now): enqueue the follow-ups of an end, in the same atomic step.
CREATE OR REPLACE FUNCTION follow(items json, now_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    item json;
    into_queue queues;
    answer record;
BEGIN
    FOR item IN SELECT * FROM json_array_elements(items) LOOP
        into_queue := queue_of(item ->> 'queue');
        answer := admit(into_queue, now_ms, asked_for(item, now_ms), NULL);
        PERFORM append_log(into_queue.q, now_ms, answer.logged);
        PERFORM notify_waits(into_queue, true, cardinality(answer.logged) > 0,
                             CASE WHEN answer.over THEN ARRAY[item ->> 'id'] END);
    END LOOP;
END $$;

-- hand_to_failure(queue, job, error, now): enqueue the fail job into the fail queue (contract 3, the fail job).
CREATE OR REPLACE FUNCTION hand_to_failure(qu queues, j live, why json, now_ms bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    into_queue queues := queue_of(qu.name || '!fail');
    r request;
    f live;
    logged text[] := '{}';
BEGIN
    r := (lpad(to_hex(nextval('numbers')), 16, '0'), j.payload, 0, NULL, NULL, NULL, now_ms, 0, NULL)::request;
    PERFORM begin_live(into_queue.q, r, now_ms, json_build_array(
        qu.name, j.id, j.revision, j.fence, j.attempts, j.retries, j.stalls, j.timeouts, j.enqueued_at, why,
        j.run_at, j.attributes));
    IF into_queue.fair THEN
        PERFORM move_turn(into_queue, NULL, r.id);
    END IF;
    IF into_queue.log_level = 'all' THEN
        SELECT * INTO f FROM live WHERE q = into_queue.q AND id = r.id;
        logged := ARRAY[note_event('queued', f, now_ms)];
        PERFORM append_log(into_queue.q, now_ms, logged);
    END IF;
    PERFORM notify_waits(into_queue, true, cardinality(logged) > 0, NULL);
END $$;

-- ends_short(queue, now) -> true if the queue keeps neither completed outcomes nor results in its log, as
-- complete_runs() needs it.
CREATE OR REPLACE FUNCTION ends_short(qu queues, now_ms bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT qu.log_results = 0 AND expiry('completed', now_ms, NULL, NULL, qu.retention) <= now_ms
$$;

-- ended_since(queue number, ids, number) -> true if a run of one of the ids may have ended under `number` or a higher
-- one.
CREATE OR REPLACE FUNCTION ended_since(queue integer, ids text[], number bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1 FROM unnest(ids) AS a (id),
            LATERAL (SELECT * FROM ended e WHERE e.q = queue AND e.id = a.id OFFSET 0) o
        WHERE greatest(o.fence, o.revision) >= number
    ) OR EXISTS (
        SELECT 1 FROM traces t WHERE t.q = queue AND t.n > number
          AND t.hashes && ARRAY(SELECT hashtext(a.id) FROM unnest(ids) AS a (id)));
END $$;
