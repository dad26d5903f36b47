-- The limits of a queue by key and by rate (settings per_key, rate and key_rate): tables, indexes and the arithmetic.
--
-- A claim of a queue with a limit reads the line as any claim. A due job of a closed key, which has no room under
-- per_key or no start under key_rate, is filed: its state becomes k, so it leaves the index live_line. Only claims and
-- configure() bring filed jobs back into the line, always the first of a key. A key is reopened
--
-- - after a run of the key left its lease. free_key() appends the key to `freed`, and the next claim reads it;
-- - when its clock allows the next start, see `clocks`;
-- - after one of its jobs was claimed, while the key is still open;
-- - after its first job in the line was cancelled or moved, which appends the key to `freed`, too.
--
-- So the first filed job of an open key has another job of that key before it in the line, or the key is in `freed`.
--
-- A settle must not bring back jobs itself. It may run at the same time as a claim: the claim still counts its run, and
-- files jobs that the settle does not see.

-- True from the first filed job until a claim without limits by key finds no filed job any more.
ALTER TABLE queues ADD COLUMN has_filed boolean NOT NULL DEFAULT false;

-- The filed jobs of each key in the order of claims, and all filed jobs of a queue in that order. Why (q + 0) in three of
-- these indexes: see ended_expiry in 0001_tables.sql.
CREATE INDEX live_filed ON live ((q + 0), key, priority DESC, run_at, seq) WHERE state = 'k';
CREATE INDEX live_filed_line ON live (q, priority DESC, run_at, seq) WHERE state = 'k';
-- The runs under leases of each key.
CREATE INDEX live_keyed ON live ((q + 0), key) WHERE lease IS NOT NULL AND key IS NOT NULL;

-- The clock of each key, in us, and of the queue itself, which has the key ''. dibs.model.rates has the arithmetic.
-- Only claims write it, under their lock on the row of the queue.
CREATE TABLE clocks (
    q integer NOT NULL,
    key text COLLATE "C" NOT NULL,
    clock bigint NOT NULL,
    -- The first ms in which the clock allows a start.
    opens bigint NOT NULL,
    -- True if filed jobs of the key wait for `opens`.
    waits boolean NOT NULL DEFAULT false,
    PRIMARY KEY (q, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE INDEX clocks_opening ON clocks ((q + 0), waits, opens);

-- Keys that the next claim looks at again. It has no unique index, so that no settle waits for another.
CREATE TABLE freed (
    q integer NOT NULL,
    key text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE INDEX freed_queue ON freed (q);

-- rate_interval(rate) -> the time between two starts at the full rate, in us, rounded up; NULL without a rate.
CREATE FUNCTION rate_interval(r start_rate) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT (r.per * 1000 + r.starts - 1) / r.starts
$$;

-- starts_left(clock, rate, now) -> the number of runs that may start now; NULL for any number. `clock` may be NULL.
CREATE FUNCTION starts_left(clock bigint, r start_rate, now_ms bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN r.starts IS NOT NULL THEN greatest(0, (
        now_ms * 1000 + r.burst * rate_interval(r) - greatest(clock, now_ms * 1000)) / rate_interval(r)) END
$$;

-- opening(clock, rate) -> the first ms in which the clock allows a start.
CREATE FUNCTION opening(clock bigint, r start_rate) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(0, (clock - (r.burst - 1) * rate_interval(r) + 999) / 1000)
$$;

-- charge(queue, rate, now, keys): move the clock of each key by its starts. `keys` has one element for each start; NULL
-- elements are left out.
CREATE FUNCTION charge(queue integer, r start_rate, now_ms bigint, keys text[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO clocks AS old (q, key, clock, opens)
    SELECT queue, s.key, s.clock, opening(s.clock, r)
    FROM (SELECT u.key, now_ms * 1000 + count(*) * rate_interval(r) AS clock
          FROM unnest(keys) AS u (key) WHERE u.key IS NOT NULL GROUP BY u.key) s
    ON CONFLICT (q, key) DO UPDATE SET
        clock = excluded.clock + greatest(0, old.clock - now_ms * 1000),
        opens = opening(excluded.clock + greatest(0, old.clock - now_ms * 1000), r)
$$;

-- free_key(job): append the key of a job to `freed`, for a run that leaves its lease, and for a job that leaves its place
-- in the line. It does so for a run under any settings, since those that this call sees may be older than a configure()
-- that a claim obeys already. A place in the line matters only while jobs are filed: the first filed job of an open key
-- may be behind this job, which a claim has brought back.
CREATE OR REPLACE FUNCTION free_key(j live) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF j.lease IS NOT NULL OR j.state = 'w' AND (SELECT has_filed FROM queues WHERE q = j.q) THEN
        INSERT INTO freed VALUES (j.q, j.key);
    END IF;
END $$;
