-- Leases: grant, renew, drop, and the reaping of expired ones.

-- grant_lease(queues, lease, ttl, holder, now) -> the current time. Creates the lease on each of the queues.
CREATE OR REPLACE FUNCTION grant_lease(names text[], new_lease uuid, ttl bigint, named text, manual bigint)
RETURNS bigint LANGUAGE plpgsql {pinned} AS $$
DECLARE
    now_ms bigint := tick(manual);
    name text;
BEGIN
    FOREACH name IN ARRAY names LOOP
        INSERT INTO leases VALUES (new_lease, (queue_of(name)).q, named, now_ms + ttl) ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN now_ms;
END $$;

-- renew(queues, lease, ttl, now) -> a first row with only the current time, then a row for each queue where the lease
-- is alive. Extends the lease to `ttl` ms from now, and never shortens it. `asked` lists the ids whose cancellation
-- was requested.
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
            PERFORM prune_claims(qu.q, held);
            name := qu.name;
            asked := ARRAY(SELECT id FROM live WHERE q = qu.q AND cancel_requested AND lease = held ORDER BY id);
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- drop_lease(queues, lease, most, now) -> the number of remaining jobs, for each queue that has the lease. Releases up
-- to `most` jobs per queue. After the first call the lease is lost for renew and claim. The row of the lease is
-- deleted with its last job. An expired lease is left to reap().
CREATE OR REPLACE FUNCTION drop_lease(names text[], held uuid, most integer, manual bigint)
RETURNS TABLE (name text, remaining bigint) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    now_ms bigint := tick(manual);
    qu queues;
BEGIN
    FOR qu IN SELECT * FROM queues k WHERE k.name = ANY (names) ORDER BY q LOOP
        PERFORM 1 FROM leases WHERE lease = held AND q = qu.q AND expires_at > now_ms FOR UPDATE;
        IF FOUND THEN
            now_ms := tick(manual);
            PERFORM release_some(qu, held, most, false, now_ms);
            name := qu.name;
            SELECT count(*) INTO remaining FROM active_runs(qu.q, held);
            IF remaining > 0 THEN
                UPDATE leases SET dropped = true WHERE lease = held AND q = qu.q;
            ELSE
                PERFORM delete_lease(qu, held);
            END IF;
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- reap(queue, most, now) -> up to `most` jobs of expired leases, each with its fence and its new state: stalled,
-- released (if the lease was dropped) or cancelled. Deletes an expired lease with its last job. If no lease has
-- expired, it costs one index lookup. Skips leases that a concurrent reap or claim has locked.
CREATE OR REPLACE FUNCTION reap(queue text, most integer, manual bigint)
RETURNS TABLE (id text, fence bigint, kind text) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    now_ms bigint := tick(manual);
    qu queues;
    l leases;
    room integer := most;
    taken integer;
BEGIN
    SELECT * INTO qu FROM queues WHERE name = queue;
    FOR l IN
        SELECT * FROM leases WHERE q + 0 = qu.q AND expires_at <= now_ms
        ORDER BY expires_at FOR UPDATE SKIP LOCKED
    LOOP
        RETURN QUERY SELECT * FROM release_some(qu, l.lease, room, NOT l.dropped, tick(manual));
        GET DIAGNOSTICS taken = ROW_COUNT;
        room := room - taken;
        EXIT WHEN EXISTS (SELECT 1 FROM active_runs(qu.q, l.lease));
        PERFORM delete_lease(qu, l.lease);
    END LOOP;
END $$;

-- delete_lease(queue, lease): delete a lease without active jobs.
CREATE OR REPLACE FUNCTION delete_lease(qu queues, held uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM claims WHERE lease = held AND q = qu.q;
    DELETE FROM leases WHERE lease = held AND q = qu.q;
END $$;

-- release_some(queue, lease, most, stalled, now) -> the jobs that it took away from the lease, up to `most`. The caller
-- has locked the row of the lease.
CREATE OR REPLACE FUNCTION release_some(qu queues, held uuid, most integer, stalled boolean, now_ms bigint)
RETURNS TABLE (id text, fence bigint, kind text) LANGUAGE plpgsql AS $$
DECLARE
    j live;
    back record;
    logged text[] := '{}';
    ends text[] := '{}';
BEGIN
    FOR j IN
        SELECT l.* FROM (SELECT r.id FROM active_runs(qu.q, held) r ORDER BY r.id COLLATE "C" LIMIT most) a,
            LATERAL (SELECT * FROM live l WHERE l.q = qu.q AND l.id = a.id FOR UPDATE) l
        WHERE l.lease = held
    LOOP
        back := give_back(qu, j, now_ms, stalled);
        id := j.id;
        fence := j.fence;
        kind := back.kind;
        logged := logged || back.logged;
        IF kind = 'cancelled' THEN
            ends := ends || id;
        END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM append_log(qu.q, now_ms, logged);
    PERFORM notify_waits(qu, true, cardinality(logged) > 0, ends);
END $$;

-- give_back(queue, job, now, stalled) -> stalled, released or cancelled, and the events to log. Takes an active job
-- away from its lease, so that it waits again, or ends if its cancellation was requested.
CREATE OR REPLACE FUNCTION give_back(
    qu queues, j live, now_ms bigint, stalled boolean, OUT kind text, OUT logged text[]
) LANGUAGE plpgsql AS $$
BEGIN
    IF j.cancel_requested THEN
        kind := 'cancelled';
        logged := end_run(qu, j, 'cancelled', now_ms, NULL, NULL, NULL);
    ELSIF stalled THEN
        kind := 'stalled';
        logged := return_to_queue(qu, j, now_ms, now_ms, 'stall', NULL);
    ELSE
        kind := 'released';
        logged := return_to_queue(qu, j, now_ms, NULL, NULL, NULL);
    END IF;
END $$;
