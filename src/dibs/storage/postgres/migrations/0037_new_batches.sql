-- A batch of new jobs is inserted without a lookup of each id before.

-- enqueue_new(...): as in 0031_keyed_batches.sql. The live ids are locked only if it returns NULL.
CREATE OR REPLACE FUNCTION enqueue_new(
    qu queues, now_ms bigint, ids text[], payloads bytea[], priorities smallint[], whens bigint[],
    attributes text[], overrides text[], retentions text[], keys text[], once text[], rejects boolean
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
    -- An index lookup for each id takes 1 to 2 us, so the INSERT finds the live ids. A batch often has only live ids, as in
    -- a repeated import, and for such a batch its first ids are enough.
    PERFORM 1 FROM unnest(ids[1:10]) AS u (id), LATERAL (SELECT 1 FROM live j WHERE j.q = qu.q AND j.id = u.id OFFSET 0) one;
    IF FOUND THEN
        PERFORM lock_ids(qu, ids);
        RETURN NULL;
    END IF;
    drawn := ARRAY(SELECT nextval('numbers') FROM generate_series(1, cardinality(ids)));
    BEGIN
        IF once IS NOT NULL THEN
            INSERT INTO request_keys (q, key, status, found, first, revision, expires_at, id)
            SELECT qu.q, a.key, 'queued', 'nothing', a.n, a.n, now_ms + qu.request_key_age, a.id
            FROM unnest(once, ids, drawn) AS a (key, id, n)
            WHERE a.key IS NOT NULL
            ORDER BY a.key COLLATE "C";
        END IF;
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
        -- The inserted rows hold the ids, so no run of them can end between this look and the end of the transaction.
        IF rejects AND EXISTS (
            SELECT 1 FROM unnest(ids) AS a (id),
                LATERAL (SELECT * FROM ended e WHERE e.q = qu.q AND e.id = a.id OFFSET 0) o
        ) THEN
            RAISE unique_violation;
        END IF;
    EXCEPTION WHEN unique_violation THEN
        -- The caller then enqueues each job with admit(), in the order of the requests.
        PERFORM lock_ids(qu, ids);
        RETURN NULL;
    END;
    RETURN drawn;
END $$;

-- new_ids(queue, rejects, ids) -> for each request, whether its id is new: not live, and not requested before in the batch.
-- Under `rejects`, an id with an outcome is not new. Why not EXISTS: the planner may read the whole queue into a hash table for
-- it; a scalar subquery is an index lookup for each id.
CREATE FUNCTION new_ids(qu queues, rejects boolean, ids text[]) RETURNS boolean[] LANGUAGE sql STABLE AS $$
    SELECT array_agg(
        a.n = a.first
        AND (SELECT true FROM live j WHERE j.q = qu.q AND j.id = a.id) IS NULL
        AND (NOT rejects OR (SELECT true FROM ended e WHERE e.q = qu.q AND e.id = a.id) IS NULL)
        ORDER BY a.n)
    FROM (
        SELECT u.id, u.n, min(u.n) OVER (PARTITION BY u.id) AS first FROM unnest(ids) WITH ORDINALITY AS u (id, n)
    ) a
$$;

-- enqueue(...): as in 0031_keyed_batches.sql. If some ids of a batch are live, each series of four or more new ids between them
-- is still inserted as a set. One set of all new ids would draw their numbers before those of the others, and seq has the order
-- of the requests.
CREATE OR REPLACE FUNCTION enqueue(
    queue text, manual bigint, plain boolean, ids text[], payloads bytea[], priorities smallint[],
    whens bigint[], hows integer[], attributes text[], overrides text[], retentions text[],
    job_keys text[], once text[], wants boolean[]
) RETURNS TABLE (
    statuses text[], founds text[], firsts bigint[], revisions bigint[], repeats boolean[],
    first_ids text[], place integer, kept ended
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues := queue_of(queue);
    now_ms bigint;
    r request;
    known request_keys;
    answer record;
    told text[] := '{}';
    i integer;
    stop integer := 0;
    fresh boolean[];
    drawn bigint[];
    -- Assigns a transaction id. prune() keeps rows of ids that ended during a running transaction, and finds running
    -- transactions by their ids.
    myself xid8 := pg_current_xact_id();
BEGIN
    now_ms := tick(manual);
    IF plain OR cardinality(ids) > 1 AND wants IS NULL AND NOT has_bit(hows, 64) THEN
        revisions := enqueue_new(qu, now_ms, ids, payloads, priorities, whens, attributes, overrides,
                                 retentions, job_keys, once, has_bit(hows, 16));
        IF revisions IS NOT NULL THEN
            IF qu.log_level = 'all' THEN
                told := notes_of(qu, 'queued', ids, now_ms);
                PERFORM tell(qu, now_ms, told);
            END IF;
            PERFORM ring(qu, true, cardinality(told) > 0, NULL);
            RETURN NEXT;
            RETURN;
        END IF;
        IF once IS NULL AND cardinality(ids) > 1 AND NOT has_snapshot() THEN
            fresh := new_ids(qu, has_bit(hows, 16), ids);
        END IF;
    END IF;
    FOR i IN 1 .. cardinality(ids) LOOP
        -- The requests up to `stop` are done, or go through admit().
        IF fresh[i] AND i > stop THEN
            stop := i;
            WHILE fresh[stop + 1] LOOP
                stop := stop + 1;
            END LOOP;
            drawn := CASE WHEN stop - i >= 3 THEN enqueue_new(
                qu, now_ms, ids[i:stop], payloads[i:stop], priorities[i:stop], whens[i:stop], attributes[i:stop],
                overrides[i:stop], retentions[i:stop], job_keys[i:stop], NULL, false) END;
            IF drawn IS NOT NULL THEN
                statuses[i:stop] := array_fill('queued'::text, ARRAY[cardinality(drawn)]);
                founds[i:stop] := array_fill('nothing'::text, ARRAY[cardinality(drawn)]);
                firsts[i:stop] := drawn;
                revisions[i:stop] := drawn;
                repeats[i:stop] := array_fill(false, ARRAY[cardinality(drawn)]);
                IF qu.log_level = 'all' THEN
                    told := told || notes_of(qu, 'queued', ids[i:stop], now_ms);
                END IF;
            END IF;
        END IF;
        CONTINUE WHEN statuses[i] IS NOT NULL;
        IF once[i] IS NOT NULL THEN
            -- Of two concurrent requests with the same new key, the second waits here for the first one's answer.
            INSERT INTO request_keys VALUES (qu.q, once[i], '', '', 0, 0, 0) ON CONFLICT DO NOTHING;
            SELECT * INTO known FROM request_keys WHERE q = qu.q AND key = once[i] FOR UPDATE;
            IF known.expires_at > now_ms THEN
                statuses[i] := known.status;
                founds[i] := known.found;
                firsts[i] := known.first;
                revisions[i] := known.revision;
                repeats[i] := true;
                first_ids[i] := known.id;
                CONTINUE;
            END IF;
        END IF;
        r := (ids[i], payloads[i], coalesce(priorities[i], 0), attributes[i], overrides[i], retentions[i],
              start_time(whens[i], now_ms), coalesce(hows[i], 0), job_keys[i])::request;
        answer := admit(qu, now_ms, r);
        statuses[i] := answer.status;
        founds[i] := answer.was;
        firsts[i] := answer.first;
        revisions[i] := answer.revision;
        repeats[i] := false;
        first_ids[i] := NULL;
        told := told || answer.told;
        IF once[i] IS NOT NULL THEN
            UPDATE request_keys SET status = answer.status, found = answer.was, first = answer.first,
                revision = answer.revision, expires_at = now_ms + qu.request_key_age,
                id = CASE WHEN answer.status <> 'absent' THEN ids[i] END
            WHERE q = qu.q AND key = once[i];
        END IF;
    END LOOP;
    PERFORM tell(qu, now_ms, told);
    PERFORM ring(qu, true, cardinality(told) > 0, NULL);
    RETURN NEXT;
    statuses := NULL;
    FOR i IN 1 .. coalesce(cardinality(wants), 0) LOOP
        IF wants[i] THEN
            place := i;
            SELECT e.* INTO kept FROM ended e
            WHERE e.q = qu.q AND e.id = ids[i] AND (e.expires_at IS NULL OR e.expires_at > now_ms);
            IF FOUND THEN
                RETURN NEXT;
            END IF;
        END IF;
    END LOOP;
END $$;
