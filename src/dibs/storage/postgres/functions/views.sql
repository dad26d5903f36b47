-- The views for people: jobs and outcomes, with times as timestamps and JSON as jsonb.

-- as_jsonb(bytes) -> the JSON value, or NULL if the bytes are not JSON; dibs accepts any bytes as a payload.
CREATE OR REPLACE FUNCTION as_jsonb(bytes bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN convert_from(bytes, 'UTF8')::jsonb;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END $$;

-- as_time(ms) -> a timestamp, or NULL for NULL.
CREATE OR REPLACE FUNCTION as_time(ms bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN ms >= 8210266876799000 THEN 'infinity'
                ELSE timestamptz 'epoch' + ms * interval '1 millisecond' END
$$;

-- as_origin(origin) -> the origin of a fail job as an object, or NULL. Views call it, so it names its schema.
CREATE OR REPLACE FUNCTION as_origin(origin json) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN origin IS NOT NULL THEN jsonb_build_object(
        'queue', origin ->> 0, 'id', origin ->> 1, 'revision', origin -> 2, 'fence', origin -> 3,
        'attempts', origin -> 4, 'retries', origin -> 5, 'stalls', origin -> 6, 'timeouts', origin -> 7,
        'enqueued_at', {name}.as_time((origin ->> 8)::bigint), 'error_type', origin #>> '{9,0}',
        'error_message', origin #>> '{9,1}', 'run_at', {name}.as_time((origin ->> 10)::bigint),
        'attributes', origin -> 11) END
$$;

CREATE OR REPLACE VIEW jobs AS
SELECT k.name AS queue, j.id,
    CASE WHEN j.fence IS NULL
         THEN CASE WHEN as_time(j.run_at) > clock_timestamp() THEN 'scheduled' ELSE 'waiting' END
         WHEN j.state = 'h' THEN 'handed_off' ELSE 'active' END AS state,
    (j.next).seq IS NOT NULL AS blocked,
    j.priority, as_time(j.run_at) AS run_at, as_time(j.enqueued_at) AS enqueued_at,
    as_time(j.claimed_at) AS claimed_at, j.holder, as_time(l.expires_at) AS lease_expires_at,
    j.attempts, j.retries, j.stalls, j.timeouts, j.enqueues,
    as_jsonb(j.payload) AS payload, j.payload AS payload_bytes, j.attributes::jsonb AS attributes,
    j.progress::jsonb AS progress, coalesce(j.cancel_requested, false) AS cancel_requested,
    j.error ->> 0 AS error_type, j.error ->> 1 AS error_message,
    as_jsonb((j.next).payload) AS next_payload, as_time((j.next).run_at) AS next_run_at,
    j.seq, j.first, j.revision, j.fence,
    j.lease,
    (j.overrides ->> 'lease')::bigint * interval '1 millisecond' AS own_lease,
    j.overrides::jsonb AS overrides, j.retention, as_origin(j.origin) AS origin,
    j.key, j.memo
FROM live j JOIN queues k USING (q) LEFT JOIN leases l ON l.q = j.q AND l.lease = j.lease;

CREATE OR REPLACE VIEW outcomes AS
SELECT k.name AS queue, o.id, o.kind AS state, as_time(o.ended_at) AS ended_at,
    as_time(o.expires_at) AS expires_at, as_time(o.enqueued_at) AS enqueued_at,
    as_time(o.run_at) AS run_at, as_time(o.claimed_at) AS claimed_at, o.holder,
    o.attempts, o.retries, o.stalls, o.timeouts, o.enqueues,
    as_jsonb(o.result) AS result, o.result AS result_bytes,
    o.error ->> 0 AS error_type, o.error ->> 1 AS error_message, o.error ->> 2 AS traceback,
    o.priority, as_jsonb(o.payload) AS payload, o.payload AS payload_bytes,
    o.attributes::jsonb AS attributes, o.first, o.revision, o.fence,
    (o.overrides ->> 'lease')::bigint * interval '1 millisecond' AS own_lease,
    o.overrides::jsonb AS overrides, o.retention, as_origin(o.origin) AS origin,
    o.key, o.memo, o.progress::jsonb AS progress
FROM ended o JOIN queues k USING (q)
WHERE o.kind <> 'forgotten'
  AND (o.expires_at IS NULL OR as_time(o.expires_at) > clock_timestamp());
