-- Views for people: jobs and outcomes, with times as timestamps and JSON as jsonb.

-- as_jsonb(bytes) -> the JSON value, or NULL if the bytes are not JSON; dibs accepts any bytes as a payload.
CREATE FUNCTION as_jsonb(bytes bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN convert_from(bytes, 'UTF8')::jsonb;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END $$;

-- as_time(ms) -> a timestamp, or NULL for NULL.
CREATE FUNCTION as_time(ms bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN ms < 8210266876799000 THEN timestamptz 'epoch' + ms * interval '1 millisecond'
                ELSE 'infinity' END
$$;

CREATE VIEW jobs AS
SELECT k.name AS queue, j.id,
    CASE j.state WHEN 'w' THEN CASE WHEN as_time(j.run_at) > clock_timestamp() THEN 'scheduled' ELSE 'waiting' END
                 WHEN 'a' THEN 'active' ELSE 'handed_off' END AS state,
    (j.next).seq IS NOT NULL AS blocked,
    j.priority, as_time(j.run_at) AS run_at, as_time(j.enqueued_at) AS enqueued_at,
    as_time(j.claimed_at) AS claimed_at, j.holder, as_time(l.expires_at) AS lease_expires_at,
    j.attempts, j.retries, j.stalls, j.timeouts, j.enqueues,
    as_jsonb(j.payload) AS payload, j.payload AS payload_bytes, j.attributes::jsonb AS attributes,
    j.progress::jsonb AS progress, coalesce(j.cancel_requested, false) AS cancel_requested,
    j.error ->> 0 AS error_type, j.error ->> 1 AS error_message,
    as_jsonb((j.next).payload) AS next_payload, as_time((j.next).run_at) AS next_run_at,
    j.seq, j.first, j.revision, j.fence
FROM live j JOIN queues k USING (q) LEFT JOIN leases l ON l.lease = j.lease AND l.q = j.q;

CREATE VIEW outcomes AS
SELECT k.name AS queue, o.id, o.kind AS state, as_time(o.ended_at) AS ended_at,
    as_time(o.expires_at) AS expires_at, as_time(o.enqueued_at) AS enqueued_at,
    as_time(o.run_at) AS run_at, as_time(o.claimed_at) AS claimed_at, o.holder,
    o.attempts, o.retries, o.stalls, o.timeouts, o.enqueues,
    as_jsonb(o.result) AS result, o.result AS result_bytes,
    o.error ->> 0 AS error_type, o.error ->> 1 AS error_message, o.error ->> 2 AS traceback,
    o.priority, as_jsonb(o.payload) AS payload, o.payload AS payload_bytes,
    o.attributes::jsonb AS attributes, o.first, o.revision, o.fence
FROM ended o JOIN queues k USING (q)
WHERE o.kind <> 'forgotten'
  AND (o.expires_at IS NULL OR as_time(o.expires_at) > clock_timestamp());
