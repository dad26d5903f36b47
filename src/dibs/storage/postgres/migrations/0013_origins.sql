-- The origin of a fail job has run_at and attributes of the failed job as its last elements. The origins that are stored
-- already end before them.

-- hand_to_failure(queue, job, error, now): enqueue the fail job into the fail queue (contract 3, the fail job).
CREATE OR REPLACE FUNCTION hand_to_failure(qu queues, j live, why json, now_ms bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    into_queue queues := queue_of(qu.name || '!fail');
    r request;
    f live;
    told text[] := '{}';
BEGIN
    r := (lpad(to_hex(nextval('numbers')), 16, '0'), j.payload, 0, NULL, NULL, NULL, now_ms, 0)::request;
    PERFORM begin_live(into_queue, r, now_ms, json_build_array(
        qu.name, j.id, j.revision, j.fence, j.attempts, j.retries, j.stalls, j.timeouts, j.enqueued_at, why,
        j.run_at, j.attributes));
    IF into_queue.log_level = 'all' THEN
        SELECT * INTO f FROM live WHERE q = into_queue.q AND id = r.id;
        told := ARRAY[note_event('queued', f, now_ms)];
        PERFORM tell(into_queue, now_ms, told);
    END IF;
    PERFORM ring(into_queue, true, cardinality(told) > 0, NULL);
END $$;
