-- Verbs in a transaction of the caller: at any isolation level, and only in the database that the app has opened.

-- has_snapshot() -> true under REPEATABLE READ and SERIALIZABLE: every statement then reads the rows as they were when
-- the transaction began to read.
CREATE FUNCTION has_snapshot() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted')
$$;

-- joined(identity, queue) -> the queue if this schema is the one that the app has opened, else no row. The statements in a
-- transaction of the caller begin with it. `identity` is the result of the query `identity` in sql/place.sql. A queue that was made after the snapshot of the transaction raises a serialization failure.
CREATE FUNCTION joined(wanted text, queue text) RETURNS SETOF text LANGUAGE plpgsql {pinned} AS $$
BEGIN
    IF wanted <> (
        SELECT current_database() || ' ' || (extract(epoch FROM min(applied_at)) * 1000000)::bigint FROM migrations
    ) THEN
        RETURN;
    END IF;
    IF has_snapshot() AND NOT EXISTS (SELECT 1 FROM queues k WHERE k.name = joined.queue) THEN
        INSERT INTO queues (name) VALUES (joined.queue) ON CONFLICT DO NOTHING;
        DELETE FROM queues k WHERE k.name = joined.queue;
    END IF;
    RETURN NEXT queue;
END $$;

-- check_snapshot(queue, id): raise a serialization failure if an id that the snapshot of this transaction shows as not
-- live was enqueued, or has ended, since then. Under READ COMMITTED this does nothing. Postgres raises the failure when
-- a row is locked that was changed after the snapshot, and when an insert meets a row that the snapshot does not show.
-- So a missing row is inserted and deleted again; until the end of this transaction, no other can insert it.
CREATE FUNCTION check_snapshot(qu queues, wanted text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT has_snapshot() THEN
        RETURN;
    END IF;
    -- The state x is in no index but the primary key.
    INSERT INTO live (q, id, state, priority, run_at, seq, first, revision, enqueued_at, payload)
    VALUES (qu.q, wanted, 'x', 0, 0, 0, 0, 0, 0, '') ON CONFLICT DO NOTHING;
    DELETE FROM live WHERE q = qu.q AND id = wanted;
    PERFORM 1 FROM ended WHERE q = qu.q AND id = wanted FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO ended (q, id, kind, fence, first, revision, ended_at, expires_at, horizon, enqueues,
                           enqueued_at, run_at, attempts, retries, stalls, timeouts)
        VALUES (qu.q, wanted, 'forgotten', 0, 0, -1, 0, 0, pg_snapshot_xmax(pg_current_snapshot()), 0,
                0, 0, 0, 0, 0, 0) ON CONFLICT DO NOTHING;
        DELETE FROM ended WHERE q = qu.q AND id = wanted;
    END IF;
END $$;

-- enqueue_new(...) -> the numbers of the new jobs in the order of `ids`, for a batch without repeated ids. If an id is
-- not new, it returns NULL and inserts no job; the live ids are then locked, in sorted order.
CREATE OR REPLACE FUNCTION enqueue_new(
    qu queues, now_ms bigint, ids text[], payloads bytea[], priorities smallint[], whens bigint[],
    attributes text[], overrides text[], retentions text[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    drawn bigint[];
    taken integer;
BEGIN
    IF has_snapshot() THEN
        -- admit() compares each id with the rows that the snapshot does not show.
        RETURN NULL;
    END IF;
    IF cardinality(ids) = 1 THEN
        -- Without unnest(), a single job takes a third of the time.
        drawn[1] := begin_live(qu, (
            ids[1], payloads[1], coalesce(priorities[1], 0), attributes[1], overrides[1], retentions[1],
            start_time(whens[1], now_ms), 0)::request, now_ms, NULL);
        RETURN CASE WHEN drawn[1] IS NOT NULL THEN drawn END;
    END IF;
    IF lock_ids(qu, ids) THEN
        RETURN NULL;
    END IF;
    drawn := ARRAY(SELECT nextval('numbers') FROM generate_series(1, cardinality(ids)));
    INSERT INTO live (q, id, state, priority, run_at, seq, first, revision, enqueued_at,
                      payload, attributes, overrides, retention)
    SELECT qu.q, a.id, 'w', coalesce(a.priority, 0), start_time(a.said, now_ms), a.n, a.n, a.n, now_ms,
           a.payload, a.attributes::json, a.overrides::json, a.retention::jsonb
    FROM unnest(ids, payloads, priorities, whens, attributes, overrides, retentions, drawn)
        AS a (id, payload, priority, said, attributes, overrides, retention, n)
    ORDER BY a.id COLLATE "C"
    ON CONFLICT (q, id) DO NOTHING;
    GET DIAGNOSTICS taken = ROW_COUNT;
    -- If the sequence still stands at our last number, no id can have ended under a higher number.
    IF taken < cardinality(ids) OR drawn[taken] < (SELECT last_value FROM numbers) AND EXISTS (
        SELECT 1 FROM unnest(ids) AS a (id),
            LATERAL (SELECT * FROM ended e WHERE e.q = qu.q AND e.id = a.id OFFSET 0) o
        WHERE greatest(o.fence, o.revision) >= drawn[1]
    ) THEN
        -- Another transaction used one of the ids between lock_ids() and the insert. Remove our rows; the caller
        -- then enqueues each job with admit().
        DELETE FROM live l USING unnest(ids, drawn) AS a (id, n)
        WHERE l.q = qu.q AND l.id = a.id AND l.revision = a.n AND l.first = a.n;
        RETURN NULL;
    END IF;
    RETURN drawn;
END $$;

-- admit(queue, now, request) -> status, was, first, revision, and the events to log. Enqueues one job by the table in
-- contract 3. The id stays locked until the end of the transaction.
CREATE OR REPLACE FUNCTION admit(
    qu queues, now_ms bigint, r request,
    OUT status text, OUT was text, OUT first bigint, OUT revision bigint, OUT told text[]
) LANGUAGE plpgsql AS $$
DECLARE
    j live;
    o ended;
    rejects boolean := r.how & 16 <> 0;
BEGIN
    told := '{}';
    LOOP
        SELECT * INTO j FROM live WHERE q = qu.q AND id = r.id FOR UPDATE;
        EXIT WHEN FOUND;
        PERFORM check_snapshot(qu, r.id);
        IF rejects THEN
            SELECT * INTO o FROM ended
            WHERE q = qu.q AND id = r.id AND (expires_at IS NULL OR expires_at > now_ms)
              AND (kind = 'completed' OR kind = 'failed' AND r.how & 32 <> 0);
            IF FOUND THEN
                status := o.kind;
                was := 'nothing';
                first := o.first;
                revision := o.revision;
                RETURN;
            END IF;
        END IF;
        revision := begin_live(qu, r, now_ms, NULL);
        IF revision IS NOT NULL THEN
            status := 'queued';
            was := 'nothing';
            first := revision;
            IF qu.log_level = 'all' THEN
                SELECT * INTO j FROM live WHERE q = qu.q AND id = r.id;
                told := ARRAY[note_event('queued', j, now_ms)];
            END IF;
            RETURN;
        END IF;
    END LOOP;
    was := CASE WHEN j.state = 'w' THEN 'waiting' WHEN (j.next).seq IS NULL THEN 'active'
             ELSE 'active+blocked' END;
    IF rejects THEN
        status := 'duplicate';
        first := j.first;
        revision := j.revision;
        RETURN;
    END IF;
    revision := nextval('numbers');
    IF j.state = 'w' THEN
        status := 'updated';
        first := j.first;
        told := renew_waiting(qu, j, r, now_ms, revision);
        RETURN;
    END IF;
    j.next := folded(j.next, r, r.run_at, now_ms, revision);
    UPDATE live SET next = j.next WHERE q = j.q AND id = j.id;
    status := 'blocked';
    first := (j.next).first;
    IF qu.log_level = 'all' THEN
        told := ARRAY[next_event('blocked', j.id, j.next, now_ms, NULL)];
    END IF;
END $$;

-- settle_one(queue, now, id, fence, kind, result, details) -> status, revision and events of one settlement. `kind` is
-- completed, failed, cancelled, retry, release or hand_off. details.refused marks a settlement that breaks a limit.
CREATE OR REPLACE FUNCTION settle_one(
    qu queues, now_ms bigint, wanted text, under bigint, said text, result bytea, details json,
    OUT status text, OUT revision bigint, OUT told text[], OUT over boolean
) LANGUAGE plpgsql AS $$
DECLARE
    j live;
    o ended;
    ends boolean := said IN ('completed', 'failed', 'cancelled');
BEGIN
    told := '{}';
    over := false;
    SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted FOR UPDATE;
    IF j.id IS NULL THEN
        PERFORM check_snapshot(qu, wanted);
    END IF;
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
        told := end_with(qu, j, said, now_ms, result, details);
    ELSIF j.state = 'h' THEN
        status := CASE said WHEN 'hand_off' THEN 'handed_off' ELSE 'refused' END;
        revision := CASE said WHEN 'hand_off' THEN j.revision END;
    ELSIF j.cancel_requested THEN
        status := 'cancelled';
        over := true;
        told := end_run(qu, j, 'cancelled', now_ms, NULL, NULL, NULL);
    ELSIF said = 'hand_off' THEN
        status := 'handed_off';
        revision := j.revision;
        UPDATE live SET state = 'h', lease = NULL WHERE q = j.q AND id = j.id RETURNING * INTO j;
        IF qu.log_level = 'all' THEN
            told := ARRAY[note_event('handed_off', j, now_ms)];
        END IF;
    ELSE
        status := 'returned';
        told := come_back(qu, j, now_ms, start_time((details ->> 'when')::bigint, now_ms),
                          CASE said WHEN 'retry' THEN details ->> 'cause' END, details -> 'error');
    END IF;
END $$;
