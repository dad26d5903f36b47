-- Locks that only roles with rights on the schema can take. Any role that may connect to the database can hold any
-- advisory lock, whose keys are numbers that it can compute. So no function waits for an advisory lock; the functions
-- below lock the table `number_lock` of 0040_incarnations.sql.

-- raise_numbers(floor): raise the sequence, so that the next number is above `floor`.
-- The lock prevents two calls from setting the sequence back. The lock of a table lasts until the end of its transaction,
-- which may belong to the caller and last long. So the function raises an error in a subtransaction: that gives the lock
-- back at once, and the value of a sequence stays.
CREATE OR REPLACE FUNCTION raise_numbers(floor bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE {name}.number_lock IN EXCLUSIVE MODE;
    IF (SELECT last_value FROM {name}.numbers) < floor THEN
        PERFORM setval('{name_text}.numbers', floor);
    END IF;
    RAISE SQLSTATE 'DIBS0';
EXCEPTION WHEN SQLSTATE 'DIBS0' THEN
END $$;

-- change_lead() -> the lead that tick() adds to the server's clock from now on, see 0012_clock.sql. The lock prevents two
-- calls from setting it twice. Under the lock the clock is read after `seen`: a call that was suspended between the two
-- would take the time of other calls for a step of the clock. The lock is given back like that of raise_numbers().
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

-- begin_telling(): announce that this transaction will append log entries, so that shown_until() hides later entries
-- until it ends. For that it takes a shared advisory lock until the end of the transaction. The key of the lock is the
-- latest number in units of 1,024 us, in 32 bits, which distinguishes transactions within 49 days. Every entry of this
-- transaction gets a number above it. A transaction of several steps takes the lock only once. If another session holds
-- the key in exclusive mode, the lock of an earlier number does as well: readers then see a little less until the end.
CREATE OR REPLACE FUNCTION begin_telling() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    me text := pg_current_xact_id()::text;
    mark bigint;
BEGIN
    IF current_setting('{setting}', true) IS DISTINCT FROM me THEN
        SELECT last_value >> 10 INTO mark FROM numbers;
        WHILE NOT pg_try_advisory_xact_lock_shared({log_class}, mark::bit(32)::integer) LOOP
            mark := mark - 1;
        END LOOP;
        PERFORM set_config('{setting}', me, true);
    END IF;
END $$;

-- shown_until() -> the number up to which readers may see log entries. Open transactions that append entries, and
-- those that start later, use numbers above it, so an entry never appears behind a reader. Only transactions that
-- append entries lower the result. A transaction that appends also has the table `events` open for writing, which needs
-- a right on it, so the advisory lock of any other session does not count. A writer that has not opened the table yet draws
-- its numbers after this look. Call it in an earlier statement than the one that reads the entries, because under READ
-- COMMITTED each statement has another snapshot.
CREATE OR REPLACE FUNCTION shown_until() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    -- Read this before pg_locks: a transaction that opens `events` after the query of pg_locks uses higher numbers.
    latest bigint := (SELECT last_value FROM numbers);
    back bigint;
BEGIN
    WITH held AS MATERIALIZED (
        SELECT l.virtualtransaction, l.locktype, l.objid FROM pg_locks l
        WHERE l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND CASE l.locktype
              WHEN 'advisory' THEN l.objsubid = 2 AND l.mode = 'ShareLock' AND l.classid::bigint = {log_class}
              WHEN 'relation' THEN l.mode = 'RowExclusiveLock' AND l.relation = 'events'::regclass END
    )
    SELECT max(((latest >> 10) - a.objid::bigint) & 4294967295) INTO back FROM held a
    WHERE a.locktype = 'advisory'
      AND a.virtualtransaction IN (SELECT w.virtualtransaction FROM held w WHERE w.locktype = 'relation');
    RETURN CASE WHEN back IS NULL THEN latest ELSE ((latest >> 10) - back) << 10 END;
END $$;
