-- A claim of many jobs leaves them in the line (the index live_line), so that it changes no index entry.
--
-- Postgres updates a row without new index entries (HOT) if no indexed column changes and the page has room. So such a
-- claim keeps `state` w and writes the lease into a column without an index. A job with state w and a fence is active.
-- Later claims step over these jobs. Therefore a queue has few of them, and leave_line() gives the others the state a
-- and the indexed lease.

-- The fill factor leaves room for the new version of each row. Pages that are full already are as before.
ALTER TABLE live SET (fillfactor = 45);

-- The lease of a job with state w and a fence. Without meaning in any other row.
ALTER TABLE live ADD COLUMN line_lease uuid;

-- The claims that have left their jobs in the line. A claim took jobs from (first_run_at, first_seq) to (last_run_at,
-- last_seq), and other claims may have jobs there, too. `jobs` is their number at the claim, so a row may have no job left.
CREATE TABLE line_claims (
    q integer NOT NULL,
    lease uuid NOT NULL,
    n bigint NOT NULL,
    priority smallint NOT NULL,
    first_run_at bigint NOT NULL,
    first_seq bigint NOT NULL,
    last_run_at bigint NOT NULL,
    last_seq bigint NOT NULL,
    jobs integer NOT NULL,
    PRIMARY KEY (q, lease, n)
);

-- line_jobs(queue number, lease) -> the rows of active jobs in the line; of each lease if it is NULL.
CREATE FUNCTION line_jobs(wanted integer, held uuid) RETURNS TABLE (spot tid, key text) LANGUAGE sql STABLE AS $$
    SELECT DISTINCT j.ctid, j.key
    FROM line_claims c, LATERAL (
        SELECT l.ctid, l.key FROM live l
        WHERE l.q = c.q AND l.state = 'w' AND l.priority = c.priority
          AND (l.run_at, l.seq) >= (c.first_run_at, c.first_seq) AND (l.run_at, l.seq) <= (c.last_run_at, c.last_seq)
          AND l.fence IS NOT NULL AND l.line_lease = c.lease OFFSET 0) j
    WHERE c.q = wanted AND (held IS NULL OR c.lease = held)
$$;

-- leave_line(queue, lease, spared, waits): take the jobs of a lease out of the line (NULL: of each lease), except those of
-- its `spared` latest claims. Without `waits`, a job that another transaction has locked stays in the line.
CREATE FUNCTION leave_line(qu queues, held uuid, spared integer, waits boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c line_claims;
    picked tid[];
BEGIN
    IF waits THEN
        -- Another call may move the jobs of a claim at this moment.
        PERFORM 1 FROM line_claims l WHERE l.q = qu.q AND (held IS NULL OR l.lease = held) FOR UPDATE;
    END IF;
    FOR c IN
        SELECT * FROM line_claims l
        WHERE l.q = qu.q AND l.n = ANY (ARRAY(
            SELECT o.n FROM line_claims o WHERE o.q = qu.q AND (held IS NULL OR o.lease = held)
            ORDER BY o.n DESC OFFSET spared))
        FOR UPDATE SKIP LOCKED
    LOOP
        IF waits THEN
            picked := ARRAY(
                SELECT ctid FROM live l
                WHERE l.q = c.q AND l.state = 'w' AND l.priority = c.priority
                  AND (l.run_at, l.seq) >= (c.first_run_at, c.first_seq)
                  AND (l.run_at, l.seq) <= (c.last_run_at, c.last_seq)
                  AND l.fence IS NOT NULL AND l.line_lease = c.lease
                ORDER BY l.id COLLATE "POSIX" FOR UPDATE);
        ELSE
            picked := ARRAY(
                SELECT ctid FROM live l
                WHERE l.q = c.q AND l.state = 'w' AND l.priority = c.priority
                  AND (l.run_at, l.seq) >= (c.first_run_at, c.first_seq)
                  AND (l.run_at, l.seq) <= (c.last_run_at, c.last_seq)
                  AND l.fence IS NOT NULL AND l.line_lease = c.lease
                FOR UPDATE SKIP LOCKED);
        END IF;
        UPDATE live SET state = 'a', lease = line_lease WHERE ctid = ANY (picked);
        PERFORM 1 FROM live l
        WHERE l.q = c.q AND l.state = 'w' AND l.priority = c.priority
          AND (l.run_at, l.seq) >= (c.first_run_at, c.first_seq) AND (l.run_at, l.seq) <= (c.last_run_at, c.last_seq)
          AND l.fence IS NOT NULL AND l.line_lease = c.lease LIMIT 1;
        IF NOT FOUND THEN
            DELETE FROM line_claims l WHERE l.q = c.q AND l.lease = c.lease AND l.n = c.n;
        END IF;
    END LOOP;
END $$;

-- start_runs(rows, lease, holder, now, in_line) -> one row of arrays: the jobs that start, in the order of claims. `spots`
-- are the positions of the rows, with which a settlement finds them. `memos` and `rests` are NULL if each element is.
CREATE FUNCTION start_runs(
    picked tid[], under uuid, named text, now_ms bigint, in_line boolean,
    OUT fences bigint[], OUT spots text[], OUT ids text[], OUT payloads bytea[], OUT starts bigint[],
    OUT enqueues bigint[], OUT seqs bigint[], OUT tries integer[], OUT memos bytea[], OUT rests text[]
) LANGUAGE plpgsql AS $$
BEGIN
    WITH taken AS (
        UPDATE live l SET
            state = CASE WHEN in_line THEN 'w' ELSE 'a' END, lease = CASE WHEN NOT in_line THEN under END,
            line_lease = CASE WHEN in_line THEN under END, fence = nextval('numbers'), holder = named,
            claimed_at = now_ms, attempts = attempts + 1
        WHERE ctid = ANY (picked)
        RETURNING l.ctid AS spot, l.fence, l.id, l.payload, l.run_at, l.enqueued_at, l.seq, l.attempts, l.memo,
            rest_of(l.seq, l.attributes, l.overrides, l.retention, l.first, l.revision, l.enqueues, l.retries, l.stalls,
                    l.timeouts, l.error, l.origin, l.key) AS rest
    )
    SELECT array_agg(t.fence), array_agg(t.spot::text), array_agg(t.id), array_agg(t.payload), array_agg(t.run_at),
           array_agg(t.enqueued_at), array_agg(t.seq), array_agg(t.attempts),
           CASE WHEN count(t.memo) > 0 THEN array_agg(t.memo) END, CASE WHEN count(t.rest) > 0 THEN array_agg(t.rest) END
    INTO fences, spots, ids, payloads, starts, enqueues, seqs, tries, memos, rests
    FROM (SELECT * FROM taken ORDER BY taken.run_at, taken.seq) t;
END $$;

-- The types of the results change, which CREATE OR REPLACE does not allow.
DROP FUNCTION claim(text, uuid, integer, bigint);
DROP FUNCTION claim_limited(integer, uuid, integer, bigint);

-- release_some(queue, lease, most, stalled, now): as in 0005_leases.sql.
CREATE OR REPLACE FUNCTION release_some(qu queues, held uuid, most integer, stalled boolean, now_ms bigint)
RETURNS TABLE (id text, fence bigint, kind text) LANGUAGE plpgsql AS $$
DECLARE
    j live;
    back record;
    told text[] := '{}';
    ends text[] := '{}';
BEGIN
    PERFORM leave_line(qu, held, 0, true);
    FOR j IN
        SELECT * FROM live l WHERE l.q = qu.q AND l.lease = held
        ORDER BY l.id COLLATE "POSIX" LIMIT most FOR UPDATE
    LOOP
        back := give_back(qu, j, now_ms, stalled);
        id := j.id;
        fence := j.fence;
        kind := back.kind;
        told := told || back.told;
        IF kind = 'cancelled' THEN
            ends := ends || id;
        END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM tell(qu, now_ms, told);
    PERFORM ring(qu, true, cardinality(told) > 0, ends);
END $$;

-- renew(queues, lease, ttl, now): as in 0005_leases.sql. A job that stays active for so long leaves the line.
CREATE OR REPLACE FUNCTION renew(names text[], held uuid, ttl bigint, manual bigint)
RETURNS TABLE (name text, now_ms bigint, ends_at bigint, asked text[])
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    qu queues;
BEGIN
    now_ms := tick(manual);
    RETURN NEXT;
    FOR qu IN SELECT * FROM queues k WHERE k.name = ANY (names) ORDER BY q LOOP
        UPDATE leases SET expires_at = greatest(expires_at, now_ms + ttl)
        WHERE lease = held AND q = qu.q AND expires_at > now_ms AND NOT dropped
        RETURNING expires_at INTO ends_at;
        IF FOUND THEN
            PERFORM leave_line(qu, held, 0, false);
            name := qu.name;
            asked := ARRAY(
                SELECT id FROM live WHERE q = qu.q AND lease = held AND cancel_requested
                ORDER BY id COLLATE "POSIX");
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- cancel_one(queue, now, id, running): as in 0022_by_id.sql. A run that is asked to stop leaves the line, so that renew()
-- finds it.
CREATE OR REPLACE FUNCTION cancel_one(
    qu queues, now_ms bigint, wanted text, running boolean, OUT status text, OUT told text[]
) LANGUAGE plpgsql AS $$
DECLARE
    j live;
    is_live boolean;
BEGIN
    told := '{}';
    LOOP
        SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted FOR UPDATE;
        EXIT WHEN FOUND;
        SELECT EXISTS (SELECT 1 FROM live WHERE q = qu.q AND id = wanted), coalesce((
            SELECT kind FROM ended
            WHERE q = qu.q AND id = wanted AND (expires_at IS NULL OR expires_at > now_ms)), 'not_found')
        INTO is_live, status;
        IF NOT is_live THEN
            RETURN;
        END IF;
    END LOOP;
    IF j.fence IS NULL THEN
        status := 'cancelled';
        told := end_run(qu, j, 'cancelled', now_ms, NULL, NULL, NULL);
        RETURN;
    END IF;
    status := 'active';
    IF (j.next).revision IS NOT NULL THEN
        status := 'cancelled';
        told := drop_next(qu, j, now_ms);
    END IF;
    IF NOT running THEN
        RETURN;
    END IF;
    SELECT * INTO j FROM live WHERE q = qu.q AND id = wanted;
    IF j.state = 'h' THEN
        status := 'cancelled';
        told := told || end_run(qu, j, 'cancelled', now_ms, NULL, NULL, NULL);
        RETURN;
    END IF;
    status := 'requested';
    IF j.cancel_requested IS NOT TRUE THEN
        UPDATE live SET cancel_requested = true, state = 'a', lease = CASE state WHEN 'w' THEN line_lease ELSE lease END
        WHERE q = j.q AND id = j.id;
        IF qu.log_level = 'all' THEN
            told := told || note_event('cancel_requested', j, now_ms);
        END IF;
    END IF;
END $$;

-- free_key(job): as in 0023_limits.sql.
CREATE OR REPLACE FUNCTION free_key(j live) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF j.lease IS NOT NULL OR j.state = 'w' AND (j.fence IS NOT NULL OR (SELECT has_filed FROM queues WHERE q = j.q)) THEN
        INSERT INTO freed VALUES (j.q, j.key);
    END IF;
END $$;

-- claim_jobs(queue, max_jobs, ttl, holder): as in 0014_sql_functions.sql.
CREATE OR REPLACE FUNCTION claim_jobs(
    queue text, max_jobs integer DEFAULT 1, ttl interval DEFAULT '30 seconds', holder text DEFAULT NULL
) RETURNS TABLE (
    id text, payload jsonb, attributes jsonb, attempts integer, retries integer, stalls integer, timeouts integer,
    fence bigint, lease uuid, lease_expires_at timestamptz, payload_bytes bytea
) LANGUAGE plpgsql SECURITY DEFINER {pinned} AS $$
#variable_conflict use_column
DECLARE
    held uuid := gen_random_uuid();
    length bigint := interval_ms('ttl', coalesce(ttl, '30 seconds'), 1);
    named text := coalesce(holder, 'sql:' || session_user || ':' || pg_backend_pid());
    own bigint;
BEGIN
    PERFORM check_call(queue), check_range('max_jobs', max_jobs, 1, 1000000), check_size('holder', named, 512);
    PERFORM reap(queue, 100, NULL);
    PERFORM grant_lease(ARRAY[queue], held, length, named, NULL);
    PERFORM claim(queue, held, max_jobs, NULL);
    PERFORM leave_line(k, held, 0, true) FROM queues k WHERE k.name = queue;
    SELECT coalesce(max((j.overrides ->> 'lease')::bigint), 0) INTO own
    FROM queues k JOIN live j ON j.q = k.q AND j.lease = held WHERE k.name = queue HAVING count(*) > 0;
    IF NOT FOUND THEN
        PERFORM drop_lease(ARRAY[queue], held, 1, NULL);
        RETURN;
    ELSIF own > length THEN
        PERFORM renew(ARRAY[queue], held, own, NULL);
    END IF;
    RETURN QUERY
    SELECT j.id, as_jsonb(j.payload), coalesce(j.attributes::jsonb, '{}'), j.attempts, j.retries, j.stalls, j.timeouts,
           j.fence, j.lease, as_time(l.expires_at), j.payload
    FROM leases l JOIN live j ON j.q = l.q AND j.lease = l.lease
    WHERE l.lease = held ORDER BY j.priority DESC, j.run_at, j.seq;
END $$;

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
    CASE WHEN j.state = 'w' AND j.fence IS NOT NULL THEN j.line_lease ELSE j.lease END AS lease,
    (j.overrides ->> 'lease')::bigint * interval '1 millisecond' AS own_lease,
    j.overrides::jsonb AS overrides, j.retention, as_origin(j.origin) AS origin,
    j.key, j.memo
FROM live j JOIN queues k USING (q) LEFT JOIN leases l ON l.q = j.q AND l.lease = CASE WHEN j.state = 'w' AND j.fence IS NOT NULL THEN j.line_lease ELSE j.lease END;
