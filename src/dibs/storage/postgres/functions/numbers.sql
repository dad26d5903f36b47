-- The clock of the storage, and the numbers of jobs.

-- incarnation_now(oid of the sequence `numbers`) -> a number for this run of the server and this copy of the schema.
-- The start of the server is another one on a standby and after a restore, and the oid is another one in a schema that
-- was restored from a dump. A crash of a server process resets the statistics and not the time of the start; before
-- Postgres 15, the function for their reset is slow, and such a crash is not noticed.
DO $do$
DECLARE
    body text := $$SELECT sequence::bigint << 20 # (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint$$;
BEGIN
    IF current_setting('server_version_num')::integer >= 150000 THEN
        body := body || $$ # coalesce((date_part('epoch', pg_stat_get_bgwriter_stat_reset_time()) * 1000)::bigint << 20, 0)$$;
    END IF;
    EXECUTE 'CREATE OR REPLACE FUNCTION {name_text}.incarnation_now(sequence oid) RETURNS bigint LANGUAGE sql STABLE AS '
        || quote_literal(body);
END $do$;

-- begin_incarnation(here, now): raise the numbers, once for each incarnation. They begin an hour further ahead of the
-- time than those of the incarnation before. So the lost numbers are below, unless the clock of the lost server was
-- almost an hour ahead of this one. Two servers that are promoted from the same state are ordered by their clocks.
-- `incarnation` is set last, so that a call that reads it draws above the jump. The error gives the lock back at once,
-- and the values of the sequences stay: the transaction may belong to the caller and last long.
CREATE OR REPLACE FUNCTION begin_incarnation(here bigint, now_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
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

-- tick(manual) -> the current time in ms, never before an earlier result. Afterwards nextval('numbers') is at least
-- this time in us. `manual` NULL selects the server's clock, plus the lead of the storage; a step back of that clock
-- can show for up to 50 ms, because `seen` is only written every 50 ms. A manual clock never steps back. The numbers
-- run up to a second ahead of the clock, so that they are raised about once a second instead of at each call. Before
-- the first number of a new incarnation, it calls begin_incarnation(). Plain SQL calls this function, too, so it names
-- its schema. On a standby it writes nothing. Every verb starts here. Why pg_sequence_last_value(): a SELECT of four
-- sequences takes 6 us more. It returns NULL for a sequence that was never set.
CREATE OR REPLACE FUNCTION tick(manual bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    now_ms bigint := coalesce(manual, floor(date_part('epoch', clock_timestamp()) * 1000));
    latest bigint := coalesce(pg_sequence_last_value('{name_text}.seen'), 0);
    lead_ms bigint := coalesce(pg_sequence_last_value('{name_text}.lead'), 0);
    drawn bigint := coalesce(pg_sequence_last_value('{name_text}.numbers'), 0);
    here bigint := {name}.incarnation_now('{name_text}.numbers'::regclass);
BEGIN
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
    IF here IS DISTINCT FROM pg_sequence_last_value('{name_text}.incarnation') AND NOT pg_is_in_recovery() THEN
        PERFORM {name}.begin_incarnation(here, now_ms);
    ELSIF drawn < now_ms * 1000 AND NOT pg_is_in_recovery() THEN
        PERFORM {name}.raise_numbers(now_ms * 1000 + 1000000);
    END IF;
    RETURN now_ms;
END $$;

-- raise_numbers(floor): raise the sequence, so that the next number is above `floor`. The lock prevents two calls from
-- setting the sequence back. The lock of a table lasts until the end of its transaction, which may belong to the caller
-- and last long. So the function raises an error in a subtransaction: that gives the lock back at once, and the value
-- of a sequence stays.
CREATE OR REPLACE FUNCTION raise_numbers(floor bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE {name}.number_lock IN EXCLUSIVE MODE;
    IF (SELECT last_value FROM {name}.numbers) < floor THEN
        PERFORM setval('{name_text}.numbers', floor);
    END IF;
    RAISE SQLSTATE 'DIBS0';
EXCEPTION WHEN SQLSTATE 'DIBS0' THEN
END $$;

-- change_lead() -> the lead that tick() adds to the server's clock from now on. The lock prevents two calls from
-- setting it twice. Under the lock the clock is read after `seen`: a call that was suspended between the two would take
-- the time of other calls for a step of the clock. The lock is given back like that of raise_numbers().
CREATE OR REPLACE FUNCTION change_lead() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    latest bigint;
    stored bigint;
    wanted bigint;
    clock_ms bigint;
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN (SELECT last_value FROM {name}.lead);
    END IF;
    BEGIN
        LOCK TABLE {name}.number_lock IN EXCLUSIVE MODE;
        SELECT s.last_value, l.last_value INTO latest, stored FROM {name}.seen s, {name}.lead l;
        clock_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
        wanted := CASE
            WHEN clock_ms >= latest - 1000 THEN 0
            WHEN clock_ms + stored < latest - 1000 THEN latest - clock_ms
            ELSE stored END;
        IF wanted <> stored THEN
            PERFORM setval('{name_text}.lead', wanted);
        END IF;
        RAISE SQLSTATE 'DIBS0';
    EXCEPTION WHEN SQLSTATE 'DIBS0' THEN
    END;
    IF wanted > stored THEN
        RAISE WARNING 'dibs: the time of the schema % is % ms ahead of the clock of this server: the clock was ahead '
            'once, or was set back. Time goes on from there.', '{name_text}', wanted;
    END IF;
    RETURN wanted;
END $$;

-- Begin the first incarnation now. A standby that loses the first calls then jumps above their numbers, too.
SELECT begin_incarnation(incarnation_now('numbers'::regclass::oid), floor(extract(epoch FROM now()) * 1000)::bigint);
