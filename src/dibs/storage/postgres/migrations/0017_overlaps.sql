-- Calls on one id that overlap: two imports, and an enqueue under Reject beside the end that a follow-up comes with.

-- import_one(queue, now, id, record) -> true if the id was imported. An active run that was not handed off arrives as
-- released, and a run whose cancellation was requested as cancelled. The import adds no log entry for either.
-- It inserts a row of `live` before it looks for an outcome: until the end of this transaction, no other call can
-- create the id, so the answer stays true. A record without a job gets a row that is deleted again, in the state x,
-- which is in no index but the primary key.
CREATE OR REPLACE FUNCTION import_one(qu queues, now_ms bigint, wanted text, record json) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    j live := json_populate_record(NULL::live, record -> 'current');
    o ended := json_populate_record(NULL::ended, record -> 'outcome');
BEGIN
    qu.log_level := 'off';
    IF j.seq IS NULL THEN
        INSERT INTO live (q, id, state, priority, run_at, seq, first, revision, enqueued_at, payload)
        VALUES (qu.q, wanted, 'x', 0, 0, 0, 0, 0, 0, '') ON CONFLICT (q, id) DO NOTHING;
    ELSE
        j.q := qu.q;
        j.id := wanted;
        INSERT INTO live VALUES (j.*) ON CONFLICT (q, id) DO NOTHING;
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF EXISTS (SELECT 1 FROM ended WHERE q = qu.q AND id = wanted AND (expires_at IS NULL OR expires_at > now_ms)) THEN
        DELETE FROM live WHERE q = qu.q AND id = wanted;
        RETURN false;
    END IF;
    IF j.seq IS NULL THEN
        DELETE FROM live WHERE q = qu.q AND id = wanted;
    END IF;
    DELETE FROM ended WHERE q = qu.q AND id = wanted;
    IF o.kind IS NOT NULL THEN
        o.q := qu.q;
        o.id := wanted;
        o.horizon := pg_snapshot_xmax(pg_current_snapshot());
        INSERT INTO ended VALUES (o.*);
    END IF;
    IF j.state = 'a' THEN
        PERFORM give_back(qu, j, now_ms, false);
    END IF;
    RETURN true;
END $$;

-- admit(queue, now, request): as before. Under READ COMMITTED, a SELECT that waits for the end of a run does not show
-- the row that a follow-up of this end inserts for the same id. So under Reject, an id with an outcome is looked up
-- in `live` again.
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
                PERFORM 1 FROM live WHERE q = qu.q AND id = r.id;
                CONTINUE WHEN FOUND;
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
