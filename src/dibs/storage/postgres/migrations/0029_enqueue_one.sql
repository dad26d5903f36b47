-- An enqueue of one job that has only an id and a payload: the call that a program awaits before it makes the next.

-- enqueue_one(queue, now, id, payload) -> the answer to the request; `status` NULL means queued as a new job, with
-- first = revision. A call takes two thirds of the time of enqueue() for one job, which has arrays and more functions.
-- The numbers are checked as in begin_live() in 0027_traces.sql. A live id is left to admit().
CREATE FUNCTION enqueue_one(
    queue text, manual bigint, wanted text, bytes bytea,
    OUT status text, OUT was text, OUT first bigint, OUT revision bigint
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
    now_ms bigint;
    told text[];
    -- Assigns a transaction id, see enqueue() in 0020_requests.sql.
    myself xid8 := pg_current_xact_id();
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    IF NOT FOUND THEN
        qu := queue_of(queue);
    END IF;
    now_ms := tick(manual);
    IF NOT has_snapshot() THEN
        revision := nextval('numbers');
        INSERT INTO live (q, id, state, priority, run_at, seq, first, revision, enqueued_at, payload)
        VALUES (qu.q, wanted, 'w', 0, now_ms, revision, revision, revision, now_ms, bytes)
        ON CONFLICT (q, id) DO NOTHING;
        IF FOUND THEN
            IF revision = (SELECT last_value FROM numbers) OR NOT ended_since(qu, ARRAY[wanted], revision) THEN
                IF qu.log_level = 'all' THEN
                    PERFORM tell(qu, now_ms, notes_of(qu, 'queued', ARRAY[wanted], now_ms));
                    PERFORM ring(qu, true, true, NULL);
                ELSIF qu.work_until > clock_timestamp() THEN
                    PERFORM ring(qu, true, false, NULL);
                END IF;
                RETURN;
            END IF;
            DELETE FROM live l WHERE l.q = qu.q AND l.id = wanted;
        END IF;
    END IF;
    SELECT a.* INTO status, was, first, revision, told
    FROM admit(qu, now_ms, (wanted, bytes, 0, NULL, NULL, NULL, now_ms, 0, NULL)::request) a;
    PERFORM tell(qu, now_ms, told);
    PERFORM ring(qu, true, cardinality(told) > 0, NULL);
END $$;
