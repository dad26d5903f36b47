-- The verb import.

-- import_ids(queue, records, floor, now) -> imported or exists, in the order of the records. Raises the numbers above
-- `floor`. A record is {"current", "successor", "outcome", "dropped"}, whose keys inside are the columns of live and
-- ended.
CREATE OR REPLACE FUNCTION import_ids(queue text, ids text[], records text[], floor bigint, manual bigint) RETURNS text[]
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues := queue_of(queue);
    now_ms bigint := tick(manual);
    statuses text[] := '{}';
    i integer;
BEGIN
    PERFORM pg_current_xact_id();
    PERFORM raise_numbers(floor);
    FOR i IN 1 .. cardinality(ids) LOOP
        statuses[i] := CASE WHEN import_one(qu, now_ms, ids[i], records[i]::json) THEN 'imported' ELSE 'exists' END;
    END LOOP;
    PERFORM notify_waits(qu, true, false, ids);
    RETURN statuses;
END $$;

-- import_one(queue, now, id, record) -> true if the id was imported. An active run that was not handed off arrives as
-- released, and a run whose cancellation was requested as cancelled. The import adds no log entry for either.
-- It inserts a row of `live` before it looks for an outcome: until the end of this transaction, no other call can
-- create the id, so the answer stays true.
CREATE OR REPLACE FUNCTION import_one(qu queues, now_ms bigint, wanted text, record json) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    j live := json_populate_record(NULL::live, record -> 'current');
    o ended := json_populate_record(NULL::ended, record -> 'outcome');
    is_new boolean;
BEGIN
    qu.log_level := 'off';
    IF j.seq IS NULL THEN
        is_new := hold_absent(qu.q, wanted);
    ELSE
        j.q := qu.q;
        j.id := wanted;
        INSERT INTO live VALUES (j.*) ON CONFLICT (q, id) DO NOTHING;
        is_new := FOUND;
    END IF;
    IF NOT is_new THEN
        RETURN false;
    END IF;
    IF EXISTS (SELECT 1 FROM ended WHERE q = qu.q AND id = wanted AND (expires_at IS NULL OR expires_at > now_ms)) THEN
        DELETE FROM live WHERE q = qu.q AND id = wanted;
        RETURN false;
    END IF;
    DELETE FROM ended WHERE q = qu.q AND id = wanted;
    IF qu.has_output THEN
        DELETE FROM output WHERE q = qu.q AND id = wanted;
    END IF;
    IF o.kind IS NOT NULL THEN
        o.q := qu.q;
        o.id := wanted;
        o.horizon := pg_snapshot_xmax(pg_current_snapshot());
        INSERT INTO ended VALUES (o.*);
    END IF;
    IF j.state = 'w' THEN
        PERFORM note_start(qu.q, j.priority, j.run_at, j.seq);
    END IF;
    IF j.state = 'w' AND j.fence IS NOT NULL THEN
        PERFORM give_back(qu, j, now_ms, false);
    ELSIF qu.fair THEN
        PERFORM move_turn(qu, NULL, wanted);
    END IF;
    RETURN true;
END $$;
