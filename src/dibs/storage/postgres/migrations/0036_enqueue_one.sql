-- An enqueue of one job sets two settings instead of six: setting the others took 10 us of 49.

-- enqueue_known(...): the rest of enqueue_one() for an id that is known, in a transaction with a snapshot, or if events of
-- new jobs are logged.
CREATE FUNCTION enqueue_known(
    queue text, manual bigint, wanted text, bytes bytea,
    OUT status text, OUT was text, OUT first bigint, OUT revision bigint
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues := queue_of(queue);
    now_ms bigint := tick(manual);
    told text[];
BEGIN
    SELECT a.* INTO status, was, first, revision, told
    FROM admit(qu, now_ms, (wanted, bytes, 0, NULL, NULL, NULL, now_ms, 0, NULL)::request) a;
    PERFORM tell(qu, now_ms, told);
    PERFORM ring(qu, true, cardinality(told) > 0, NULL);
END $$;

-- is_free(queue, id, number) -> true if no run of the id can have ended under `number` or a higher one, see begin_live() in
-- 0027_traces.sql.
CREATE FUNCTION is_free(qu queues, wanted text, number bigint) RETURNS boolean LANGUAGE plpgsql {pinned} AS $$
BEGIN
    RETURN NOT ended_since(qu, ARRAY[wanted], number);
END $$;

-- enqueue_one(queue, now, id, payload): as in 0029_enqueue_one.sql. The settings of {pinned} are not needed here, because
-- each name has its schema, and no statement has a join that another setting changes.
CREATE OR REPLACE FUNCTION enqueue_one(
    queue text, manual bigint, wanted text, bytes bytea,
    OUT status text, OUT was text, OUT first bigint, OUT revision bigint
) LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    qu {name}.queues;
    now_ms bigint;
    -- Assigns a transaction id, see enqueue() in 0020_requests.sql.
    myself xid8 := pg_current_xact_id();
BEGIN
    SELECT * INTO qu FROM {name}.queues WHERE name = queue;
    IF qu.log_level IS DISTINCT FROM 'all' AND qu.q IS NOT NULL AND NOT {name}.has_snapshot() THEN
        now_ms := {name}.tick(manual);
        revision := nextval('{name_text}.numbers');
        INSERT INTO {name}.live (q, id, state, priority, run_at, seq, first, revision, enqueued_at, payload)
        VALUES (qu.q, wanted, 'w', 0, now_ms, revision, revision, revision, now_ms, bytes)
        ON CONFLICT (q, id) DO NOTHING;
        IF FOUND THEN
            IF revision = (SELECT last_value FROM {name}.numbers) OR {name}.is_free(qu, wanted, revision) THEN
                IF qu.work_until > clock_timestamp() THEN
                    PERFORM {name}.ring(qu, true, false, NULL);
                END IF;
                RETURN;
            END IF;
            DELETE FROM {name}.live l WHERE l.q = qu.q AND l.id = wanted;
        END IF;
    END IF;
    SELECT e.* INTO status, was, first, revision FROM {name}.enqueue_known(queue, manual, wanted, bytes) e;
END $$;
