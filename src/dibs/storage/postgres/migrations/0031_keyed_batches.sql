-- Batches of new jobs with request keys or with Reject are inserted by one statement for each table, as plain batches are.

-- has_bit(hows, bit) -> true if one of the requests has the bit in `how`.
CREATE FUNCTION has_bit(hows integer[], wanted integer) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT EXISTS (SELECT 1 FROM unnest(hows) AS h (how) WHERE h.how & wanted <> 0)
$$;

DROP FUNCTION enqueue_new(
    queues, bigint, text[], bytea[], smallint[], bigint[], text[], text[], text[], text[]);

-- enqueue_new(...) -> as in 0027_traces.sql, and for requests with the request keys `once` and with Reject (`rejects`).
-- It returns NULL and inserts nothing also if a request key is known or repeated, if an id is repeated, and under Reject if
-- an id has a row in `ended`. An expired key is known, too; the caller then uses its row again.
-- The keys are inserted before the jobs, as the caller does it for each request. So of two equal batches that run at the
-- same time, the second one waits at its first key, and then finds all keys known.
CREATE FUNCTION enqueue_new(
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
    IF lock_ids(qu, ids) THEN
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
        -- Also if another transaction used one of the ids after lock_ids(). The caller then enqueues each job with admit().
        RETURN NULL;
    END;
    RETURN drawn;
END $$;

-- enqueue(...): as in 0020_requests.sql. The set-based insert is tried for every batch of several requests that neither
-- wants outcomes nor has update-only requests; `plain` says it for a single request.
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
    END IF;
    FOR i IN 1 .. cardinality(ids) LOOP
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
