-- Numbers after the server lost its latest writes: a standby that was promoted, a restored backup, a crash with
-- synchronous_commit = off. The lost numbers may be above all that this server knows, because its clock may be behind, and
-- because the sequence runs ahead of the time. So the numbers first jump (docs/explanation/contract.md, Numbers).

-- Has no rows: a function that sets a sequence locks it. A role needs UPDATE or DELETE on it.
CREATE TABLE number_lock ();

-- The incarnation that drew the latest numbers, as incarnation_now() returned it.
CREATE SEQUENCE incarnation AS bigint MINVALUE 0 START 0;

-- The us by which the first number of this incarnation was ahead of the time.
CREATE SEQUENCE ahead AS bigint MINVALUE 0 START 0;

-- incarnation_now(oid of the sequence `numbers`) -> a number for this run of the server and this copy of the schema. The
-- start of the server is another one on a standby and after a restore, and the oid is another one in a schema that was
-- restored from a dump. A crash of a server process resets the statistics and not the time of the start; before Postgres
-- 15, the function for their reset is slow, and such a crash is not noticed.
DO $do$
DECLARE
    body text := $$SELECT sequence::bigint << 20 # (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint$$;
BEGIN
    IF current_setting('server_version_num')::integer >= 150000 THEN
        body := body || $$ # coalesce((date_part('epoch', pg_stat_get_bgwriter_stat_reset_time()) * 1000)::bigint << 20, 0)$$;
    END IF;
    EXECUTE 'CREATE FUNCTION {name_text}.incarnation_now(sequence oid) RETURNS bigint LANGUAGE sql STABLE AS '
        || quote_literal(body);
END $do$;

-- begin_incarnation(here, now): raise the numbers, once for each incarnation. They begin an hour further ahead of the time
-- than those of the incarnation before. So the lost numbers are below, unless the clock of the lost server was almost an
-- hour ahead of this one. Two servers that are promoted from the same state are ordered by their clocks. `incarnation` is
-- set last, so that a call that reads it draws above the jump. The error gives the lock back at once, and the values of the
-- sequences stay: the transaction may belong to the caller and last long.
CREATE FUNCTION begin_incarnation(here bigint, now_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    clock_us bigint := floor(extract(epoch FROM clock_timestamp()) * 1000000);
BEGIN
    LOCK TABLE {name}.number_lock IN EXCLUSIVE MODE;
    IF (SELECT last_value FROM {name}.incarnation) <> here THEN
        PERFORM setval('{name_text}.ahead', last_value + 3600000000) FROM {name}.ahead;
        PERFORM setval('{name_text}.numbers',
            greatest(n.last_value + 1, now_ms * 1000 + clock_us % 1000 + a.last_value))
        FROM {name}.numbers n, {name}.ahead a;
        PERFORM setval('{name_text}.incarnation', here);
    END IF;
    RAISE SQLSTATE 'DIBS0';
EXCEPTION WHEN SQLSTATE 'DIBS0' THEN
END $$;

-- tick(manual) -> as in 0012_clock.sql. Before the first number of a new incarnation, it also calls begin_incarnation().
CREATE OR REPLACE FUNCTION tick(manual bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    latest bigint;
    drawn bigint;
    lead_ms bigint;
    known bigint;
    here bigint;
    now_ms bigint := coalesce(manual, floor(extract(epoch FROM clock_timestamp()) * 1000));
BEGIN
    SELECT s.last_value, n.last_value, l.last_value, i.last_value, {name}.incarnation_now(n.tableoid)
    INTO latest, drawn, lead_ms, known, here
    FROM {name}.seen s, {name}.numbers n, {name}.lead l, {name}.incarnation i;
    IF manual IS NULL AND (lead_ms <> 0 OR now_ms < latest - 1000) THEN
        IF now_ms >= latest - 1000 OR now_ms + lead_ms < latest - 1000 THEN
            lead_ms := {name}.change_lead();
        END IF;
        now_ms := now_ms + lead_ms;
    END IF;
    -- setval writes WAL, so it runs at most 20 times a second; that is enough to detect a clock that was set back.
    IF now_ms > latest + (CASE WHEN manual IS NULL THEN 50 ELSE 0 END) AND NOT pg_is_in_recovery() THEN
        PERFORM setval('{name_text}.seen', now_ms);
    END IF;
    now_ms := greatest(now_ms, latest);
    IF known <> here AND NOT pg_is_in_recovery() THEN
        PERFORM {name}.begin_incarnation(here, now_ms);
    ELSIF drawn < now_ms * 1000 AND NOT pg_is_in_recovery() THEN
        PERFORM {name}.raise_numbers(now_ms * 1000 + 1000000);
    END IF;
    RETURN now_ms;
END $$;

-- Begin the first incarnation now. A standby that loses the first calls then jumps above their numbers, too.
SELECT begin_incarnation(incarnation_now('numbers'::regclass::oid), floor(extract(epoch FROM now()) * 1000)::bigint);
