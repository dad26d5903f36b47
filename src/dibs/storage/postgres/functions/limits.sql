-- The arithmetic of limits by key and by rate, and the keys that may start jobs again.

-- rate_interval(rate) -> the time between two starts at the full rate, in us, rounded up; NULL without a rate.
CREATE OR REPLACE FUNCTION rate_interval(r start_rate) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT (r.per * 1000 + r.starts - 1) / r.starts
$$;

-- starts_left(clock, rate, now) -> the number of runs that may start now; NULL for any number. `clock` may be NULL.
CREATE OR REPLACE FUNCTION starts_left(clock bigint, r start_rate, now_ms bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN r.starts IS NOT NULL THEN greatest(0, (
        now_ms * 1000 + r.burst * rate_interval(r) - greatest(clock, now_ms * 1000)) / rate_interval(r)) END
$$;

-- opening(clock, rate) -> the first ms in which the clock allows a start.
CREATE OR REPLACE FUNCTION opening(clock bigint, r start_rate) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(0, (clock - (r.burst - 1) * rate_interval(r) + 999) / 1000)
$$;

-- charge(queue, rate, now, keys): move the clock of each key by its starts. `keys` has one element for each start; NULL
-- elements are left out.
CREATE OR REPLACE FUNCTION charge(queue integer, r start_rate, now_ms bigint, keys text[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO clocks AS old (q, key, clock, opens)
    SELECT queue, s.key, s.clock, opening(s.clock, r)
    FROM (SELECT u.key, now_ms * 1000 + count(*) * rate_interval(r) AS clock
          FROM unnest(keys) AS u (key) WHERE u.key IS NOT NULL GROUP BY u.key) s
    ON CONFLICT (q, key) DO UPDATE SET
        clock = excluded.clock + greatest(0, old.clock - now_ms * 1000),
        opens = opening(excluded.clock + greatest(0, old.clock - now_ms * 1000), r)
$$;

-- cost_charged(clock, rate, cost, at) -> the clock after a run with a cost in thousandths of a start was settled.
-- `clock` may be NULL. A clock is at most 366 days ahead.
CREATE OR REPLACE FUNCTION cost_charged(clock bigint, r start_rate, cost bigint, at bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN cost > 1000 THEN least(greatest(clock, at * 1000) + m.moved, at * 1000 + 31622400000000)
                WHEN clock > at * 1000 THEN clock + m.moved ELSE clock END::bigint
    FROM (SELECT ceil((cost - 1000)::numeric * rate_interval(r) / 1000) AS moved) m
$$;

-- charge_costs(queue): charge the costs that settlements have left, in order, each at its own time. Between two claims
-- only costs move a clock, so the clocks are those of settlements that write them at once.
CREATE OR REPLACE FUNCTION charge_costs(qu queues) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    k record;
BEGIN
    FOR k IN
        WITH gone AS (DELETE FROM costs WHERE q = qu.q RETURNING *)
        SELECT r.key, r.rate, o.clock, array_agg(g.at ORDER BY g.at, g.n) AS times,
               array_agg(g.cost ORDER BY g.at, g.n) AS costs
        FROM gone g CROSS JOIN LATERAL (VALUES (''::text, qu.rate), (g.key, qu.key_rate)) r (key, rate)
        LEFT JOIN clocks o ON o.q = qu.q AND o.key = r.key
        WHERE r.key IS NOT NULL AND (r.rate).starts IS NOT NULL
        GROUP BY r.key, r.rate, o.clock
    LOOP
        FOR i IN 1 .. cardinality(k.times) LOOP
            k.clock := cost_charged(k.clock, k.rate, k.costs[i], k.times[i]);
        END LOOP;
        INSERT INTO clocks (q, key, clock, opens)
        SELECT qu.q, k.key, k.clock, opening(k.clock, k.rate) WHERE k.clock IS NOT NULL
        ON CONFLICT (q, key) DO UPDATE SET clock = excluded.clock, opens = excluded.opens;
    END LOOP;
END $$;

-- free_key(job): append the key of a job to `freed`, for a run that leaves its lease (it ends, returns, is handed off
-- or forgotten), and for a job that leaves its place in the line. It is called with the row as it was before this step,
-- and does so under any settings, since those that this call sees may be older than a configure() that a claim obeys
-- already. A place in the line matters only while keys hold jobs back: the first such job of an open key may be behind
-- this job, which a claim has brought back.
CREATE OR REPLACE FUNCTION free_key(j live) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF j.lease IS NOT NULL OR j.state = 'w' AND (SELECT has_held_back FROM queues WHERE q = j.q) THEN
        INSERT INTO freed VALUES (j.q, j.key);
    END IF;
END $$;

-- bring_heads(queue, keys): bring the first job that it holds back of each key back into the line. A job that another
-- call has locked stays held_back. If a key has no other job, the key is left for the next claim.
CREATE OR REPLACE FUNCTION bring_heads(qu queues, keys text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    picked tid[];
    brought text[];
BEGIN
    SELECT coalesce(array_agg(h.spot), '{}'), coalesce(array_agg(k.key), '{}') INTO picked, brought
    FROM unnest(keys) AS k (key), LATERAL (
        SELECT ctid AS spot FROM live WHERE q + 0 = qu.q AND state = 'k' AND coalesce(key, '') = k.key
        ORDER BY priority DESC, run_at, seq LIMIT 1 FOR UPDATE SKIP LOCKED) h;
    PERFORM return_to_line(qu, picked);
    IF cardinality(brought) < cardinality(keys) THEN
        INSERT INTO freed SELECT qu.q, k.key FROM unnest(keys) AS k (key)
        WHERE k.key <> ALL (brought) AND EXISTS (
            SELECT 1 FROM live f WHERE f.q + 0 = qu.q AND f.state = 'k' AND coalesce(f.key, '') = k.key OFFSET 0);
    END IF;
END $$;

-- return_to_line(queue, rows): let jobs that keys held back wait in the line.
CREATE OR REPLACE FUNCTION return_to_line(qu queues, picked tid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    levels smallint[];
    times bigint[];
BEGIN
    WITH brought AS (UPDATE live SET state = 'w' WHERE ctid = ANY (picked) RETURNING priority, run_at)
    SELECT array_agg(priority), array_agg(run_at) INTO levels, times FROM brought;
    PERFORM note_starts(qu.q, levels, times);
END $$;

-- bring_all(queue, most): bring the first `most` jobs held back of a queue without limits by key back into the line.
CREATE OR REPLACE FUNCTION bring_all(qu queues, most bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    picked tid[];
BEGIN
    picked := ARRAY(
        SELECT ctid FROM live WHERE q = qu.q AND state = 'k'
        ORDER BY priority DESC, run_at, seq LIMIT most FOR UPDATE SKIP LOCKED);
    PERFORM return_to_line(qu, picked);
    IF cardinality(picked) < most AND NOT EXISTS (SELECT 1 FROM live WHERE q + 0 = qu.q AND state = 'k') THEN
        UPDATE queues SET has_held_back = false WHERE q = qu.q;
    END IF;
END $$;

-- reopen(queue, now, keys): bring back the first job that it holds back of each key that is open, and note which clocks
-- the held_back jobs of the others wait for. A full key is looked at again when a run of it leaves its lease.
CREATE OR REPLACE FUNCTION reopen(qu queues, now_ms bigint, keys text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    open_keys text[];
    resting text[];
BEGIN
    SELECT array_agg(r.key) FILTER (WHERE r.room > 0),
           coalesce(array_agg(r.key) FILTER (WHERE r.room <= 0 AND NOT r.is_full), '{}')
    INTO open_keys, resting FROM rooms(qu, now_ms, keys) r;
    IF open_keys IS NOT NULL THEN
        PERFORM bring_heads(qu, open_keys);
    END IF;
    IF qu.key_rate IS NOT NULL THEN
        UPDATE clocks c SET waits = s.waits
        FROM (
            SELECT k.key, k.key = ANY (resting) AND EXISTS (
                SELECT 1 FROM live f WHERE f.q + 0 = qu.q AND f.state = 'k' AND coalesce(f.key, '') = k.key OFFSET 0) AS waits
            FROM (SELECT DISTINCT u.key FROM unnest(keys) AS u (key)) k) s
        WHERE c.q = qu.q AND c.key = s.key AND c.waits <> s.waits;
    END IF;
END $$;

-- reopen_freed(queue, now): reopen the keys in `freed`, and those whose clock allows a start since the last claim. A
-- settle that commits after the DELETE leaves its key for the next claim.
CREATE OR REPLACE FUNCTION reopen_freed(qu queues, now_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    keys text[];
BEGIN
    WITH gone AS (DELETE FROM freed WHERE q = qu.q RETURNING key) SELECT array_agg(DISTINCT key) INTO keys FROM gone;
    IF qu.key_rate IS NOT NULL THEN
        keys := keys || ARRAY(SELECT key FROM clocks WHERE q + 0 = qu.q AND waits AND opens <= now_ms);
    END IF;
    IF qu.has_held_back AND cardinality(keys) > 0 THEN
        PERFORM reopen(qu, now_ms, keys);
    END IF;
END $$;

-- prune_limits(queue, most, now): remove the freed keys of a queue without limits by key, and clocks that have no
-- effect any more. The lock keeps configure() from setting such a limit until the freed keys are removed.
CREATE OR REPLACE FUNCTION prune_limits(qu queues, most integer, now_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM freed WHERE q = qu.q) THEN
        SELECT * INTO qu FROM queues WHERE q = qu.q FOR SHARE;
        IF NOT limits_keys(qu) THEN
            DELETE FROM freed WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM freed WHERE q = qu.q LIMIT 100000 FOR UPDATE SKIP LOCKED));
        END IF;
    END IF;
    DELETE FROM clocks WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM clocks WHERE q + 0 = qu.q AND NOT waits AND opens <= now_ms AND clock <= now_ms * 1000
        LIMIT most FOR UPDATE SKIP LOCKED));
END $$;
